"""Replays the journal: whatever pushes it holds goes to the database, in order, as soon as that takes them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from queenmq.broker.lock_wait import LockWait
from queenmq.broker.switches import Switches
from queenmq.clock import SYSTEM, Clock
from queenmq.config import JournalSettings
from queenmq.core.message import Message
from queenmq.core.push_call import Outcome
from queenmq.errors import DatabaseUnavailable, HttpError, InternalError, Overloaded, UnavailableError
from queenmq.journal.files import JournalFailed
from queenmq.journal.pending import JournalledPush
from queenmq.journal.push_journal import PushJournal
from queenmq.operations.queue import OperationQueue, ReplayedPush
from queenmq.retry import Pauses
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.failures import TryAgain
from queenmq.storage.sqlstates import is_content_fault, sqlstate_of

log = logging.getLogger(__name__)

# What the database refuses for its content is asked for so often, alone, before it is believed.
_CONTENT_TRIES = 3
# So many different pushes that fail one after the other, each alone, are not the cause.
_NOT_THE_RECORDS = 3
# From so many failed tries on a push waits longer for a locked partition; not at once, because all others wait with it.
_PATIENT_AFTER = 2
_PAUSES = Pauses(0.1, 10.0)
_OUTAGE_PAUSES = Pauses(0.1, 2.0)
_LOOK_ASIDE_EVERY_S = 1.0
_STORED = frozenset({"queued", "duplicate"})
# Nothing about a push: the database, the operation queue, or the disk of the journal.
_ELSEWHERE = (DatabaseUnavailable, Overloaded, JournalFailed)


class JournalReplay(Service):
    """Several pushes go into one call.

    One that the database refuses for its content is set aside, alone. After any other error pushes are tried again for
    as long as it takes, with growing pauses: if it is one push that cannot be stored, it and what is behind it in its
    partitions, else all of them. `store` is the broker's verb for pushes that were accepted before.
    """

    name = "journal replay"

    def __init__(
        self,
        database: Database,
        journal: PushJournal,
        settings: JournalSettings,
        clock: Clock = SYSTEM,
        *,
        store: Callable[[list[list[Message]], str], Awaitable[list[list[Outcome]]]],
        operations: OperationQueue,
        switches: Switches,
        locks: LockWait,
        most_messages: int,
    ) -> None:
        super().__init__(settings.replay_interval_ms, clock)
        self._database = database
        self._journal = journal
        self._store_accepted = store
        self._operations = operations
        self._switches = switches
        self._locks = locks
        self._most = settings.replay_batch_size
        self._most_messages = most_messages
        self._alone = 0  # pushes that go alone, because a call with several has failed
        self._failed_in_a_row = 0
        self._pauses = 0  # in a row, of everything
        self._resume_at = 0.0
        self._look_aside_at = 0.0
        self._aside_failed = False

    async def work(self) -> None:
        await self._look_aside()
        try:
            await self._replay()
        except Exception as error:
            # A disk that cannot be read, or a defect: nothing that a push is to blame for.
            self._pause(error, _PAUSES)
        finally:
            self._journal.publish()

    async def _look_aside(self) -> None:
        now = self._clock.monotonic()
        if now >= self._look_aside_at:
            self._look_aside_at = now + _LOOK_ASIDE_EVERY_S
            try:
                await self._journal.take_back()
                self._aside_failed = False
            except (UnavailableError, OSError) as error:
                level = logging.DEBUG if self._aside_failed else logging.ERROR
                log.log(level, "journal: what was set aside cannot be taken back: %s", error)
                self._aside_failed = True

    async def _replay(self) -> None:
        if self._clock.monotonic() < self._resume_at:
            return
        while self._database.is_open and self._switches.pushes_allowed:
            batch = await self._journal.oldest(1 if self._alone else self._most, self._most_messages)
            if not batch:
                # Only now: what fails again and again must not keep the others from being tried.
                if self._journal.unpark(self._clock.monotonic()):
                    continue
                self._caught_up()
                return
            if not await self._try(batch):
                return

    async def _try(self, batch: list[tuple[JournalledPush, list[Message]]]) -> bool:
        """Whether to go on at once."""
        # What has failed before comes alone, so only it waits longer, in PostgreSQL's own queue: a partition that many
        # want is never free, and without that its journalled pushes would be tried in vain for ever.
        has_waited = batch[0][0].tries >= _PATIENT_AFTER
        try:
            await self._store(batch, self._locks.timeout(has_waited=has_waited))
        except TryAgain as error:
            # Somebody has locked one of the partitions, perhaps for long.
            if len(batch) > 1:
                self._alone = len(batch)
                return True
            return self._park(batch[0][0], error)
        except _ELSEWHERE as error:
            self._pause(error, _OUTAGE_PAUSES)
            return False
        except Exception as error:
            if len(batch) > 1:
                self._alone = len(batch)
                return True
            return await self._failed_alone(*batch[0], error)
        self._alone = max(0, self._alone - 1)
        self._failed_in_a_row = 0
        self._pauses = 0
        if self._journal.failing:
            self._journal.failing = self._journal.has_failed
        return True

    async def _store(self, batch: list[tuple[JournalledPush, list[Message]]], lock_timeout: str) -> None:
        outcomes = await self._store_accepted([messages for _, messages in batch], lock_timeout)
        statuses = {outcome.status for request in outcomes for outcome in request}
        if "rejected" in statuses:
            raise DatabaseUnavailable("the operation queue is full")
        if not statuses <= _STORED:
            raise InternalError(f"messages of the journal were answered with {', '.join(sorted(statuses - _STORED))}")
        dealt = [
            ReplayedPush(push.operation_id, *push.partitions[0], [m.transaction_id for m in messages], found)
            for (push, messages), found in zip(batch, outcomes, strict=True)
        ]
        try:
            await self._operations.record_replayed(dealt)
        except InternalError as error:
            # The messages are stored, and it is not they who are refused.
            if not is_content_fault(error):
                raise
            log.error("journal: results of stored pushes cannot be kept: %s", _described(error))
        await self._journal.finish([push for push, _ in batch])

    async def _failed_alone(self, push: JournalledPush, messages: list[Message], error: Exception) -> bool:
        for _ in range(_CONTENT_TRIES - 1):
            if not is_content_fault(error):
                break
            try:
                await self._store([(push, messages)], self._locks.longest)
            except _ELSEWHERE as unavailable:
                self._pause(unavailable, _OUTAGE_PAUSES)
                return False
            except Exception as again:
                error = again
            else:
                return True
        if is_content_fault(error):
            await self._journal.set_aside(push, f"the database refuses its content: {_described(error)}")
            return True
        return self._park(push, error)

    def _park(self, push: JournalledPush, error: Exception) -> bool:
        """Nobody knows that it is the push: leave it for a while. Whether to go on with others meanwhile."""
        # A lock is about its partition, however many there are.
        self._failed_in_a_row += not isinstance(error, TryAgain)
        self._journal.replay_failures += 1
        if not push.tries and not self._journal.failing:
            log.error(
                "journal: operation %s could not be stored; it and the pushes behind it are retried: %s",
                push.operation_id,
                _described(error),
            )
        self._journal.park(push, self._clock.monotonic() + _PAUSES.after(push.tries + 1))
        if self._failed_in_a_row < _NOT_THE_RECORDS:
            return True
        self._failed_in_a_row = 0
        self._pause(error, _PAUSES)
        return False

    def _pause(self, error: Exception, pauses: Pauses) -> None:
        """Nothing can be stored for now: leave all of it for a while."""
        if not self._journal.failing:
            expected = isinstance(error, HttpError | OSError)
            log.warning(
                "journal: no push can be stored now; the replay is retried: %s",
                _described(error),
                exc_info=None if expected else error,
            )
        self._journal.failing = True
        self._journal.replay_failures += 1
        self._pauses += 1
        self._resume_at = self._clock.monotonic() + pauses.after(self._pauses)

    def _caught_up(self) -> None:
        self._alone = 0
        self._failed_in_a_row = 0
        self._journal.failing = self._journal.has_failed


def _described(error: Exception) -> str:
    """The error, with its SQLSTATE if there is one; without details, which may show payloads."""
    sqlstate, cause = sqlstate_of(error), error.__cause__ or error
    text = str(cause.args[0]) if cause.args else str(cause)
    return f"{type(cause).__name__}{f' ({sqlstate})' if sqlstate else ''}: {text}"
