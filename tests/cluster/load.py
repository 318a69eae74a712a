"""Load on all servers of a cluster at once, with the audit of the ids: nothing lost, doubled, or out of order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from deliveries import messages_of
from integration.queen import until

from cluster.members import Member
from queen_bench.audit import Audit
from queenmq.broker.administration import Labels
from queenmq.broker.broker import Broker
from queenmq.broker.pop import Claim, Delivered, Filter
from queenmq.broker.transaction import Transaction
from queenmq.core.acknowledgement import Acknowledgement, runs_of
from queenmq.core.message import Message
from queenmq.core.names import BEGINNING
from queenmq.core.options import EVERY_RIGHT, QueueOptions
from queenmq.ids import uuid7_text

QUEUE = "load"
NAMESPACE = "audited"
GROUPS = ("blue", "green")
LEASE_S = 300  # none expires during a test, so nothing may be delivered twice
POLL_MS = 100
DRAIN_WITHIN_S = 60.0


class Load:
    """A producer a partition and several consumers a group; whatever anybody asks goes to any server."""

    def __init__(self, members: list[Member], *, partitions: int = 8, consumers: int = 4) -> None:
        self.members = members
        self.partitions = [f"p{lane}" for lane in range(partitions)]
        self.audit = Audit(*GROUPS)
        self.kinds: Counter[str] = Counter()
        self.problems: list[str] = []
        self._consumers = consumers
        self._random = random.Random(random.getrandbits(32))
        self._holders: dict[tuple[str, str], str] = {}  # (group, partition): the lease that a consumer has now
        self._producing = True

    def broker(self) -> Broker:
        return self._random.choice(self.members).broker

    async def run(self, seconds: float) -> None:
        """Produce for so long, then consume what is left, and demand that the audit finds nothing."""
        options = QueueOptions(lease_time=LEASE_S)
        await self.broker().configure(QUEUE, Labels(NAMESPACE, ""), options, EVERY_RIGHT)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async with asyncio.TaskGroup() as tasks:
            producers = [tasks.create_task(self._produce(lane, end)) for lane in range(len(self.partitions))]
            for group in GROUPS:
                for _ in range(self._consumers):
                    tasks.create_task(self._consume(group))
            await asyncio.wait(producers)
            self._producing = False
            try:
                await until(lambda: self.audit.pending == 0, DRAIN_WITHIN_S)
            except TimeoutError:
                self.problems.append(f"{self.audit.pending} were not consumed in time")
            self._drained = True
        assert self.audit.sent > 0
        assert self.problems + self.audit.finish() == []

    _drained = False

    async def _produce(self, lane: int, end: float) -> None:
        loop = asyncio.get_running_loop()
        partition = self.partitions[lane]
        while loop.time() < end:
            count = self._random.randint(1, 5)
            first = self.audit.send(lane, count)
            messages = [_message(partition, f"{lane}:{first + n}") for n in range(count)]
            if self._random.random() < 0.2:
                self.kinds["transaction"] += 1
                await self.broker().transact(Transaction(messages, [], []))
                continue
            self.kinds["push"] += 1
            outcomes = await self.broker().push(messages)
            self.problems += [f"{o.status}: {o.message_id}" for o in outcomes if o.status != "queued"]

    async def _consume(self, group: str) -> None:
        loop = asyncio.get_running_loop()
        while not self._drained:
            asked_at = loop.time()
            found = await self._pop(group)
            if found:
                self.audit.groups[group].received([m.transaction_id for m in messages_of(found)], asked_at, loop.time())
                self._take(group, found)
                await asyncio.sleep(self._random.uniform(0, 0.003))  # the work, during which the lease must hold
                await self._complete(group, found)

    async def _pop(self, group: str) -> Delivered:
        broker = self.broker()
        batch = self._random.choice([1, 3, 20])
        wait_ms = self._random.choice([0, POLL_MS, POLL_MS])
        match self._random.choice(["queue", "partition", "partition", "several", "namespace"]):
            case "queue":
                self.kinds["queue"] += 1
                return await broker.pop(_claim(group, None, batch), wait_ms)
            case "partition":
                self.kinds["partition"] += 1
                return await broker.pop(_claim(group, self._random.choice(self.partitions), batch), wait_ms)
            case "several":
                self.kinds["several"] += 1
                return await broker.pop(_claim(group, None, batch, partitions=3), wait_ms)
            case _:
                self.kinds["namespace"] += 1
                return await broker.pop_matching(Filter(NAMESPACE, None), _claim(group, None, batch), wait_ms)

    def _take(self, group: str, found: Delivered) -> None:
        for partition in {run.partition for run in found.runs}:
            holder = self._holders.setdefault((group, partition), found.claim.lease_id)
            if holder != found.claim.lease_id:
                self.problems.append(f"{partition} is leased to {holder} and {found.claim.lease_id} in {group}")

    async def _complete(self, group: str, found: Delivered) -> None:
        for partition in {run.partition for run in found.runs}:
            self._holders.pop((group, partition), None)
        acks = [
            Acknowledgement(m.partition_id, m.transaction_id, group, found.claim.lease_id, "completed", None)
            for m in messages_of(found)
        ]
        if self._random.random() < 0.2:
            self.kinds["ack in a transaction"] += 1
            await self.broker().transact(Transaction([], acks, [found.claim.lease_id]))
            return
        self.kinds["ack"] += 1
        results = await self.broker().ack(runs_of(acks))
        self.problems += [f"ack in {group}: {r.problem}" for r in results if r.problem]


def _message(partition: str, transaction_id: str) -> Message:
    return Message(QUEUE, partition, b'{"n":1}', uuid7_text(), transaction_id)


def _claim(group: str, partition: str | None, batch: int, partitions: int = 1) -> Claim:
    return Claim(
        queue=QUEUE,
        partition=partition,
        group=group,
        batch=batch,
        partitions=partitions,
        auto_ack=False,
        start=BEGINNING,
    )
