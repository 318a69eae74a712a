"""What a queue can be configured with: names on the wire, defaults and limits. No I/O."""

from __future__ import annotations

import msgspec

from queenmq.errors import InvalidRequest

MAX_SECONDS = 10 * 365 * 86_400
MAX_COUNT = 2**31 - 1
DEFAULT_TTL_S = 3600


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fifteen options. Every one left out returns to its default."""

    lease_time: int = 300
    max_size: int = 0
    ttl: int | None = None
    retry_limit: int = 3
    retry_delay: int = 1000
    dead_letter_queue: bool = False
    dlq_after_max_retries: bool = False
    priority: int = 0
    delayed_processing: int = 0
    window_buffer: int = 0
    retention_seconds: int = 0
    completed_retention_seconds: int = 0
    retention_enabled: bool = False
    encryption_enabled: bool = False
    max_wait_time_seconds: int = 0

    def echo(self) -> dict[str, object]:
        """As a configure answer shows them: `ttl` has a nominal value even where it is not enforced."""
        shown: dict[str, object] = msgspec.to_builtins(self)
        if self.ttl is None:
            shown["ttl"] = DEFAULT_TTL_S
        return shown


_SECONDS = (
    "leaseTime",
    "ttl",
    "delayedProcessing",
    "windowBuffer",
    "retentionSeconds",
    "completedRetentionSeconds",
    "maxWaitTimeSeconds",
)
_COUNTS = ("maxSize", "retryLimit", "retryDelay")


def check(options: QueueOptions) -> None:
    """Raise InvalidRequest naming the first option that is out of range."""
    values = msgspec.to_builtins(options)
    for name in _SECONDS:
        _within(name, values[name], 0, MAX_SECONDS)
    for name in _COUNTS:
        _within(name, values[name], 0, MAX_COUNT)
    _within("priority", values["priority"], -MAX_COUNT, MAX_COUNT)


def _within(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"options.{name} must be between {low} and {high}", f"options.{name}")
