"""queen.finish: the acknowledgement commits with the application's own writes, and is fenced like every other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from integration.queen import Queen, data, until
from queenmq.server import Server

Json = dict[str, Any]

ENDED = "QN009"


async def finish(session: asyncpg.Connection, lease: str, message: str | None = None, **more: str) -> int:
    return int(
        await session.fetchval(
            "SELECT queen.finish($1, $2, $3, $4)", lease, message, more.get("status", "completed"), more.get("error")
        )
    )


async def leased(queen: Queen, *payloads: object, batch: int = 10, **options: Any) -> list[Json]:
    await queen.push("q", *payloads, partition="p")
    return await queen.pop("q", "p", batch=batch, **options)


async def refused(session: asyncpg.Connection, lease: str, message: str | None = None, **more: str) -> bool:
    try:
        await finish(session, lease, message, **more)
    except asyncpg.PostgresError as error:
        return error.sqlstate == ENDED
    return False


async def test_the_commit_finishes_the_lease(queen: Queen, sql: asyncpg.Connection) -> None:
    messages = await leased(queen, 1, 2, 3)
    async with sql.transaction():
        assert await finish(sql, messages[0]["leaseId"]) == 3
    await queen.push("q", 4, partition="p")
    assert data(await queen.pop("q", "p")) == [4]


async def test_a_rollback_leaves_the_lease_as_it_was(queen: Queen, sql: asyncpg.Connection) -> None:
    messages = await leased(queen, 1, 2)
    transaction = sql.transaction()
    await transaction.start()
    await finish(sql, messages[0]["leaseId"])
    await transaction.rollback()
    assert (await queen.finish(messages[0]["leaseId"]))["messages"] == 2


async def test_one_message_of_a_lease(queen: Queen, sql: asyncpg.Connection) -> None:
    first, second = await leased(queen, 1, 2)
    assert await finish(sql, first["leaseId"], first["id"]) == 1
    assert await finish(sql, second["leaseId"], second["id"], status="retry") == 1
    assert data(await queen.wait("q", "p")) == [2]


async def test_a_failure_counts_and_goes_to_the_dead_letters(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("q", retryLimit=0)
    [message] = await leased(queen, 1)
    await finish(sql, message["leaseId"], message["id"], status="failed", error="no such customer")
    [letter] = await queen.dead_letters("q")
    assert letter["errorMessage"] == "no such customer"


class TestFencing:
    async def test_a_lease_that_has_ended(self, queen: Queen, sql: asyncpg.Connection) -> None:
        [message] = await leased(queen, 1)
        assert await finish(sql, message["leaseId"]) == 1
        assert await refused(sql, message["leaseId"])
        assert await refused(sql, message["leaseId"], message["id"])

    async def test_a_lease_that_has_expired(self, queen: Queen, sql: asyncpg.Connection) -> None:
        [message] = await leased(queen, 1)
        await sql.execute(
            "UPDATE queen.partition_consumers SET lease_expires_at = now() - interval '1 s', ready_at = now()"
        )
        assert await refused(sql, message["leaseId"])
        assert await refused(sql, message["leaseId"], message["id"])
        assert data(await queen.pop("q", "p")) == [1]

    async def test_a_message_of_another_lease(self, queen: Queen, sql: asyncpg.Connection) -> None:
        [message] = await leased(queen, 1)
        await queen.push("q", 2, partition="other")
        [other] = await queen.pop("q", "other")
        assert await refused(sql, message["leaseId"], other["id"])
        assert (await queen.finish(message["leaseId"]))["messages"] == 1

    async def test_nobody_gets_the_messages_while_the_transaction_is_open(
        self, queen: Queen, sql: asyncpg.Connection, database_url: str
    ) -> None:
        """Also if the lease would have expired meanwhile."""
        await queen.configure("q", leaseTime=1)
        [message] = await leased(queen, 1)
        async with sql.transaction():
            await finish(sql, message["leaseId"])

            async def expired() -> bool:
                other = await asyncpg.connect(database_url)
                try:
                    return bool(await other.fetchval("SELECT lease_expires_at < now() FROM queen.partition_consumers"))
                finally:
                    await other.close()

            await until(expired)
            assert await queen.pop("q", "p") == []
        assert await queen.pop("q", "p") == []


async def test_who_waits_for_the_partition_is_woken(queen: Queen, sql: asyncpg.Connection, server: Server) -> None:
    await until(lambda: server.database.is_listening)
    [message] = await leased(queen, 1)
    await queen.push("q", 2, partition="p")
    poll = asyncio.create_task(queen.wait("q", "p"))
    await until(lambda: server.broker.long_polls.registry.total == 1)
    await finish(sql, message["leaseId"])
    assert data(await poll) == [2]


async def test_one_message_costs_the_same_however_many_are_stored(queen: Queen, sql: asyncpg.Connection) -> None:
    async def buffers() -> int:
        [message] = await queen.pop("q", "p")
        async with sql.transaction():
            finishing = f"SELECT queen.finish('{message['leaseId']}', '{message['id']}')"
            [row] = await sql.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {finishing}")
        plan = json.loads(row[0])[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    await queen.push("q", *range(20), partition="p")
    for _ in range(3):
        few = await buffers()
    await queen.push("q", *range(3000), partition="p")
    many = await buffers()
    assert many < 2 * few + 20, (few, many)


@pytest.mark.parametrize("status", ["done", "", "COMPLETED"])
async def test_a_status_that_is_none(queen: Queen, sql: asyncpg.Connection, status: str) -> None:
    [message] = await leased(queen, 1)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="is no status"):
        await finish(sql, message["leaseId"], status=status)
