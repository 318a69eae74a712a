"""What a queue can be configured with: names on the wire, defaults and limits. No I/O."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

MAX_SECONDS = 10 * 365 * 86_400
MAX_COUNT = 2**31 - 1
DEFAULT_TTL_S = 3600

# As they are stored: by column, and for every option that a queue has.
OptionValues: TypeAlias = dict[str, int | bool | str | None]
Seconds = Annotated[int, Meta(ge=0, le=MAX_SECONDS)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Interval = Annotated[int, Meta(ge=10, le=3_600_000)]


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The options. Every one left out returns to its default; without those of `popWait…`, the settings of the server
    count."""

    lease_time: Seconds = 300
    max_size: Count = 0
    ttl: Seconds | None = None
    retry_limit: Count = 3
    retry_delay: Count = 1000
    dead_letter_queue: bool = False
    dlq_after_max_retries: bool = False
    priority: Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)] = 0
    delayed_processing: Seconds = 0
    window_buffer: Seconds = 0
    retention_seconds: Seconds = 0
    completed_retention_seconds: Seconds = 0
    retention_enabled: bool = False
    encryption_enabled: bool = False
    max_wait_time_seconds: Seconds = 0
    archive_before_delete: bool = False
    set_aside_failed_pushes: bool = False
    pop_wait_base_interval_ms: Interval | None = None
    pop_wait_max_interval_ms: Interval | None = None
    pop_wait_backoff_threshold: Annotated[int, Meta(ge=1, le=1000)] | None = None
    pop_wait_backoff_multiplier: Annotated[float, Meta(ge=1, le=100)] | None = None

    def echo(self) -> QueueOptions:
        """As a configure answer shows them: `ttl` has a nominal value even where it is not enforced."""
        return self if self.ttl is not None else msgspec.structs.replace(self, ttl=DEFAULT_TTL_S)

    def pop_wait(self) -> str | None:
        """The last four as they are stored."""
        values = [getattr(self, name) for name in _POP_WAIT]
        return None if values == [None] * len(values) else msgspec.json.encode(values).decode()


_POP_WAIT: Final = tuple(name for name in QueueOptions.__struct_fields__ if name.startswith("pop_wait_"))
_pop_wait: Final = msgspec.json.Decoder(tuple[int | None, int | None, int | None, float | None])


def read_pop_wait(stored: object) -> dict[str, float | None]:
    """What `QueueOptions.pop_wait` has written; nothing of anything else."""
    try:
        values = _pop_wait.decode(stored) if isinstance(stored, str) else (None,) * len(_POP_WAIT)
    except msgspec.DecodeError:
        values = (None,) * len(_POP_WAIT)
    return dict(zip(_POP_WAIT, values, strict=True))


class ConfigureRights(NamedTuple):
    """What the caller of configure may do to an existing queue: change options, and do so with loss of messages."""

    may_destroy: bool = True
    may_change: bool = True


EVERY_RIGHT: Final = ConfigureRights()
