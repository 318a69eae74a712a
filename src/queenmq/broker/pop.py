"""Pop: claims of many requests become one call of `queen.pop`; long polls are parked in `long_polls`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from math import isinf

import asyncpg

from queenmq.broker.conflation import Conflation
from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.fairness import Fairness
from queenmq.broker.lane import Lane, Vegas
from queenmq.broker.lease import Leases
from queenmq.broker.long_polls import LongPolls
from queenmq.broker.maintenance import Maintenance
from queenmq.broker.merging import Policy
from queenmq.broker.parts import Parts
from queenmq.broker.pauses import ASK_AGAIN_S, KnownPauses
from queenmq.broker.queue_options import QueueOptions
from queenmq.broker.subscriptions import Subscriptions, begun_of
from queenmq.broker.waiters import ANY_QUEUE, LimitKind, WaitKey
from queenmq.clock import Clock
from queenmq.cluster.port import Advice, Cluster
from queenmq.config import Settings
from queenmq.core.consumer import Consumer
from queenmq.core.names import Start
from queenmq.errors import DatabaseUnavailable, QueenError
from queenmq.ids import lease_for
from queenmq.storage.database import LOST_ANSWERS
from queenmq.storage.failures import AnswerLost, TryAgain
from queenmq.storage.statements import statement

# A pop never waits for a row. If it has to write a dead letter that somebody else holds, nothing is there for now.
_LOCKED_S = 0.5
_RELEASE_S = 1.0  # how long a claim waits until what it may hold is given back
_MOST_SUBSCRIBED = 100  # queues that a pop by namespace or task subscribes its group to
_ANSWERS_A_CALL = 2  # largest answers that one merged call may bring, because it is in memory as a whole


@dataclass(slots=True, kw_only=True)
class Claim:
    """What one pop asks of one queue."""

    queue: str
    partition: str | None
    group: str
    batch: int
    partitions: int
    auto_ack: bool
    start: Start
    consumer: Consumer | None = None
    conflation: bool = False  # it asks that its group gets only the newest message of each partition
    lease_id: str = ""  # given to it whenever it is tried


@dataclass(slots=True)
class Run:
    """The messages that a claim got from one partition, in order, as `queen.pop` writes them: JSON objects that lack
    their end, with `core.message.BETWEEN` between them."""

    partition_id: str
    partition: str
    count: int
    glued: bytes
    has_sealed: bool  # some are encrypted still
    since: datetime  # when the oldest was pushed


@dataclass(slots=True)
class Delivered:
    """What one claim got; `subscribed` is False if the group was not known to the queue."""

    claim: Claim
    _: KW_ONLY
    runs: list[Run] = field(default_factory=list)
    subscribed: bool = True
    ready_in_s: float | None = None  # when nothing was there: how soon something may be
    limit: LimitKind | None = None  # what allows nothing before
    limit_key: str | None = None  # and of which key
    crowded_out: bool = False  # something may be there, but the merged call brought enough for others
    in_conflict: bool = False  # it asks for conflation, and its group reads otherwise

    def __bool__(self) -> bool:
        return bool(self.runs)

    @property
    def is_answer(self) -> bool:
        """Whether the claim need not be made again."""
        return bool(self.runs) or (self.subscribed and not self.crowded_out)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which queues a pop without a queue name reads; `permitted` has patterns for LIKE, None if there is no limit."""

    namespace: str | None
    task: str | None
    permitted: tuple[str, ...] | None = None


