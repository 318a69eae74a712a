"""Settings of a cluster: peers, caches and forwarding."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.config import parse
from queenmq.config.setting import setting


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Cluster: the other servers on the same database, and how they are reached."""

    server_id: str = setting(
        "QUEEN_SERVER_ID",
        "",
        "Name of this server in its cluster; it must be unique. Default: host name and port.",
        parse.server_name,
    )
    peers: tuple[tuple[str, int], ...] = setting(
        "QUEEN_UDP_PEERS",
        (),
        "UDP addresses of the other servers on the same database, as `host:port` separated by commas.",
        parse.addresses,
    )
    udp_port: int = setting("QUEEN_UDP_PORT", 6634, "UDP port to listen on if there are peers.", parse.port_number)
    udp_host: str = setting(
        "QUEEN_UDP_HOST",
        "",
        "Address for the UDP port. Default: loopback if every peer is on loopback, else every address.",
    )
    advertise: tuple[str, int] | None = setting(
        "QUEEN_UDP_ADVERTISE",
        None,
        "`host:port` at which the other servers reach the UDP port, if address translation hides it. Default: the "
        "address from which packets to them leave.",
        parse.address,
    )
    enabled: bool = setting(
        "QUEEN_SYNC_ENABLED", True, "Exchange packets with the peers; `false` switches that off.", parse.flag
    )
    secret: bytes | None = setting(
        "QUEEN_SYNC_SECRET",
        None,
        "Secret with which packets are signed, as 64 hexadecimal digits, the same on every server. Required with "
        "peers.",
        parse.sync_secret,
        secret=True,
    )
    secret_previous: bytes | None = setting(
        "QUEEN_SYNC_SECRET_PREVIOUS",
        None,
        "Second secret that is accepted, while the secret is changed on one server after the other.",
        parse.sync_secret,
        secret=True,
    )
    heartbeat_ms: int = setting("QUEEN_SYNC_HEARTBEAT_MS", 1000, "Time between two heartbeats, in ms.", parse.positive)
    dead_threshold_ms: int = setting(
        "QUEEN_SYNC_DEAD_THRESHOLD_MS",
        5000,
        "Time without a heartbeat after which a server counts as dead, in ms.",
        parse.positive,
    )
    receive_buffer_mb: int = setting(
        "QUEEN_SYNC_RECV_BUFFER_MB",
        8,
        "Size of the UDP receive buffer to request, in MB; the system may give less.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Caches: what is remembered instead of asking the database."""

    enabled: bool = setting(
        "QUEEN_CACHE_ENABLED",
        True,
        "Use the caches; `false` asks the database every time, for measurements.",
        parse.flag,
    )
    partition_max: int = setting(
        "QUEEN_CACHE_PARTITION_MAX",
        10_000,
        "Maximum number of partition ids, and of lease hints, in the caches.",
        parse.positive,
    )
    partition_ttl_ms: int = setting(
        "QUEEN_CACHE_PARTITION_TTL_MS",
        300_000,
        "Longest time that a partition id stays in the cache, in ms.",
        parse.positive,
    )
    refresh_interval_ms: int = setting(
        "QUEEN_CACHE_REFRESH_INTERVAL_MS",
        60_000,
        "Pause between two full reads of the options of all queues, in ms.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """Coordinator: forwarding of requests to the server that serves them best."""

    enabled: bool = setting(
        "QUEEN_COORDINATOR_ENABLED",
        False,
        "Forward requests to the server that serves them best.",
        parse.flag,
    )
    forward_threshold: float = setting(
        "QUEEN_COORDINATOR_FORWARD_THRESHOLD",
        0.1,
        "Send the pops of a queue and group to the first server, by a hash of them, of those whose load is higher than "
        "the lowest by at most this much.",
        parse.share,
    )
    timeout_ms: int = setting(
        "QUEEN_COORDINATOR_TIMEOUT_MS",
        5000,
        "Longest time for forwarding a request, in ms; the timeout of a long poll is added.",
        parse.positive,
    )
    connect_timeout_ms: int = setting(
        "QUEEN_COORDINATOR_CONNECT_TIMEOUT_MS",
        1000,
        "Part of that time that a new connection may take, in ms.",
        parse.positive,
    )
    max_connections: int = setting(
        "QUEEN_COORDINATOR_MAX_CONNECTIONS",
        1000,
        "Maximum number of connections to one other server, each with one request; requests beyond it are served by "
        "this server.",
        parse.positive,
    )
    circuit_failures: int = setting(
        "QUEEN_COORDINATOR_CIRCUIT_FAILURES",
        3,
        "Number of failures in a row after which nothing is forwarded to a server.",
        parse.positive,
    )
    circuit_retry_ms: int = setting(
        "QUEEN_COORDINATOR_CIRCUIT_RETRY_MS",
        5000,
        "First pause before that server is tried again, in ms; each failed try doubles it, up to 5 minutes.",
        parse.positive,
    )
    affinity_ttl_ms: int = setting(
        "QUEEN_AFFINITY_TTL_MS",
        300_000,
        "Time for which returning consumers go to the same server, in ms.",
        parse.positive,
    )
    affinity_max: int = setting(
        "QUEEN_AFFINITY_MAX", 10_000, "Maximum number of consumer routes that are remembered.", parse.positive
    )
    affinity_migrate_threshold: float = setting(
        "QUEEN_AFFINITY_MIGRATE_THRESHOLD",
        0.7,
        "Load of a server above which its consumers may move to another one.",
        parse.share,
    )
    affinity_break_threshold: float = setting(
        "QUEEN_AFFINITY_BREAK_THRESHOLD", 0.9, "Load of a server above which its consumers move at once.", parse.share
    )
    affinity_migrate_min_improvement: float = setting(
        "QUEEN_AFFINITY_MIGRATE_MIN_IMPROVEMENT",
        0.15,
        "Below the break threshold, consumers move only to a server whose load is lower by this much.",
        parse.share,
    )
    queue_affinity_threshold: int = setting(
        "QUEEN_QUEUE_AFFINITY_THRESHOLD",
        10,
        "Number of groups of a queue above which all of them share one server.",
        parse.positive,
    )
