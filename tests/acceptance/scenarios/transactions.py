"""Transactions: all of it or nothing."""

from __future__ import annotations

from itertools import pairwise

from queen import Queen
from stage import IS_MODERN, VERSION, check, check_since, data_of, fill, gives, is_empty, play

Message = dict[str, object]


async def _refused(commit: object) -> str:
    """What the client raises when a transaction is not applied."""
    try:
        answer = await commit
    except Exception as error:
        return str(error)
    raise AssertionError(f"the transaction was applied: {answer}")


@check
async def ack_and_push_together(queen: Queen, queue: str) -> None:
    sink = f"{queue}_sink"
    await fill(queen, queue, {"n": 1}, {"n": 2})
    [message] = await queen.queue(queue).batch(1).pop()
    answer = await queen.transaction().ack(message).queue(sink).push({"data": {"n": 10}}).commit()
    assert answer["success"] is True
    assert [result["type"] for result in answer["results"]] == ["ack", "push"]
    await gives(queen, sink, [{"n": 10}])
    await gives(queen, queue, [{"n": 2}])


@check
async def several_pushes(queen: Queen, queue: str) -> None:
    first, second = f"{queue}_1", f"{queue}_2"
    transaction = queen.transaction()
    transaction.queue(first).push([{"data": n} for n in range(5)])
    transaction.queue(second).partition("eu").push({"data": "eu"})
    transaction.queue(second).partition("us").push([{"data": None}, {"data": {}}])
    answer = await transaction.commit()
    assert len(answer["results"]) == 8
    await gives(queen, first, [0, 1, 2, 3, 4])
    assert data_of(await queen.queue(second).partition("us").batch(5).pop()) == [None, {}]
    assert data_of(await queen.queue(second).partition("eu").batch(5).pop()) == ["eu"]


@check
async def several_acks(queen: Queen, queue: str) -> None:
    for partition in ("eu", "us"):
        await fill(queen, queue, 1, 2, partition=partition)
    messages = []
    for partition in ("eu", "us"):
        messages += await queen.queue(queue).partition(partition).batch(2).pop()
    assert len({message["leaseId"] for message in messages}) == 2
    await queen.transaction().ack(messages).queue(f"{queue}_sink").push({"data": "sum"}).commit()
    assert await is_empty(queen, queue)
    await gives(queen, f"{queue}_sink", ["sum"])


@check
async def a_chain(queen: Queen, queue: str) -> None:
    stages = [f"{queue}_{n}" for n in range(4)]
    await fill(queen, stages[0], 1)
    for source, sink in pairwise(stages):
        [message] = await queen.queue(source).batch(1).pop()
        await queen.transaction().ack(message).queue(sink).push({"data": message["data"] * 2}).commit()
    await gives(queen, stages[-1], [8])
    for stage in stages[:-1]:
        assert await is_empty(queen, stage)


@check
async def within_a_handler(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(10))

    async def handler(messages: list[Message]) -> None:
        items = [{"data": message["data"] + 100} for message in messages]
        await queen.transaction().ack(messages).queue(f"{queue}_sink").push(items).commit()

    await queen.queue(queue).batch(4).auto_ack(False).limit(10).consume(handler)
    await gives(queen, f"{queue}_sink", list(range(100, 110)))
    assert await is_empty(queen, queue)


@check
async def large_payloads(queen: Queen, queue: str) -> None:
    large = [{"blob": "x" * 1024 * 1024, "n": n} for n in range(3)]
    await queen.transaction().queue(queue).push([{"data": value} for value in large]).commit()
    await gives(queen, queue, large)


@check
async def an_unknown_message_spoils_everything(queen: Queen, queue: str) -> None:
    sink = f"{queue}_sink"
    await queen.queue(queue).config({"lease_time": 2}).create()
    await fill(queen, queue, "kept")
    [message] = await queen.queue(queue).batch(1).pop()
    transaction = queen.transaction().queue(sink).push({"data": "never"}).ack(message)
    error = await _refused(transaction.ack({**message, "transactionId": "nobody"}).commit())
    assert error == "ACK operation failed: Message not found"
    assert await is_empty(queen, sink)
    [again] = await queen.queue(queue).batch(1).pop()
    assert again["id"] == message["id"], "the message comes back after its lease"


