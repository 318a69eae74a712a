"""Settings of everything that stores: the database, the journal, retention and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from queenmq.config import parse
from queenmq.config.setting import setting


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings:
    """Database: where PostgreSQL is, and how long the server waits for it."""

    url: str | None = setting(
        "DATABASE_URL",
        None,
        "URL of an existing PostgreSQL to use instead of the bundled one. It may name several hosts "
        "(`postgresql://user@a:5432,b:5432/queen`): the server uses the one that can be written to.",
        secret=True,
    )
    host: str | None = setting(
        "PG_HOST",
        None,
        "Host of an existing PostgreSQL to use instead of the bundled one, or several with commas; for use without "
        "`DATABASE_URL`.",
    )
    port: int = setting("PG_PORT", 5432, "Port of the PostgreSQL at `PG_HOST`.", parse.port_number)
    name: str = setting("PG_DB", "postgres", "Database at `PG_HOST`.")
    user: str = setting("PG_USER", "postgres", "User for the PostgreSQL at `PG_HOST`.")
    password: str = setting("PG_PASSWORD", "postgres", "Password of `PG_USER`.", secret=True)
    use_ssl: bool = setting("PG_USE_SSL", False, "Connect to PostgreSQL with TLS.", parse.flag)
    ssl_reject_unauthorized: bool = setting(
        "PG_SSL_REJECT_UNAUTHORIZED", True, "With `PG_USE_SSL`, verify the certificate of PostgreSQL.", parse.flag
    )
    pooler: str = setting(
        "QUEEN_DB_POOLER",
        "auto",
        "Whether there is a pooler such as PgBouncer between the server and PostgreSQL: `auto` finds out "
        "when it connects, `yes` and `no` say so. Through a pooler the server uses nothing that needs its own session.",
        parse.choice("auto", "yes", "no"),
    )
    listen_url: str | None = setting(
        "QUEEN_DB_LISTEN_URL",
        None,
        "URL of the same database without the pooler, for one connection of each worker that gets notifications. "
        "Behind a pooler there are none without it; messages that no server has written are then found by probes.",
        secret=True,
    )
    pool_size: int = setting(
        "DB_POOL_SIZE",
        20,
        "Maximum number of database connections of one server, all its workers together. All servers together must "
        "stay below `max_connections` of PostgreSQL.",
        parse.positive,
    )
    connection_timeout_ms: int = setting(
        "DB_CONNECTION_TIMEOUT", 2000, "Longest time for opening a database connection, in ms.", parse.positive
    )
    statement_timeout_ms: int = setting(
        "DB_STATEMENT_TIMEOUT", 30000, "Longest time for a single statement, in ms.", parse.positive
    )
    silence_ms: int = setting(
        "QUEEN_DB_SILENCE_MS",
        2000,
        "Time without a byte on a running statement, in ms, after which the server checks whether PostgreSQL still "
        "works on it; if it does not, the connection is replaced.",
        parse.positive,
    )
    lock_timeout_ms: int = setting(
        "DB_LOCK_TIMEOUT",
        10000,
        "Longest wait of a request for a row that another transaction holds, in ms; then it gets 503.",
        parse.positive,
    )
    ping_ms: int = setting(
        "QUEEN_DATABASE_PING_MS", 500, "Pause between two checks whether the database answers, in ms.", parse.positive
    )
    outage_after_ms: int = setting(
        "QUEEN_OUTAGE_AFTER_MS",
        3000,
        "Time without any answer after which the database counts as away and its connections are closed, in ms.",
        parse.positive,
    )
    vacuum_interval_ms: int = setting(
        "QUEEN_VACUUM_INTERVAL_MS",
        15_000,
        "Pause between two vacuums of the most frequently updated tables, in ms; 0 leaves them to autovacuum.",
        parse.count,
    )

    @property
    def is_bundled(self) -> bool:
        """Whether the server runs the PostgreSQL that comes with it."""
        return self.url is None and self.host is None


@dataclass(frozen=True, kw_only=True)
class JournalSettings:
    """Journal: how it keeps pushes on disk while the database is away."""

    folder: Path | None = setting(
        "FILE_BUFFER_DIR",
        None,
        "Folder of the journal, which holds pushes while the database is away. Default: a folder for each database in "
        "`journal` in the data folder.",
        parse.path,
    )
    replay_interval_ms: int = setting(
        "FILE_BUFFER_FLUSH_MS", 100, "Pause between two attempts to replay the journal, in ms.", parse.positive
    )
    replay_batch_size: int = setting(
        "FILE_BUFFER_MAX_BATCH",
        100,
        "Maximum number of journalled pushes that are replayed in one call.",
        parse.positive,
    )
    records_per_file: int = setting(
        "FILE_BUFFER_EVENTS_PER_FILE", 10_000, "Maximum number of pushes in one file of the journal.", parse.positive
    )
    max_bytes: int = setting(
        "QUEEN_JOURNAL_MAX_BYTES",
        1024**3,
        "Maximum size of the journal, in bytes; beyond it pushes get 429. Choose it by how long an outage must be "
        "bridged.",
        parse.byte_count,
    )
    max_records: int = setting(
        "QUEEN_JOURNAL_MAX_RECORDS",
        200_000,
        "Maximum number of pushes in the journal; beyond it pushes get 429.",
        parse.positive,
    )
    wait_ms: int = setting(
        "QUEEN_JOURNAL_WAIT_MS",
        5000,
        "Longest wait of a push behind journalled pushes of its partition, in ms; then it is journalled too.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """Retention and eviction: how often what is old is deleted, and how much at a time."""

    interval_ms: int = setting(
        "RETENTION_INTERVAL",
        300_000,
        "Pause between two runs of the retention service, in ms.",
        parse.positive,
    )
    batch_size: int = setting(
        "RETENTION_BATCH_SIZE", 1000, "Maximum number of messages that one step of retention deletes.", parse.positive
    )
    eviction_interval_ms: int = setting(
        "EVICTION_INTERVAL",
        60_000,
        "Pause between two runs of the eviction service (`maxWaitTimeSeconds`), in ms.",
        parse.positive,
    )
    eviction_batch_size: int = setting(
        "EVICTION_BATCH_SIZE", 1000, "Maximum number of messages that one step of eviction deletes.", parse.positive
    )
    partition_cleanup_days: int = setting(
        "PARTITION_CLEANUP_DAYS",
        30,
        "Days for which an empty partition may be idle before it is removed.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class StatisticsSettings:
    """Statistics: figures of the queues, and samples of the server itself."""

    interval_ms: int = setting(
        "STATS_INTERVAL_MS",
        10_000,
        "Pause between two updates of the statistics of queues in use, in ms; 0 switches them off.",
        parse.count,
    )
    reconcile_interval_ms: int = setting(
        "STATS_RECONCILE_INTERVAL_MS",
        120_000,
        "Age at which the statistics of an idle queue are updated, in ms.",
        parse.positive,
    )
    history_retention_days: int = setting(
        "STATS_HISTORY_RETENTION_DAYS",
        7,
        "Days for which the activity of each queue in each minute is kept.",
        parse.positive,
    )
    sample_interval_ms: int = setting(
        "METRICS_SAMPLE_INTERVAL_MS",
        1000,
        "Pause between two samples of the server's own state, in ms; 0 takes none.",
        parse.count,
    )
    aggregate_interval_s: int = setting(
        "METRICS_AGGREGATE_INTERVAL_S",
        60,
        "Time over which samples are combined into one stored row, in s.",
        parse.positive,
    )
    sample_retention_days: int = setting(
        "METRICS_RETENTION_DAYS", 90, "Days for which these rows are kept.", parse.positive
    )
    horizon_warning_s: int = setting(
        "QUEEN_HORIZON_WARNING_S",
        300,
        "Time after which a session, slot, standby or prepared transaction that keeps dead rows from being removed is "
        "listed as a trouble, in s.",
        parse.positive,
    )
    metrics_max_groups: int = setting(
        "QUEEN_METRICS_MAX_GROUPS",
        1000,
        "Maximum number of groups in queues, and of queues, that have metrics of their own for Prometheus; 0: none.",
        parse.count,
    )
