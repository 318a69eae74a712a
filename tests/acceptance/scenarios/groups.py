"""Consumer groups: where they start, seeking, forgetting them."""

from __future__ import annotations

import asyncio

from queen import Queen
from stage import ack_all, check, data_of, drain, fill, gives, is_empty, play

_LONG_AGO = "1970-01-01T00:00:00Z"

Message = dict[str, object]


async def _take(queen: Queen, queue: str, group: str, **start: str) -> list[object]:
    """Pop and acknowledge what there is, without waiting; `start` as subscription mode or start point."""
    builder = queen.queue(queue).group(group).batch(100).wait(False)
    if "mode" in start:
        builder.subscription_mode(start["mode"])
    if "since" in start:
        builder.subscription_from(start["since"])
    messages = await builder.pop()
    if messages:
        await ack_all(queen, messages, {"group": group})
    return data_of(messages)


@check
async def groups_are_independent(queen: Queen, queue: str) -> None:
    await fill(queen, queue, *range(100))
    seen: dict[str, list[object]] = {"billing": [], "audit": []}

    async def consume(group: str) -> None:
        async def handler(messages: list[Message]) -> None:
            seen[group] += [message["data"] for message in messages if message["consumerGroup"] == group]

        builder = queen.queue(queue).group(group).subscription_mode("from_beginning")
        await builder.batch(30).limit(100).consume(handler)

    await asyncio.gather(consume("billing"), consume("audit"))
    assert seen == {"billing": list(range(100)), "audit": list(range(100))}
    await gives(queen, queue, list(range(100)))


@check
async def all_sees_the_past(queen: Queen, queue: str) -> None:
    await fill(queen, queue, "past")
    for mode in ("all", "from_beginning"):
        assert await _take(queen, queue, mode, mode=mode) == ["past"]
    assert await _take(queen, queue, "unsaid") == ["past"]


@check
async def new_sees_only_what_comes(queen: Queen, queue: str) -> None:
    await fill(queen, queue, "past")
    assert await _take(queen, queue, "by mode", mode="new") == []
    assert await _take(queen, queue, "by start", since="now") == []
    await fill(queen, queue, "future")
    await fill(queen, queue, "elsewhere", partition="fresh")
    for group in ("by mode", "by start"):
        # Later pops need not say it again, and cannot change it.
        first = await _take(queen, queue, group)
        assert sorted(first + await _take(queen, queue, group, mode="all")) == ["elsewhere", "future"]


@check
async def new_on_an_empty_queue_misses_nothing(queen: Queen, queue: str) -> None:
    poll = asyncio.ensure_future(queen.queue(queue).group("g").subscription_mode("new").batch(10).pop())
    # A pop that does not wait, so that the group is known before the first message is.
    assert await _take(queen, queue, "g", mode="new") == []
    await fill(queen, queue, "first")
    assert data_of(await poll) == ["first"]


@check
async def from_a_timestamp(queen: Queen, queue: str) -> None:
    for n in range(4):
        await fill(queen, queue, n)
    messages = await queen.queue(queue).batch(10).pop()
    assert await _take(queen, queue, "g", since=messages[2]["createdAt"]) == [2, 3]
    await fill(queen, queue, 4)
    assert await _take(queen, queue, "g", since=_LONG_AGO) == [4], "the first registration wins"


@check
async def seeking_to_the_beginning(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 0, 1, 2)
    await fill(queen, queue, "eu", partition="eu")
    assert sorted(map(str, await drain(queen, queue, "g"))) == ["0", "1", "2", "eu"]
    assert await is_empty(queen, queue, "g")
    answer = await queen.admin.seek_consumer_group("g", queue, {"timestamp": _LONG_AGO})
    assert answer["success"] is True
    assert sorted(map(str, await drain(queen, queue, "g"))) == ["0", "1", "2", "eu"]


@check
async def seeking_behind_where_the_group_began(queen: Queen, queue: str) -> None:
    await fill(queen, queue, "past")
    assert await _take(queen, queue, "g", mode="new") == []
    await queen.admin.seek_consumer_group("g", queue, {"timestamp": _LONG_AGO})
    assert await _take(queen, queue, "g") == ["past"]


