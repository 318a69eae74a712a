"""`kill -9` of servers in the middle of stepped operations: a later start or another server finishes them, exactly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from chaos.harness import PATIENCE_S, Queen

PARTITIONS = 60
EACH = 5
ALL = PARTITIONS * EACH
NEVER_MS = "3600000"
SETTINGS = {
    "QUEEN_OPERATION_STEP": "10",
    "QUEEN_OPERATION_WAIT_MS": "1",
    "QUEEN_OPERATION_CONCURRENT": "8",
    "RETENTION_BATCH_SIZE": "10",
}
# No operation comes further than the gate lets it: a step beyond it is rolled back and tried again.
GATE = """
    CREATE TABLE public.gate AS SELECT 25 AS most;
    CREATE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.done > (SELECT most FROM public.gate) THEN
            RAISE lock_not_available USING MESSAGE = 'the gate is closed';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER gate BEFORE UPDATE ON queen.operation_queue FOR EACH ROW EXECUTE FUNCTION public.gate();
"""
QUEUES = ("deleted", "cleared", "sought", "redriven", "retained")
UNFINISHED = "SELECT count(*) FROM queen.operation_queue WHERE status <> 'completed'"
REACHED = "SELECT min(done) FROM queen.operation_queue HAVING count(*) = 5"
DEAD = "UPDATE queen.operation_queue SET claimed_at = claimed_at - interval '31 seconds' WHERE status = 'processing'"


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def until(sql: asyncpg.Connection, query: str, least: int, most: int | None = None) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            value = await sql.fetchval(query)
            if value is not None and value >= least and (most is None or value <= most):
                return
            await asyncio.sleep(0.01)


async def fill(http: httpx.AsyncClient, queue: str) -> None:
    items = [
        {"queue": queue, "partition": f"p{p:02}", "transactionId": f"{p:02}:{n}", "payload": f"{p:02}:{n}"}
        for p in range(PARTITIONS)
        for n in range(EACH)
    ]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201


async def read(http: httpx.AsyncClient, queue: str, status: str = "completed") -> list[str]:
    """Everything that the group gets, acknowledged with this status; in order within each partition."""
    seen: list[str] = []
    params = {"consumerGroup": "g", "batch": 1000, "partitions": 100}
    while (answer := await http.get(f"/api/v1/pop/queue/{queue}", params=params)).status_code == 200:
        messages = answer.json()["messages"]
        acks = [{name: m[name] for name in ("transactionId", "partitionId", "leaseId")} for m in messages]
        body = {"acknowledgments": [ack | {"status": status} for ack in acks], "consumerGroup": "g"}
        assert all(one["success"] for one in (await http.post("/api/v1/ack/batch", json=body)).json())
        seen += [message["data"] for message in messages]
    return seen


async def prepare(http: httpx.AsyncClient, sql: asyncpg.Connection) -> None:
    for queue in QUEUES:
        if queue == "retained":
            body = {"queue": queue, "options": {"retentionEnabled": True, "retentionSeconds": 3600}}
            assert (await http.post("/api/v1/configure", json=body)).status_code == 200
        await fill(http, queue)
    await read(http, "sought")
    await read(http, "redriven", "dlq")
    old = "queue_id = (SELECT id FROM queen.queues WHERE name = 'retained')"
    await sql.execute(
        f"UPDATE queen.messages SET created_at = created_at - interval '2 hours' "
        f"WHERE partition_id IN (SELECT id FROM queen.partitions WHERE {old})"
    )
    await sql.execute(
        f"UPDATE queen.partition_lookup SET last_message_at = last_message_at - interval '2 hours' WHERE {old}"
    )
    await sql.execute(GATE)


async def begin(http: httpx.AsyncClient, sql: asyncpg.Connection) -> dict[str, str]:
    """One operation of each kind; their ids."""
    seek = {"timestamp": "1970-01-01T00:00:00Z"}
    answers: list[Any] = [
        await http.delete("/api/v1/resources/queues/deleted"),
        await http.delete("/api/v1/queues/cleared/clear"),
        await http.post("/api/v1/consumer-groups/g/queues/sought/seek", json=seek),
        await http.post("/api/v1/dlq/redrive", json={"queue": "redriven"}),
    ]
    assert [answer.status_code for answer in answers] == [202] * 4
    await until(sql, "SELECT count(*) FROM queen.operation_queue WHERE kind = 'retention'", 1)
    retention = await sql.fetchval("SELECT id FROM queen.operation_queue WHERE kind = 'retention'")
    ids = [answer.json()["operationId"] for answer in answers] + [str(retention)]
    return dict(zip(QUEUES, ids, strict=True))


@pytest.mark.timeout(600)
async def test_servers_are_killed_in_the_middle_of_every_kind(
    tmp_path: Path, database_url: str, sql: asyncpg.Connection
) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "data").mkdir(parents=True)
    variables = SETTINGS | {"DATABASE_URL": database_url}
    first = Queen(tmp_path / "a" / "data", **variables, RETENTION_INTERVAL="1000")
    second = Queen(tmp_path / "b" / "data", **variables, RETENTION_INTERVAL=NEVER_MS)
    try:
        await second.start()
        async with httpx.AsyncClient(base_url=second.url, timeout=60) as http:
            await prepare(http, sql)
            await second.kill()
            await first.start()
            async with httpx.AsyncClient(base_url=first.url, timeout=60) as starting:
                operations = await begin(starting, sql)
                item = {"queue": "deleted", "partition": "p00", "transactionId": "new", "payload": "new"}
                assert (await starting.post("/api/v1/push", json={"items": [item]})).status_code == 201
                item |= {"queue": "cleared"}
                assert (await starting.post("/api/v1/push", json={"items": [item]})).status_code == 201
            await until(sql, REACHED, 11)
            await first.kill()
            # The same server goes on at once: it knows its own claims.
            await sql.execute("UPDATE public.gate SET most = 45")
            await first.start()
            await until(sql, REACHED, 31)
            await first.kill()
            assert await sql.fetchval(UNFINISHED) == len(QUEUES)
            await sql.execute("UPDATE public.gate SET most = 1000000")
            await sql.execute(DEAD)
            await second.start()
            await until(sql, UNFINISHED, 0, 0)
            done = {}
            for queue, operation_id in operations.items():
                shown = (await http.get(f"/api/v1/operations/{operation_id}")).json()
                assert shown["status"] == "completed", shown
                done[queue] = shown["progress"]["done"]
            counted = {"deleted": ALL + PARTITIONS, "cleared": ALL, "sought": PARTITIONS, "redriven": ALL}
            assert done == counted | {"retained": PARTITIONS}
            everything = [f"{p:02}:{n}" for p in range(PARTITIONS) for n in range(EACH)]
            assert await read(http, "deleted") == ["new"]
            assert await read(http, "cleared") == ["new"]
            for queue in ("sought", "redriven"):
                seen = await read(http, queue)
                assert sorted(seen) == everything
                for p in range(PARTITIONS):
                    mine = [one for one in seen if one.startswith(f"{p:02}:")]
                    assert mine == sorted(mine), queue
            assert await read(http, "retained") == []
            assert await sql.fetchval("SELECT count(*) FROM queen.dead_letter_queue") == 0
            assert await sql.fetchval("SELECT count(*) FROM queen.queues") == len(QUEUES)
            assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 2 + 2 * ALL
    finally:
        await first.stop()
        await second.stop()
