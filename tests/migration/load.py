"""A load that goes on while servers are exchanged, and an audit of what came of it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Coroutine
from typing import Any

from migration.rolling import LATER, PATIENCE_S, Rotation
from queenmq.client import Message, Queen

GROUPS = ("billing", "mail")
TAKER = "taker"
CONNECTED = "connected"
PARTITIONS = 6

Json = dict[str, Any]


class Load:
    """Producers with partitions of their own, consumers of two groups, movers, and groups that come anew.

    Beside them, what an operator does (seeks, dead letters that come back), and through servers that can: finishing and
    taking, consumer connections, timers, pauses.
    """

    EXPECTED: tuple[str, ...] = ("seek", "redrive", "take", "connection", "pause")

    def __init__(self, rotation: Rotation, database_url: str) -> None:
        self._database_url = database_url
        self._rotation = rotation
        self._call = rotation.call
        self._call_able = rotation.call_able
        self._chance = random.Random(4)
        self.pushed: dict[str, list[int]] = defaultdict(list)
        self.finished: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.moved: dict[str, list[int]] = defaultdict(list)
        self.timed: list[int] = []
        self.done: Counter[str] = Counter()
        self.pushing = True
        self.idle: Counter[str] = Counter()
        self._names = itertools.count()

    @property
    def count(self) -> int:
        return sum(map(len, self.pushed.values()))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for part in self.parts():
                tasks.create_task(part)

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on at once. Each ends when `pushing` is over."""
        return [
            *(self._produce(f"p{number}") for number in range(PARTITIONS)),
            *(self._consume(group) for group in GROUPS for _ in range(2)),
            *(self._move(), self._subscribe(), self._seek(), self._bury()),
            *(self._take(), self._connect(), self._schedule(), self._pause()),
        ]

    def start(self) -> None:
        self._running = asyncio.create_task(self.run())

    async def end(self) -> None:
        self.pushing = False
        async with asyncio.timeout(PATIENCE_S):
            await self._running

    async def grow(self, messages: int) -> None:
        """Return when so many messages more were pushed. Raises what a request failed with."""
        goal = self.count + messages
        async with asyncio.timeout(PATIENCE_S):
            while self.count < goal:
                if self._running.done():
                    self._running.result()
                await asyncio.sleep(0.02)

    async def _produce(self, partition: str) -> None:
        numbers = itertools.count(1)
        while self.pushing:
            some = list(itertools.islice(numbers, self._chance.randint(1, 3)))
            items = [
                {"queue": "work", "partition": partition, "transactionId": f"{partition}:{n}", "payload": n}
                for n in some
            ]
            results = await self._call("POST", "/api/v1/push", 201, json={"items": items})
            assert [result["status"] for result in results] == ["queued"] * len(some), results
            self.pushed[partition] += some

    async def _pop(self, queue: str, group: str) -> list[Json]:
        parameters = {"consumerGroup": group, "batch": 10, "partitions": 2, "wait": "true", "timeout": 300}
        answer = await self._call("GET", f"/api/v1/pop/queue/{queue}", 200, 204, params=parameters)
        messages: list[Json] = answer["messages"] if answer else []
        self.idle[group] = 0 if messages else self.idle[group] + 1
        return messages

    def _goes_on(self, group: str) -> bool:
        return self.pushing or self.idle[group] < 6

    async def _consume(self, group: str) -> None:
        while self._goes_on(group):
            messages = await self._pop("work", group)
            by_partition: dict[str, list[Json]] = defaultdict(list)
            for message in messages:
                by_partition[message["partition"]].append(message)
            for partition, run in by_partition.items():
                done = run if self._chance.random() < 0.9 else run[: self._chance.randint(0, len(run) - 1)]
                acks = [(message, "completed") for message in done] + [
                    (message, "retry") for message in run[len(done) :][:1]
                ]
                body = {
                    "consumerGroup": group,
                    "acknowledgments": [
                        {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
                        | {"status": status}
                        for message, status in acks
                    ],
                }
                results = await self._call("POST", "/api/v1/ack/batch", 200, json=body)
                assert all(result["success"] for result in results), results
                self.finished[group, partition] += [message["data"] for message in done]

    async def _move(self) -> None:
        while self._goes_on("mover"):
            messages = await self._pop("work", "mover")
            for partition in {message["partition"] for message in messages}:
                run = [message for message in messages if message["partition"] == partition]
                lease = run[0]["leaseId"]
                await self._call("POST", f"/api/v1/lease/{lease}/extend", 200, json={"seconds": 60})
                acks = [
                    {"type": "ack", "status": "completed", "consumerGroup": "mover"}
                    | {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
                    for message in run
                ]
                items = [{"queue": "moved", "partition": partition, "payload": message["data"]} for message in run]
                body = {"operations": [*acks, {"type": "push", "items": items}]}
                result = await self._call("POST", "/api/v1/transaction", 200, json=body)
                assert result["success"], result
                self.moved[partition] += [message["data"] for message in run]

    async def _subscribe(self) -> None:
        """New queues, partitions and groups, which are made by whichever server is asked."""
        while self.pushing:
            name = f"new-{next(self._names)}"
            item = {"queue": name, "partition": name, "payload": name}
            await self._call("POST", "/api/v1/push", 201, json={"items": [item]})
            parameters = {"consumerGroup": name, "autoAck": "true", "subscriptionMode": "all"}
            answer = await self._call("GET", f"/api/v1/pop/queue/{name}", 200, params=parameters)
            assert [message["data"] for message in answer["messages"]] == [name]
            answer = await self._call("GET", "/api/v1/pop/queue/work", 200, params=parameters | {"batch": 1})
            assert [message["data"] for message in answer["messages"]] == [1]
            await asyncio.sleep(0.05)

    async def _seek(self) -> None:
        """A group that goes to the end, and back to the beginning."""
        await self.grow(100)
        # With `wait`, because a push that has waited for the seek still holds the group's row for a moment.
        parameters = {
            "consumerGroup": "again",
            "autoAck": "true",
            "subscriptionMode": "all",
            "batch": 5,
            "wait": "true",
        }
        await self._call("GET", "/api/v1/pop/queue/work/partition/p0", 200, params=parameters)
        while self.pushing:
            for body in ({"toEnd": True}, {"timestamp": "2020-01-01T00:00:00Z"}):
                await self._call("POST", "/api/v1/consumer-groups/again/queues/work/seek", 200, json=body)
            answer = await self._call("GET", "/api/v1/pop/queue/work/partition/p0", 200, params=parameters)
            assert [message["data"] for message in answer["messages"]] == [1, 2, 3, 4, 5]
            self.done["seek"] += 1
            await asyncio.sleep(0.3)

    async def _bury(self) -> None:
        """A dead letter comes back to the group, and nothing else does."""
        while self.pushing:
            name = f"letters-{next(self._names)}"
            items = [{"queue": name, "partition": "p", "payload": number} for number in (1, 2, 3)]
            await self._call("POST", "/api/v1/push", 201, json={"items": items})
            parameters = {"consumerGroup": "g", "subscriptionMode": "all", "batch": 3, "wait": "true"}
            answer = await self._call("GET", f"/api/v1/pop/queue/{name}", 200, params=parameters)
            acks = [
                {field: message[field] for field in ("transactionId", "partitionId", "leaseId")}
                | {"status": "dlq" if message["data"] == 2 else "completed"}
                for message in answer["messages"]
            ]
            body = {"consumerGroup": "g", "acknowledgments": acks}
            results = await self._call("POST", "/api/v1/ack/batch", 200, json=body)
            assert [result["success"] for result in results] == [True] * 3, results
            result = await self._call("POST", "/api/v1/dlq/redrive", 200, json={"queue": name})
            assert result["redriven"] == 1, result
            answer = await self._call("GET", f"/api/v1/pop/queue/{name}", 200, params=parameters | {"autoAck": "true"})
            assert [message["data"] for message in answer["messages"]] == [2]
            self.done["redrive"] += 1
            await asyncio.sleep(0.3)

    async def _take(self) -> None:
        """What any server has delivered is finished by one that takes what comes next."""
        messages: list[Json] = []
        while self._goes_on(TAKER) or messages:
            if not messages:
                messages = await self._pop("work", TAKER)
                continue
            take = {"queue": "work", "consumerGroup": TAKER, "batch": 10}
            path = f"/api/v1/lease/{messages[0]['leaseId']}/finish"
            answer = await self._call_able(LATER, "POST", path, 200, json={"take": take})
            for message in messages:
                self.finished[TAKER, message["partition"]].append(message["data"])
            messages = answer["taken"]["messages"] if answer["taken"] else []
            self.done["take"] += 1

    async def _connect(self) -> None:
        """A consumer connection to a server that has them, as long as that gets requests."""

        def handle(messages: list[Message]) -> None:
            for message in messages:
                self.finished[CONNECTED, message.partition].append(message.data)

        def goes_on() -> bool:
            got = sum(len(numbers) for (group, _), numbers in self.finished.items() if group == CONNECTED)
            return self.pushing or got < self.count

        while goes_on():
            able = self._rotation.able(LATER)
            if not able:
                await asyncio.sleep(0.02)
                continue
            server = self._chance.choice(able)
            server.in_flight += 1
            async with Queen(server.url) as queen:
                reading = queen.queue("work").group(CONNECTED).batch(5).subscription_mode("all").connection(True)
                async with reading.consume(handle, handle_signals=False):
                    while goes_on() and server in self._rotation.servers:
                        await asyncio.sleep(0.02)
            server.in_flight -= 1
            self.done["connection"] += 1

    async def _schedule(self) -> None:
        for number in itertools.count(1):
            if not self.pushing:
                return
            timer = {"op": "schedule", "queue": "timed", "timerKey": str(number), "data": number, "delayMs": 100}
            await self._call_able(LATER, "POST", "/api/v1/timers", 200, json={"operations": [timer]})
            self.timed.append(number)
            await asyncio.sleep(0.05)

    async def _pause(self) -> None:
        """Servers of df38507 know nothing of pauses, so they are not asked for messages."""
        while self.pushing:
            name = f"paused-{next(self._names)}"
            parameters = {"consumerGroup": "g", "autoAck": "true", "subscriptionMode": "all"}
            await self._call("POST", "/api/v1/push", 201, json={"items": [{"queue": name, "payload": 1}]})
            assert (await self._call_able(LATER, "POST", "/api/v1/pause", 200, json={"queue": name}))["changed"]
            await self._call_able(LATER, "GET", f"/api/v1/pop/queue/{name}", 204, params=parameters)
            assert (await self._call_able(LATER, "POST", "/api/v1/resume", 200, json={"queue": name}))["changed"]
            answer = await self._call_able(
                LATER, "GET", f"/api/v1/pop/queue/{name}", 200, params=parameters | {"wait": "true"}
            )
            assert [message["data"] for message in answer["messages"]] == [1]
            self.done["pause"] += 1
            await asyncio.sleep(0.3)

    async def audit(self) -> None:
        """Everything that was accepted is there once and in order, for each group and for one that reads anew."""
        assert min(self.done[what] for what in self.EXPECTED) > 0, self.done
        await self._audit_timers()
        for partition, numbers in self.pushed.items():
            assert numbers == list(range(1, len(numbers) + 1))
            for group in (*GROUPS, TAKER, CONNECTED):
                assert self.finished[group, partition] == numbers, (group, partition)
            assert self.moved[partition] == numbers, partition
            for queue in ("work", "moved"):
                assert await self._everything(queue, partition) == numbers, (queue, partition)

    async def _audit_timers(self) -> None:
        found: list[int] = []
        parameters = {"consumerGroup": "audit", "batch": 1000, "autoAck": "true", "subscriptionMode": "all"}
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < len(self.timed):
                answer = await self._call(
                    "GET", "/api/v1/pop/queue/timed", 200, 204, params=parameters | {"wait": "true", "timeout": 1000}
                )
                found += [message["data"] for message in answer["messages"]] if answer else []
        assert sorted(found) == self.timed
        assert await self._call("GET", "/api/v1/pop/queue/timed", 204, params=parameters) is None

    async def _everything(self, queue: str, partition: str) -> list[int]:
        found: list[int] = []
        parameters = {"consumerGroup": "audit", "batch": 1000, "autoAck": "true", "subscriptionMode": "all"}
        while True:
            answer = await self._call(
                "GET", f"/api/v1/pop/queue/{queue}/partition/{partition}", 200, 204, params=parameters
            )
            if not answer:
                return found
            found += [message["data"] for message in answer["messages"]]