class Popper:
    def __init__(
        self,
        parts: Parts,
        settings: Settings,
        *,
        encryption: PayloadEncryption,
        leases: Leases,
        queues: QueueOptions,
        maintenance: Maintenance,
        cluster: Cluster,
        clock: Clock,
        policy: Policy,
        concurrency: Vegas | None,
    ) -> None:
        self._activity = parts.activity
        self._settings = settings
        self._queues = queues
        self._switches = maintenance.switches
        self._long_polls: LongPolls[Delivered] = parts.long_polls
        self._cluster = cluster
        self._clock = clock
        self._moved = asyncio.Event()  # set when the maintenance switch is moved
        self._database = parts.database
        self._encryption = encryption
        self._leases = leases
        most_groups = settings.limits.max_groups
        self.subscriptions = Subscriptions(parts.database, parts.locks, parts.long_polls.wake, most_groups)
        self._max_weight = policy.max_weight
        self.pauses = KnownPauses(clock)
        self.conflation = Conflation(parts.database, parts.long_polls.wake)
        self.fairness = parts.long_polls.keys = Fairness(parts.database, clock)
        self.lane: Lane[Claim, Delivered] = Lane(
            "pop",
            self._run,
            replace(policy, one_at_a_time=self.fairness.one_at_a_time),
            concurrency=concurrency,
            orphaned=self.give_back,
            when_locked=lambda claim: Delivered(claim, ready_in_s=_LOCKED_S),
            clock=clock,
        )

    async def pop(self, claim: Claim, wait_ms: int = 0) -> Delivered:
        """Claim messages of one queue; with `wait_ms`, hold until there are some or the time is over."""
        if wait_ms <= 0:
            return await self._claim(claim) if self.may_pop() else Delivered(claim)
        key = WaitKey(claim.queue, claim.partition, claim.group)
        return await self._poll(key, lambda: self._claim(claim), wait_ms) or Delivered(claim)

    async def pop_matching(self, which: Filter, claim: Claim, wait_ms: int = 0) -> Delivered:
        """The same over every queue that matches; `claim.queue` is filled in by the queue that delivers."""
        if claim.start.mode == "new":
            # A queue that appears while this pop waits is new from its first message on.
            claim = replace(claim, start=Start("new", await self._database.fetchval(statement("now"))))
        if wait_ms <= 0:
            return await self._claim_matching(which, claim) if self.may_pop() else Delivered(claim)
        key = WaitKey(ANY_QUEUE, None, (which, claim.group))
        return await self._poll(key, lambda: self._claim_matching(which, claim), wait_ms) or Delivered(claim)

    async def _poll(self, key: WaitKey, probe: Callable[[], Awaitable[Delivered]], wait_ms: int) -> Delivered | None:
        """Probe until there is something or the time is over; not while pops are paused."""
        now = self._clock.monotonic
        end = now() + wait_ms / 1000
        while True:
            await self._resumed(end)
            if not self.may_pop():
                return None
            found = await self._long_polls.wait(key, probe, max(end - now(), 0.0), self.give_back)
            # A long poll that was sent away because pops were paused goes on when they are not.
            if found or now() >= end or self._long_polls.closed or self.may_pop():
                return found

    def may_pop(self) -> bool:
        """False while pops are switched off. Raises DatabaseUnavailable until that is known."""
        switches = self._switches
        if not switches.were_read:
            raise DatabaseUnavailable
        return switches.pops_allowed

    def pause_changed(self) -> None:
        """The switch was moved: the long polls that it held go on, or are held from now on."""
        self._moved.set()
        self._moved = asyncio.Event()
        if not self._switches.pops_allowed:
            self._long_polls.interrupt()

    def close(self) -> None:
        """Answer every long poll now."""
        self._long_polls.close()
        self.fairness.close()
        self._moved.set()

    async def _resumed(self, end: float) -> None:
        """Hold a long poll while pops are paused."""
        while not self.may_pop() and not self._long_polls.closed:
            left_s = end - self._clock.monotonic()
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                async with self._clock.timeout(left_s):
                    await self._moved.wait()

    async def _claim(self, claim: Claim) -> Delivered:
        if claim.partition is None or not (self._cluster.linked and self._settings.cache.enabled):
            return await self._take(claim)
        lease = (claim.queue, claim.partition, claim.group)
        advice = self._cluster.lease_advice(*lease)
        if advice is Advice.SKIP:
            return Delivered(claim)
        found = await self._take(claim)
        if advice is Advice.VERIFY:
            self._cluster.lease_verified(*lease, was_wrong=bool(found))
        return found

    async def _take(self, claim: Claim) -> Delivered:
        if self.pauses and self.pauses.holds(claim.queue, claim.partition, claim.group):
            return Delivered(claim, ready_in_s=ASK_AGAIN_S)
        in_conflict = claim.conflation and not await self.conflation.declare(claim.queue, claim.group)
        claim = self.with_lease(claim)
        found = await self._submit(claim)
        if not found.subscribed:
            found = await self._subscribe(claim)
        while found.crowded_out:
            # Each call serves at least one request, so this ends.
            found = await self._submit(claim)
        found.in_conflict = in_conflict
        self.open(found)
        return found

    def with_lease(self, claim: Claim) -> Claim:
        """The claim for one try, which has a lease of its own."""
        consumer = claim.consumer
        if consumer is not None:
            self._activity.read_by(claim.queue, claim.group, consumer)
        return Claim(  # `replace` would take several times as long
            queue=claim.queue,
            partition=claim.partition,
            group=claim.group,
            batch=claim.batch,
            partitions=claim.partitions,
            auto_ack=claim.auto_ack,
            start=claim.start,
            consumer=consumer,
            conflation=claim.conflation,
            lease_id=lease_for("" if consumer is None else consumer.tag),
        )

    def open(self, found: Delivered) -> None:
        """Decrypt what is encrypted; if that is not possible, give it back and raise why."""
        try:
            for run in found.runs:
                if run.has_sealed:
                    run.glued = self._encryption.open_glued(run.glued, found.claim.queue, run.partition)
        except QueenError:
            self.give_back(found)
            raise

    def weight(self, claim: Claim) -> int:
        """How much of a call it takes."""
        return min(claim.batch, self._max_weight)

    async def _submit(self, claim: Claim) -> Delivered:
        return await self.lane.submit(claim, claim.queue, self.weight(claim))

    async def _claim_matching(self, which: Filter, claim: Claim) -> Delivered:
        for row in await self._matching(which, claim):
            found = await self._claim(replace(claim, queue=row["name"]))
            if found:
                return found
        return Delivered(claim)

    async def _matching(self, which: Filter, claim: Claim) -> list[asyncpg.Record]:
        """The queues to try, in order. The group is subscribed to them first: `new` is new from this pop on. Of
        very many, to some at each pop, so that a single request is not a transaction for each queue that there is."""
        arguments = (statement("queues_matching"), which.namespace, which.task, claim.group, which.permitted)
        rows = await self._database.fetch(*arguments, repeatable=True)
        strangers = [row["name"] for row in rows if not row["subscribed"]][:_MOST_SUBSCRIBED]
        for name in strangers if claim.conflation else ():
            await self.conflation.declare(name, claim.group)
        full = await self.subscriptions.begin(strangers, claim.group, claim.start)
        rows = await self._database.fetch(*arguments) if strangers else rows
        return begun_of(rows, set(strangers), full)

    async def _subscribe(self, claim: Claim) -> Delivered:
        """Subscribe the group as far as this claim needs it, and further in the background."""
        self._activity.touched.add(claim.queue)
        while True:
            is_complete = await self.subscriptions.step(claim.queue, claim.partition, claim.group, claim.start)
            found = await self._submit(claim)
            # A group that starts now can find nothing in what was there before.
            if found or is_complete or claim.start.mode == "new":
                break
        if not is_complete:
            self.subscriptions.finish(claim.queue, claim.group)
        return found

    async def _run(self, claims: list[Claim], lock_timeout: str) -> list[Delivered]:
        return self.delivered(claims, await self.until_answered(claims, lambda tried: self._call(tried, lock_timeout)))

    def delivered(self, claims: list[Claim], rows: list[asyncpg.Record]) -> list[Delivered]:
        """What each claim got, of the rows of `queen.pop`."""
        results = [Delivered(claim) for claim in claims]
        for row in rows:
            result = results[row["request"] - 1]
            glued = row["glued"]
            if glued is not None:
                result.runs.append(
                    Run(
                        str(row["partition_id"]),
                        row["partition_name"],
                        row["message_count"],
                        glued,
                        row["has_sealed"],
                        row["first_created_at"],
                    )
                )
            elif row["ready_in_ms"] is None:
                result.subscribed = False
            elif row["ready_in_ms"] < 0:
                result.crowded_out = not result.runs
            elif isinf(row["ready_in_ms"]):
                claim = result.claim
                self.pauses.note(claim.queue, claim.partition, claim.group)
                result.ready_in_s = ASK_AGAIN_S
            else:
                result.ready_in_s = row["ready_in_ms"] / 1000
                if row["message_count"] == 0:
                    result.limit_key = row["partition_name"]
                    kind: LimitKind = "rate" if row["has_sealed"] else "leases"
                    result.limit = kind if result.limit_key is None else "keys"
                    result.ready_in_s = min(result.ready_in_s, ASK_AGAIN_S)
        for result in results:
            if result.runs:
                self._activity.popped(result.claim.queue, sum(run.count for run in result.runs), result.runs[0].since)
            elif result.subscribed:  # else it is asked again
                self._activity.popped(result.claim.queue, 0, None)
        self._tell(results)
        return results

    async def until_answered(
        self, claims: list[Claim], call: Callable[[list[Claim]], Awaitable[list[asyncpg.Record]]]
    ) -> list[asyncpg.Record]:
        """The rows that `call` got for them.

        A claim whose answer got lost may hold partitions. They are given back, or somebody else gets them when it is no
        use; and it is made again under another lease: with the same one, the client would finish what it never got.
        """
        for left in reversed(range(LOST_ANSWERS + 1)):
            try:
                return await call(claims)
            except TryAgain:
                raise
            except DatabaseUnavailable as error:
                releasing = self._leases.release_soon(*((claim.lease_id, claim.queue) for claim in claims))
                for claim in claims:
                    claim.lease_id = self.with_lease(claim).lease_id
                if not isinstance(error, AnswerLost) or left == 0:
                    raise
            await asyncio.wait((releasing,), timeout=_RELEASE_S)
        raise AssertionError("unreachable")

    def _tell(self, results: list[Delivered]) -> None:
        """Other servers need not ask for what was leased here."""
        if not self._cluster.linked:
            return
        for result in results:
            claim = result.claim
            if not claim.auto_ack:
                for run in result.runs:
                    self._cluster.acquired(claim.queue, run.partition, claim.group, self._queues.lease_s(claim.queue))

    async def _call(self, claims: list[Claim], lock_timeout: str) -> list[asyncpg.Record]:
        name = "pop" if any(claim.auto_ack for claim in claims) else "pop_leased"
        if self.fairness.rules:
            return await self.fairness.call(name, claims, *self.columns(claims), lock_timeout)
        return await self._database.fetch(statement(name), *self.columns(claims), lock_timeout)

    def columns(self, claims: list[Claim]) -> tuple[object, ...]:
        """The arguments that `queen.pop` wants."""
        return (
            [c.queue for c in claims],
            [c.partition for c in claims],
            [c.group for c in claims],
            [c.batch for c in claims],
            [c.partitions for c in claims],
            [c.auto_ack for c in claims],
            [c.lease_id for c in claims],
            self._settings.limits.max_answer_bytes,
            self._settings.limits.max_answer_bytes * _ANSWERS_A_CALL,
        )

    def give_back(self, delivered: Delivered) -> None:
        """The client of this claim went away: free its lease so that the messages are not held up."""
        if delivered and not delivered.claim.auto_ack:
            self._leases.release_soon((delivered.claim.lease_id, delivered.claim.queue))
