"""Finishing whole leases, with exceptions, and taking the next messages in the same request."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from integration.queen import Queen, data, expire_leases, leases, parked, until
from queenmq.errors import DatabaseUnavailable
from queenmq.server import Server
from queenmq.storage.failures import AnswerLost
from queenmq.storage.statements import statement

NO_LEASE = "Invalid or expired lease"


async def test_the_whole_answer(queen: Queen) -> None:
    await queen.push("orders", "a", "b", partition="eu")
    answer = await queen.pop_answer("orders", batch=2)
    assert await queen.finish(answer["leaseId"]) == {
        "leaseId": answer["leaseId"],
        "success": True,
        "error": None,
        "messages": 2,
        "dlq": 0,
        "except": [],
    }
    assert await queen.pop("orders") == []


async def test_every_status(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders", retryLimit=1, retryDelay=0)
    await queen.push("orders", *range(3))

    async def finish(status: str) -> int:
        answer = await queen.pop_answer("orders", batch=3)
        assert data(answer["messages"]) == [0, 1, 2]
        return (await queen.finish(answer["leaseId"], status=status, error="bad"))["dlq"]

    assert [await finish(status) for status in ("retry", "failed", "failed")] == [0, 0, 3]
    letters = await queen.dead_letters("orders")
    assert {letter["errorMessage"] for letter in letters} == {"bad"}
    await queen.push("orders", *range(3))
    assert await finish("dlq") == 3
    await queen.push("orders", *range(3))
    assert await finish("success") == 0
    assert await queen.pop("orders") == []
    assert await sql.fetchval("SELECT total_consumed FROM queen.partition_consumers") == 9


async def test_only_what_is_left_of_the_lease(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", *range(6))
    batch = await queen.pop("orders", batch=5)
    await queen.ack_batch([batch[1], batch[3]])
    assert (await queen.finish(batch[0]["leaseId"]))["messages"] == 3
    assert await sql.fetchval("SELECT total_consumed FROM queen.partition_consumers") == 5
    assert data(await queen.pop("orders", batch=5)) == [5]


async def test_every_partition_of_the_lease(queen: Queen, sql: asyncpg.Connection) -> None:
    for name in ("x", "y", "z"):
        await queen.push("orders", 1, 2, partition=name)
    answer = await queen.pop_answer("orders", batch=6, partitions=3)
    assert (await queen.finish(answer["leaseId"]))["messages"] == 6
    assert await leases(sql) == 0


async def test_pushes_meanwhile_are_readable(queen: Queen) -> None:
    await queen.push("orders", 1)
    answer = await queen.pop_answer("orders", batch=9)
    await queen.push("orders", 2)
    await queen.finish(answer["leaseId"])
    assert data(await queen.pop("orders", batch=9)) == [2]


class TestExceptions:
    async def test_one_fails_and_comes_again(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", "a", "b", "c")
        answer = await queen.pop_answer("orders", batch=3)
        finished = await queen.finish(
            answer["leaseId"], **{"except": [{"transactionId": "b", "status": "failed", "error": "no"}]}
        )
        assert finished["messages"] == 3
        assert finished["except"] == [{"index": 0, "transactionId": "b", "success": True, "error": None, "dlq": False}]
        again = await queen.pop("orders", batch=3)
        assert [(message["data"], message["retryCount"]) for message in again] == [("b", 1)]

    async def test_one_is_a_dead_letter(self, queen: Queen) -> None:
        await queen.push("orders", "a", "b", "c")
        answer = await queen.pop_answer("orders", batch=3)
        finished = await queen.finish(
            answer["leaseId"], **{"except": [{"transactionId": "b", "status": "dlq", "error": "no"}]}
        )
        assert (finished["dlq"], finished["except"][0]["dlq"]) == (1, True)
        assert [letter["data"] for letter in await queen.dead_letters("orders")] == ["b"]
        assert await queen.pop("orders") == []

    async def test_all_fail_but_one(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", "a", "b", "c")
        answer = await queen.pop_answer("orders", batch=3)
        completed = [{"transactionId": "b", "status": "completed"}]
        await queen.finish(answer["leaseId"], status="failed", **{"except": completed})
        assert data(await queen.pop("orders", batch=3)) == ["a", "c"]

    async def test_in_one_of_several_partitions(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        for name in ("x", "y"):
            await queen.push("orders", "a", partition=name)
        messages = await queen.pop("orders", batch=2, partitions=2)
        failed = messages[0]
        names = {"transactionId": "a", "partitionId": failed["partitionId"].upper(), "status": "failed"}
        await queen.finish(failed["leaseId"], **{"except": [names]})
        [again] = await queen.pop("orders", batch=2, partitions=2)
        assert again["partition"] == failed["partition"]

    async def test_of_another_message_change_nothing(self, queen: Queen) -> None:
        """A wrong name must not complete the message that was meant."""
        await queen.push("orders", "a", "b")
        answer = await queen.pop_answer("orders", batch=2)
        wrong = {"except": [{"transactionId": "a", "status": "failed"}, {"transactionId": "x", "status": "failed"}]}
        refused = await queen.finish(answer["leaseId"], 409, **wrong)
        assert (refused["success"], refused["code"], refused["messages"]) == (False, "message_not_found", 0)
        assert [one["error"] for one in refused["except"]] == [
            "Nothing was changed, because another exception is no message of the lease",
            "Message not found",
        ]
        assert (await queen.finish(answer["leaseId"]))["messages"] == 2


class TestFencing:
    async def test_a_lease_that_nobody_has(self, queen: Queen) -> None:
        for lease_id in (str(uuid4()), "no uuid at all"):
            refused = await queen.finish(lease_id, 404)
            assert (refused["success"], refused["error"], refused["code"]) == (False, NO_LEASE, "lease_not_found")

    async def test_a_lease_that_has_expired(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders", batch=2)
        await expire_leases(sql)
        await queen.finish(answer["leaseId"], 404)
        await queen.finish(answer["leaseId"], 404, status="failed")
        again = await queen.pop_answer("orders", batch=2)
        assert data(again["messages"]) == [1, 2]
        await queen.finish(answer["leaseId"], 404)
        assert (await queen.finish(again["leaseId"]))["messages"] == 2

    async def test_a_lease_that_is_finished(self, queen: Queen) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders")
        await queen.finish(answer["leaseId"])
        await queen.finish(answer["leaseId"], 404)
        assert data(await queen.pop("orders")) == [2]

    async def test_of_two_requests_in_one_call_one_is_refused(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders", batch=2)
        lease_ids = [answer["leaseId"]] * 2
        rows = await sql.fetch(
            "SELECT * FROM queen.finish_leases($1, ARRAY['completed', 'completed'], ARRAY[NULL, NULL]::text[])",
            lease_ids,
        )
        assert [(row["finishing"], row["messages"]) for row in rows] == [(1, 2)]
        assert await sql.fetchval("SELECT total_consumed FROM queen.partition_consumers") == 2

    async def test_a_lease_that_expires_meanwhile(
        self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was live when the call found its messages, and not any more when they were to be acknowledged."""
        await queen.push("orders", "a", "b")
        answer = await queen.pop_answer("orders", batch=2)
        fetch = server.database.fetch
        ended = {"finishing": 1, "problem": NO_LEASE, "queue_name": "orders", "finished_in": "Default"}
        ended |= {"consumer_group": "__QUEUE_MODE__", "messages": 0, "dead_lettered": 0}

        async def late(text: str, *arguments: object, repeatable: bool = False) -> Any:
            if text == statement("finish"):
                return [ended | {"exception": None}, ended | {"exception": 1, "messages": 1}]
            return await fetch(text, *arguments, repeatable=repeatable)

        monkeypatch.setattr(server.database, "fetch", late)
        refused = await queen.finish(answer["leaseId"], 404, **{"except": [{"transactionId": "a", "status": "failed"}]})
        assert (refused["success"], refused["code"], refused["messages"]) == (False, "lease_not_found", 0)
        assert refused["except"][0]["error"] == NO_LEASE

    async def test_a_queue_that_is_deleted(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        answer = await queen.pop_answer("orders")
        await queen.delete_queue("orders")
        await queen.finish(answer["leaseId"], 404)


async def test_bad_requests_are_refused(queen: Queen) -> None:
    path = f"/api/v1/lease/{uuid4()}/finish"
    for body, error in (
        ({"status": "perhaps"}, "status must be completed, success, failed, dlq or retry, not 'perhaps'"),
        ({"except": [{"transactionId": "t"}]}, "except[0].status: is required"),
        ({"except": [{"transactionId": "", "status": "failed"}]}, "except[0].transactionId must not be empty"),
        (
            {"except": [{"transactionId": "t", "partitionId": "x", "status": "failed"}]},
            "except[0].partitionId must be a UUID",
        ),
        ({"take": {}}, "take.queue: is required"),
        ({"take": {"queue": ""}}, "take.queue must not be empty"),
    ):
        assert (await queen.refused(path, body))["error"] == error


class TestTake:
    async def test_the_next_messages_come_with_the_answer(self, queen: Queen) -> None:
        await queen.push("orders", *range(5), partition="eu")
        answer = await queen.pop_answer("orders", batch=2)
        taken = await queen.take(answer["leaseId"], "orders", batch=2)
        assert (taken["success"], taken["messages"], taken["takeError"]) == (True, 2, None)
        assert data(taken["taken"]["messages"]) == [2, 3]
        assert taken["taken"]["partition"] == "eu"
        taken = await queen.take(taken["taken"]["leaseId"], "orders", batch=2)
        assert data(taken["taken"]["messages"]) == [4]
        taken = await queen.take(taken["taken"]["leaseId"], "orders", batch=2)
        assert (taken["success"], taken["taken"]) == (True, None)

    async def test_as_a_group_that_is_new_to_another_queue(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        await queen.push("others", 2)
        answer = await queen.pop_answer("orders")
        taken = await queen.take(answer["leaseId"], "others", consumerGroup="g", subscriptionMode="all")
        assert data(taken["taken"]["messages"]) == [2]

    async def test_a_lease_that_has_ended_keeps_nobody_from_taking(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders")
        await expire_leases(sql)
        taken = await queen.take(answer["leaseId"], "orders", batch=2)
        assert (taken["success"], taken["code"]) == (False, "lease_not_found")
        assert data(taken["taken"]["messages"]) == [1, 2]

    async def test_not_if_that_is_asked_for(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders")
        await expire_leases(sql)
        taken = await queen.take(answer["leaseId"], "orders", ifFinished=True)
        assert (taken["success"], taken["taken"]) == (False, None)
        again = await queen.pop_answer("orders")
        taken = await queen.take(again["leaseId"], "orders", ifFinished=True)
        assert data(taken["taken"]["messages"]) == [2]

    async def test_what_is_finished_is_said_although_the_pop_after_it_fails(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await queen.push("orders", 1)
        answer = await queen.pop_answer("orders")

        async def away(*_: object) -> Any:
            raise DatabaseUnavailable("away")

        monkeypatch.setattr(server.broker, "pop", away)
        taken = await queen.take(answer["leaseId"], "orders", ifFinished=True)
        assert (taken["success"], taken["taken"]) == (True, None)
        assert "away" in taken["takeError"]
        assert await leases(sql) == 0

    async def test_a_failure_comes_again_with_the_same_answer(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders")
        taken = await queen.take(answer["leaseId"], "orders", finish={"status": "failed"})
        assert data(taken["taken"]["messages"]) == [1]

    async def test_the_lease_is_finished_while_the_take_waits(
        self, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        await queen.push("orders", 1)
        answer = await queen.pop_answer("orders")
        taking = asyncio.create_task(queen.take(answer["leaseId"], "orders", wait=True, timeout=25_000))
        await parked(server)
        assert await leases(sql) == 0
        assert await sql.fetchval("SELECT position FROM queen.partition_consumers") == 1
        await queen.push("orders", 2)
        assert data((await taking)["taken"]["messages"]) == [2]

    async def test_a_client_that_goes_away_has_finished_and_takes_nothing(
        self, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders")
        await sql.execute("BEGIN")
        await sql.execute("SELECT 1 FROM queen.partition_consumers FOR UPDATE")
        taking = asyncio.create_task(queen.take(answer["leaseId"], "orders"))
        await until(lambda: server.broker.lanes["finish"].outstanding > 0 or bool(server.broker.locks.known))
        taking.cancel()
        await asyncio.wait((taking,))
        await sql.execute("ROLLBACK")

        async def finished_and_free() -> bool:
            row = await sql.fetchrow("SELECT position, lease_id FROM queen.partition_consumers")
            return row is not None and tuple(row) == (1, None)

        await until(finished_and_free)
        assert data(await queen.pop("orders")) == [2]

    async def test_while_pops_are_paused_leases_are_finished(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders")
        switch = "/api/v1/system/maintenance/pop"
        assert (await queen.http.post(switch, json={"enabled": True})).status_code == 200
        taken = await queen.take(answer["leaseId"], "orders")
        assert (taken["success"], taken["taken"]) == (True, None)
        assert (await queen.http.post(switch, json={"enabled": False})).status_code == 200
        assert await leases(sql) == 0

    async def test_nothing_waits_for_messages_while_the_lease_is_not_finished(self, queen: Queen) -> None:
        """The client must hear of it, or its partitions would be held for as long as the pop waits."""
        await queen.push("orders", 1)
        answer = await queen.pop_answer("orders")
        wrong = {"except": [{"transactionId": "nobody", "status": "failed"}]}
        async with asyncio.timeout(20):
            taken = await queen.take(answer["leaseId"], "orders", finish=wrong, wait=True, timeout=30_000)
        assert (taken["success"], taken["code"], taken["taken"]) == (False, "message_not_found", None)

    async def test_consumed_at_delivery(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders")
        taken = await queen.take(answer["leaseId"], "orders", autoAck=True)
        assert taken["taken"]["leaseId"] == ""
        assert await sql.fetchval("SELECT position FROM queen.partition_consumers") == 2

    async def test_messages_are_taken_although_the_lease_cannot_be_finished(
        self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await queen.push("orders", 1, 2)
        await queen.push("others", 3)
        answer = await queen.pop_answer("orders", batch=2)
        fetch = server.database.fetch

        async def half(text: str, *arguments: object, repeatable: bool = False) -> list[asyncpg.Record]:
            if text in (statement("finish"), statement("take")):
                raise DatabaseUnavailable("it is away")
            return await fetch(text, *arguments, repeatable=repeatable)

        monkeypatch.setattr(server.database, "fetch", half)
        excepted = [{"transactionId": "1", "status": "failed"}]
        taken = await queen.take(answer["leaseId"], "others", autoAck=True, finish={"except": excepted})
        assert (taken["success"], taken["code"]) == (False, "database_unavailable")
        assert [one["success"] for one in taken["except"]] == [False]
        assert data(taken["taken"]["messages"]) == [3]

    async def test_it_is_unknown_whether_a_lease_is_finished_whose_answer_got_lost(
        self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await queen.push("orders", 1, 2)
        answer = await queen.pop_answer("orders")
        fetch, errors = server.database.fetch, iter([AnswerLost()])

        async def lossy(text: str, *arguments: object, repeatable: bool = False) -> list[asyncpg.Record]:
            if text != statement("take"):
                return await fetch(text, *arguments, repeatable=repeatable)
            if (error := next(errors, None)) is not None:
                await fetch(text, *arguments)
                raise error
            raise DatabaseUnavailable("it is away")

        monkeypatch.setattr(server.database, "fetch", lossy)
        taken = await queen.take(answer["leaseId"], "orders")
        assert (taken["success"], taken["code"]) == (False, "outcome_unknown")
        assert data(taken["taken"]["messages"]) == [2]

    async def test_many_at_once_lose_and_double_nothing(self, queen: Queen) -> None:
        for partition in range(10):
            await queen.push("orders", *(f"{partition}-{n}" for n in range(20)), partition=str(partition))
        got: list[str] = []

        async def consume() -> None:
            answer = await queen.pop_answer("orders", batch=3)
            while answer["messages"]:
                got.extend(data(answer["messages"]))
                taken = await queen.take(answer["leaseId"], "orders", batch=3)
                assert taken["success"]
                answer = taken["taken"] or {"messages": []}

        await asyncio.gather(*(consume() for _ in range(8)))
        got += data(await queen.drain("orders"))
        assert sorted(got) == sorted(f"{partition}-{n}" for partition in range(10) for n in range(20))


async def test_a_locked_row_keeps_nobody_else_waiting(queen: Queen, sql: asyncpg.Connection) -> None:
    for partition in ("x", "y"):
        await queen.push("orders", 1, 2, partition=partition)
    held, free = [await queen.pop_answer("orders") for _ in range(2)]
    await sql.execute("BEGIN")
    await sql.execute("SELECT 1 FROM queen.partition_consumers WHERE lease_id = $1 FOR UPDATE", held["leaseId"])
    waiting = asyncio.create_task(queen.finish(held["leaseId"]))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert (await queen.finish(free["leaseId"]))["success"]
    assert not waiting.done()
    await sql.execute("ROLLBACK")
    assert (await waiting)["success"]