@check
async def a_lost_lease_spoils_everything(queen: Queen, queue: str) -> None:
    sink = f"{queue}_sink"
    await queen.queue(queue).config({"lease_time": 1}).create()
    await fill(queen, queue, 1)
    [late] = await queen.queue(queue).batch(1).pop()
    [message] = await queen.queue(queue).batch(1).pop()
    assert message["id"] == late["id"]
    error = await _refused(queen.transaction().ack(late).queue(sink).push({"data": "twice"}).commit())
    assert error == "ACK operation failed: Invalid or expired lease"
    assert await is_empty(queen, sink)


@check
async def of_two_commits_one_is_applied(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1)
    [message] = await queen.queue(queue).batch(1).pop()

    def transaction() -> object:
        return queen.transaction().ack(message).queue(f"{queue}_sink").push({"data": "once"}).commit()

    assert (await transaction())["success"] is True
    assert await _refused(transaction()) == "ACK operation failed: Invalid or expired lease"
    await gives(queen, f"{queue}_sink", ["once"])


@check
async def an_ack_moves_only_its_group(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2)
    [message] = await queen.queue(queue).group("billing").batch(1).pop()
    [bystander] = await queen.queue(queue).group("audit").batch(1).pop()
    transaction = queen.transaction()
    if VERSION < (0, 15):
        # 0.12 cannot name the group; the server takes the one that holds the lease.
        transaction.ack(message)
    else:
        transaction.ack(message, "completed", {"consumer_group": "billing"})
    await transaction.queue(f"{queue}_sink").push({"data": "billed"}).commit()
    await gives(queen, queue, [2], "billing")
    assert (await queen.ack(bystander, True, {"group": "audit"}))["success"]
    await gives(queen, queue, [2], "audit")
    await gives(queen, queue, [1, 2])


@check
async def a_failed_ack_buries_at_once(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await fill(queen, queue, "bad", "good")
    [message] = await queen.queue(queue).batch(1).pop()
    await queen.transaction().ack(message, "failed").queue(f"{queue}_sink").push({"data": 1}).commit()
    [dead] = (await queen.queue(queue).dlq().get())["messages"]
    assert dead["data"] == "bad"
    await gives(queen, queue, ["good"])


@check
async def giving_back_is_refused(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1)
    [message] = await queen.queue(queue).batch(1).pop()
    error = await _refused(queen.transaction().ack(message, "retry").commit())
    assert error.startswith("ACK operation failed")
    assert (await queen.ack(message))["success"]


@check
async def a_used_key(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push({"data": "first", "transactionId": "key"})
    transaction = queen.transaction().queue(queue).push({"data": "second", "transactionId": "key"})
    transaction.queue(f"{queue}_other").push({"data": "beside"})
    if IS_MODERN:
        assert await _refused(transaction.commit())
        assert await is_empty(queen, f"{queue}_other")
        await gives(queen, queue, ["first"])
    else:
        # A fault of 0.12 and 0.15: they drop the transactionId of a push in a transaction, so it is a new message.
        await transaction.commit()
        await gives(queen, queue, ["first", "second"])


@check_since(2)
async def keys_and_trace_ids_of_pushes(queen: Queen, queue: str) -> None:
    trace_id = "6f9619ff-8b86-4011-b42d-00cf4fc964ff"
    item = {"data": 1, "transactionId": "key", "traceId": trace_id}
    await queen.transaction().queue(queue).push(item).commit()
    [message] = await queen.queue(queue).batch(1).pop()
    assert (message["transactionId"], message["traceId"]) == ("key", trace_id)
    [again] = await queen.queue(queue).push({"data": 2, "transactionId": "key"})
    assert again["status"] == "duplicate"


@check
async def an_empty_transaction_is_refused(queen: Queen, queue: str) -> None:
    assert await _refused(queen.transaction().commit()) == "Transaction has no operations to commit"


@check
async def an_encrypted_sink(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"encryption_enabled": True}).create()
    await queen.transaction().queue(queue).push({"data": {"secret": 1}}).commit()
    await gives(queen, queue, [{"secret": 1}])


if __name__ == "__main__":
    play()
