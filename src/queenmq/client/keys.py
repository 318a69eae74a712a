"""Values under keys, counters and locks: one method for each operation of the HTTP API, which returns a plain dict.

The class is the same for both twins: `R` is an awaitable of the answer, or the answer. Nothing is repeated after an
answer that got lost: whether it was applied is unknown then, and reading tells.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from queenmq.client.errors import InvalidUse
from queenmq.client.models import Json
from queenmq.client.payload import encode

R = TypeVar("R")
Lifetime = timedelta | float | None


def put(
    namespace: str,
    key: str,
    value: Any,
    *,
    ttl: Lifetime,
    expect: int | None = None,
    required: bool = False,
) -> Json:
    """An operation that stores a value: for `ttl` (seconds), or for ever if that is None. `expect` is the version that
    the key must have, 0 if it must not exist. With `required`, nothing else is applied if this is not."""
    stored = _target("put", namespace, key, required) | {"value": encode(value)} | _lifetime(ttl)
    return stored | ({} if expect is None else {"expect": expect})


def increment(
    namespace: str,
    key: str,
    by: int = 1,
    *,
    ttl: Lifetime,
    least: int | None = None,
    most: int | None = None,
    required: bool = False,
) -> Json:
    """An operation that adds to a whole number, unless it would leave the bounds; a new one begins at 0 and lives for
    `ttl`."""
    bounds = {name: bound for name, bound in (("min", least), ("max", most)) if bound is not None}
    return _target("incr", namespace, key, required) | {"delta": by} | bounds | _lifetime(ttl)


def delete(namespace: str, key: str, *, expect: int | None = None, required: bool = False) -> Json:
    return _target("delete", namespace, key, required) | ({} if expect is None else {"expect": expect})


def check(namespace: str, key: str, expect: int) -> Json:
    """A condition: nothing else is applied unless the key has this version, or does not exist (0)."""
    return _target("check", namespace, key, True) | {"expect": expect}


def _target(op: str, namespace: str, key: str, required: bool) -> Json:
    return {"op": op, "ns": namespace, "key": key} | ({"required": True} if required else {})


def _lifetime(ttl: Lifetime) -> Json:
    if ttl is None:
        return {"forever": True}
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if seconds < 1:
        raise InvalidUse("a value lives for a second at least")
    return {"ttlSeconds": round(seconds)}


class Keys(Generic[R]):
    def __init__(self, ask: Callable[[str, list[Json]], R]) -> None:
        self._ask = ask

    def apply(self, *operations: Json) -> R:
        """Several operations in one transaction, made with the functions of this module: `{"results": [...]}`."""
        return self._ask("kv", list(operations))

    def get(self, namespace: str, key: str) -> R:
        """`{"results": [{"found", "value", "version", "expiresAt"}]}`."""
        return self.apply({"op": "get", "ns": namespace, "key": key})

    def list(self, namespace: str, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> R:
        """Keys that begin with `prefix`, in their order: `rows`, and `nextAfter` if there are more."""
        return self.apply({"op": "getPrefix", "ns": namespace, "prefix": prefix, "after": after, "limit": limit})

    def put(self, namespace: str, key: str, value: Any, *, ttl: Lifetime, expect: int | None = None) -> R:
        """Store a value; its result has `applied`, and `reason` if the expected version is not there."""
        return self.apply(put(namespace, key, value, ttl=ttl, expect=expect))

    def increment(
        self,
        namespace: str,
        key: str,
        by: int = 1,
        *,
        ttl: Lifetime,
        least: int | None = None,
        most: int | None = None,
    ) -> R:
        """Add to a counter; `applied` is False if that would leave the bounds."""
        return self.apply(increment(namespace, key, by, ttl=ttl, least=least, most=most))

    def delete(self, namespace: str, key: str, *, expect: int | None = None) -> R:
        return self.apply(delete(namespace, key, expect=expect))

    def acquire(self, name: str, *, ttl: timedelta | float, owner: str, limit: int = 1) -> R:
        """Take a permit of a lock: `acquired`, its `token` (a fencing number), its `slot`, and `guard`, a condition for
        transactions. The same owner gets the same permit again."""
        lock = {"op": "acquire", "name": name, "owner": owner, "limit": limit}
        return self._ask("locks", [lock | _lifetime(ttl)])

    def renew(self, name: str, token: int, *, ttl: timedelta | float, slot: int = 0) -> R:
        """Keep a permit for longer; it gets another `token`."""
        return self._ask("locks", [{"op": "renew", "name": name, "token": token, "slot": slot} | _lifetime(ttl)])

    def release(self, name: str, token: int, *, slot: int = 0) -> R:
        return self._ask("locks", [{"op": "release", "name": name, "token": token, "slot": slot}])

    def holders(self, name: str) -> R:
        """Who has permits of a lock."""
        return self._ask("locks", [{"op": "get", "name": name}])
