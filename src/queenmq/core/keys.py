"""Values under keys: what can be done with one, and what came of it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

LOCK_NAMESPACE: Final = "lock:"
MAX_VALUE_BYTES: Final = 256 * 1024
MOST_OPERATIONS: Final = 100
MOST_PERMITS: Final = 1000
MOST_ROWS: Final = 1000

Change = Literal["put", "incr", "delete", "check"]
LockChange = Literal["acquire", "renew", "release"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """`expected` is the version that the key must have, 0 if it must not exist. With `required`, everything else of the
    same call is applied only if this is. `ttl_s` None is for ever."""

    change: Change
    namespace: str
    key: str
    value: str | None = None  # JSON
    ttl_s: int | None = None
    expected: int | None = None
    delta: int | None = None
    least: int | None = None
    most: int | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class KeyChanged:
    """What is there afterwards, and why a change was not applied: version, absent, exists, limit or type."""

    applied: bool
    reason: str | None
    version: int | None
    value: str | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoredValue:
    key: str
    version: int
    expires_at: datetime | None
    updated_at: datetime
    value: str | None  # None if it was not wanted, or is `omitted` because those before it are large
    omitted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOperation:
    change: LockChange
    name: str
    owner: str | None = None
    ttl_s: int | None = None
    limit: int = 1
    slot: int = 0
    token: int | None = None


@dataclass(frozen=True, slots=True)
class LockChanged:
    """`token` is the fencing number of the permit: it grows with each acquisition and renewal."""

    done: bool
    slot: int | None
    token: int | None
    owner: str | None
    already: bool | None
