"""Replays the journal: whatever pushes it holds goes to the database, in order, as soon as that takes them."""

from __future__ import annotations

import asyncio
import logging

from queenmq.broker.broker import Broker
from queenmq.config import Settings
from queenmq.core.message import Message
from queenmq.errors import DatabaseUnavailable, HttpError, InternalError, Overloaded, UnavailableError
from queenmq.journal.files import JournalFailed
from queenmq.journal.pending import JournalledPush
from queenmq.journal.push_journal import PushJournal
from queenmq.operations.queue import ReplayedPush
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
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_MOST_DOUBLINGS = 10
_LONGEST_OUTAGE_PAUSE_S = 2.0
_LOOK_ASIDE_EVERY_S = 1.0
_STORED = frozenset({"queued", "duplicate"})
# Nothing about a push: the database, the operation queue, or the disk of the journal.
_ELSEWHERE = (DatabaseUnavailable, Overloaded, JournalFailed)


class JournalReplay(Service):
    """Several pushes go into one call.

    One that the database refuses for its content is set aside, alone. After any other error pushes are tried again for
    as long as it takes, with growing pauses: if it is one push that cannot be stored, it and what is behind it in its
    partitions, else all of them.
    """

    name = "journal replay"

    def __init__(self, database: Database, broker: Broker, journal: PushJournal, settings: Settings) -> None:
        super().__init__(settings.journal.replay_interval_ms)
        self._database = database
        self._broker = broker
        self._journal = journal
        self._most = settings.journal.replay_batch_size
        self._most_messages = settings.lanes.max_items_per_call
        self._alone = 0  # pushes that go alone, because a call with several has failed
        self._failed_in_a_row = 0
        self._pause_s = 0.0
        self._resume_at = 0.0
        self._look_aside_at = 0.0
        self._aside_failed = False

    async def work(self) -> None:
        await self._look_aside()
        try:
            await self._replay()
        except Exception as error:
            # A disk that cannot be read, or a defect: nothing that a push is to blame for.
            self._pause(error, _LONGEST_PAUSE_S)
        finally:
            self._journal.tell()

    async def _look_aside(self) -> None:
        now = asyncio.get_running_loop().time()
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
        switches, loop = self._broker.caches.switches, asyncio.get_running_loop()
        if loop.time() < self._resume_at:
            return
        while self._database.is_open and switches.pushes_allowed:
            batch = await self._journal.oldest(1 if self._alone else self._most, self._most_messages)
            if not batch:
                # Only now: what fails again and again must not keep the others from being tried.
                if self._journal.unpark(loop.time()):
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
            await self._store(batch, self._broker.locks.timeout(has_waited=has_waited))
        except TryAgain as error:
            # Somebody has locked one of the partitions, perhaps for long.
            if len(batch) > 1:
                self._alone = len(batch)
                return True
            return self._park(batch[0][0], error)
        except _ELSEWHERE as error:
            self._pause(error, _LONGEST_OUTAGE_PAUSE_S)
            return False
        except Exception as error:
            if len(batch) > 1:
                self._alone = len(batch)
                return True
            return await self._failed_alone(*batch[0], error)
        self._alone = max(0, self._alone - 1)
        self._failed_in_a_row = 0
        self._pause_s = 0.0
        if self._journal.failing:
            self._journal.failing = self._journal.has_failed
        return True

    async def _store(self, batch: list[tuple[JournalledPush, list[Message]]], lock_timeout: str) -> None:
        outcomes = await self._broker.store_accepted([messages for _, messages in batch], lock_timeout)
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
            await self._broker.operations.record_replayed(dealt)
        except InternalError as error:
            # The messages are stored, and it is not they who are refused.
            if not is_content_fault(error):
                raise
            log.error("journal: results of stored pushes cannot be kept: %s", _told(error))
        await self._journal.finish([push for push, _ in batch])

    async def _failed_alone(self, push: JournalledPush, messages: list[Message], error: Exception) -> bool:
        for _ in range(_CONTENT_TRIES - 1):
            if not is_content_fault(error):
                break
            try:
                await self._store([(push, messages)], self._broker.locks.longest)
            except _ELSEWHERE as unavailable:
                self._pause(unavailable, _LONGEST_OUTAGE_PAUSE_S)
                return False
            except Exception as again:
                error = again
            else:
                return True
        if is_content_fault(error):
            await self._journal.set_aside(push, f"the database refuses its content: {_told(error)}")
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
                _told(error),
            )
        self._journal.park(push, asyncio.get_running_loop().time() + pause_after(push.tries))
        if self._failed_in_a_row < _NOT_THE_RECORDS:
            return True
        self._failed_in_a_row = 0
        self._pause(error, _LONGEST_PAUSE_S)
        return False

    def _pause(self, error: Exception, longest_s: float) -> None:
        """Nothing can be stored for now: leave all of it for a while."""
        if not self._journal.failing:
            expected = isinstance(error, HttpError | OSError)
            log.warning(
                "journal: no push can be stored now; the replay is retried: %s",
                _told(error),
                exc_info=None if expected else error,
            )
        self._journal.failing = True
        self._journal.replay_failures += 1
        self._pause_s = min(max(self._pause_s * 2, _FIRST_PAUSE_S), longest_s)
        self._resume_at = asyncio.get_running_loop().time() + self._pause_s

    def _caught_up(self) -> None:
        self._alone = 0
        self._failed_in_a_row = 0
        self._journal.failing = self._journal.has_failed


def pause_after(tries: int) -> float:
    """How long a push is left that has failed so often before, in seconds."""
    return min(_FIRST_PAUSE_S * 2.0 ** min(tries, _MOST_DOUBLINGS), _LONGEST_PAUSE_S)


def _told(error: Exception) -> str:
    """The error, with its SQLSTATE if there is one; without details, which may show payloads."""
    sqlstate, cause = sqlstate_of(error), error.__cause__ or error
    text = str(cause.args[0]) if cause.args else str(cause)
    return f"{type(cause).__name__}{f' ({sqlstate})' if sqlstate else ''}: {text}"
