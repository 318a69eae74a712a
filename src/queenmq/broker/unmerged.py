"""Calls that share their fate with no other request: all of one or nothing of it, so they are not merged.

They are bounded like the lanes of the sidecar, a few run at once, and each is repeated while others are in its way. Who
needs a row that another transaction holds waits for it without keeping others from running (`lock_wait`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.lane import PAUSES, TRIES
from queenmq.broker.lock_wait import LockWait
from queenmq.broker.locked_rows import Row
from queenmq.broker.maintenance import Maintenance
from queenmq.broker.merging import Policy
from queenmq.broker.push import Targets
from queenmq.core.message import Message
from queenmq.errors import InternalError, Overloaded, UnavailableError
from queenmq.journal.interface import Journal
from queenmq.retry import Failure, retried
from queenmq.storage.database import LOST_ANSWERS
from queenmq.storage.failures import AnswerLost, EncryptionRequired, RowLocked, TransactionRefused, TryAgain

Result = TypeVar("Result")


class Unmerged:
    def __init__(
        self,
        name: str,
        policy: Policy,
        *,
        encryption: PayloadEncryption,
        targets: Targets,
        maintenance: Maintenance,
        locks: LockWait,
        journal: Journal | None,
        wait_behind_s: float,
    ) -> None:
        """`name` is what is called, in the plural, for people."""
        self._name = name
        self._encryption = encryption
        self._targets = targets
        self._maintenance = maintenance
        self._journal = journal
        self._wait_behind_s = wait_behind_s
        self._locks = locks
        self._slots = asyncio.Semaphore(policy.max_concurrent)
        self._max_pending = policy.max_pending
        self._pending = 0

    async def run(
        self,
        messages: Sequence[Message],
        rows: frozenset[Row],
        call: Callable[[str], Awaitable[Result]],
        done_before: Callable[[], Awaitable[Result | None]],
        *,
        repeatable: bool = True,
    ) -> Result:
        """What `call` returns or raises; it is made again for every try, with the lock_timeout for it. `messages` are
        those that it pushes, and `rows` what it locks. After a lost answer, `done_before` returns what an earlier try
        has done, if it has; what is not `repeatable` raises AnswerLost instead of another try."""
        lost = False
        for left in reversed(range(LOST_ANSWERS + 1 if repeatable else 1)):
            try:
                return await self._once(messages, rows, call)
            except AnswerLost:
                if left == 0:
                    raise
                lost = True
            except (TransactionRefused, RowLocked) as error:
                # Perhaps only because a try whose answer got lost was committed.
                earlier = await self._asked(done_before) if lost else None
                if earlier is not None:
                    return earlier
                if lost and isinstance(error, RowLocked):
                    raise AnswerLost from error  # nobody may say that nothing was changed
                raise
            except (UnavailableError, InternalError) as error:
                if lost:
                    raise AnswerLost from error
                raise
        raise AssertionError("unreachable")

    @staticmethod
    async def _asked(done_before: Callable[[], Awaitable[Result | None]]) -> Result | None:
        try:
            return await done_before()
        except UnavailableError as error:
            raise AnswerLost from error

    async def _once(
        self, messages: Sequence[Message], rows: frozenset[Row], call: Callable[[str], Awaitable[Result]]
    ) -> Result:
        if messages:
            self._maintenance.require_pushes()
        if self._pending >= self._max_pending:
            raise Overloaded(f"too many {self._name} are waiting for the database")
        self._pending += 1
        try:
            if self._journal is not None:
                await self._journal.require_turn(messages, self._wait_behind_s)
            return await self._locks.through(rows, lambda lock_timeout: self._in_slot(call, lock_timeout))
        finally:
            self._pending -= 1

    async def _in_slot(self, call: Callable[[str], Awaitable[Result]], lock_timeout: str) -> Result:
        async with self._slots:
            try:
                return await self._try(call, lock_timeout)
            except EncryptionRequired as refusal:
                self._encryption.require_key()
                await self._targets.demand_encryption(refusal.detail)
                return await self._try(call, lock_timeout)

    def _try(self, call: Callable[[str], Awaitable[Result]], lock_timeout: str) -> Awaitable[Result]:
        return retried(lambda: call(lock_timeout), _is_worth_another, PAUSES, self._locks.clock)


def _is_worth_another(failure: Failure) -> bool:
    return isinstance(failure.error, TryAgain) and not isinstance(failure.error, RowLocked) and failure.attempts < TRIES
