"""The verbs of the HTTP contract as a thin client for tests, and hands that move the clock of stored things."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest

from queenmq.broker.load_manager import Choice, Decision
from queenmq.config import Settings
from queenmq.server import Server

Json = dict[str, Any]
Message = dict[str, Any]

LONG_ENOUGH_MS = 25_000


class Queen:
    """Speaks to one server. Every verb checks the HTTP status and returns the decoded answer.

    With `patience_s` it repeats what is answered with 503 for so long, as a client does.
    """

    def __init__(self, http: httpx.AsyncClient, patience_s: float = 0) -> None:
        self.http = http
        self._patience_s = patience_s

    async def configure(
        self, queue: str, namespace: str | None = None, task: str | None = None, **options: Any
    ) -> Json:
        body = {"queue": queue, "namespace": namespace, "task": task, "options": options, "mode": "replace"}
        return await self._call("POST", "/api/v1/configure", 200, body)

    async def merge_options(self, queue: str, **options: Any) -> Json:
        return await self._call("POST", "/api/v1/configure", 200, {"queue": queue, "options": options})

    async def push(self, queue: str, *payloads: Any, partition: str = "Default") -> list[Json]:
        """Push payloads to one partition; a transaction id is made of each payload that is a plain text."""
        items = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
        for item in items:
            if isinstance(item["payload"], str):
                item["transactionId"] = item["payload"]
        return await self.push_items(*items)

    async def push_items(self, *items: Json) -> list[Json]:
        return await self._call("POST", "/api/v1/push", 201, {"items": items})

    async def pop(self, queue: str, partition: str | None = None, **params: Any) -> list[Message]:
        return (await self.pop_answer(queue, partition, **params))["messages"]

    async def pop_answer(self, queue: str, partition: str | None = None, **params: Any) -> Json:
        """The whole answer of a pop; the empty one of a 204 has no messages."""
        path = f"/api/v1/pop/queue/{queue}" + (f"/partition/{partition}" if partition else "")
        return await self._pop(path, params)

    async def pop_matching(self, **params: Any) -> list[Message]:
        """Pop by namespace and task."""
        return (await self._pop("/api/v1/pop", params))["messages"]

    async def wait(self, queue: str, partition: str | None = None, **params: Any) -> list[Message]:
        """A long poll, long enough for everything that a test waits for."""
        return await self.pop(queue, partition, **({"wait": True, "timeout": LONG_ENOUGH_MS} | params))

    async def _pop(self, path: str, params: Json) -> Json:
        answer = await self._send("GET", path, params=params)
        if answer.status_code == 204:
            assert answer.content == b""
            return {"messages": []}
        assert answer.status_code == 200, answer.text
        assert answer.json()["messages"] or "conflation" in params, "an empty pop is a 204"
        return answer.json()

    async def drain(self, queue: str, partition: str | None = None, **params: Any) -> list[Message]:
        """Pop and complete until nothing is left."""
        drained: list[Message] = []
        while popped := await self.pop(queue, partition, **({"batch": 1000} | params)):
            drained += popped
            assert all(result["success"] for result in await self.ack_batch(popped))
        return drained

    async def ack(self, message: Message, status: str = "completed", **changes: Any) -> Json:
        """Acknowledge a popped message with its lease and group; `changes` replace fields, None leaves one out."""
        body = _names(message) | {"consumerGroup": message["consumerGroup"], "status": status} | changes
        present = {name: value for name, value in body.items() if value is not None}
        [result] = await self._call("POST", "/api/v1/ack", 200, present)
        assert result["transactionId"] == message["transactionId"]
        return result

    async def ack_batch(self, messages: Iterable[Message], *statuses: str, **changes: Any) -> list[Json]:
        """Acknowledge popped messages of one group, with one status for all or one each (default: completed)."""
        messages = list(messages)
        stated = statuses if len(statuses) > 1 else (statuses or ("completed",)) * len(messages)
        items = [_names(m) | {"status": s} | changes for m, s in zip(messages, stated, strict=True)]
        body = {"acknowledgments": items, "consumerGroup": messages[0]["consumerGroup"] if messages else None}
        return await self._call("POST", "/api/v1/ack/batch", 200, body)

    async def transact(self, *operations: Json, leases: Iterable[str] | None = None) -> Json:
        body: Json = {"operations": operations}
        if leases is not None:
            body["requiredLeases"] = list(leases)
        return await self._call("POST", "/api/v1/transaction", 200, body)

    async def extend(self, lease_id: str, seconds: int | None = None, status: int = 200) -> Json:
        body = None if seconds is None else {"seconds": seconds}
        return await self._call("POST", f"/api/v1/lease/{lease_id}/extend", status, body)

    async def finish(self, lease_id: str, expected: int = 200, **body: Any) -> Json:
        return await self._call("POST", f"/api/v1/lease/{lease_id}/finish", expected, body)

    async def take(self, lease_id: str, queue: str, **take: Any) -> Json:
        """Finish a lease and pop; `finish` has the body of the finish."""
        return await self.finish(lease_id, **take.pop("finish", {}), take={"queue": queue} | take)

    async def dead_letters(self, queue: str | None = None, **params: Any) -> list[Json]:
        """The dead letters that match, after a check that `total` says the same."""
        answer = await self.dead_letter_page(**({"queue": queue} if queue else {}), **params)
        assert answer["total"] == len(answer["messages"])
        return answer["messages"]

    async def dead_letter_page(self, **params: Any) -> Json:
        answer = await self.http.get("/api/v1/dlq", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def trace(self, message: Message, data: Any, status: int = 201, **fields: Any) -> Json:
        body = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], "data": data}
        return await self._call("POST", "/api/v1/traces", status, body | fields)

    async def seek(self, group: str, queue: str, **body: Any) -> Json:
        return await self._call("POST", f"/api/v1/consumer-groups/{group}/queues/{queue}/seek", 200, body)

    async def subscribe_from(self, group: str, timestamp: str) -> Json:
        body = {"subscriptionTimestamp": timestamp}
        return await self._call("POST", f"/api/v1/consumer-groups/{group}/subscription", 200, body)

    async def delete_group(self, group: str, queue: str | None = None, **params: Any) -> Json:
        path = f"/api/v1/consumer-groups/{group}" + (f"/queues/{queue}" if queue else "")
        answer = await self.http.delete(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def delete_queue(self, queue: str) -> Json:
        return await self._call("DELETE", f"/api/v1/resources/queues/{queue}", 200)

    async def refused(self, path: str, body: Any, method: str = "POST") -> Json:
        """The body of a 400, which has an error and a code."""
        refusal = await self._call(method, path, 400, body)
        assert refusal["code"]
        assert isinstance(refusal["error"], str)
        return refusal

    async def _call(self, method: str, path: str, status: int, body: Any = None) -> Any:
        answer = await self._send(method, path, **({} if body is None else {"json": body}))
        assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    async def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while True:
            answer = await self.http.request(method, path, **content)
            if answer.status_code != 503 or asyncio.get_running_loop().time() >= deadline:
                return answer
            await asyncio.sleep(0.05)


def data(messages: Iterable[Message]) -> list[Any]:
    return [message["data"] for message in messages]


def push_op(queue: str, *payloads: Any, partition: str = "Default") -> Json:
    """A push operation of a transaction."""
    return {"type": "push", "items": [{"queue": queue, "partition": partition, "payload": p} for p in payloads]}


def ack_op(message: Message, status: str = "completed", **fields: Any) -> Json:
    """An ack operation as the published clients send it: without group and lease."""
    names = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    return {"type": "ack", "status": status} | names | fields


def _names(message: Message) -> Json:
    return {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}


@asynccontextmanager
async def another_server(settings: Settings, database_url: str) -> AsyncIterator[Queen]:
    """A second server on the same database, and a client of it."""
    running = Server(settings, database_url)
    await running.start()
    try:
        host, port = running.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
            yield Queen(client)
    finally:
        await running.stop()


async def until(condition: Callable[[], Awaitable[bool] | bool], timeout_s: float = 60) -> None:
    """Return as soon as `condition` holds; fail when the time is over."""
    async with asyncio.timeout(timeout_s):
        while True:
            answer = condition()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.01)


def decide_pushes(server: Server, monkeypatch: pytest.MonkeyPatch, choice: Choice, reason: str = "system_busy") -> None:
    """Have every push executed, queued or refused, whatever the load."""
    monkeypatch.setattr(server.broker.load, "is_calm", False)
    monkeypatch.setattr(server.broker.load, "decide_push", lambda: Decision(choice, reason, 1))


async def parked(server: Server, polls: int = 1) -> None:
    """Return when the server has looked for that many long polls in vain and holds them now."""
    groups = server.broker.long_polls.registry.groups()
    await until(lambda: sum(len(group.waiters) for group in groups) == polls)


async def blocked(sql: asyncpg.Connection, sessions: int = 1) -> None:
    """Return when that many sessions of this database wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def enough() -> bool:
        # Within a transaction, sessions that were opened since the first look would not be seen.
        await sql.execute("SELECT pg_stat_clear_snapshot()")
        return await sql.fetchval(waiting) >= sessions

    await until(enough)


