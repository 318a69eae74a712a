"""Transactions: pushes and acks together or not at all, fenced by the leases that they require."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import asyncpg

from integration.queen import Json, Queen, ack_op, data, expire_leases, leases, push_op, stored

NO_LEASE = "ACK operation failed: Invalid or expired lease"


async def test_ack_and_push_are_applied_together(queen: Queen) -> None:
    await queen.push("source", "m")
    [message] = await queen.pop("source")
    item = {"queue": "target", "partition": "p", "payload": {"from": "m"}, "transactionId": "t2"}
    done = await queen.transact({"type": "push", "items": [item]}, ack_op(message), leases=[message["leaseId"]])
    [pushed, acked] = done.pop("results")
    assert UUID(done.pop("transactionId"))
    assert done == {"success": True}
    [delivered] = await queen.pop("target", "p")
    assert delivered["data"] == {"from": "m"}
    assert pushed == {
        "index": 0,
        "type": "push",
        "success": True,
        "transactionId": "t2",
        "messageId": delivered["id"],
        "partitionId": delivered["partitionId"],
        "queueName": "target",
        "offset": 1,
    }
    expected = {"index": 1, "type": "ack", "success": True, "transactionId": "m", "error": None, "dlq": False}
    assert acked == expected
    assert await queen.pop("source") == []


async def test_results_come_one_per_item_and_ack_in_order(queen: Queen) -> None:
    await queen.push("source", "a", "b")
    batch = await queen.pop("source", batch=2)
    done = await queen.transact(
        ack_op(batch[0]), push_op("x", 1, 2), ack_op(batch[1]), push_op("y", 3, partition="p"), push_op("x", 4)
    )
    assert [result["index"] for result in done["results"]] == list(range(6))
    assert [result["type"] for result in done["results"]] == ["ack", "push", "push", "ack", "push", "push"]
    assert [r["queueName"] for r in done["results"] if r["type"] == "push"] == ["x", "x", "y", "x"]
    assert data(await queen.pop("x", batch=10)) == [1, 2, 4]
    assert data(await queen.pop("y", "p")) == [3]


async def test_many_queues_partitions_and_large_payloads(queen: Queen) -> None:
    large = {"text": "x" * 500_000}
    pushes = [push_op(f"q{n}", {"n": n}, large, partition=f"p{m}") for n in range(10) for m in range(2)]
    assert (await queen.transact(*pushes))["success"]
    for n in range(10):
        popped = await queen.pop(f"q{n}", batch=10, partitions=2)
        assert data(popped) == [{"n": n}, large] * 2


async def test_an_absent_payload_is_an_empty_object(queen: Queen) -> None:
    assert (await queen.transact({"type": "push", "items": [{"queue": "orders"}]}))["success"]
    assert data(await queen.pop("orders")) == [{}]


async def test_a_chain_moves_a_message_through_queues(queen: Queen) -> None:
    await queen.push("stage0", {"n": 0})
    for stage in range(4):
        [message] = await queen.pop(f"stage{stage}")
        payload = {"n": message["data"]["n"] + 1}
        done = await queen.transact(ack_op(message), push_op(f"stage{stage + 1}", payload), leases=[message["leaseId"]])
        assert done["success"]
    assert data(await queen.pop("stage4")) == [{"n": 4}]


async def test_push_and_ack_in_the_same_partition(queen: Queen) -> None:
    await queen.push("orders", 1)
    for n in range(2, 5):
        [message] = await queen.pop("orders")
        assert (await queen.transact(ack_op(message), push_op("orders", n)))["success"]
    assert data(await queen.pop("orders", batch=10)) == [4]


class TestNothingIsApplied:
    async def refuse(self, queen: Queen, *operations: Json, error: str, leases: list[str] | None = None) -> None:
        refusal = await queen.transact(push_op("target", "visible?"), *operations, leases=leases)
        assert refusal["success"] is False
        assert refusal["error"].startswith(error)
        assert refusal["results"] == []
        assert await queen.pop("target") == []

    async def test_if_an_ack_names_an_unknown_message(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("source", "m")
        [message] = await queen.pop("source")
        unknown = ack_op(message | {"transactionId": "unknown"})
        await self.refuse(queen, ack_op(message), unknown, error="ACK operation failed: Message not found")
        await expire_leases(sql)
        assert data(await queen.pop("source")) == ["m"]

    async def test_if_a_transaction_id_is_used_already(self, queen: Queen) -> None:
        await queen.push("orders", "used")
        item = {"queue": "orders", "transactionId": "used"}
        await self.refuse(queen, {"type": "push", "items": [item]}, error="duplicate key value violates unique")
        assert len(await queen.drain("orders")) == 1

    async def test_if_a_transaction_id_is_pushed_twice(self, queen: Queen) -> None:
        item = {"queue": "orders", "transactionId": "twice"}
        await self.refuse(queen, {"type": "push", "items": [item, item]}, error="duplicate key value violates unique")
        assert await queen.pop("orders") == []

    async def test_if_a_status_means_nothing_here(self, queen: Queen) -> None:
        await queen.push("source", "m")
        [message] = await queen.pop("source")
        told = {
            "retry": "a transaction has no status 'retry': leave this acknowledgement out, and send it by itself with "
            "POST /api/v1/ack",
            "perhaps": "unknown status 'perhaps': a transaction takes completed, failed or dlq",
        }
        for status, why in told.items():
            await self.refuse(queen, ack_op(message, status), error=f"ACK operation failed: Unknown error: {why}")

    async def test_if_an_operation_is_unknown(self, queen: Queen) -> None:
        await self.refuse(queen, {"type": "dance"}, error="Unknown operation type: dance")

    async def test_if_the_target_is_full(self, queen: Queen) -> None:
        await queen.configure("full", maxSize=1)
        await self.refuse(queen, push_op("full", 1, 2), error="the push would exceed max capacity")
        assert await queen.pop("full") == []

    async def test_not_even_the_new_queues(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await self.refuse(queen, {"type": "dance"}, error="Unknown")
        unknown = {"transactionId": "t", "partitionId": str(uuid4())}
        await self.refuse(queen, ack_op(unknown), error="ACK operation failed: Message not found")
        assert await sql.fetchval("SELECT count(*) FROM queen.queues") == 0


class TestFencing:
    async def test_a_stale_lease_is_refused(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("source", "m")
        [stale] = await queen.pop("source")
        await expire_leases(sql)
        [live] = await queen.pop("source")
        refusal = await queen.transact(ack_op(stale), push_op("target", 1), leases=[stale["leaseId"]])
        assert (refusal["success"], refusal["error"]) == (False, NO_LEASE)
        assert (await queen.transact(ack_op(live), push_op("target", 2), leases=[live["leaseId"]]))["success"]
        assert data(await queen.pop("target", batch=5)) == [2]

    async def test_an_expired_lease_that_nobody_took_over_is_refused(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.push("source", "m")
        [message] = await queen.pop("source")
        await expire_leases(sql)
        assert (await queen.transact(ack_op(message), leases=[message["leaseId"]]))["error"] == NO_LEASE

    async def test_the_lease_of_the_operation_is_checked(self, queen: Queen) -> None:
        await queen.push("source", "m")
        [message] = await queen.pop("source")
        wrong = ack_op(message, leaseId=str(uuid4()))
        assert (await queen.transact(wrong, leases=[message["leaseId"]]))["error"] == NO_LEASE
        assert (await queen.transact(wrong))["error"] == NO_LEASE
        assert (await queen.transact(ack_op(message, leaseId=message["leaseId"])))["success"]

    async def test_every_ack_needs_one_of_the_required_leases(self, queen: Queen) -> None:
        await queen.push("one", "a")
        await queen.push("two", "b")
        [[one], [two]] = [await queen.pop("one"), await queen.pop("two")]
        operations = (ack_op(one), ack_op(two))
        assert (await queen.transact(*operations, leases=[one["leaseId"]]))["error"] == NO_LEASE
        both = [str(uuid4()), "not a uuid", one["leaseId"], two["leaseId"]]
        assert (await queen.transact(*operations, leases=both))["success"]

    async def test_without_any_lease_it_is_not_fenced(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("source", "m")
        [message] = await queen.pop("source")
        await expire_leases(sql)
        assert (await queen.transact(ack_op(message), leases=[]))["success"]
        assert await queen.pop("source") == []

    async def test_a_message_that_the_lease_does_not_cover(self, queen: Queen) -> None:
        await queen.push("source", "first", "later")
        [first] = await queen.pop("source")
        later = ack_op(first | {"transactionId": "later"})
        assert (await queen.transact(later, leases=[first["leaseId"]]))["error"] == NO_LEASE


class TestGroup:
    async def test_an_ack_moves_only_its_group(self, queen: Queen) -> None:
        await queen.push("source", "m")
        for group in ("a", "b"):
            await queen.pop("source", consumerGroup=group)
        [mine] = await queen.pop("source")
        assert (await queen.transact(ack_op(mine, consumerGroup="a")))["success"]
        assert (await queen.ack(mine))["success"]
        assert await queen.pop("source", consumerGroup="a") == []

    async def test_it_is_the_holder_of_the_required_lease(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("source", "m")
        [message] = await queen.pop("source", consumerGroup="g")
        [other] = await queen.pop("source")
        assert (await queen.transact(ack_op(message), leases=[message["leaseId"]]))["success"]
        assert (await queen.ack(message))["error"] == "Invalid or expired lease"
        assert (await queen.ack(other))["success"]

    async def test_two_holders_leave_it_to_the_queue_mode(self, queen: Queen) -> None:
        await queen.push("source", "m")
        held = [(await queen.pop("source", consumerGroup=group))[0] for group in ("a", "b")]
        refusal = await queen.transact(ack_op(held[0]), leases=[message["leaseId"] for message in held])
        assert refusal["error"] == NO_LEASE
        named = ack_op(held[0], consumerGroup="a")
        assert (await queen.transact(named, leases=[message["leaseId"] for message in held]))["success"]
        assert (await queen.ack(held[1]))["success"]


class TestFailedAndDlq:
    async def test_both_dead_letter_at_once(self, queen: Queen) -> None:
        await queen.configure("source", retryLimit=5)
        await queen.push("source", "a", "b")
        for status, error in (("failed", None), ("dlq", "poison")):
            [message] = await queen.pop("source")
            fields: dict[str, Any] = {"error": error} if error else {}
            done = await queen.transact(ack_op(message, status, **fields), leases=[message["leaseId"]])
            assert done["results"][0]["dlq"] is True
        letters = {letter["data"]: letter["errorMessage"] for letter in await queen.dead_letters("source")}
        assert letters == {"a": "Unknown error", "b": "poison"}
        assert await queen.pop("source") == []

    async def test_the_rest_of_the_batch_keeps_its_lease(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("source", *"abc")
        batch = await queen.pop("source", batch=3)
        lease_id = batch[0]["leaseId"]
        assert (await queen.transact(ack_op(batch[1], "failed"), leases=[lease_id]))["success"]
        assert await queen.pop("source") == []
        assert (await queen.transact(ack_op(batch[0]), ack_op(batch[2]), leases=[lease_id]))["success"]
        assert await leases(sql) == 0
        assert await queen.pop("source") == []

    async def test_with_a_retry_limit_of_zero_it_is_out_of_delivery(self, queen: Queen) -> None:
        await queen.configure("source", retryLimit=0)
        await queen.push("source", "m")
        [message] = await queen.pop("source")
        assert (await queen.transact(ack_op(message, "failed")))["success"]
        assert await queen.pop("source") == []


async def test_the_retry_counter_starts_again_after_a_transaction(queen: Queen) -> None:
    await queen.configure("source", retryLimit=1, retryDelay=0)
    for status in ("completed", "failed"):
        await queen.push("source", {"first": status}, {"second": status})
        [message] = await queen.pop("source")
        await queen.ack(message, "failed")
        [message] = await queen.pop("source")
        assert message["retryCount"] == 1
        assert (await queen.transact(ack_op(message, status), leases=[message["leaseId"]]))["success"]
        [message] = await queen.pop("source")
        assert (message["data"], message["retryCount"]) == ({"second": status}, 0)
        await queen.ack(message)


async def test_bad_transactions_are_refused_and_nothing_is_written(queen: Queen, sql: asyncpg.Connection) -> None:
    push, some = push_op("orders", 1), str(uuid4())
    refusals: list[tuple[Json, str]] = [
        ({}, "operations array required"),
        ({"operations": "x"}, "operations array required"),
        ({"operations": []}, "operations array cannot be empty"),
        ({"operations": [push, {"type": "push"}]}, "operations[1].items array is required"),
        ({"operations": [push, {"type": "push", "items": [{"queue": 1}]}]}, "Queue must be a string"),
        ({"operations": [push, {"type": "ack", "partitionId": some}]}, "operations[1].transactionId is required"),
        ({"operations": [push, {"type": "ack", "transactionId": "t"}]}, "operations[1].partitionId is required"),
        (
            {"operations": [push, {"type": "ack", "transactionId": "t", "partitionId": "x"}]},
            "operations[1].partitionId must be a UUID",
        ),
    ]
    for body, error in refusals:
        assert (await queen.refused("/api/v1/transaction", body))["error"] == error
    assert await stored(sql, "orders") == 0


async def test_conditions_that_nobody_checks_refuse_the_whole(queen: Queen, sql: asyncpg.Connection) -> None:
    """Clients of the 2.x generation gate a transaction with `kv`: applied without it, the gate would be open."""
    push = {"operations": [push_op("orders", 1)]}
    gate = {"ns": "n", "key": "k", "value": 1, "forever": True, "required": True}
    for name, riders, field in (
        ("kv", [gate | {"op": "putIfGreater"}], "kv[0].op"),
        ("kv", [gate | {"op": "get"}], "kv[0].op"),
        ("kv", [gate | {"op": "check"}], "kv[0].expect"),
        ("kv", [gate | {"op": "putIfAbsent"}, {"op": "putIfAbsent", "required": True}], "kv[1].ns"),
        ("timers", [{"op": "putIfAbsent", "queue": "orders", "timerKey": "k", "required": True}], "timers[0].op"),
    ):
        refusal = await queen.refused("/api/v1/transaction", push | {name: riders})
        assert refusal["field"] == field
    assert await sql.fetchval("SELECT count(*) FROM queen.kv") == 0
    assert await stored(sql, "orders") == 0
    done = await queen.http.post("/api/v1/transaction", json=push | {"kv": [], "timers": None})
    assert (done.status_code, done.json()["success"]) == (200, True)
