"""Two pops and one token bucket: what a pop that was overtaken writes into it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest
from versioned_sql import VersionedSession

from integration.queen import Json, Queen, until

RATE, BURST, BEGINNING = 1, 127, 50  # one part; it is not full before the test ends

POP = "SELECT sum(p.message_count) FROM queen.pop('{q}', '{NULL}', '{g}', '{20}', '{1}', '{t}', '{NULL}') p"


@pytest.fixture
async def another(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url, connection_class=VersionedSession)
    yield connection
    await connection.close()


@pytest.mark.parametrize("of_key", [False, True])
async def test_nothing_is_refilled_twice(
    of_key: bool, http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection, another: asyncpg.Connection
) -> None:
    """A pop begins, another one takes tokens meanwhile, and only then the first one comes to the bucket."""
    await queen.push_items(*({"queue": "q", "partition": f"a:{n}", "payload": m} for n in range(3) for m in range(50)))
    bucket: Json = {"rate": RATE, "burst": BURST}
    limits = {"perKey": bucket} if of_key else bucket
    body = {"queue": "q", "limits": limits, "fairness": {"separator": ":"}}
    assert (await http.post("/api/v1/policies", json=body)).status_code == 200
    assert len(await queen.pop("q", consumerGroup="g", autoAck="true")) == 1  # the bucket is there now
    table, rate = ("limit_keys", "key_rate") if of_key else ("limit_tokens", "rate")
    begun = await sql.fetchval(
        f"UPDATE queen.{table} SET tokens = $1, refilled_at = clock_timestamp() RETURNING refilled_at", BEGINNING
    )
    waits = "SELECT cardinality(pg_blocking_pids($1)) > 0"
    async with sql.transaction():
        # A pop comes to this table before it comes to the bucket.
        await sql.execute(f"LOCK TABLE queen.{'limit_keys' if of_key else 'limits'}")
        overtaken = asyncio.create_task(another.fetchval(POP))
        await until(lambda: sql.fetchval(waits, another.get_server_pid()))
        given = await sql.fetchval(POP)
    given += await overtaken
    now, left = await sql.fetchrow(
        f"""SELECT t.now, queen.tokens_at(b.tokens, l.{rate}, {BURST}, b.refilled_at, t.now)
            FROM queen.{table} b, queen.limits l, (SELECT clock_timestamp() AS now OFFSET 0) t
            ORDER BY b.generation DESC LIMIT 1"""
    )
    assert given == 40
    # To the tenth of a millisecond: the pop was kept waiting for longer than that.
    assert given + left == pytest.approx(BEGINNING + RATE * (now - begun).total_seconds(), abs=0.0001)
