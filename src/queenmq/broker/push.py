"""Push: messages of many requests become one call of `queen.push`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Literal

import asyncpg
import msgspec

from queenmq.broker.caches import Caches
from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.lane import Vegas
from queenmq.broker.load import LoadWatch
from queenmq.broker.load_manager import Choice, Decision
from queenmq.broker.locked_rows import Row, head
from queenmq.broker.locking_lane import LockingLane
from queenmq.broker.maintenance import Maintenance
from queenmq.broker.merging import Policy
from queenmq.broker.parts import Parts
from queenmq.broker.queue_options import QueueOptions
from queenmq.broker.wake_ups import by_queue
from queenmq.clock import Clock
from queenmq.core.message import Message
from queenmq.core.push_call import Deferral, Outcome, PushCall
from queenmq.errors import DatabaseUnavailable, InternalError, Overloaded, UnavailableError, WouldJournal
from queenmq.journal.interface import Journal
from queenmq.journal.push_records import partitions_of
from queenmq.storage.database import Database
from queenmq.storage.failures import AnswerLost, EncryptionRequired, TryAgain
from queenmq.storage.statements import statement

Mode = Literal["auto", "queue", "accepted"]
# A push may be repeated safely (same ids), so a short outage is waited out; the longer, if there is no journal.
_REPEAT_FOR_S = 10.0
_REPEAT_BEFORE_JOURNAL_S = 1.0
# Queueing pays only if it merges more than the lane that is too slow.
_MOST_QUEUED_TOGETHER = 500
_FULL = {
    "operation_queue_full": "the operation queue is full",
    "system_busy": "pushes wait too long for the database, also those that would go to the operation queue",
}

_names = msgspec.json.Decoder(list[str])


def heads(messages: Iterable[Message]) -> frozenset[Row]:
    """The rows that a push of these messages locks."""
    return frozenset(head(message.queue, message.partition) for message in messages)


def _refuses_some(outcomes: list[Outcome]) -> bool:
    return any(outcome.status in ("rejected", "failed") for outcome in outcomes)


class Pusher:
    """Without a journal, pushes are refused while the database is away or switched off for maintenance."""

    def __init__(
        self,
        parts: Parts,
        *,
        encryption: PayloadEncryption,
        targets: Targets,
        maintenance: Maintenance,
        policy: Policy,
        concurrency: Vegas | None,
        load: LoadWatch,
        journal: Journal | None = None,
        wait_behind_s: float = 0.0,
    ) -> None:
        self._database = parts.database
        self._encryption = encryption
        self._targets = targets
        self._maintenance = maintenance
        self._activity = parts.activity
        self._long_polls = parts.long_polls
        self._load = load
        self._locks = parts.locks
        self._journal = journal
        self._wait_behind_s = wait_behind_s
        repeat_for_s = _REPEAT_FOR_S if journal is None else _REPEAT_BEFORE_JOURNAL_S
        self.lane: LockingLane[list[Message], list[Outcome]] = LockingLane(
            "push",
            partial(self._call, "auto"),
            policy,
            locks=parts.locks,
            rows=heads,
            concurrency=concurrency,
            repeat_for_s=repeat_for_s,
            refuses=_refuses_some,
        )
        self.queue_lane: LockingLane[list[Message], list[Outcome]] = LockingLane(
            "queue",
            partial(self._call, "queue"),
            replace(policy, max_concurrent=1, max_requests=max(policy.max_requests, _MOST_QUEUED_TOGETHER)),
            locks=parts.locks,
            rows=heads,
            repeat_for_s=repeat_for_s,
            refuses=_refuses_some,
        )
        load.watch(self.lane, self.queue_lane)

    async def push(self, messages: list[Message]) -> list[Outcome]:
        """Store `messages`; the outcomes are in their order. When this returns, they are committed or journalled."""
        if not messages:
            return []
        journal = self._journal
        if journal is None:
            if not self._maintenance.switches.pushes_allowed:
                self._maintenance.require_pushes()
            return await self._submit(messages)
        waits = True
        while True:
            if not (self._database.is_open and self._maintenance.switches.were_read):
                return await self._put_into_journal(journal, messages, "database_unavailable")
            if not self._maintenance.switches.pushes_allowed:
                return await self._put_into_journal(journal, messages, "maintenance")
            if not (waits and journal.holds(messages)):
                break
            if not await journal.turn(partitions_of(messages), self._wait_behind_s):
                return await self._put_into_journal(journal, messages, "maintaining_order")
            waits = False
        try:
            return await self._submit(messages)
        except TryAgain:
            raise
        except DatabaseUnavailable as unavailable:
            try:
                return await self._put_into_journal(journal, messages, "database_unavailable")
            except UnavailableError as error:
                if isinstance(unavailable, AnswerLost):
                    raise AnswerLost from error  # the database may have it all the same
                raise

    def check_switched_on(self) -> None:
        """Raises InMaintenance where any push would: for who has to change something before it."""
        if self._journal is None:
            self._maintenance.require_pushes()

    def check_forwarded(self, messages: list[Message]) -> None:
        """Raises WouldJournal where a push that was forwarded would, before it is tried."""
        journal = self._journal
        may_store = self._database.is_open and self._maintenance.switches.pushes_allowed
        if not may_store or (journal is not None and journal.holds(messages)):
            raise WouldJournal

    async def push_unless_journalled(self, messages: list[Message]) -> list[Outcome]:
        """The same for a push that another server has forwarded, and that would be journalled there if not here.

        Raises WouldJournal instead of journalling it, and instead of waiting behind journalled pushes. A journal keeps
        the order of the server at which pushes arrive, so that is where they must be journalled.
        """
        if not messages:
            return []
        self.check_forwarded(messages)
        try:
            return await self._submit(messages)
        except TryAgain:
            raise
        except DatabaseUnavailable as error:
            raise WouldJournal(is_unknown=error.is_unknown) from error

    async def _submit(self, messages: list[Message]) -> list[Outcome]:
        lane, load = self.lane, self._load
        # Who needs a locked row takes its place behind the others who wait for it: the load has nothing to do with it.
        if not (self._locks.known and self._locks.locked(heads(messages))):
            if load.is_calm and not (lane.pending or self._database.waiting):
                load.decisions[Choice.EXECUTE] += 1  # nothing waits for anything
            else:
                lane = self._choose_lane(load.decide_push(), len(messages))
        outcomes = await lane.submit(messages, messages[0].queue, len(messages))
        if outcomes[0].status == "rejected" and all(outcome.status == "rejected" for outcome in outcomes):
            self._load.refused += len(messages)
            raise Overloaded("the operation queue is full", self._load.retry_after_s(), self._load.load.queue_depth)
        return outcomes

    def _choose_lane(self, decision: Decision, count: int) -> LockingLane[list[Message], list[Outcome]]:
        """Now, or later. Raises Overloaded if neither is possible for these messages."""
        if decision.choice is Choice.REJECT:
            self._load.refused += count
            depth = self._load.load.queue_depth
            raise Overloaded(f"the server is overloaded and {_FULL[decision.reason]}", decision.retry_after_s, depth)
        return self.queue_lane if decision.choice is Choice.QUEUE else self.lane

    async def _put_into_journal(self, journal: Journal, messages: list[Message], reason: str) -> list[Outcome]:
        self._encryption.require_key_for({message.queue for message in messages})
        operation_id, ahead = await journal.put(messages)
        self._load.deferred[reason] += len(messages)
        deferral = Deferral(operation_id, ahead, None, reason)
        return [Outcome("buffered", message.id, "", deferral) for message in messages]

    async def store_accepted(self, requests: list[list[Message]], lock_timeout: str) -> list[list[Outcome]]:
        """Store pushes that were accepted already, also if their queues are full. Raises RowLocked if a partition is
        locked for longer than that."""
        return await self._call("accepted", requests, lock_timeout)

    async def _call(self, mode: Mode, requests: list[list[Message]], lock_timeout: str) -> list[list[Outcome]]:
        """Store the messages of several requests with one call, each partition's in their order.

        What belongs to a partition with unfinished operations is queued behind them, or everything in mode `queue`.
        """
        call = PushCall.merge([message for request in requests for message in request])
        owners = [number for number, request in enumerate(requests) for _ in request]
        try:
            outcomes = await self._store(call, owners, mode, lock_timeout)
        except EncryptionRequired as refusal:
            self._encryption.require_key()
            await self._targets.demand_encryption(refusal.detail)
            outcomes = await self._store(call, owners, mode, lock_timeout)
        if self._long_polls.registry.total or self._long_polls.linked:
            for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
                self._long_polls.wake(queue, partitions)
        self._count(requests, call, outcomes)
        dealt = iter(outcomes)
        return [list(islice(dealt, len(request))) for request in requests]

    def _count(self, requests: list[list[Message]], call: PushCall, outcomes: list[Outcome]) -> None:
        asked = Counter(request[0].queue for request in requests)
        stored: Counter[str] = Counter()
        if call.was_new:
            for target, messages in Counter(call.target).items():
                stored[call.queues[target - 1]] += messages
        else:
            given = (message for request in requests for message in request)
            stored.update(m.queue for m, outcome in zip(given, outcomes, strict=True) if outcome.status == "queued")
        for queue in asked | stored:
            self._activity.pushed(queue, asked[queue], stored[queue])

    async def _store(self, call: PushCall, owners: list[int], mode: Mode, lock_timeout: str) -> list[Outcome]:
        known = await self._targets.resolve(call.queues, call.partitions)
        requests = [owners[position] for position in call.order]
        held = self._held(call)
        sealed = self._encryption.seal(call.messages) if self._encryption.available else None
        try:
            row = await self._database.fetchrow(
                statement("push_or_queue"),
                *call.arguments(known, sealed),
                mode,
                requests,
                # What was accepted before must be stored, and was bounded when it was accepted.
                None if mode == "accepted" else self._load.queue_limit,
                held,
                lock_timeout,
                repeatable=True,
            )
        except (InternalError, EncryptionRequired):
            self._targets.doubt(call.queues, call.partitions)
            raise
        if row is None:
            raise AssertionError("queen.push returned no row")
        outcomes = call.outcomes_of(row)
        self._targets.learn(call.queues, call.partitions, known, row["partition_ids"])
        call.was_new = all(row[name] is None for name in ("duplicate_index", "refused")) and not call.repeats
        if row["queued_id"] is None and row["overflow"] is None:
            return outcomes
        call.was_new = False
        return self._deferred(call, outcomes, requests, row, mode)

    def _held(self, call: PushCall) -> list[int] | None:
        """What the journal of this server holds for the queue of each target: it takes up room, too."""
        if self._journal is None or not self._journal.messages:
            return None
        return [self._journal.messages_of(queue) for queue in call.queues]

    def _deferred(
        self, call: PushCall, outcomes: list[Outcome], requests: list[int], row: asyncpg.Record, mode: Mode
    ) -> list[Outcome]:
        """The outcomes with those that were queued, or found the operation queue full."""
        reason = "system_busy" if mode == "queue" else "maintaining_order"
        made: dict[tuple[int, int], Deferral] = {}
        queued = zip(row["queued_target"] or (), row["queued_request"] or (), row["queued_id"] or (), strict=True)
        for position, (target, request, operation_id) in enumerate(queued, start=row["queued_before"] or 0):
            wait_s = self._load.estimated_wait_s(position + 1)
            made[target, request] = Deferral(str(operation_id), position, wait_s, reason)
        self._load.note_queued((row["queued_before"] or 0) + len(made))
        full = frozenset(row["overflow"] or ())
        for position, outcome in enumerate(outcomes):
            place = call.place[position] if call.place[position] >= 0 else call.repeats[position]
            target = call.target[place]
            deferral = made.get((target, requests[place]))
            if outcome.status == "failed":
                continue
            if deferral is not None:
                self._load.deferred[reason] += 1
                outcomes[position] = Outcome("queued", outcome.message_id, outcome.partition_id, deferral)
            elif target in full:
                outcomes[position] = Outcome("rejected", outcome.message_id, outcome.partition_id)
        return outcomes


class Targets:
    """The targets of a merged push: the ids of its partitions, and the options of its queues.

    Both come from the caches. `queen.push` finds out for itself what they do not know or have wrong.
    """

    def __init__(
        self, database: Database, caches: Caches, options: QueueOptions, clock: Clock, *, cached: bool
    ) -> None:
        self._database = database
        self._ids = caches.partition_ids
        self._known_options = caches.options
        self._options = options
        self._clock = clock
        self._cached = cached

    async def resolve(self, queues: Sequence[str], partitions: Sequence[str]) -> list[str] | None:
        """The ids of these partitions if all are known, in order; and have the options of their queues at hand."""
        if not self._cached:
            return await self._ask(queues, partitions)
        if not self._known_options.has_all(queues):
            await self._options.load_missing(set(queues))
        return self._ids.find(queues, partitions, self._clock.monotonic())

    async def _ask(self, queues: Sequence[str], partitions: Sequence[str]) -> list[str] | None:
        await self._options.load_missing(set(queues))
        rows = await self._database.fetch(statement("partition_ids"), queues, partitions, repeatable=True)
        found = [str(row["id"]) for row in rows if row["id"] is not None]
        return found if len(found) == len(queues) else None

    def learn(
        self, queues: Sequence[str], partitions: Sequence[str], believed: list[str] | None, ids: Sequence[object]
    ) -> None:
        """What the database says that the ids are."""
        if not self._cached:
            return
        for index, (queue, partition) in enumerate(zip(queues, partitions, strict=True)):
            true = str(ids[index])
            if believed is None or believed[index] != true:
                self._ids.put(queue, partition, true, self._clock.monotonic())

    def doubt(self, queues: Sequence[str], partitions: Sequence[str]) -> None:
        """The database failed with these."""
        for queue, partition in zip(queues, partitions, strict=True):
            self._ids.forget(queue, partition)

    async def demand_encryption(self, queues: str) -> None:
        """The database refused payloads in clear for the queues of this JSON list: ask it for their options."""
        await self._options.correct(_names.decode(queues))
