"""Settings of the lanes: which requests are merged into one database call, and how many calls run at once."""

from __future__ import annotations

from dataclasses import dataclass

from queenmq.config import parse
from queenmq.config.setting import setting


@dataclass(frozen=True, kw_only=True)
class LaneSettings:
    """One lane; each lane declares its own variables."""

    preferred_batch_size: int = 1
    max_hold_ms: int = 0
    max_batch_size: int = 1
    max_concurrent: int = 1


@dataclass(frozen=True, kw_only=True)
class PushLane(LaneSettings):
    preferred_batch_size: int = setting(
        "QUEEN_PUSH_PREFERRED_BATCH_SIZE",
        50,
        "Number of waiting push requests at which another database call starts while one runs.",
        parse.positive,
    )
    max_hold_ms: int = setting(
        "QUEEN_PUSH_MAX_HOLD_MS",
        20,
        "Longest time that a push request waits to be merged while a call runs, in ms.",
        parse.count,
    )
    max_batch_size: int = setting(
        "QUEEN_PUSH_MAX_BATCH_SIZE", 500, "Maximum number of push requests in one database call.", parse.positive
    )
    max_concurrent: int = setting(
        "QUEEN_PUSH_MAX_CONCURRENT", 24, "Maximum number of concurrent push calls.", parse.positive
    )


@dataclass(frozen=True, kw_only=True)
class PopLane(LaneSettings):
    preferred_batch_size: int = setting(
        "QUEEN_POP_PREFERRED_BATCH_SIZE",
        20,
        "Number of waiting pop requests at which another database call starts while one runs.",
        parse.positive,
    )
    max_hold_ms: int = setting(
        "QUEEN_POP_MAX_HOLD_MS",
        5,
        "Longest time that a pop request waits to be merged while a call runs, in ms.",
        parse.count,
    )
    max_batch_size: int = setting(
        "QUEEN_POP_MAX_BATCH_SIZE", 500, "Maximum number of pop requests in one database call.", parse.positive
    )
    max_concurrent: int = setting(
        "QUEEN_POP_MAX_CONCURRENT", 16, "Maximum number of concurrent pop calls.", parse.positive
    )


@dataclass(frozen=True, kw_only=True)
class AckLane(LaneSettings):
    preferred_batch_size: int = setting(
        "QUEEN_ACK_PREFERRED_BATCH_SIZE",
        50,
        "Number of waiting ack requests at which another database call starts while one runs.",
        parse.positive,
    )
    max_hold_ms: int = setting(
        "QUEEN_ACK_MAX_HOLD_MS",
        20,
        "Longest time that an ack request waits to be merged while a call runs, in ms.",
        parse.count,
    )
    max_batch_size: int = setting(
        "QUEEN_ACK_MAX_BATCH_SIZE", 500, "Maximum number of ack requests in one database call.", parse.positive
    )
    max_concurrent: int = setting(
        "QUEEN_ACK_MAX_CONCURRENT", 16, "Maximum number of concurrent ack calls.", parse.positive
    )


@dataclass(frozen=True, kw_only=True)
class RenewLeaseLane(LaneSettings):
    preferred_batch_size: int = setting(
        "QUEEN_RENEW_LEASE_PREFERRED_BATCH_SIZE",
        10,
        "Number of waiting lease renewal requests at which another database call starts while one runs.",
        parse.positive,
    )
    max_hold_ms: int = setting(
        "QUEEN_RENEW_LEASE_MAX_HOLD_MS",
        100,
        "Longest time that a lease renewal request waits to be merged while a call runs, in ms.",
        parse.count,
    )
    max_batch_size: int = setting(
        "QUEEN_RENEW_LEASE_MAX_BATCH_SIZE",
        100,
        "Maximum number of lease renewal requests in one database call.",
        parse.positive,
    )
    max_concurrent: int = setting(
        "QUEEN_RENEW_LEASE_MAX_CONCURRENT", 2, "Maximum number of concurrent lease renewal calls.", parse.positive
    )


@dataclass(frozen=True, kw_only=True)
class TransactionLane(LaneSettings):
    """Transactions are never merged and never held."""

    max_concurrent: int = setting(
        "QUEEN_TRANSACTION_MAX_CONCURRENT",
        4,
        "Maximum number of concurrent transactions. Transactions are never merged.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class LanesSettings:
    """Merged calls: how requests of one kind share a call to the database."""

    push: LaneSettings = PushLane()
    pop: LaneSettings = PopLane()
    ack: LaneSettings = AckLane()
    renew_lease: LaneSettings = RenewLeaseLane()
    transaction: LaneSettings = TransactionLane()
    max_items_per_call: int = setting(
        "SIDECAR_MAX_ITEMS_PER_TX",
        5000,
        "Maximum number of messages or acknowledgements in one merged database call.",
        parse.positive,
    )


@dataclass(frozen=True, kw_only=True)
class ConcurrencySettings:
    """Concurrency: how many calls of one kind run at once."""

    mode: str = setting(
        "QUEEN_CONCURRENCY_MODE",
        "vegas",
        "`vegas` adapts the number of concurrent database calls to their latency; `static` always allows the maximum.",
        parse.choice("vegas", "static"),
    )
    min_limit: int = setting(
        "QUEEN_VEGAS_MIN_LIMIT", 1, "Lower limit of concurrent calls of a lane, with `vegas`.", parse.positive
    )
    max_limit: int = setting(
        "QUEEN_VEGAS_MAX_LIMIT", 32, "Upper limit of concurrent calls of a lane, with `vegas`.", parse.positive
    )
    alpha: float = setting(
        "QUEEN_VEGAS_ALPHA",
        3.0,
        "`vegas` raises the number of concurrent calls while it estimates fewer calls than this queued in the "
        "database.",
        parse.factor,
    )
    beta: float = setting(
        "QUEEN_VEGAS_BETA",
        12.0,
        "`vegas` lowers the number of concurrent calls while it estimates more calls than this queued in the database.",
        parse.factor,
    )
    rtt_window_samples: int = setting(
        "QUEEN_VEGAS_RTT_WINDOW_SAMPLES", 50, "Number of calls over which `vegas` averages the latency.", parse.positive
    )
    rtt_min_window_s: int = setting(
        "QUEEN_VEGAS_RTT_MIN_WINDOW_SEC",
        30,
        "How long `vegas` uses the fastest call as its reference, in s.",
        parse.positive,
    )
    update_interval_ms: int = setting(
        "QUEEN_VEGAS_UPDATE_INTERVAL_MS", 1000, "Time between two adjustments by `vegas`, in ms.", parse.positive
    )
