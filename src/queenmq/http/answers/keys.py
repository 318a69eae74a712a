"""Answers about values under keys, and locks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from queenmq.http.schemas import Moment, documented_as

Reason = Annotated[str, documented_as({"enum": ["version", "absent", "exists", "limit", "type", "rolled_back"]})]


class KeyRow(Struct, kw_only=True, rename="camel"):
    key: str
    version: int
    expires_at: Moment | None
    updated_at: Moment
    value: Raw | UnsetType = UNSET


class KeyResult(Struct, kw_only=True, rename="camel"):
    """Of a change, whether it was `applied`, why not, and what is there afterwards; of a get, whether it was `found`;
    of the other reads, `rows`. `truncated`: there is more than the answer may have. A token that may not read the
    namespace gets no `value`."""

    applied: bool | UnsetType = UNSET
    found: bool | UnsetType = UNSET
    key: str | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    version: int | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    expires_at: Moment | UnsetType | None = UNSET
    updated_at: Moment | UnsetType = UNSET
    rows: list[KeyRow] | UnsetType = UNSET
    missing: list[str] | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    next_after: str | UnsetType | None = UNSET


class KeyResults(Struct, kw_only=True, rename="camel"):
    """With `failedIndex`, nothing was applied because the condition of that operation does not hold."""

    results: list[KeyResult]
    failed_index: int | UnsetType = UNSET


class KeyNamespace(Struct, kw_only=True, rename="camel"):
    """`keys` is exact up to a hundred; `more`: there may be more than that."""

    namespace: str
    keys: int
    more: bool


class KeyNamespaces(Struct, kw_only=True, rename="camel"):
    """By name. `nextAfter` is where to go on, null at the end; a page may have fewer than `limit`."""

    namespaces: list[KeyNamespace]
    next_after: str | None


class KeyGuard(Struct, kw_only=True):
    """An operation for /api/v1/kv and transactions: nothing is applied unless the permit is still the same."""

    op: Literal["check"]
    ns: str
    key: str
    expect: int
    required: bool


class LockHolder(Struct, kw_only=True, rename="camel"):
    slot: int
    owner: str | None
    token: int
    since: Moment | None
    expires_at: Moment | None
    renewed_at: Moment


class LockSeen(Struct, kw_only=True, rename="camel"):
    """Who has a permit. Its fencing number is not shown: with it, anybody could end what others hold."""

    slot: int
    owner: str | None
    since: Moment | None
    expires_at: Moment
    renewed_at: Moment


class LockListed(Struct, kw_only=True):
    """The first ten that hold it."""

    name: str
    holders: list[LockSeen]


class LocksListed(Struct, kw_only=True, rename="camel"):
    """By name. `nextAfter` is where to go on, null at the end; a page may have fewer than `limit`."""

    locks: list[LockListed]
    next_after: str | None


class LockResult(Struct, kw_only=True, rename="camel"):
    """`reason` is `held` (nobody has given a permit back) or `lost` (the permit is not the caller's any more)."""

    acquired: bool | UnsetType = UNSET
    renewed: bool | UnsetType = UNSET
    released: bool | UnsetType = UNSET
    held: bool | UnsetType = UNSET
    already: bool | UnsetType = UNSET
    slot: int | UnsetType = UNSET
    token: int | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    guard: KeyGuard | UnsetType = UNSET
    reason: Literal["held", "lost"] | UnsetType = UNSET
    holders: list[LockHolder] | UnsetType = UNSET


class LockResults(Struct):
    results: list[LockResult]
