"""Settings: one frozen object, filled from defaults, then the environment, then command-line flags.

Each field carries its environment variable and one sentence for the table in `docs/configuration.md`.
A variable that is set to something unusable stops the start with a sentence that names it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from queenmq.errors import StartupError

ENCRYPTION_KEY_DIGITS = 64
SYNC_SECRET_DIGITS = 64
MAX_SERVER_ID_BYTES = 32
MOST_WORKERS = 128


def _text(raw: str) -> str:
    return raw


def _flag(raw: str) -> bool:
    return raw == "true"


def _count(raw: str) -> int:
    value = int(raw)
    if value < 0:
        raise ValueError("must not be negative")
    return value


def _positive(raw: str) -> int:
    value = int(raw)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _workers(raw: str) -> int:
    value = int(raw)
    if not 1 <= value <= MOST_WORKERS:
        raise ValueError(f"must be between 1 and {MOST_WORKERS}")
    return value


def _port(raw: str) -> int:
    value = int(raw)
    if not 0 <= value <= 65535:
        raise ValueError("must be between 0 and 65535")
    return value


def _factor(raw: str) -> float:
    value = float(raw)
    if not 1.0 <= value <= 100.0:
        raise ValueError("must be between 1 and 100")
    return value


def _share(raw: str) -> float:
    value = float(raw)
    if not 0.0 <= value <= 1.0:
        raise ValueError("must be between 0 and 1")
    return value


def _path(raw: str) -> Path:
    try:
        return Path(raw).expanduser()
    except RuntimeError:
        raise ValueError("must not name the home of an unknown user") from None


def _items(raw: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in raw.split(",") if part.strip())


def _peers(raw: str) -> tuple[tuple[str, int], ...]:
    """`host:port` pairs; an IPv6 address stands in brackets."""
    peers = []
    for part in _items(raw):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ValueError(f"must be a list of host:port, and {part!r} is none")
        peers.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(peers)


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(raw: str) -> str:
        if raw not in allowed:
            raise ValueError(f"must be one of {', '.join(repr(a) for a in allowed)}")
        return raw

    return parse


def _encryption_key(raw: str) -> bytes:
    return _hexadecimal(raw, ENCRYPTION_KEY_DIGITS)


def _sync_secret(raw: str) -> bytes:
    return _hexadecimal(raw, SYNC_SECRET_DIGITS)


def _hexadecimal(raw: str, digits: int) -> bytes:
    if re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", raw) is None:
        raise ValueError(f"must be {digits} hexadecimal digits")
    return bytes.fromhex(raw)


def _server_id(raw: str) -> str:
    if len(raw.encode()) > MAX_SERVER_ID_BYTES or "\0" in raw:
        raise ValueError(f"must have at most {MAX_SERVER_ID_BYTES} bytes")
    return raw


def setting(env: str, default: Any, doc: str, parse: Callable[[str], Any] = _text, *, secret: bool = False) -> Any:
    """Declare one field of `Settings`. A secret is kept out of `repr` and out of error messages."""
    return field(default=default, repr=not secret, metadata={"env": env, "doc": doc, "parse": parse, "secret": secret})


@dataclass(frozen=True, kw_only=True)
class Settings:
    host: str = setting("HOST", "127.0.0.1", "Address to listen on.")
    port: int = setting("PORT", 6632, "HTTP port.", _port)
    workers: int = setting(
        "NUM_WORKERS", 1, "Processes that serve, about one a core; they share the port and `DB_POOL_SIZE`.", _workers
    )
    worker_id: str = setting("WORKER_ID", "worker-1", "Name of this server in answers and metrics.")
    log_level: str = setting(
        "LOG_LEVEL", "info", "`debug`, `info`, `warning` or `error`.", _choice("debug", "info", "warning", "error")
    )
    log_format: str = setting("LOG_FORMAT", "text", "`text`, or `json` for one object a line.", _choice("text", "json"))
    data_dir: Path | None = setting(
        "QUEEN_DATA_DIR",
        None,
        "Folder of the bundled PostgreSQL. Default: `/var/lib/queen` for root, "
        "else `$XDG_DATA_HOME/queen` or `~/.local/share/queen`.",
        _path,
    )

    database_url: str | None = setting(
        "DATABASE_URL", None, "Existing PostgreSQL to use instead of the bundled one.", secret=True
    )
    pg_host: str | None = setting("PG_HOST", None, "Host of an existing PostgreSQL; set it to use one.")
    pg_port: int = setting("PG_PORT", 5432, "Its port.", _port)
    pg_db: str = setting("PG_DB", "postgres", "Its database.")
    pg_user: str = setting("PG_USER", "postgres", "User to connect as.")
    pg_password: str = setting("PG_PASSWORD", "postgres", "Password of that user.", secret=True)
    pg_use_ssl: bool = setting("PG_USE_SSL", False, "Connect with TLS.", _flag)
    pg_ssl_reject_unauthorized: bool = setting(
        "PG_SSL_REJECT_UNAUTHORIZED", True, "Verify the certificate of the database.", _flag
    )
    db_pool_size: int = setting("DB_POOL_SIZE", 20, "Most database connections of one server.", _positive)
    db_connection_timeout_ms: int = setting(
        "DB_CONNECTION_TIMEOUT", 2000, "Longest wait for a new database connection, in ms.", _positive
    )
    db_statement_timeout_ms: int = setting("DB_STATEMENT_TIMEOUT", 30000, "Longest single statement, in ms.", _positive)
    db_lock_timeout_ms: int = setting("DB_LOCK_TIMEOUT", 10000, "Longest wait for a lock, in ms.", _positive)

    max_body_bytes: int = setting("QUEEN_MAX_BODY_BYTES", 16 * 1024 * 1024, "Largest request body.", _positive)
    max_items: int = setting(
        "QUEEN_MAX_ITEMS", 10_000, "Most items in one push, ack batch, pop or transaction.", _positive
    )
    max_connections: int = setting(
        "QUEEN_MAX_CONNECTIONS", 20_000, "Most open HTTP connections; further ones are closed.", _positive
    )
    max_waiters: int = setting("QUEEN_MAX_WAITERS", 20_000, "Most long polls held at a time.", _positive)
    max_pending: int = setting(
        "QUEEN_MAX_PENDING", 50_000, "Most requests waiting for the database; further ones get 429.", _positive
    )
    max_wait_ms: int = setting("QUEEN_MAX_WAIT_MS", 300_000, "Longest long poll, in ms.", _positive)
    keep_alive_s: int = setting("QUEEN_KEEP_ALIVE_S", 75, "Idle HTTP connections close after this.", _positive)
    shutdown_grace_s: int = setting(
        "QUEEN_SHUTDOWN_GRACE_S", 10, "Time that running requests get at shutdown.", _positive
    )

    default_timeout_ms: int = setting("DEFAULT_TIMEOUT", 30000, "Pop `timeout` when absent, in ms.", _positive)
    default_batch_size: int = setting("DEFAULT_BATCH_SIZE", 1, "Pop `batch` when absent.", _positive)
    default_subscription_mode: str = setting(
        "DEFAULT_SUBSCRIPTION_MODE",
        "",
        "Where groups start that do not say: empty or `all`, or `new`.",
        _choice("", "all", "from_beginning", "new", "new-only"),
    )
    pop_wait_initial_interval_ms: int = setting(
        "POP_WAIT_INITIAL_INTERVAL_MS", 100, "First re-check of a long poll, in ms.", _positive
    )
    pop_wait_backoff_threshold: int = setting(
        "POP_WAIT_BACKOFF_THRESHOLD", 3, "Empty re-checks before the interval grows.", _positive
    )
    pop_wait_backoff_multiplier: float = setting(
        "POP_WAIT_BACKOFF_MULTIPLIER", 2.0, "Growth of the re-check interval.", _factor
    )
    pop_wait_max_interval_ms: int = setting(
        "POP_WAIT_MAX_INTERVAL_MS", 1000, "Longest re-check interval of a long poll, in ms.", _positive
    )

    push_preferred_batch_size: int = setting(
        "QUEEN_PUSH_PREFERRED_BATCH_SIZE",
        50,
        "Waiting push requests that start another call while one runs.",
        _positive,
    )
    push_max_hold_ms: int = setting(
        "QUEEN_PUSH_MAX_HOLD_MS", 20, "Longest wait of a push request for company while a call runs, in ms.", _count
    )
    push_max_batch_size: int = setting("QUEEN_PUSH_MAX_BATCH_SIZE", 500, "Most push requests in one call.", _positive)
    push_max_concurrent: int = setting("QUEEN_PUSH_MAX_CONCURRENT", 24, "Most push calls at once.", _positive)
    pop_preferred_batch_size: int = setting(
        "QUEEN_POP_PREFERRED_BATCH_SIZE", 20, "Waiting pop requests that start another call while one runs.", _positive
    )
    pop_max_hold_ms: int = setting(
        "QUEEN_POP_MAX_HOLD_MS", 5, "Longest wait of a pop request for company while a call runs, in ms.", _count
    )
    pop_max_batch_size: int = setting("QUEEN_POP_MAX_BATCH_SIZE", 500, "Most pop requests in one call.", _positive)
    pop_max_concurrent: int = setting("QUEEN_POP_MAX_CONCURRENT", 16, "Most pop calls at once.", _positive)
    ack_preferred_batch_size: int = setting(
        "QUEEN_ACK_PREFERRED_BATCH_SIZE", 50, "Waiting ack requests that start another call while one runs.", _positive
    )
    ack_max_hold_ms: int = setting(
        "QUEEN_ACK_MAX_HOLD_MS", 20, "Longest wait of an ack request for company while a call runs, in ms.", _count
    )
    ack_max_batch_size: int = setting("QUEEN_ACK_MAX_BATCH_SIZE", 500, "Most ack requests in one call.", _positive)
    ack_max_concurrent: int = setting("QUEEN_ACK_MAX_CONCURRENT", 16, "Most ack calls at once.", _positive)
    renew_lease_preferred_batch_size: int = setting(
        "QUEEN_RENEW_LEASE_PREFERRED_BATCH_SIZE",
        10,
        "Waiting lease renewal requests that start another call while one runs.",
        _positive,
    )
    renew_lease_max_hold_ms: int = setting(
        "QUEEN_RENEW_LEASE_MAX_HOLD_MS",
        100,
        "Longest wait of a lease renewal request for company while a call runs, in ms.",
        _count,
    )
    renew_lease_max_batch_size: int = setting(
        "QUEEN_RENEW_LEASE_MAX_BATCH_SIZE", 100, "Most lease renewal requests in one call.", _positive
    )
    renew_lease_max_concurrent: int = setting(
        "QUEEN_RENEW_LEASE_MAX_CONCURRENT", 2, "Most lease renewal calls at once.", _positive
    )
    transaction_preferred_batch_size: int = setting(
        "QUEEN_TRANSACTION_PREFERRED_BATCH_SIZE", 1, "Transactions are never merged; kept for completeness.", _positive
    )
    transaction_max_hold_ms: int = setting(
        "QUEEN_TRANSACTION_MAX_HOLD_MS", 0, "Transactions are never held; kept for completeness.", _count
    )
    transaction_max_batch_size: int = setting(
        "QUEEN_TRANSACTION_MAX_BATCH_SIZE", 1, "Transactions are never merged; kept for completeness.", _positive
    )
    transaction_max_concurrent: int = setting(
        "QUEEN_TRANSACTION_MAX_CONCURRENT", 4, "Most transactions at once.", _positive
    )
    max_items_per_call: int = setting(
        "SIDECAR_MAX_ITEMS_PER_TX", 5000, "Most messages or acknowledgements in one merged call.", _positive
    )
    concurrency_mode: str = setting(
        "QUEEN_CONCURRENCY_MODE",
        "vegas",
        "`vegas` adapts the number of calls at once, `static` does not.",
        _choice("vegas", "static"),
    )
    vegas_min_limit: int = setting("QUEEN_VEGAS_MIN_LIMIT", 1, "Fewest calls at once that it goes down to.", _positive)
    vegas_max_limit: int = setting("QUEEN_VEGAS_MAX_LIMIT", 32, "Most calls at once that it goes up to.", _positive)
    vegas_alpha: float = setting("QUEEN_VEGAS_ALPHA", 3.0, "It allows more while fewer calls than this queue.", _factor)
    vegas_beta: float = setting("QUEEN_VEGAS_BETA", 12.0, "It allows fewer while more calls than this queue.", _factor)
    vegas_rtt_window_samples: int = setting(
        "QUEEN_VEGAS_RTT_WINDOW_SAMPLES", 50, "Calls over which it averages.", _positive
    )
    vegas_rtt_min_window_s: int = setting(
        "QUEEN_VEGAS_RTT_MIN_WINDOW_SEC", 30, "How long the fastest call counts as the measure, in s.", _positive
    )
    vegas_update_interval_ms: int = setting(
        "QUEEN_VEGAS_UPDATE_INTERVAL_MS", 1000, "Time between its adjustments, in ms.", _positive
    )

    retention_interval_ms: int = setting(
        "RETENTION_INTERVAL", 300_000, "Pause between retention sweeps, in ms.", _positive
    )
    retention_batch_size: int = setting(
        "RETENTION_BATCH_SIZE", 1000, "Most messages deleted in one retention step.", _positive
    )
    eviction_interval_ms: int = setting(
        "EVICTION_INTERVAL", 60_000, "Pause between eviction sweeps (`maxWaitTimeSeconds`, `ttl`), in ms.", _positive
    )
    eviction_batch_size: int = setting("EVICTION_BATCH_SIZE", 1000, "Most messages evicted in one step.", _positive)
    partition_cleanup_days: int = setting(
        "PARTITION_CLEANUP_DAYS", 30, "Empty partitions that were idle this long are removed.", _positive
    )
    stats_interval_ms: int = setting(
        "STATS_INTERVAL_MS", 10_000, "Pause between looks at the queues that were worked on, in ms; 0: never.", _count
    )
    stats_reconcile_interval_ms: int = setting(
        "STATS_RECONCILE_INTERVAL_MS",
        120_000,
        "Age at which figures of idle queues are taken anew, in ms.",
        _positive,
    )
    stats_history_retention_days: int = setting(
        "STATS_HISTORY_RETENTION_DAYS", 7, "How long it is kept what was done to each queue in each minute.", _positive
    )
    metrics_sample_interval_ms: int = setting(
        "METRICS_SAMPLE_INTERVAL_MS", 1000, "Pause between samples of the server's own state, in ms; 0: none.", _count
    )
    metrics_aggregate_interval_s: int = setting(
        "METRICS_AGGREGATE_INTERVAL_S", 60, "Samples are stored as one row for so many seconds.", _positive
    )
    metrics_retention_days: int = setting("METRICS_RETENTION_DAYS", 90, "How long those rows are kept.", _positive)
    vacuum_interval_ms: int = setting(
        "QUEEN_VACUUM_INTERVAL_MS",
        15_000,
        "Pause between vacuums of the hot tables, in ms; 0 leaves it to autovacuum.",
        _count,
    )

    server_id: str = setting(
        "QUEEN_SERVER_ID", "", "Name of this server in its cluster. Default: host name and port.", _server_id
    )
    udp_peers: tuple[tuple[str, int], ...] = setting(
        "QUEEN_UDP_PEERS", (), "The other servers on the same database, as `host:port` of their UDP ports.", _peers
    )
    udp_port: int = setting("QUEEN_UDP_PORT", 6634, "UDP port to listen on when there are peers.", _port)
    udp_host: str = setting(
        "QUEEN_UDP_HOST", "", "Address for it. Default: loopback if every peer is there, else every address."
    )
    sync_enabled: bool = setting("QUEEN_SYNC_ENABLED", True, "`false` leaves the peers alone.", _flag)
    sync_secret: bytes | None = setting(
        "QUEEN_SYNC_SECRET",
        None,
        "64 hexadecimal digits, the same on every server: packets are signed with it. Required with peers.",
        _sync_secret,
        secret=True,
    )
    sync_secret_previous: bytes | None = setting(
        "QUEEN_SYNC_SECRET_PREVIOUS",
        None,
        "Also accepted, while the secret is being changed on one server after the other.",
        _sync_secret,
        secret=True,
    )
    sync_heartbeat_ms: int = setting("QUEEN_SYNC_HEARTBEAT_MS", 1000, "Time between heartbeats, in ms.", _positive)
    sync_dead_threshold_ms: int = setting(
        "QUEEN_SYNC_DEAD_THRESHOLD_MS", 5000, "A server that was silent this long counts as dead, in ms.", _positive
    )
    sync_receive_buffer_mb: int = setting(
        "QUEEN_SYNC_RECV_BUFFER_MB", 8, "UDP receive buffer that is asked for; the system may cut it.", _positive
    )
    cache_enabled: bool = setting(
        "QUEEN_CACHE_ENABLED",
        True,
        "`false` asks the database for everything that a cache would know; for comparison.",
        _flag,
    )
    cache_partition_max: int = setting(
        "QUEEN_CACHE_PARTITION_MAX", 10_000, "Most partition ids and most lease hints that are remembered.", _positive
    )
    cache_partition_ttl_ms: int = setting(
        "QUEEN_CACHE_PARTITION_TTL_MS", 300_000, "Longest time that a partition id is remembered, in ms.", _positive
    )
    cache_refresh_interval_ms: int = setting(
        "QUEEN_CACHE_REFRESH_INTERVAL_MS", 60_000, "Pause between full reads of the queues' options, in ms.", _positive
    )

    coordinator_enabled: bool = setting(
        "QUEEN_COORDINATOR_ENABLED",
        False,
        "Pass requests on to the server that serves them best.",
        _flag,
    )
    coordinator_forward_threshold: float = setting(
        "QUEEN_COORDINATOR_FORWARD_THRESHOLD",
        0.1,
        "Pops stay unless another server's load is lower by this.",
        _share,
    )
    coordinator_timeout_ms: int = setting(
        "QUEEN_COORDINATOR_TIMEOUT_MS",
        5000,
        "Longest time for passing a request on, in ms; a long poll gets its own timeout on top.",
        _positive,
    )
    coordinator_connect_timeout_ms: int = setting(
        "QUEEN_COORDINATOR_CONNECT_TIMEOUT_MS", 1000, "Of which a new connection may take this, in ms.", _positive
    )
    coordinator_max_connections: int = setting(
        "QUEEN_COORDINATOR_MAX_CONNECTIONS",
        1000,
        "Most connections to one other server, each with one request; what would need more is served here.",
        _positive,
    )
    coordinator_circuit_failures: int = setting(
        "QUEEN_COORDINATOR_CIRCUIT_FAILURES", 3, "Failures in a row after which a server is left alone.", _positive
    )
    coordinator_circuit_retry_ms: int = setting(
        "QUEEN_COORDINATOR_CIRCUIT_RETRY_MS",
        5000,
        "For how long at first, in ms; each failed try doubles it, up to 5 minutes.",
        _positive,
    )
    affinity_ttl_ms: int = setting(
        "QUEEN_AFFINITY_TTL_MS",
        300_000,
        "Consumers that return within this go to the same server, in ms.",
        _positive,
    )
    affinity_max: int = setting("QUEEN_AFFINITY_MAX", 10_000, "Most consumer routes that are remembered.", _positive)
    affinity_migrate_threshold: float = setting(
        "QUEEN_AFFINITY_MIGRATE_THRESHOLD", 0.7, "Load of their server from which consumers may be moved away.", _share
    )
    affinity_break_threshold: float = setting(
        "QUEEN_AFFINITY_BREAK_THRESHOLD", 0.9, "Load from which they are moved away at once.", _share
    )
    affinity_migrate_min_improvement: float = setting(
        "QUEEN_AFFINITY_MIGRATE_MIN_IMPROVEMENT",
        0.15,
        "Between the two, only to a load lower by this.",
        _share,
    )
    queue_affinity_threshold: int = setting(
        "QUEEN_QUEUE_AFFINITY_THRESHOLD",
        10,
        "With more groups, all groups of a queue share a server.",
        _positive,
    )
    database_ping_ms: int = setting(
        "QUEEN_DATABASE_PING_MS", 500, "Pause between two looks whether the database answers, in ms.", _positive
    )
    outage_after_ms: int = setting(
        "QUEEN_OUTAGE_AFTER_MS",
        3000,
        "A database that answers nothing for so long counts as away, and its connections are given up, in ms.",
        _positive,
    )
    load_check: bool = setting(
        "QUEEN_LOAD_CHECK", True, "`false` never queues or refuses a push for load; for comparison.", _flag
    )
    push_pool_threshold: float = setting(
        "QUEEN_PUSH_POOL_THRESHOLD",
        0.7,
        "Share of the connections in use beyond which pushes are queued, if calls wait for one.",
        _share,
    )
    push_wait_threshold_ms: int = setting(
        "QUEEN_PUSH_WAIT_THRESHOLD_MS", 1000, "Wait before a call beyond which pushes are queued, in ms.", _positive
    )
    push_standing_wait_ms: int = setting(
        "QUEEN_PUSH_STANDING_WAIT_MS",
        250,
        "Wait that is no burst if it lasts: then pushes are queued, too, in ms.",
        _positive,
    )
    push_standing_after_ms: int = setting(
        "QUEEN_PUSH_STANDING_AFTER_MS", 1000, "How long it must last without a break, in ms.", _positive
    )
    push_loop_threshold_ms: int = setting(
        "QUEEN_PUSH_LOOP_THRESHOLD_MS",
        1000,
        "Delay of the event loop beyond which pushes are queued, in ms.",
        _positive,
    )
    push_queue_depth: int = setting(
        "QUEEN_PUSH_QUEUE_DEPTH", 10_000, "Most operations in the operation queue; then pushes get 429.", _positive
    )
    operation_interval_ms: int = setting(
        "QUEEN_OPERATION_INTERVAL_MS", 100, "Pause of the worker when the operation queue is empty, in ms.", _positive
    )
    operation_partitions: int = setting(
        "QUEEN_OPERATION_PARTITIONS", 50, "Most partitions whose operations are run together.", _positive
    )
    operation_run: int = setting(
        "QUEEN_OPERATION_RUN", 20, "Most operations of one partition that are run together.", _positive
    )
    operation_step: int = setting(
        "QUEEN_OPERATION_STEP",
        5000,
        "Most messages, partitions or dead letters that one step of a long operation is about.",
        _positive,
    )
    operation_wait_ms: int = setting(
        "QUEEN_OPERATION_WAIT_MS",
        2000,
        "How long the answer to a delete, clear, seek or redrive waits for its end; then it is a 202, in ms.",
        _positive,
    )
    operation_concurrent: int = setting(
        "QUEEN_OPERATION_CONCURRENT", 2, "Most long operations that a server runs at once.", _positive
    )
    operation_most: int = setting(
        "QUEEN_OPERATION_MOST", 100, "Most unfinished long operations of one queue; further ones get 429.", _positive
    )
    operation_keep_s: int = setting(
        "QUEEN_OPERATION_KEEP_S", 3600, "How long completed operations and their results are kept, in s.", _positive
    )
    operation_keep_failed_s: int = setting(
        "QUEEN_OPERATION_KEEP_FAILED_S", 604_800, "The same for failed ones.", _positive
    )
    file_buffer_dir: Path | None = setting(
        "FILE_BUFFER_DIR",
        None,
        "Folder of the journal, which takes pushes while the database is away. "
        "Default: in `journal` in the data folder, one for each database.",
        _path,
    )
    file_buffer_flush_ms: int = setting(
        "FILE_BUFFER_FLUSH_MS", 100, "Pause between two tries to replay the journal, in ms.", _positive
    )
    file_buffer_max_batch: int = setting(
        "FILE_BUFFER_MAX_BATCH", 100, "Most journalled pushes that are replayed in one call.", _positive
    )
    file_buffer_events_per_file: int = setting(
        "FILE_BUFFER_EVENTS_PER_FILE", 10_000, "Most pushes in one file of the journal.", _positive
    )
    journal_max_bytes: int = setting(
        "QUEEN_JOURNAL_MAX_BYTES", 1024**3, "Largest journal; beyond it pushes get 429.", _positive
    )
    journal_max_records: int = setting(
        "QUEEN_JOURNAL_MAX_RECORDS", 200_000, "Most pushes in the journal; beyond it they get 429.", _positive
    )
    journal_wait_ms: int = setting(
        "QUEEN_JOURNAL_WAIT_MS",
        5000,
        "Longest wait of a push behind journalled ones of its partition; then it is journalled, too, in ms.",
        _positive,
    )

    otel_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "Where OpenTelemetry traces and metrics are sent, over HTTP; needs the extra `otel`. Other `OTEL_` variables "
        "of its SDK hold, too.",
    )
    otel_traces_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "The same for traces alone, with its whole path."
    )
    otel_metrics_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "", "The same for metrics alone, with its whole path."
    )
    otel_metric_interval_ms: int = setting(
        "OTEL_METRIC_EXPORT_INTERVAL", 60_000, "Time between two exports of metrics, in ms.", _positive
    )
    otel_disabled: bool = setting("OTEL_SDK_DISABLED", False, "`true` exports nothing, whatever is set.", _flag)

    encryption_key: bytes | None = setting(
        "QUEEN_ENCRYPTION_KEY",
        None,
        "64 hexadecimal digits; needed by queues with `encryptionEnabled`.",
        _encryption_key,
        secret=True,
    )

    jwt_enabled: bool = setting("JWT_ENABLED", False, "Demand a token on every request.", _flag)
    jwt_algorithm: str = setting(
        "JWT_ALGORITHM", "HS256", "`HS256`, `RS256`, `EdDSA` or `auto`.", _choice("HS256", "RS256", "EdDSA", "auto")
    )
    jwt_secret: str | None = setting("JWT_SECRET", None, "Key for HS256.", secret=True)
    jwt_public_key: str | None = setting("JWT_PUBLIC_KEY", None, "PEM public key for RS256 or EdDSA.")
    jwt_jwks_url: str | None = setting("JWT_JWKS_URL", None, "Where the public keys are published.")
    jwt_jwks_refresh_interval_s: int = setting(
        "JWT_JWKS_REFRESH_INTERVAL", 3600, "Age at which published keys are fetched again, in s.", _positive
    )
    jwt_jwks_timeout_ms: int = setting("JWT_JWKS_TIMEOUT_MS", 5000, "Longest fetch of them, in ms.", _positive)
    jwt_issuer: str = setting("JWT_ISSUER", "", "Required `iss` claim.")
    jwt_audience: str = setting("JWT_AUDIENCE", "", "Required `aud` claim.")
    jwt_clock_skew_s: int = setting("JWT_CLOCK_SKEW", 30, "Tolerance for `exp` and `nbf`, in s.", _count)
    jwt_skip_paths: tuple[str, ...] = setting(
        "JWT_SKIP_PATHS",
        ("/health", "/metrics/prometheus", "/metrics", "/"),
        "Paths that need no token; those of a folder if it ends with `/`. "
        "`/health`, `/`, `/assets/` and `/openapi.json` never need one.",
        _items,
    )
    jwt_roles_claim: str = setting("JWT_ROLES_CLAIM", "role", "Claim with one role.")
    jwt_roles_array_claim: str = setting("JWT_ROLES_ARRAY_CLAIM", "roles", "Claim with a list of roles.")
    jwt_role_admin: str = setting("JWT_ROLE_ADMIN", "admin", "Name of the role that may do everything.")
    jwt_role_read_write: str = setting("JWT_ROLE_READ_WRITE", "read-write", "Name of the role that may push and pop.")
    jwt_role_read_only: str = setting("JWT_ROLE_READ_ONLY", "read-only", "Name of the role that may only look.")
    insecure: bool = setting("QUEEN_INSECURE", False, "Allow listening outside loopback without JWT.", _flag)

    @property
    def uses_bundled_database(self) -> bool:
        return self.database_url is None and self.pg_host is None


def load(environment: Mapping[str, str] | None = None, **flags: Any) -> Settings:
    """Read the settings. A flag that is None was not given; an empty variable counts as not set.

    Raises StartupError naming the variable that cannot be used.
    """
    source = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for item in fields(Settings):
        raw = source.get(item.metadata["env"], "")
        if raw != "":
            values[item.name] = _parse(item, raw)
    values.update({name: value for name, value in flags.items() if value is not None})
    return Settings(**values)


def _parse(item: Field[Any], raw: str) -> Any:
    env = item.metadata["env"]
    try:
        return item.metadata["parse"](raw)
    except ValueError as error:
        shown = "its value" if item.metadata["secret"] else repr(raw)
        reason = str(error) if str(error).startswith("must") else "is not a number"
        raise StartupError(f"{env} cannot be used: {shown} {reason}") from None


def markdown_table() -> str:
    """The table of `docs/configuration.md`: one row for each setting, in the order of the class."""
    rows = (
        f"| `{item.metadata['env']}` | {_shown(item.default)} | {item.metadata['doc']} |\n" for item in fields(Settings)
    )
    return "| Variable | Default | Meaning |\n|---|---|---|\n" + "".join(rows)


def _shown(default: object) -> str:
    if default in (None, "", ()):
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{','.join(default)}`" if isinstance(default, tuple) else f"`{default}`"