async def age_messages(sql: asyncpg.Connection, queue: str, seconds: float) -> None:
    """Make the stored messages of a queue older, as if that much time had passed since they were pushed."""
    partitions = "(SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1)"
    older = "- make_interval(secs => $2)"
    async with sql.transaction():
        await sql.execute(
            f"UPDATE queen.messages SET created_at = created_at {older} WHERE partition_id IN {partitions}",
            queue,
            seconds,
        )
        await sql.execute(
            "UPDATE queen.partition_lookup SET last_message_at = last_message_at "
            f"{older} WHERE partition_id IN {partitions}",
            queue,
            seconds,
        )


async def age_partitions(sql: asyncpg.Connection, queue: str, days: int) -> None:
    """Make the partitions of a queue older, too."""
    await sql.execute(
        "UPDATE queen.partitions SET created_at = created_at - make_interval(days => $2) "
        "WHERE queue_id = (SELECT id FROM queen.queues WHERE name = $1)",
        queue,
        days,
    )
    await sql.execute(
        "UPDATE queen.partition_ages SET idle_since = idle_since - make_interval(days => $2) "
        "WHERE queue_id = (SELECT id FROM queen.queues WHERE name = $1)",
        queue,
        days,
    )
    await age_messages(sql, queue, days * 86_400)


async def expire_leases(sql: asyncpg.Connection) -> None:
    """Let every lease run out now."""
    await sql.execute(
        "UPDATE queen.partition_consumers SET lease_expires_at = clock_timestamp(), ready_at = clock_timestamp() "
        "WHERE lease_id IS NOT NULL"
    )


async def leases(sql: asyncpg.Connection) -> int:
    """How many leases live."""
    return await sql.fetchval(
        "SELECT count(*) FROM queen.partition_consumers "
        "WHERE lease_id IS NOT NULL AND lease_expires_at > clock_timestamp()"
    )


async def stored(sql: asyncpg.Connection, queue: str) -> int:
    """How many messages of a queue are stored."""
    return await sql.fetchval(
        "SELECT count(*) FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id "
        "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1",
        queue,
    )
