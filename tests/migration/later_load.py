"""What servers of revision 75a0ad4 know, too: policies, limits, shares, filters, the outbox, streams, leases that end.

Beside it, through servers of this version, what came since.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import asyncpg

from migration.load import Json, Load
from migration.rolling import NEWEST, Rotation

KEYS = ("a:0", "a:1", "a:2", "b:0")
SHARED = "shared"
SENT = "sent"
TO = ("s0", "s1")
RULES: tuple[Json, ...] = (
    {"fairness": {"separator": ":"}, "limits": {"leases": 3}},
    {"fairness": {"separator": ":"}, "limits": {"rate": 10_000, "leases": 2}},
    {"fairness": None, "limits": {"rate": 5000}},
    {"fairness": {"separator": ":"}, "limits": None},
)


class LaterLoad(Load):
    EXPECTED = (*Load.EXPECTED, "skip", "filter", "cycle", "expire", "forget", "conflate", "keys")

    def __init__(self, rotation: Rotation, database_url: str) -> None:
        super().__init__(rotation, database_url)
        self.shared: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [
            *super().parts(),
            *(self._fill(key) for key in KEYS),
            *(self._share() for _ in range(2)),
            *(self._rule(), self._skip(), self._filter(), self._send(), self._cycle(), self._expire(), self._forget()),
            *(self._conflate(), self._limit_keys()),
        ]

    async def _push(self, queue: str, *payloads: Any, partition: str = "Default") -> None:
        items = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
        results = await self._call("POST", "/api/v1/push", 201, json={"items": items})
        assert [result["status"] for result in results] == ["queued"] * len(payloads), results

    async def _take_some(self, queue: str, group: str = "g", call: Any = None, **parameters: Any) -> list[Json]:
        asked = {"consumerGroup": group, "subscriptionMode": "all", "batch": 10, "partitions": 10} | parameters
        answer = await (call or self._call)("GET", f"/api/v1/pop/queue/{queue}", 200, 204, params=asked)
        return answer["messages"] if answer else []

    async def _finish(self, messages: list[Json], status: str = "completed", group: str = "g") -> None:
        acks = [
            {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": status}
            for message in messages
        ]
        body = {"consumerGroup": group, "acknowledgments": acks}
        results = await self._call("POST", "/api/v1/ack/batch", 200, json=body)
        assert all(result["success"] for result in results), results

    async def _policy(self, queue: str, **what: Any) -> None:
        await self._call("POST", "/api/v1/policies", 200, json={"queue": queue} | what)

    async def _new(self, kind: str, **options: Any) -> str:
        """A queue of its own for each turn, so that each server makes some."""
        queue = f"{kind}-{next(self._names)}"
        await self._configure(queue, **options)
        return queue

    async def _configure(self, queue: str, **options: Any) -> None:
        await self._call("POST", "/api/v1/configure", 200, 201, json={"queue": queue, "options": options})

    async def _done(self, what: str) -> None:
        self.done[what] += 1
        await asyncio.sleep(0.3)

    async def _fill(self, key: str) -> None:
        for number in itertools.count(1):
            if not self.pushing:
                return
            await self._push(SHARED, number, partition=key)
            self.shared[key] += 1
            await asyncio.sleep(0.02)

    async def _share(self) -> None:
        """Consumers of a queue whose shares and limits change."""
        while self._goes_on(SHARED):
            messages = await self._take_some(SHARED, SHARED, batch=3, partitions=2, wait="true", timeout=300)
            self.idle[SHARED] = 0 if messages else self.idle[SHARED] + 1
            for partition in {message["partition"] for message in messages}:
                run = [message for message in messages if message["partition"] == partition]
                await self._finish(run, group=SHARED)
                self.finished[SHARED, partition] += [message["data"] for message in run]

    async def _rule(self) -> None:
        await self._push(SHARED, 0, partition="rules")
        for number in itertools.count():
            if not self.pushing:
                return
            await self._policy(SHARED, **RULES[number % len(RULES)])
            await asyncio.sleep(0.3)

    async def _skip(self) -> None:
        """A message that fails comes back after its time, and the others do not wait for it."""
        while self.pushing:
            queue = await self._new("skip", retryLimit=3)
            await self._policy(queue, retry={"poison": "skip", "strategy": "fixed", "delayMs": 100})
            await self._push(queue, 1, 2, 3)
            await self._finish(await self._take_some(queue, batch=1), "failed")
            got: list[int] = []
            while len(got) < 3:
                messages = await self._take_some(queue, wait="true", timeout=10_000)
                await self._finish(messages)
                got += [message["data"] for message in messages]
            assert sorted(got) == [1, 2, 3], got
            assert got.index(2) < got.index(3), got
            await self._done("skip")

    async def _filter(self) -> None:
        while self.pushing:
            queue = await self._new("filter")
            path = f"/api/v1/consumer-groups/g/queues/{queue}/filter"
            await self._call("POST", path, 200, json={"filter": "payload >= 3"})
            await self._push(queue, 1, 2, 3, 4, 1)
            messages = await self._take_some(queue)
            assert [message["data"] for message in messages] == [3, 4]
            await self._finish(messages)
            assert await self._take_some(queue) == []
            await self._done("filter")

    async def _send(self) -> None:
        """Transactions of an application, of which a third is rolled back."""
        application = await asyncpg.connect(self._database_url)
        try:
            while self.pushing:
                transaction = application.transaction()
                await transaction.start()
                numbers = {}
                for partition in TO:
                    numbers[partition] = self.sent[partition] + 1
                    payload = json.dumps(numbers[partition])
                    await application.execute("SELECT queen.send($1, $2, $3::jsonb)", SENT, partition, payload)
                if self._chance.random() < 0.3:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                    self.sent |= numbers
                await asyncio.sleep(0.02)
        finally:
            await application.close()

    async def _cycle(self) -> None:
        while self.pushing:
            queue = await self._new("stream")
            await self._push(queue, 1, 2)
            body = {"name": queue, "source_queue": queue, "config_hash": "h"}
            query = (await self._call("POST", "/streams/v1/queries", 200, json=body))["query_id"]
            group = f"streams.{queue}"
            messages = await self._take_some(queue, group)
            last = messages[-1]
            ack = {name: last[name] for name in ("transactionId", "leaseId")} | {"status": "completed", "count": 2}
            cycle = {
                "query_id": query,
                "partition_id": last["partitionId"],
                "consumer_group": group,
                "ack": ack,
                "state_ops": [{"type": "upsert", "key": "sum", "value": 3}],
                "push_items": [{"queue": f"{queue}-sums", "partition": "p", "payload": 3}],
            }
            result = await self._call("POST", "/streams/v1/cycle", 200, json=cycle)
            assert result["success"], result
            [summed] = await self._take_some(f"{queue}-sums")
            assert summed["data"] == 3
            assert await self._take_some(queue, group) == []
            await self._done("cycle")

    async def _expire(self) -> None:
        """The lease of a message ends twice, through whichever servers: it becomes a dead letter."""
        while self.pushing:
            queue = await self._new("expire", leaseTime=1, retryLimit=1, dlqAfterMaxRetries=True)
            await self._push(queue, 1, 2)
            for _ in range(2):
                messages = await self._take_some(queue, batch=1, wait="true", timeout=10_000)
                assert [message["data"] for message in messages] == [1]
            await self._configure(queue, leaseTime=300)
            messages = await self._take_some(queue, wait="true", timeout=10_000)
            assert [message["data"] for message in messages] == [2]
            await self._finish(messages)
            answer = await self._call("GET", "/api/v1/dlq", 200, params={"queue": queue})
            assert [message["data"] for message in answer["messages"]] == [1]
            await self._done("expire")

    async def _forget(self) -> None:
        """A group that is deleted, and its queue."""
        while self.pushing:
            queue = await self._new("forget")
            await self._push(queue, 1)
            await self._finish(await self._take_some(queue))
            await self._call("DELETE", f"/api/v1/consumer-groups/g/queues/{queue}", 200)
            await self._finish(await self._take_some(queue))
            await self._call("DELETE", f"/api/v1/resources/queues/{queue}", 200)
            await self._push(queue, 2)
            assert [message["data"] for message in await self._take_some(queue)] == [2]
            await self._done("forget")

    async def _conflate(self) -> None:
        while self.pushing:
            queue = await self._new("conflate")
            await self._push(queue, 1, 2)
            path = f"/api/v1/consumer-groups/g/queues/{queue}/conflation"
            await self._call_newest("POST", path, 200, json={"enabled": True})
            await self._push(queue, 3)
            messages = await self._take_some(queue, call=self._call_newest)
            assert [message["data"] for message in messages] == [3]
            await self._finish(messages)
            await self._push(queue, 4)
            assert [message["data"] for message in await self._take_some(queue)] == [4]
            await self._done("conflate")

    async def _limit_keys(self) -> None:
        """The limit of a key counts leases that old servers end."""
        while self.pushing:
            queue = await self._new("keys")
            await self._push(queue, 1, partition="a:0")
            await self._push(queue, 2, partition="a:1")
            rule = {"fairness": {"separator": ":"}, "limits": {"perKey": {"leases": 1}}}
            await self._call_newest("POST", "/api/v1/policies", 200, json={"queue": queue} | rule)
            got: list[int] = []
            while len(got) < 2:
                messages = await self._take_some(queue, call=self._call_newest, wait="true", timeout=10_000)
                if messages:
                    assert len(messages) == 1, messages
                    assert await self._take_some(queue, call=self._call_newest) == []
                    await self._finish(messages)
                    got += [message["data"] for message in messages]
            assert sorted(got) == [1, 2]
            await self._done("keys")

    async def _call_newest(self, *request: Any, **options: Any) -> Any:
        return await self._call_able(NEWEST, *request, **options)

    async def audit(self) -> None:
        await super().audit()
        for key in KEYS:
            numbers = list(range(1, self.shared[key] + 1))
            assert self.finished[SHARED, key] == numbers, key
            assert await self._everything(SHARED, key) == numbers, key
        for partition in TO:
            numbers = list(range(1, self.sent[partition] + 1))
            await self._wait_for(SENT, partition, numbers[-1])
            assert await self._everything(SENT, partition) == numbers, partition

    async def _wait_for(self, queue: str, partition: str, last: int) -> None:
        """What was sent in the end may not have been pushed yet."""
        asked = {"consumerGroup": "waits", "subscriptionMode": "all", "autoAck": "true", "wait": "true", "batch": 1000}
        found = 0
        while found < last:
            path = f"/api/v1/pop/queue/{queue}/partition/{partition}"
            answer = await self._call("GET", path, 200, params=asked | {"timeout": 60_000})
            found = answer["messages"][-1]["data"]