@check
async def seeking_to_a_moment(queen: Queen, queue: str) -> None:
    for n in range(4):
        await fill(queen, queue, n)
    messages = await queen.queue(queue).group("g").batch(10).pop()
    await ack_all(queen, messages, {"group": "g"})
    answer = await queen.admin.seek_consumer_group("g", queue, {"timestamp": messages[1]["createdAt"]})
    assert answer["partitionsUpdated"] == 1
    await gives(queen, queue, [2, 3], "g")


@check
async def seeking_to_the_end(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 0)
    await gives(queen, queue, [0], "g")
    await fill(queen, queue, 1, 2)
    answer = await queen.admin.seek_consumer_group("g", queue, {"toEnd": True})
    assert (answer["success"], answer["seekToEnd"]) == (True, True)
    assert await is_empty(queen, queue, "g")
    await fill(queen, queue, 3)
    await gives(queen, queue, [3], "g")


@check
async def seeking_ends_the_lease(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 0, 1)
    [message] = await queen.queue(queue).group("g").batch(1).pop()
    await queen.admin.seek_consumer_group("g", queue, {"timestamp": _LONG_AGO})
    assert (await queen.ack(message, True, {"group": "g"}))["error"] == "Invalid or expired lease"
    await gives(queen, queue, [0, 1], "g")


@check
async def seeking_an_unknown_group_succeeds(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 0)
    answer = await queen.admin.seek_consumer_group("nobody", queue, {"timestamp": _LONG_AGO})
    assert (answer["success"], answer["partitionsUpdated"]) == (True, 0)


@check
async def seeking_without_a_target_is_refused(queen: Queen, queue: str) -> None:
    # Without options the clients send no body at all.
    try:
        await queen.admin.seek_consumer_group("g", queue)
    except Exception as error:
        assert str(error) == "Must specify either 'toEnd': true or 'timestamp'"
    else:
        raise AssertionError("a seek to nowhere was accepted")


@check
async def a_deleted_group_reads_again(queen: Queen, queue: str) -> None:
    group = f"{queue} ü"
    await fill(queen, queue, 0, 1)
    await gives(queen, queue, [0, 1], group)
    await gives(queen, queue, [0, 1], "bystander")
    answer = await queen.delete_consumer_group(group)
    assert (answer["success"], answer["consumerGroup"]) == (True, group)
    await gives(queen, queue, [0, 1], group)
    assert await is_empty(queen, queue, "bystander")


@check
async def a_group_deleted_in_one_queue_reads_again_there(queen: Queen, queue: str) -> None:
    other = f"{queue}_other"
    for name in (queue, other):
        await fill(queen, name, 0)
        await gives(queen, name, [0], queue)
    answer = await queen.admin.delete_consumer_group_for_queue(queue, queue)
    assert (answer["success"], answer["queueName"]) == (True, queue)
    await gives(queen, queue, [0], queue)
    assert await is_empty(queen, other, queue)


@check
async def deleting_a_group_may_keep_its_start(queen: Queen, queue: str) -> None:
    await fill(queen, queue, "past")
    assert await _take(queen, queue, queue, mode="new") == []
    await fill(queen, queue, "future")
    await gives(queen, queue, ["future"], queue)
    await queen.delete_consumer_group(queue, delete_metadata=False)
    await gives(queen, queue, ["future"], queue)
    await queen.delete_consumer_group(queue)
    await gives(queen, queue, ["past", "future"], queue)


@check
async def moving_the_start_of_a_group(queen: Queen, queue: str) -> None:
    for n in range(3):
        await fill(queen, queue, n)
    messages = await queen.queue(queue).batch(3).pop()
    assert await _take(queen, queue, queue, mode="new") == []
    answer = await queen.update_consumer_group_timestamp(queue, messages[1]["createdAt"])
    assert (answer["success"], answer["rowsUpdated"]) == (True, 1)
    assert await is_empty(queen, queue, queue), "where the group has a position it counts no more"
    await queen.delete_consumer_group(queue, delete_metadata=False)
    await gives(queen, queue, [1, 2], queue)


if __name__ == "__main__":
    play()
