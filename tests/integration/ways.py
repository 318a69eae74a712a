"""The ways in which consumers acknowledge what they have got, for tests in which something fails meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import httpx

from integration.consuming import consuming
from integration.queen import Queen, expire_leases
from queenmq.server import Server

Json = dict[str, Any]

POP = {"batch": 5, "wait": True, "timeout": 500}
UNKNOWN = ("outcome_unknown", "database_unavailable", "row_locked")


class Ledger:
    """What consumers of one queue got, by partition. What was said to be finished must not come again.

    `harm` is called soon after every so many messages.
    """

    def __init__(self, expected: dict[str, list[Any]], every: int, harm: Callable[[], object]) -> None:
        self.harmed = 0
        self._expected = expected
        self._every = every
        self._harm = harm
        self._received: dict[str, list[Any]] = defaultdict(list)
        self._finished: set[tuple[str, Any]] = set()
        self._perhaps: set[tuple[str, Any]] = set()  # a lost answer may have finished it

    @property
    def is_complete(self) -> bool:
        return len(self._finished | self._perhaps) == sum(map(len, self._expected.values()))

    def deliver(self, messages: list[Json]) -> None:
        for message in messages:
            assert (message["partition"], message["data"]) not in self._finished, "finished, and delivered again"
            self._received[message["partition"]].append(message["data"])
        if sum(map(len, self._received.values())) >= (self.harmed + 1) * self._every:
            self.harmed += 1
            asyncio.get_running_loop().call_later(random.uniform(0, 0.01), self._harm)

    def finish(self, messages: list[Json], *, perhaps: bool = False) -> None:
        finished = {(message["partition"], message["data"]) for message in messages}
        (self._perhaps if perhaps else self._finished).update(finished)

    async def check(self, queen: Queen, sql: asyncpg.Connection) -> None:
        """All of it came, nothing before an earlier one, and nothing is left but what may be."""
        await expire_leases(sql)
        self.deliver(await queen.drain("q"))
        assert {name: list(dict.fromkeys(got)) for name, got in self._received.items()} == self._expected


async def _popped(http: httpx.AsyncClient, ledger: Ledger) -> Json:
    answer = await http.get("/api/v1/pop/queue/q", params=POP)
    popped: Json = answer.json() if answer.status_code == 200 else {"messages": []}
    ledger.deliver(popped["messages"])
    return popped


async def _settled(say: Callable[[], Awaitable[Json]], ledger: Ledger, messages: list[Json]) -> Json:
    """Say it until it is known what has become of it. Once it was unknown, a refusal may mean that it is done."""
    is_unknown = False
    while True:
        result = await say()
        if result["success"]:
            ledger.finish(messages)
            return result
        if result.get("code") not in UNKNOWN:
            if is_unknown:
                ledger.finish(messages, perhaps=True)
            return result
        is_unknown = is_unknown or result["code"] == "outcome_unknown"


async def _acking(server: Server, http: httpx.AsyncClient, ledger: Ledger) -> None:
    while not ledger.is_complete:
        messages = (await _popped(http, ledger))["messages"]
        names = ("transactionId", "partitionId", "leaseId")
        body = {"acknowledgments": [{name: one[name] for name in names} | {"status": "completed"} for one in messages]}

        async def ack(body: Json = body) -> Json:
            answer = await http.post("/api/v1/ack/batch", json=body)
            if answer.status_code != 200:
                return {"success": False} | answer.json()
            return {"success": all(one["success"] for one in answer.json())}

        if messages:
            await _settled(ack, ledger, messages)


async def _finishing(server: Server, http: httpx.AsyncClient, ledger: Ledger, take: Json | None = None) -> None:
    batches: list[Json] = []
    while not ledger.is_complete:
        if not batches:
            batches.append(await _popped(http, ledger))
        popped = batches.pop()

        async def finish(popped: Json = popped) -> Json:
            answer = await http.post(f"/api/v1/lease/{popped['leaseId']}/finish", json={"take": take})
            result: Json = {"success": False} | answer.json()
            if taken := result.get("taken"):
                ledger.deliver(taken["messages"])
                batches.append(taken)
            return result

        if popped["messages"]:
            await _settled(finish, ledger, popped["messages"])


async def _taking(server: Server, http: httpx.AsyncClient, ledger: Ledger) -> None:
    await _finishing(server, http, ledger, {"queue": "q"} | POP)


async def _connected(server: Server, http: httpx.AsyncClient, ledger: Ledger) -> None:
    async with consuming(server, "q", batch=5, inFlight=2) as connection:
        while not ledger.is_complete:
            try:
                async with asyncio.timeout(0.5):
                    batch = await connection.next_batch()
            except TimeoutError:
                continue
            ledger.deliver(batch["messages"])
            await _settled(lambda batch=batch: connection.finish(batch), ledger, batch["messages"])


WAYS = {"ack": _acking, "finish": _finishing, "take": _taking, "connection": _connected}
