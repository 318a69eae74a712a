"""Pop: claims of many requests become one call of `queen.pop`; long polls are parked in POP_WAIT."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

import asyncpg

from queenmq.cluster.lease_hints import Advice
from queenmq.cluster.maintenance import Switch
from queenmq.cluster.node import Node
from queenmq.config import Settings
from queenmq.core.group_backoff import BackoffSettings
from queenmq.core.names import Start
from queenmq.core.vegas import Vegas
from queenmq.engine.activity import Activity
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.lease import Leases
from queenmq.engine.pop_wait import PopWait
from queenmq.engine.queue_settings import QueueSettings
from queenmq.engine.sidecar import Lane, Policy
from queenmq.engine.waiter import ANY_QUEUE, Place
from queenmq.errors import DatabaseUnavailable, QueenError
from queenmq.ids import uuid7_text
from queenmq.storage.database import Database, TryAgain
from queenmq.storage.statements import statement

_CHECK_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What one pop asks of one queue."""

    queue: str
    partition: str | None
    group: str
    batch: int
    partitions: int
    auto_ack: bool
    start: Start
    lease_id: str = field(default_factory=uuid7_text)


@dataclass(slots=True)
class Delivery:
    id: str
    transaction_id: str
    trace_id: str | None
    payload: bytes
    is_encrypted: bool
    producer: str | None
    created_at: datetime
    partition_id: str
    partition: str
    retry_count: int


@dataclass(slots=True)
class Delivered:
    """The messages that one claim got; `subscribed` is False if the group was not known to the queue."""

    claim: Claim
    messages: list[Delivery] = field(default_factory=list)
    subscribed: bool = True
    ready_in_s: float | None = None  # when nothing was there: how soon something may be

    def __bool__(self) -> bool:
        return bool(self.messages)

    @property
    def lease_id(self) -> str:
        return "" if self.claim.auto_ack else self.claim.lease_id


@dataclass(frozen=True, slots=True)
class Filter:
    """Which queues a pop without a queue name looks at."""

    namespace: str | None
    task: str | None


