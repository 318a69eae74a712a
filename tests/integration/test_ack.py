"""Acknowledgement: what each status does to the position, the lease and the retry counter."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import asyncpg

from integration.queen import Json, Queen, data, expire_leases, leases

NO_LEASE = "Invalid or expired lease"


async def test_the_whole_answer(queen: Queen) -> None:
    await queen.push("orders", "t", partition="eu")
    [message] = await queen.pop("orders")
    assert await queen.ack(message) == {
        "index": 0,
        "transactionId": "t",
        "success": True,
        "error": None,
        "queueName": "orders",
        "partitionName": "eu",
        "leaseReleased": True,
        "dlq": False,
    }


async def test_completed_is_the_default_and_success_is_the_same(queen: Queen) -> None:
    await queen.push("orders", 1, 2)
    [first] = await queen.pop("orders")
    assert (await queen.ack(first, status=None))["success"]
    [second] = await queen.pop("orders")
    assert (await queen.ack(second, "success"))["success"]
    assert await queen.pop("orders") == []


async def test_no_group_and_null_are_the_queue_mode(queen: Queen) -> None:
    await queen.push("orders", 1, 2)
    for group in ({}, {"consumerGroup": None}):
        [message] = await queen.pop("orders")
        names = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
        [result] = (await queen.http.post("/api/v1/ack", json=names | group)).json()
        assert result["leaseReleased"]


async def test_the_lease_ends_with_the_last_delivered_message(queen: Queen) -> None:
    await queen.push("orders", *range(5))
    batch = await queen.pop("orders", batch=3)
    assert [(await queen.ack(message))["leaseReleased"] for message in batch] == [False, False, True]
    assert data(await queen.pop("orders", batch=3)) == [3, 4]


async def test_acks_in_any_order_finish_the_batch(queen: Queen) -> None:
    await queen.push("orders", *range(6))
    batch = await queen.pop("orders", batch=5)
    for place in (3, 0, 4, 2):
        result = await queen.ack(batch[place])
        assert (result["success"], result["leaseReleased"]) == (True, False)
        assert await queen.pop("orders") == []
    assert (await queen.ack(batch[1]))["leaseReleased"]
    assert data(await queen.pop("orders", batch=5)) == [5]


async def test_after_an_expiry_only_the_unfinished_come_again(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", *range(6))
    batch = await queen.pop("orders", batch=5)
    await queen.ack_batch([batch[0], batch[3]])
    await expire_leases(sql)
    again = await queen.pop("orders", batch=10)
    assert data(again) == [1, 2, 4, 5]
    assert all(result["success"] for result in await queen.ack_batch(again))
    assert await queen.pop("orders") == []


async def test_a_batch_answers_for_each_item_in_order(queen: Queen) -> None:
    await queen.push("orders", "a", partition="x")
    await queen.push("orders", "b", partition="y")
    messages = await queen.pop("orders", batch=2, partitions=2)
    unknown = messages[0] | {"transactionId": "unknown"}
    results = await queen.ack_batch([messages[1], unknown, messages[0]])
    assert [result["index"] for result in results] == [0, 1, 2]
    assert [result["transactionId"] for result in results] == [messages[1]["data"], "unknown", messages[0]["data"]]
    assert [result["error"] for result in results] == [None, "Message not found", None]
    assert [result["partitionName"] for result in results][::2] == [messages[1]["partition"], messages[0]["partition"]]


async def test_an_empty_batch_is_an_empty_list(queen: Queen) -> None:
    assert await queen.ack_batch([]) == []


async def test_an_unknown_message_is_not_found(queen: Queen) -> None:
    await queen.push("orders", "m")
    [message] = await queen.pop("orders")
    wrong = message | {"partitionId": str(uuid4())}
    assert (await queen.ack(wrong))["error"] == "Message not found"
    assert (await queen.ack(message))["success"]


async def test_an_unknown_status_says_so_and_changes_nothing(queen: Queen) -> None:
    await queen.push("orders", "m")
    [message] = await queen.pop("orders")
    result = await queen.ack(message, "perhaps")
    assert result["success"] is False
    assert "perhaps" in result["error"]
    assert (await queen.ack(message))["leaseReleased"]


async def test_a_group_without_a_position_succeeds_without_effect(queen: Queen) -> None:
    await queen.push("orders", "m")
    [message] = await queen.pop("orders")
    result = await queen.ack(message, consumerGroup="stranger", leaseId=None)
    assert (result["success"], result["leaseReleased"]) == (True, False)
    assert data(await queen.pop("orders", consumerGroup="stranger")) == ["m"]


async def test_bad_acks_are_refused(queen: Queen) -> None:
    partition_id = str(uuid4())
    good: Json = {"transactionId": "t", "partitionId": partition_id}
    single = "partitionId is required to ensure message uniqueness"
    each = "Each acknowledgment must have a valid "
    refusals: list[tuple[str, object, str]] = [
        ("", {"partitionId": partition_id}, "transactionId is required"),
        ("", {"transactionId": "t"}, single),
        ("", {"transactionId": "t", "partitionId": 5}, single),
        ("", {"transactionId": "t", "partitionId": "x"}, "partitionId must be a UUID"),
        ("/batch", {}, "acknowledgments array is required"),
        ("/batch", {"acknowledgments": {}}, "acknowledgments array is required"),
        ("/batch", {"acknowledgments": [good, {"partitionId": partition_id}]}, each + "transactionId string"),
        (
            "/batch",
            {"acknowledgments": [{"transactionId": "t"}]},
            each + "partitionId string to ensure message uniqueness",
        ),
    ]
    for form, body, error in refusals:
        assert (await queen.refused(f"/api/v1/ack{form}", body))["error"] == error


class TestWholeLease:
    """A batch that names everything of a lease finishes it at once, and answers as for each message by itself."""

    async def test_the_answer_is_that_of_each_message(self, queen: Queen) -> None:
        await queen.push("orders", "a", "b", "c", partition="eu")
        batch = await queen.pop("orders", batch=3)
        assert await queen.ack_batch(batch) == [
            {
                "index": index,
                "transactionId": name,
                "success": True,
                "error": None,
                "queueName": "orders",
                "partitionName": "eu",
                "leaseReleased": True,
                "dlq": False,
            }
            for index, name in enumerate("abc")
        ]

    async def test_in_any_order(self, queen: Queen) -> None:
        await queen.push("orders", *range(5))
        batch = await queen.pop("orders", batch=3)
        results = await queen.ack_batch([batch[2], batch[0], batch[1]])
        assert [(result["success"], result["leaseReleased"]) for result in results] == [(True, True)] * 3
        assert data(await queen.pop("orders", batch=5)) == [3, 4]

    async def test_a_message_that_was_acknowledged_before(self, queen: Queen) -> None:
        await queen.push("orders", *range(5))
        batch = await queen.pop("orders", batch=3)
        await queen.ack(batch[1])
        results = await queen.ack_batch(batch)
        assert [(result["success"], result["leaseReleased"]) for result in results] == [(True, True)] * 3
        assert data(await queen.pop("orders", batch=5)) == [3, 4]

    async def test_the_rest_after_one_was_acknowledged(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", *range(5))
        batch = await queen.pop("orders", batch=4)
        await queen.ack(batch[1])
        results = await queen.ack_batch([batch[0], *batch[2:]])
        assert [(result["success"], result["leaseReleased"]) for result in results] == [(True, True)] * 3
        assert await sql.fetchval("SELECT position FROM queen.partition_consumers") == 4
        assert await sql.fetchval("SELECT total_consumed FROM queen.partition_consumers") == 4

    async def test_ids_that_only_look_like_those_of_the_lease(self, queen: Queen) -> None:
        """They are sent glued together."""
        await queen.push("orders", "a\x1fb", "c")
        batch = await queen.pop("orders", batch=2)
        wrong = [batch[0] | {"transactionId": "a"}, batch[1] | {"transactionId": "b\x1fc"}]
        assert [result["error"] for result in await queen.ack_batch(wrong)] == ["Message not found"] * 2
        assert [result["leaseReleased"] for result in await queen.ack_batch(batch)] == [True, True]

    async def test_a_lease_of_several_partitions(self, queen: Queen) -> None:
        for name in ("x", "y", "z"):
            await queen.push("orders", f"{name}1", f"{name}2", partition=name)
        batch = await queen.pop("orders", batch=6, partitions=3)
        kept = batch[5]
        results = await queen.ack_batch(batch[:5])
        assert [result["leaseReleased"] for result in results] == [True] * 4 + [False]
        assert (await queen.ack(kept))["leaseReleased"]

    async def test_the_same_twice_at_once(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", *range(3))
        batch = await queen.pop("orders", batch=3)
        answers = await asyncio.gather(*(queen.ack_batch(batch) for _ in range(5)))
        assert {result["error"] for results in answers for result in results} <= {None, NO_LEASE}
        assert any(all(result["success"] for result in results) for results in answers)
        assert await sql.fetchval("SELECT total_consumed FROM queen.partition_consumers") == 3

    async def test_an_expired_lease_is_not_finished(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", *range(3))
        batch = await queen.pop("orders", batch=3)
        await expire_leases(sql)
        assert {result["error"] for result in await queen.ack_batch(batch)} == {NO_LEASE}
        assert data(await queen.pop("orders", batch=3)) == [0, 1, 2]

    async def test_with_a_message_that_is_gone(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "a", "b", "c")
        batch = await queen.pop("orders", batch=3)
        await sql.execute("DELETE FROM queen.messages WHERE transaction_id = 'b'")
        results = await queen.ack_batch(batch)
        assert [result["error"] for result in results] == [None, "Message not found", None]


class TestFencing:
    """An ack with a lease that is not the live one changes nothing and says so."""

    async def test_a_lease_that_nobody_has(self, queen: Queen) -> None:
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        for lease_id in (str(uuid4()), "no uuid at all"):
            assert (await queen.ack(message, leaseId=lease_id))["error"] == NO_LEASE
        assert (await queen.ack(message))["success"]

    async def test_an_expired_lease(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        await expire_leases(sql)
        for status in ("completed", "failed", "dlq", "retry"):
            assert (await queen.ack(message, status))["error"] == NO_LEASE
        assert data(await queen.pop("orders")) == ["m"]
        assert await queen.dead_letters("orders") == []

    async def test_a_lease_that_another_consumer_took_over(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", "m")
        [stale] = await queen.pop("orders")
        await expire_leases(sql)
        [live] = await queen.pop("orders")
        for status in ("completed", "failed", "dlq", "retry"):
            assert (await queen.ack(stale, status))["error"] == NO_LEASE
        assert await leases(sql) == 1
        assert (await queen.ack(live))["success"]

    async def test_the_lease_of_another_group(self, queen: Queen) -> None:
        await queen.push("orders", "m")
        [mine] = await queen.pop("orders", consumerGroup="mine")
        [theirs] = await queen.pop("orders", consumerGroup="theirs")
        assert (await queen.ack(mine, leaseId=theirs["leaseId"]))["error"] == NO_LEASE

    async def test_a_message_that_the_lease_does_not_cover(self, queen: Queen) -> None:
        [_, later] = await queen.push("orders", "first", "later")
        [first] = await queen.pop("orders")
        not_delivered = first | {"transactionId": later["transaction_id"]}
        assert (await queen.ack(not_delivered))["error"] == NO_LEASE
        assert (await queen.ack(first))["success"]
        assert data(await queen.pop("orders")) == ["later"]

    async def test_a_finished_message_with_its_released_lease(self, queen: Queen) -> None:
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        await queen.ack(message)
        assert (await queen.ack(message))["error"] == NO_LEASE
        assert (await queen.ack(message, leaseId=None))["success"]

    async def test_without_a_lease_the_ack_is_accepted(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1, 2)
        [message] = await queen.pop("orders")
        assert (await queen.ack(message, leaseId=None))["leaseReleased"]
        [message] = await queen.pop("orders")
        await expire_leases(sql)
        assert (await queen.ack(message, leaseId=""))["success"]
        assert await queen.pop("orders") == []

    async def test_without_a_lease_an_undelivered_message_is_finished_but_nothing_is_overtaken(
        self, queen: Queen
    ) -> None:
        await queen.push("orders", *"abc")
        batch = await queen.pop("orders", batch=3)
        await queen.ack_batch(batch, "retry")
        assert (await queen.ack(batch[1], leaseId=None))["success"]
        assert data(await queen.drain("orders")) == ["a", "c"]


class TestFailed:
    async def test_it_comes_again_after_the_retry_delay(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", retryDelay=60_000)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        result = await queen.ack(message, "failed")
        assert (result["success"], result["leaseReleased"], result["dlq"]) == (True, True, False)
        assert await queen.pop("orders") == []
        wait_s = await sql.fetchval("SELECT extract(epoch FROM ready_at - now()) FROM queen.partition_consumers")
        assert 50 < wait_s <= 60

    async def test_a_long_poll_waits_for_the_retry_delay(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=300)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        await queen.ack(message, "failed")
        assert data(await queen.wait("orders")) == ["m"]

    async def test_retry_comes_again_at_once_and_counts_nothing(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=0, retryDelay=60_000)
        await queen.push("orders", "m")
        for _ in range(5):
            [message] = await queen.pop("orders")
            assert message["retryCount"] == 0
            result = await queen.ack(message, "retry")
            assert (result["success"], result["leaseReleased"]) == (True, True)
        assert await queen.dead_letters() == []

    async def test_the_delivery_tells_how_often_it_failed(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=5, retryDelay=0)
        await queen.push("orders", "m")
        for attempt in range(4):
            [message] = await queen.pop("orders")
            assert message["retryCount"] == attempt
            await queen.ack(message, "failed")

    async def test_a_limit_of_n_gives_n_plus_one_attempts(self, queen: Queen) -> None:
        for limit in (0, 1, 2):
            queue = f"limit-{limit}"
            await queen.configure(queue, retryLimit=limit, retryDelay=0)
            await queen.push(queue, "m", "next")
            assert await _fail_until_dead(queen, queue, "m") == limit + 1
            [letter] = await queen.dead_letters(queue)
            assert (letter["retryCount"], letter["errorMessage"]) == (limit, "it broke")
            assert data(await queen.pop(queue)) == ["next"]

    async def test_the_counter_starts_again_for_the_next_message(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=2, retryDelay=0)
        await queen.push("orders", "first", "second")
        assert await _fail_until_dead(queen, "orders", "first") == 3
        assert await _fail_until_dead(queen, "orders", "second") == 3

    async def test_the_counter_starts_again_after_a_success(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=1, retryDelay=0)
        await queen.push("orders", "first", "second")
        [message] = await queen.pop("orders")
        await queen.ack(message, "failed")
        [message] = await queen.pop("orders")
        await queen.ack(message)
        assert await _fail_until_dead(queen, "orders", "second") == 2

    async def test_the_error_text_has_a_default(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=0)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        assert (await queen.ack(message, "failed"))["dlq"]
        assert (await queen.dead_letters())[0]["errorMessage"] == "Retries exhausted"

    async def test_an_all_failed_batch_counts_once_and_comes_again_whole(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=3, retryDelay=0)
        await queen.push("orders", 1, 2, 3)
        for attempt in range(3):
            batch = await queen.pop("orders", batch=3)
            assert data(batch) == [1, 2, 3]
            assert {message["retryCount"] for message in batch} == {attempt}
            results = await queen.ack_batch(batch, "failed")
            assert [(result["success"], result["dlq"]) for result in results] == [(True, False)] * 3
        batch = await queen.pop("orders", batch=3)
        await queen.ack_batch(batch)
        assert await queen.dead_letters() == []

    async def test_the_last_attempt_of_a_batch_dead_letters_all_of_it(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=1, retryDelay=0)
        await queen.push("orders", "a", "b", "c", "next")
        batch = await queen.pop("orders", batch=3)
        assert {result["dlq"] for result in await queen.ack_batch(batch, "failed")} == {False}
        batch = await queen.pop("orders", batch=3)
        assert data(batch) == ["a", "b", "c"]
        assert {result["dlq"] for result in await queen.ack_batch(batch, "failed")} == {True}
        assert sorted(data(await queen.dead_letters())) == ["a", "b", "c"]
        [message] = await queen.pop("orders", batch=3)
        assert (message["data"], message["retryCount"]) == ("next", 0)

    async def test_in_a_mixed_batch_only_the_failed_one_comes_again(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", *"abcde")
        batch = await queen.pop("orders", batch=4)
        results = await queen.ack_batch(batch, "completed", "failed", "completed", "completed")
        assert all(result["success"] for result in results)
        [again, new] = await queen.pop("orders", batch=4)
        assert (again["data"], new["data"]) == ("b", "e")
        await queen.ack_batch([again, new])
        assert await queen.pop("orders") == []

    async def test_in_a_mixed_batch_the_order_of_the_items_does_not_matter(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", *"abc")
        batch = await queen.pop("orders", batch=3)
        await queen.ack_batch(reversed(batch), "completed", "failed", "completed")
        assert data(await queen.drain("orders")) == ["b"]

    async def test_what_was_not_acked_comes_again_with_the_failed_one(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", *"abcd")
        batch = await queen.pop("orders", batch=4)
        await queen.ack_batch([batch[0], batch[2]], "completed", "failed")
        assert data(await queen.pop("orders", batch=10)) == ["b", "c", "d"]

    async def test_after_a_failure_the_rest_of_the_batch_has_no_lease(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", *"abc")
        batch = await queen.pop("orders", batch=3)
        assert (await queen.ack(batch[0]))["success"]
        assert (await queen.ack(batch[1], "failed"))["leaseReleased"]
        assert (await queen.ack(batch[2]))["error"] == NO_LEASE
        assert data(await queen.pop("orders", batch=3)) == ["b", "c"]

    async def test_other_partitions_of_the_request_are_judged_for_themselves(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=1, retryDelay=0)
        for partition in ("x", "y"):
            await queen.push("orders", partition, partition=partition)
        [x] = await queen.pop("orders", "x")
        await queen.ack(x, "failed")
        both = await queen.pop("orders", batch=2, partitions=2)
        results = await queen.ack_batch(both, "failed")
        assert {m["data"]: r["dlq"] for m, r in zip(both, results, strict=True)} == {"x": True, "y": False}

    async def test_other_groups_are_not_disturbed(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=3, retryDelay=0)
        await queen.push("orders", *range(5))
        for _ in range(2):
            await queen.ack_batch(await queen.pop("orders", consumerGroup="bad", batch=5), "failed")
        [first, *_] = await queen.pop("orders", consumerGroup="good", batch=5)
        assert first["retryCount"] == 0
        batch = await queen.pop("orders", consumerGroup="bad", batch=5)
        assert data(batch) == list(range(5))
        assert all(result["success"] for result in await queen.ack_batch(batch))


class TestDlq:
    async def test_it_goes_to_the_dead_letters_at_once(self, queen: Queen) -> None:
        await queen.push("orders", "a", "b")
        batch = await queen.pop("orders", batch=2)
        result = await queen.ack(batch[0], "dlq", error="poison")
        assert (result["success"], result["dlq"], result["leaseReleased"]) == (True, True, False)
        assert (await queen.ack(batch[1]))["leaseReleased"]
        [letter] = await queen.dead_letters()
        assert (letter["data"], letter["errorMessage"], letter["retryCount"]) == ("a", "poison", 0)
        assert await queen.pop("orders") == []

    async def test_in_a_mixed_batch(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", *"abcd")
        batch = await queen.pop("orders", batch=4)
        results = await queen.ack_batch(batch, "failed", "dlq", "completed", "retry")
        assert [result["dlq"] for result in results] == [False, True, False, False]
        assert data(await queen.drain("orders")) == ["a", "d"]
        assert data(await queen.dead_letters()) == ["b"]

    async def test_the_counter_starts_again(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=1, retryDelay=0)
        await queen.push("orders", "poison", "next")
        [message] = await queen.pop("orders")
        await queen.ack(message, "failed")
        [message] = await queen.pop("orders")
        await queen.ack(message, "dlq")
        assert await _fail_until_dead(queen, "orders", "next") == 2


class TestFailuresAreCountedByMessage:
    async def test_messages_that_fail_in_turn_have_each_failed_once(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=3, retryDelay=0)
        await queen.push("orders", *"abcdef")
        for turn in range(6):
            batch = await queen.pop("orders", batch=6)
            assert [message["retryCount"] for message in batch] == [1] * turn + [0] * (6 - turn)
            result = await queen.ack(batch[turn], "failed")
            assert (result["success"], result["dlq"]) == (True, False)
        assert await queen.dead_letters() == []
        assert data(await queen.drain("orders")) == list("abcdef")

    async def test_a_head_that_is_finished_takes_its_failures_with_it(self, queen: Queen) -> None:
        """Its batch ends with a failure of another message, so that the lease is handed back and not finished."""
        await queen.configure("orders", retryLimit=1, retryDelay=0)
        await queen.push("orders", "first", "second")
        await queen.ack((await queen.pop("orders"))[0], "failed")
        results = await queen.ack_batch(await queen.pop("orders", batch=2), "completed", "failed")
        assert [result["dlq"] for result in results] == [False, False]
        [message] = await queen.pop("orders")
        assert (message["data"], message["retryCount"]) == ("second", 1)
        assert (await queen.ack(message, "failed"))["dlq"]
        assert [(letter["data"], letter["retryCount"]) for letter in await queen.dead_letters()] == [("second", 1)]

    async def test_what_is_handed_back_keeps_what_it_had(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=3, retryDelay=0)
        await queen.push("orders", *"abc")
        await queen.ack_batch(await queen.pop("orders", batch=3), "failed", "failed", "retry")
        await queen.ack_batch(await queen.pop("orders", batch=3), "retry", "failed", "completed")
        [message] = await queen.pop("orders")
        assert (message["data"], message["retryCount"]) == ("a", 1)
        await queen.ack(message)
        [message] = await queen.pop("orders")
        assert (message["data"], message["retryCount"]) == ("b", 2)

    async def test_of_one_batch_some_are_dead_and_some_come_again(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=1, retryDelay=0)
        await queen.push("orders", *"abc")
        await queen.ack_batch(await queen.pop("orders", batch=3), "retry", "failed", "retry")
        results = await queen.ack_batch(await queen.pop("orders", batch=3), "failed")
        assert [result["dlq"] for result in results] == [False, True, False]
        assert [(m["data"], m["retryCount"]) for m in await queen.pop("orders", batch=3)] == [("a", 1), ("c", 1)]
        assert [(letter["data"], letter["retryCount"]) for letter in await queen.dead_letters()] == [("b", 1)]

    async def test_a_dead_letter_that_comes_back_starts_anew_and_others_do_not(self, queen: Queen) -> None:
        await queen.configure("orders", retryLimit=1, retryDelay=0)
        await queen.push("orders", *"ab")
        for _ in range(2):
            await queen.ack_batch(await queen.pop("orders", batch=2), "failed", "retry")
        await queen.ack((await queen.pop("orders"))[0], "failed")
        [letter] = await queen.dead_letters("orders")
        path = f"/api/v1/messages/{letter['partitionId']}/{letter['transactionId']}/retry"
        assert (await queen.http.post(path)).status_code == 200
        assert [(m["data"], m["retryCount"]) for m in await queen.pop("orders", batch=2)] == [("a", 0), ("b", 1)]

    async def test_a_seek_forgets_them(self, queen: Queen) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", *"ab")
        await queen.ack_batch(await queen.pop("orders", batch=2, consumerGroup="g"), "failed")
        await queen.seek("g", "orders", timestamp="1970-01-01T00:00:00Z")
        assert [m["retryCount"] for m in await queen.pop("orders", batch=2, consumerGroup="g")] == [0, 0]

    async def test_the_row_says_how_often_its_head_failed(self, queen: Queen, sql: asyncpg.Connection) -> None:
        """Also after the head is deleted by hand."""
        await queen.configure("orders", retryLimit=9, retryDelay=0)
        await queen.push("orders", *"abc")
        for statuses in (["failed", "failed", "retry"], ["failed", "retry", "retry"]):
            batch = await queen.pop("orders", batch=3)
            await queen.ack_batch(batch, *statuses)
        heads = []
        for message in batch:
            heads.append(await sql.fetchval("SELECT attempts FROM queen.partition_consumers"))
            await queen.http.delete(f"/api/v1/messages/{message['partitionId']}/{message['transactionId']}")
        assert heads == [2, 1, 0]
        assert await sql.fetchval("SELECT failures FROM queen.partition_consumers") is None

    async def test_a_large_batch_of_failures_stays_small(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", retryLimit=99, retryDelay=0)
        await queen.push("orders", *range(1000))
        for _ in range(3):
            await queen.ack_batch(await queen.pop("orders", batch=1000), "failed")
        assert await sql.fetchval("SELECT pg_column_size(failures) FROM queen.partition_consumers") < 200
        # The worst there is: every second one failed.
        batch = await queen.pop("orders", batch=1000)
        await queen.ack_batch(batch, *["failed", "retry"] * 500)
        assert await sql.fetchval("SELECT pg_column_size(failures) FROM queen.partition_consumers") < 40_000
        assert [m["retryCount"] for m in await queen.pop("orders", batch=1000)] == [4, 3] * 500


async def test_the_position_never_moves_back(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", *"abc")
    batch = await queen.pop("orders", batch=3)
    await queen.ack_batch(batch)
    await queen.ack(batch[0], leaseId=None)
    await queen.ack(batch[0], "dlq", leaseId=None)
    assert await queen.pop("orders") == []
    assert await sql.fetchval("SELECT position FROM queen.partition_consumers") == 3
    assert await queen.dead_letters() == []


async def test_concurrent_acks_of_one_batch_all_count(queen: Queen) -> None:
    await queen.push("orders", *range(50))
    batch = await queen.pop("orders", batch=50)
    results = await asyncio.gather(*(queen.ack(message) for message in batch))
    assert all(result["success"] for result in results)
    assert sum(result["leaseReleased"] for result in results) >= 1
    assert await queen.pop("orders") == []


async def test_of_concurrent_failures_of_one_batch_the_first_counts(queen: Queen) -> None:
    await queen.configure("orders", retryLimit=5, retryDelay=0)
    await queen.push("orders", *range(20))
    batch = await queen.pop("orders", batch=20)
    results = await asyncio.gather(*(queen.ack(message, "failed") for message in batch))
    assert sum(result["success"] for result in results) == 1
    again = await queen.pop("orders", batch=20)
    assert [message["retryCount"] for message in again] == [int(result["success"]) for result in results]


async def _fail_until_dead(queen: Queen, queue: str, expected: object) -> int:
    """Fail the first message of a queue until it is a dead letter; how many attempts it had."""
    attempts = 0
    while True:
        [message] = await queen.pop(queue)
        assert message["data"] == expected
        attempts += 1
        if (await queen.ack(message, "failed", error="it broke"))["dlq"]:
            return attempts
