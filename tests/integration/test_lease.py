"""Leases: how long they last, what an extension does, and that a lost one stays lost."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg
import pytest

from integration.queen import Queen, data, expire_leases, leases


async def seconds_left(sql: asyncpg.Connection) -> list[float]:
    rows = await sql.fetch(
        "SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 AS s FROM queen.partition_consumers "
        "WHERE lease_id IS NOT NULL"
    )
    return [row["s"] for row in rows]


@pytest.mark.parametrize(("configured", "granted"), [(20, 20), (0, 60), (None, 300)])
async def test_a_lease_lasts_as_long_as_the_queue_says(
    queen: Queen, sql: asyncpg.Connection, configured: int | None, granted: int
) -> None:
    await queen.configure("orders", **({} if configured is None else {"leaseTime": configured}))
    await queen.push("orders", 1)
    await queen.pop("orders")
    [left] = await seconds_left(sql)
    assert granted - 5 < left <= granted


async def test_after_a_lease_of_one_second_the_message_comes_again(queen: Queen) -> None:
    await queen.configure("orders", leaseTime=1)
    await queen.push("orders", "m")
    [first] = await queen.pop("orders")
    [again] = await queen.wait("orders")
    assert (again["id"], again["retryCount"]) == (first["id"], 0)
    assert (await queen.ack(first))["error"] == "Invalid or expired lease"
    assert (await queen.ack(again))["success"]


async def test_expiry_costs_no_attempt(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", retryLimit=0)
    await queen.push("orders", "m")
    for _ in range(5):
        [message] = await queen.pop("orders")
        assert message["retryCount"] == 0
        await expire_leases(sql)
    assert await queen.dead_letters() == []


async def test_every_pop_has_a_lease_of_its_own(queen: Queen) -> None:
    await queen.push_items(*({"queue": "orders", "partition": f"p{n}"} for n in range(10)))
    popped = await asyncio.gather(*(queen.pop("orders") for _ in range(10)))
    assert len({message["leaseId"] for [message] in popped}) == 10


class TestExtension:
    async def test_it_answers_in_every_spelling(self, queen: Queen) -> None:
        await queen.configure("orders", leaseTime=5)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        answer = await queen.extend(message["leaseId"], 90)
        until = answer["newExpiresAt"]
        left = (datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds()
        assert 60 < left < 120
        assert until.endswith("Z")
        assert answer == {
            "leaseId": message["leaseId"],
            "success": True,
            "renewed": True,
            "newExpiresAt": until,
            "expiresAt": until,
            "lease_expires_at": until,
            "error": None,
        }

    async def test_without_a_body_it_is_a_minute(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", leaseTime=5)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        for content in (b"", b"{}", b"null"):
            answer = await queen.http.post(f"/api/v1/lease/{message['leaseId']}/extend", content=content)
            assert answer.json()["success"] is True
        [left] = await seconds_left(sql)
        assert 50 < left <= 60

    async def test_it_never_shortens(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", leaseTime=300)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        assert (await queen.extend(message["leaseId"], 1))["success"]
        [left] = await seconds_left(sql)
        assert left > 200

    async def test_it_holds_the_message_and_the_ack_works_after_it(self, queen: Queen) -> None:
        await queen.configure("orders", leaseTime=1)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        for _ in range(2):
            assert (await queen.extend(message["leaseId"], 30))["success"]
        assert await queen.pop("orders", wait=True, timeout=1300) == []
        assert (await queen.ack(message))["success"]

    async def test_one_call_covers_every_partition_of_the_lease(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", leaseTime=5)
        await queen.push_items(*({"queue": "orders", "partition": f"p{n}"} for n in range(3)))
        messages = await queen.pop("orders", batch=3, partitions=3)
        assert (await queen.extend(messages[0]["leaseId"], 100))["success"]
        left = await seconds_left(sql)
        assert len(left) == 3
        assert min(left) > 90
        for message in messages:
            assert (await queen.ack(message))["success"]

    async def test_the_earliest_expiry_is_reported(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push_items(*({"queue": "orders", "partition": f"p{n}"} for n in range(2)))
        messages = await queen.pop("orders", batch=2, partitions=2)
        await sql.execute(
            "UPDATE queen.partition_consumers SET lease_expires_at = lease_expires_at + interval '1 hour' "
            "WHERE partition_id = $1",
            messages[0]["partitionId"],
        )
        until = datetime.fromisoformat((await queen.extend(messages[0]["leaseId"], 10))["expiresAt"])
        assert (until - datetime.now(UTC)).total_seconds() < 400

    async def test_a_lost_lease_is_not_found(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        await expire_leases(sql)
        answer = await queen.extend(message["leaseId"], status=404)
        code = answer.pop("code")
        assert code
        assert answer == {
            "leaseId": message["leaseId"],
            "success": False,
            "renewed": False,
            "error": "Lease not found",
        }
        assert data(await queen.pop("orders")) == ["m"]

    async def test_so_is_one_that_was_finished_given_back_or_never_there(self, queen: Queen) -> None:
        await queen.push("orders", 1, 2)
        for status in ("completed", "retry"):
            [message] = await queen.pop("orders")
            await queen.ack(message, status)
            await queen.extend(message["leaseId"], status=404)
        await queen.extend(str(uuid4()), status=404)
        await queen.extend("never", status=404)

    async def test_what_is_left_of_a_partly_acked_batch_is_extended(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("orders", leaseTime=5)
        await queen.push("orders", 1, 2)
        batch = await queen.pop("orders", batch=2)
        await queen.ack(batch[0])
        assert (await queen.extend(batch[0]["leaseId"], 60))["success"]
        assert (await queen.ack(batch[1]))["leaseReleased"]
        assert await leases(sql) == 0

    async def test_seconds_must_be_a_positive_whole_number(self, queen: Queen) -> None:
        for seconds in (0, -5, 1.5, "60", 10**12):
            refusal = await queen.refused(f"/api/v1/lease/{uuid4()}/extend", {"seconds": seconds})
            assert refusal["field"] == "seconds"

    async def test_many_at_once_are_each_answered_for_themselves(self, queen: Queen) -> None:
        await queen.push_items(*({"queue": "orders", "partition": f"p{n}"} for n in range(10)))
        popped = await asyncio.gather(*(queen.pop("orders") for _ in range(10)))
        held = [message["leaseId"] for [message] in popped]
        lost = [str(uuid4()) for _ in range(10)]
        answers = await asyncio.gather(
            *(queen.extend(lease_id) for lease_id in held), *(queen.extend(lease_id, status=404) for lease_id in lost)
        )
        assert [answer["leaseId"] for answer in answers] == held + lost
