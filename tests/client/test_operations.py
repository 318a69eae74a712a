"""202 is a result: returned as it is, or waited for."""

from __future__ import annotations

from typing import Any

import pytest

from client.faults import Answer, Scripted
from queenmq.client import InvalidResponse, Item, NotFound, OperationFailed, OperationTimeout, Queen

ACCEPTED = {"status": "queued", "operationId": "op/1", "queuePosition": 7, "estimatedWait": 1.5, "reason": "load"}
STORED = {"index": 0, "status": "queued", "messageId": "m", "partitionId": "p", "transactionId": "t"}


def state(status: str, **more: Any) -> Answer:
    return Answer(200, {"operationId": "op/1", "status": status} | more)


async def test_an_accepted_push_is_returned() -> None:
    async with Scripted(Answer(202, ACCEPTED)) as server, Queen(server.url) as queen:
        results = await queen.queue("q").partition("p").push([1, 2])
        assert len(server.seen) == 1
    assert [(result.status, result.operation_id, result.stored) for result in results] == [
        ("accepted", "op/1", False)
    ] * 2
    sent = [item["transactionId"] for item in server.seen[0].json()["items"]]
    assert [result.transaction_id for result in results] == sent
    assert not results.stored
    assert results.operations == ["op/1"]
    assert (results[0].queue_position, results[0].estimated_wait, results[0].reason) == (7, 1.5, "load")


async def test_polling_waits_for_the_result() -> None:
    script = [Answer(202, ACCEPTED), state("pending"), state("processing"), state("completed", result=[STORED])]
    async with Scripted(*script) as server, Queen(server.url, queued_operation_behavior="poll") as queen:
        results = await queen.queue("q").push(1)
    assert [seen.target for seen in server.seen[1:]] == ["/api/v1/operations/op%2F1"] * 3
    assert (results[0].status, results[0].message_id, results.stored) == ("queued", "m", True)
    assert results[0].transaction_id == server.seen[0].json()["items"][0]["transactionId"]


async def test_of_a_mixed_answer_only_the_accepted_items_are_waited_for() -> None:
    mixed = [STORED, {"index": 1, "status": "queued", "operationId": "op/1"}, {"index": 2, "status": "duplicate"}]
    done = state("completed", result=[STORED | {"messageId": "later"}])
    async with Scripted(Answer(202, mixed), Answer(202, mixed), done) as server:
        async with Queen(server.url) as queen:
            results = await queen.queue("q").push([1, 2, 3])
            assert [result.status for result in results] == ["queued", "accepted", "duplicate"]
        async with Queen(server.url, queued_operation_behavior="poll") as queen:
            results = await queen.queue("q").push([1, 2, 3])
    assert [(result.index, result.status, result.message_id) for result in results] == [
        (0, "queued", "m"),
        (1, "queued", "later"),
        (2, "duplicate", None),
    ]


async def test_the_server_answers_for_each_item() -> None:
    """As the server does it: a list, with an operation for each partition, and the id of the message to be."""
    waiting = {"status": "queued", "messageId": "m", "operationId": "op-1", "queuePosition": 3, "reason": "system_busy"}
    async with (
        Scripted(Answer(202, [waiting, waiting | {"operationId": "op-2"}])) as server,
        Queen(server.url) as queen,
    ):
        results = await queen.queue("q").push([1, 2])
    assert [(result.status, result.queue_position) for result in results] == [("accepted", 3)] * 2
    assert results.operations == ["op-1", "op-2"]


async def test_items_with_one_key_share_a_result() -> None:
    waiting = {"status": "queued", "operationId": "op/1"}
    outcome = [
        STORED | {"transactionId": "a"},
        STORED | {"transactionId": "b", "messageId": "n", "status": "duplicate"},
    ]
    script = [Answer(202, [waiting] * 3), state("completed", result=outcome)]
    async with Scripted(*script) as server, Queen(server.url, queued_operation_behavior="poll") as queen:
        results = await queen.queue("q").push([Item(1, "a"), Item(2, "a"), Item(3, "b")])
    assert [(result.index, result.status, result.message_id) for result in results] == [
        (0, "queued", "m"),
        (1, "duplicate", "m"),
        (2, "duplicate", "n"),
    ]


async def test_what_leaves_the_journal_may_be_queued_again() -> None:
    script = [
        Answer(202, [{"status": "buffered", "operationId": "op/1"}]),
        state("completed", result=[STORED | {"operationId": "op/2"}]),
        state("completed", result=[STORED]),
    ]
    async with Scripted(*script) as server, Queen(server.url, queued_operation_behavior="poll") as queen:
        results = await queen.queue("q").push(1)
    assert [seen.target[-6:] for seen in server.seen[1:]] == ["op%2F1", "op%2F2"]
    assert results.stored


@pytest.mark.parametrize("field", ["error", "errorMessage", "lastError"])
async def test_an_operation_that_failed_is_raised(field: str) -> None:
    script = [Answer(202, ACCEPTED), state("failed", **{field: "no room"})]
    async with Scripted(*script) as server, Queen(server.url, queued_operation_behavior="poll") as queen:
        with pytest.raises(OperationFailed, match="no room") as caught:
            await queen.queue("q").push(1)
    assert caught.value.operation_id == "op/1"


async def test_an_operation_that_takes_too_long() -> None:
    async with Scripted(Answer(202, ACCEPTED), default=state("pending")) as server:
        options: Any = {"queued_operation_behavior": "poll", "poll_timeout_millis": 250}
        async with Queen(server.url, **options) as queen:
            with pytest.raises(OperationTimeout, match="all the same") as caught:
                await queen.queue("q").push(1)
    assert caught.value.operation_id == "op/1"


async def test_asking_for_an_operation_by_hand() -> None:
    script = [state("pending"), state("cancelled"), state("completed", result=[])]
    async with Scripted(*script) as server, Queen(server.url) as queen:
        assert not (await queen.operation("op/1")).done
        with pytest.raises(OperationFailed, match="cancelled"):
            await queen.wait_for_operation("op/1")
        assert bytes((await queen.wait_for_operation("op/1")).result) == b"[]"
        with pytest.raises(NotFound):
            await queen.operation("op/2")


@pytest.mark.parametrize("result", [None, [], [STORED, STORED], "text", [{}]])
async def test_a_result_that_does_not_fit_is_not_believed(result: Any) -> None:
    script = [Answer(202, ACCEPTED), state("completed", result=result)]
    async with Scripted(*script) as server, Queen(server.url, queued_operation_behavior="poll") as queen:
        with pytest.raises(InvalidResponse):
            await queen.queue("q").push(1)


async def test_administration_that_is_queued() -> None:
    done = state("completed", result={"deleted": True})
    async with Scripted(Answer(202, ACCEPTED), Answer(202, ACCEPTED), done) as server:
        async with Queen(server.url) as queen:
            assert (await queen.queue("q").delete())["operationId"] == "op/1"
        async with Queen(server.url, queued_operation_behavior="poll") as queen:
            assert await queen.queue("q").delete() == {"deleted": True}


async def test_journalled_items_are_durable_but_not_stored() -> None:
    buffered = [{"status": "buffered", "queue": "q"}]
    async with Scripted(Answer(202, buffered)) as server, Queen(server.url) as queen:
        [result] = await queen.queue("q").push(1)
    assert (result.status, result.stored) == ("buffered", False)
