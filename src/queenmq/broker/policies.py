"""What queues and groups do with messages that fail, and how much they get. It is kept in the database, where each pop
and ack finds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import UNSET, UnsetType

from queenmq.broker.pop import Popper
from queenmq.core.fairness import FairnessPolicy
from queenmq.core.limits import KeyLimits, LimitPolicy, most_at_once
from queenmq.core.retry_policy import BreakerPolicy, RetryPolicy
from queenmq.errors import Conflict, NotFound, QueenError
from queenmq.storage.database import Database
from queenmq.storage.failures import after_commit
from queenmq.storage.statements import statement

_encoder = msgspec.json.Encoder()


class Policies:
    """`publish` tells every server that something of a queue has changed, and `wake` wakes its long polls, also those
    that a limit keeps waiting."""

    def __init__(
        self,
        database: Database,
        popper: Popper,
        publish: Callable[[str], Awaitable[None]],
        wake: Callable[[str], None],
    ) -> None:
        self._database = database
        self._known = popper.pauses
        self._publish = publish
        self._wake = wake
        self.fairness = popper.fairness

    async def set(
        self,
        queue: str,
        group: str | None,
        by: str | None,
        retry: RetryPolicy | UnsetType | None,
        breaker: BreakerPolicy | UnsetType | None,
        limits: LimitPolicy | UnsetType | None = UNSET,
        fairness: FairnessPolicy | UnsetType | None = UNSET,
    ) -> bool:
        """Set parts of the policy of a queue, or of a group in it; None takes a part back. All are set or none. False
        if nothing changes.

        When this returns, every later pop and ack goes by it. Raises NotFound if there is no such queue, and Conflict
        while servers may run that would not keep what it promises, or if there are too many policies.
        """
        given = retry or RetryPolicy()
        broken = breaker or None
        limited = limits or LimitPolicy()
        keys = limited.per_key or KeyLimits()
        row = await self._database.fetchrow(
            statement("set_policy"),
            queue,
            group or "",
            by,
            retry is not UNSET,
            _text(retry),
            given.limit,
            given.delays(),
            given.least_part,
            given.poison,
            breaker is not UNSET,
            _text(breaker),
            None if broken is None else broken.failures,
            None if broken is None else broken.of,
            None if broken is None else broken.pause_seconds * 1000,
            limits is not UNSET,
            _text(limits),
            limited.leases,
            limited.rate,
            most_at_once(limited),
            keys.leases,
            keys.rate,
            most_at_once(keys),
            fairness is not UNSET,
            _text(fairness),
            fairness.separator if fairness else None,
            repeatable=True,
        )
        if row is None or row["changed"] is None:
            raise NotFound("Queue not found")
        if row["refused"] is not None:
            raise _refusal(row["refused"], given)
        with after_commit():
            if fairness is not UNSET:
                await self.fairness.follow(queue, fairness.separator if fairness else None)
            if breaker is not UNSET or limits is not UNSET or fairness is not UNSET:
                await self._publish(queue)
                self._known.forget(queue)
                self.fairness.forget_holds(queue)
                self._wake(queue)
        changed: bool = row["changed"]
        return changed


def _refusal(why: str, retry: RetryPolicy) -> QueenError:
    if why == "contract":
        return Conflict(
            f"poison {retry.poison!r} is for servers of this version only: when none of the version before runs any "
            "more, finish the upgrade with `queen db upgrade --contract`, and set it then"
        )
    if why == "keys":
        return Conflict(
            "limits perKey need fairness, which says what the keys of the queue are: set it before them or in the same "
            'request, for example {"separator": ":"}; to take fairness back, take these limits back as well'
        )
    return Conflict(
        "1,000 groups of a queue can have policies, and their limits can allow 10,000 leases together: remove those of "
        "groups that are gone (`queen policies`), or set one for the queue"
    )


def _text(part: RetryPolicy | BreakerPolicy | LimitPolicy | FairnessPolicy | UnsetType | None) -> str | None:
    return _encoder.encode(part).decode() if part else None
