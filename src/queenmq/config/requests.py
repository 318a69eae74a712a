"""Settings of the verbs: bounds, long polls, overload and operations."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.config import parse
from queenmq.config.setting import setting


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Limits: bounds of one request, and of all that wait."""

    max_items: int = setting(
        "QUEEN_MAX_ITEMS", 10_000, "Maximum number of items in one push, ack batch, pop or transaction.", parse.positive
    )
    max_answer_bytes: int = setting(
        "QUEEN_MAX_ANSWER_BYTES",
        16 * 1024 * 1024,
        "Maximum payload in one answer, in bytes. A pop or a listing returns fewer messages to stay below it, but "
        "always at least one.",
        parse.byte_count,
    )
    namespace_messages_per_second: int = setting(
        "QUEEN_NAMESPACE_MESSAGES_PER_SECOND",
        0,
        "Maximum number of messages that may be pushed to the queues of one namespace in a second, at each worker; "
        "further pushes get 429. The namespace is the first part of the name of a queue. 0 sets no limit.",
        parse.count,
    )
    max_waiters: int = setting(
        "QUEEN_MAX_WAITERS", 20_000, "Maximum number of long polls that wait at a time.", parse.positive
    )
    max_pending: int = setting(
        "QUEEN_MAX_PENDING",
        50_000,
        "Maximum number of requests that wait for the database; further ones get 429.",
        parse.positive,
    )
    max_searches: int = setting(
        "QUEEN_MAX_SEARCHES",
        2,
        "Maximum number of searches that run at a time at a worker: `find`, dead letters by error or time, messages by "
        "header. Eight times as many wait; further ones get 429.",
        parse.positive,
    )
    max_groups: int = setting(
        "QUEEN_MAX_GROUPS",
        10_000,
        "Maximum number of groups of a queue; the first pop of a further one gets 429. A group has a row in each "
        "partition of the queue.",
        parse.positive,
    )
    max_queues: int = setting(
        "QUEEN_MAX_QUEUES",
        100_000,
        "Maximum number of queues; requests that would make a further one get 429. The number is read every few "
        "seconds, so what comes in between can exceed it.",
        parse.positive,
    )
    max_lock_waiters: int = setting(
        "QUEEN_MAX_LOCK_WAITERS",
        10_000,
        "Maximum number of requests that wait for rows which other transactions hold; further ones get 429.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class PopSettings:
    """Pops: defaults of a pop, and how often a long poll checks again."""

    max_wait_ms: int = setting(
        "QUEEN_MAX_WAIT_MS", 300_000, "Longest long poll, in ms; a longer `timeout` is cut to it.", parse.positive
    )
    default_timeout_ms: int = setting(
        "DEFAULT_TIMEOUT", 30000, "`timeout` of a long poll that does not give one, in ms.", parse.positive
    )
    default_batch_size: int = setting(
        "DEFAULT_BATCH_SIZE", 1, "`batch` of a pop that does not give one.", parse.positive
    )
    default_subscription_mode: str = setting(
        "DEFAULT_SUBSCRIPTION_MODE",
        "",
        "Where a new group starts if its first pop does not say: `all` (the same as empty) at the oldest message, "
        "`new` at new messages.",
        parse.choice("", "all", "from_beginning", "new", "new-only"),
    )
    wait_initial_interval_ms: int = setting(
        "POP_WAIT_INITIAL_INTERVAL_MS",
        100,
        "First interval between two probes of a long poll, in ms (also as POP_WAIT_BASE_INTERVAL_MS). Probes only find "
        "messages whose wake-up was lost.",
        parse.positive,
    )
    wait_backoff_threshold: int = setting(
        "POP_WAIT_BACKOFF_THRESHOLD", 3, "Number of empty probes after which the interval grows.", parse.positive
    )
    wait_backoff_multiplier: float = setting(
        "POP_WAIT_BACKOFF_MULTIPLIER", 2.0, "Factor by which the interval between probes grows.", parse.factor
    )
    wait_max_interval_ms: int = setting(
        "POP_WAIT_MAX_INTERVAL_MS", 1000, "Longest interval between two probes of a long poll, in ms.", parse.positive
    )


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """Consumer connections: how many there are, and how much each has in flight."""

    max_connections: int = setting(
        "QUEEN_MAX_CONSUMER_CONNECTIONS",
        10_000,
        "Maximum number of consumer connections of a worker; further ones get 429. 0 switches them off: clients use "
        "long polls instead.",
        parse.count,
    )
    max_in_flight: int = setting(
        "QUEEN_CONSUMER_MAX_IN_FLIGHT",
        1000,
        "Maximum number of batches that a consumer connection has in flight; a larger `inFlight` is cut to it.",
        parse.positive,
    )
    max_in_flight_bytes: int = setting(
        "QUEEN_CONSUMER_MAX_IN_FLIGHT_BYTES",
        32 * 1024 * 1024,
        "Size of the batches in flight beyond which a consumer connection gets no further ones, in bytes.",
        parse.byte_count,
    )
    ping_s: int = setting(
        "QUEEN_CONSUMER_PING_S",
        15,
        "Time after which a consumer connection is pinged whose client is silent, in s. A client that stays silent for "
        "three times as long is disconnected; its leases expire.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class OverloadSettings:
    """Overload: when pushes are queued or refused because the server is busy."""

    enabled: bool = setting(
        "QUEEN_LOAD_CHECK",
        True,
        "Check the load before each push; `false` never defers or refuses a push for load, for measurements.",
        parse.flag,
    )
    pool_threshold: float = setting(
        "QUEEN_PUSH_POOL_THRESHOLD",
        0.7,
        "Share of the database connections in use above which pushes are deferred, if calls wait for a connection.",
        parse.share,
    )
    wait_threshold_ms: int = setting(
        "QUEEN_PUSH_WAIT_THRESHOLD_MS",
        1000,
        "Wait of pushes for their database call above which further pushes are deferred, in ms.",
        parse.positive,
    )
    standing_wait_ms: int = setting(
        "QUEEN_PUSH_STANDING_WAIT_MS",
        250,
        "Shorter wait above which pushes are deferred if it lasts for `QUEEN_PUSH_STANDING_AFTER_MS`, in ms.",
        parse.positive,
    )
    standing_after_ms: int = setting(
        "QUEEN_PUSH_STANDING_AFTER_MS", 1000, "How long that wait must last without a break, in ms.", parse.positive
    )
    loop_threshold_ms: int = setting(
        "QUEEN_PUSH_LOOP_THRESHOLD_MS",
        1000,
        "Delay of the event loop above which pushes are deferred, in ms.",
        parse.positive,
    )
    queue_depth: int = setting(
        "QUEEN_PUSH_QUEUE_DEPTH",
        10_000,
        "Maximum number of operations in the operation queue; beyond it pushes get 429.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class OperationSettings:
    """Operations: deferred pushes, and what is done in steps (delete, clear, seek, redrive, retention)."""

    interval_ms: int = setting(
        "QUEEN_OPERATION_INTERVAL_MS",
        100,
        "Pause of the operation worker when the operation queue is empty, in ms.",
        parse.positive,
    )
    partitions: int = setting(
        "QUEEN_OPERATION_PARTITIONS",
        50,
        "Maximum number of partitions whose operations run in one call.",
        parse.positive,
    )
    run: int = setting(
        "QUEEN_OPERATION_RUN", 20, "Maximum number of operations of one partition that run in one call.", parse.positive
    )
    step: int = setting(
        "QUEEN_OPERATION_STEP",
        5000,
        "Maximum number of messages, partitions or dead letters in one step of a stepped operation.",
        parse.positive,
    )
    wait_ms: int = setting(
        "QUEEN_OPERATION_WAIT_MS",
        2000,
        "How long a delete, clear, seek or redrive may take before it is answered with 202 and continues in the "
        "background, in ms.",
        parse.positive,
    )
    max_concurrent: int = setting(
        "QUEEN_OPERATION_CONCURRENT",
        2,
        "Maximum number of stepped operations that a server runs at once.",
        parse.positive,
    )
    max_unfinished: int = setting(
        "QUEEN_OPERATION_MOST",
        100,
        "Maximum number of unfinished stepped operations of one queue; further ones get 429.",
        parse.positive,
    )
    keep_s: int = setting(
        "QUEEN_OPERATION_KEEP_S",
        3600,
        "How long completed operations and their results are kept, in s.",
        parse.positive,
    )
    keep_failed_s: int = setting(
        "QUEEN_OPERATION_KEEP_FAILED_S",
        604_800,
        "How long failed stepped operations are kept, in s. Failed pushes stay until they are retried or cancelled.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class TimerSettings:
    """Timers: how often this server pushes what is due."""

    interval_ms: int = setting(
        "QUEEN_TIMER_INTERVAL_MS",
        200,
        "Pause between two questions for timers that are due, in ms; 0: this server pushes no timers.",
        parse.count,
    )


@dataclass(frozen=True, kw_only=True)
class OutboxSettings:
    """Outbox: how often this server checks for messages sent with queen.send that no notification has announced."""

    interval_ms: int = setting(
        "QUEEN_OUTBOX_INTERVAL_MS",
        500,
        "Pause between two questions for messages that applications have sent with queen.send, in ms. A notification "
        "of the database ends the pause, unless there is a pooler without QUEEN_DB_LISTEN_URL; 0: this server pushes "
        "none of them.",
        parse.count,
    )