class Popper:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        encryption: PayloadEncryption,
        leases: Leases,
        queues: QueueSettings,
        node: Node,
        policy: Policy,
        concurrency: Vegas | None,
        activity: Activity,
    ) -> None:
        self._activity = activity
        self._settings = settings
        self._queues = queues
        self._node = node
        self._moved = asyncio.Event()  # set when the maintenance switch is moved
        self._database = database
        self._encryption = encryption
        self._leases = leases
        self._subscribing: dict[tuple[str, str | None, str], asyncio.Task[None]] = {}
        self._max_weight = policy.max_weight
        self.lane: Lane[Claim, Delivered] = Lane(
            "pop", self._run, policy, concurrency=concurrency, orphaned=self._give_back
        )
        self.waiting: PopWait[Delivered] = PopWait(
            BackoffSettings(
                base_s=settings.pop_wait_initial_interval_ms / 1000,
                threshold=settings.pop_wait_backoff_threshold,
                multiplier=settings.pop_wait_backoff_multiplier,
                longest_s=settings.pop_wait_max_interval_ms / 1000,
            ),
            max_waiters=settings.max_waiters,
            check_limit_s=settings.db_statement_timeout_ms / 1000 + _CHECK_GRACE_S,
            discard=self._give_back,
            ready=self._ready,
            came=node.consumer_came,
            went=node.consumer_went,
        )

    async def pop(self, claim: Claim, wait_ms: int = 0) -> Delivered:
        """Claim messages of one queue; with `wait_ms`, hold until there are some or the time is over."""
        place = Place(claim.queue, claim.partition, claim.group)
        look = lambda: self._claim(replace(claim, lease_id=uuid7_text()))  # noqa: E731 - a lease of its own each time
        return await self._pop(place, look, wait_ms) or Delivered(claim)

    async def pop_matching(self, which: Filter, claim: Claim, wait_ms: int = 0) -> Delivered:
        """The same over every queue that matches; `claim.queue` is filled in by the queue that delivers."""
        if claim.start.mode == "new":
            # A queue that appears while this pop waits is new from its first message on.
            claim = replace(claim, start=Start("new", await self._database.fetchval(statement("now"))))
        look = lambda: self._claim_matching(which, claim)  # noqa: E731
        place = Place(ANY_QUEUE, None, (which, claim.group))
        return await self._pop(place, look, wait_ms) or Delivered(claim)

    async def _pop(self, place: Place, look: Callable[[], Awaitable[Delivered]], wait_ms: int) -> Delivered | None:
        """A look, or looks until there is something or the time is over; none while pops are paused."""
        if wait_ms <= 0:
            return None if self.paused else await look()
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_ms / 1000
        while True:
            await self._resumed(end)
            if self.paused:
                return None
            found = await self.waiting.wait(place, look, max(end - loop.time(), 0.0))
            # A long poll that was sent away because pops were paused goes on when they are not.
            if found or loop.time() >= end or self.waiting.closed or not self.paused:
                return found

    @property
    def paused(self) -> bool:
        """Whether the maintenance switch for pops is on."""
        return self._node.state.tiers.maintenance.is_on(Switch.POP)

    def pause_changed(self) -> None:
        """The switch was moved: whoever waits for that goes on."""
        self._moved.set()
        self._moved = asyncio.Event()
        if self.paused:
            self.waiting.interrupt()

    def close(self) -> None:
        """Answer every long poll now."""
        self.waiting.close()
        self._moved.set()

    async def _resumed(self, end: float) -> None:
        """Hold a long poll while pops are paused."""
        loop = asyncio.get_running_loop()
        while self.paused and loop.time() < end and not self.waiting.closed:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._moved.wait()

    async def _ready(self, queue: str, group: Hashable, partitions: list[str]) -> list[str]:
        rows = await self._database.fetch(statement("partitions_ready"), queue, group, partitions)
        hints = self._node.state.tiers.lease_hints
        for row in rows:
            if hints.believes(queue, row["name"], str(group)):
                hints.verified(queue, row["name"], str(group), self._node.now, was_wrong=True)
        return [row["name"] for row in rows]

    async def _claim(self, claim: Claim) -> Delivered:
        if claim.partition is None:
            return await self._take(claim)
        hints = self._node.state.tiers.lease_hints
        place = (claim.queue, claim.partition, claim.group)
        advice = hints.advice(*place, self._node.now) if self._settings.cache_enabled else Advice.TRY
        if advice is Advice.SKIP:
            return Delivered(claim)
        found = await self._take(claim)
        if advice is Advice.VERIFY:
            hints.verified(*place, self._node.now, was_wrong=bool(found))
        return found

    async def _take(self, claim: Claim) -> Delivered:
        found = await self._submit(claim)
        if not found.subscribed:
            await self._subscribe(claim)
            found = await self._submit(claim)
        try:
            for message in found.messages:
                message.payload = self._encryption.open(message.payload, message.is_encrypted)
        except QueenError:
            self._give_back(found)
            raise
        return found

    async def _submit(self, claim: Claim) -> Delivered:
        return await self.lane.submit(claim, claim.queue, min(claim.batch, self._max_weight))

    async def _claim_matching(self, which: Filter, claim: Claim) -> Delivered:
        for row in await self._matching(which, claim):
            found = await self._claim(replace(claim, queue=row["name"], lease_id=uuid7_text()))
            if found.messages:
                return found
        return Delivered(claim)

    async def _matching(self, which: Filter, claim: Claim) -> list[asyncpg.Record]:
        """The queues to try, in order. The group is subscribed to all of them first: `new` is new from this pop on."""
        arguments = (statement("queues_matching"), which.namespace, which.task, claim.group)
        rows = await self._database.fetch(*arguments)
        strangers = [row["name"] for row in rows if not row["subscribed"]]
        for name in strangers:
            await self._subscribe(replace(claim, queue=name))
        return await self._database.fetch(*arguments) if strangers else rows

    async def _subscribe(self, claim: Claim) -> None:
        """Subscribe the group; callers who want the same at the same time share one statement."""
        key = (claim.queue, claim.partition, claim.group)
        task = self._subscribing.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._subscribe_once(claim))
            self._subscribing[key] = task
            task.add_done_callback(lambda _: self._subscribing.pop(key, None))
        await asyncio.shield(task)

    async def _subscribe_once(self, claim: Claim) -> None:
        await self._database.fetchval(
            statement("subscribe"), claim.queue, claim.partition, claim.group, claim.start.mode, claim.start.since
        )

    async def _run(self, claims: list[Claim]) -> list[Delivered]:
        try:
            rows = await self._call(claims)
        except TryAgain:
            raise
        except DatabaseUnavailable:
            # The claim may have been committed before the connection broke.
            for claim in claims:
                self._leases.release_soon(claim.lease_id, claim.queue)
            raise
        results = [Delivered(claim) for claim in claims]
        for row in rows:
            result = results[row["request"] - 1]
            if row["message_id"] is not None:
                result.messages.append(self._delivery(row))
            elif row["ready_in_ms"] is not None:
                result.ready_in_s = row["ready_in_ms"] / 1000
            else:
                result.subscribed = False
        for result in results:
            if not result.subscribed:
                continue  # it is asked again
            first = result.messages[0].created_at if result.messages else None
            self._activity.popped(result.claim.queue, len(result.messages), first)
        self._tell(results)
        return results

    def _tell(self, results: list[Delivered]) -> None:
        """Other servers need not ask for what was leased here."""
        if not self._node.linked:
            return
        for result in results:
            claim = result.claim
            if result.messages and not claim.auto_ack:
                for partition in {message.partition for message in result.messages}:
                    self._node.acquired(claim.queue, partition, claim.group, self._queues.lease_s(claim.queue))

    async def _call(self, claims: list[Claim]) -> list[asyncpg.Record]:
        consumes = any(claim.auto_ack for claim in claims)
        return await self._database.fetch(
            statement("pop" if consumes else "pop_leased"),
            [c.queue for c in claims],
            [c.partition for c in claims],
            [c.group for c in claims],
            [c.batch for c in claims],
            [c.partitions for c in claims],
            [c.auto_ack for c in claims],
            [c.lease_id for c in claims],
        )

    @staticmethod
    def _delivery(row: asyncpg.Record) -> Delivery:
        trace_id = row["trace_id"]
        return Delivery(
            id=str(row["message_id"]),
            transaction_id=row["transaction_id"],
            trace_id=None if trace_id is None else str(trace_id),
            payload=row["payload"],
            is_encrypted=row["is_encrypted"],
            producer=row["producer_sub"],
            created_at=row["created_at"],
            partition_id=str(row["partition_id"]),
            partition=row["partition_name"],
            retry_count=row["retry_count"],
        )

    def _give_back(self, delivered: Delivered) -> None:
        """The client of this claim went away: free its lease so that the messages are not held up."""
        if delivered.messages and not delivered.claim.auto_ack:
            self._leases.release_soon(delivered.claim.lease_id, delivered.claim.queue)
