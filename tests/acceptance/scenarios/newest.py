"""What clients from 2.6 on have besides: depths; and what is left out, which they are told aloud."""

from __future__ import annotations

import sys

from queen import Queen
from stage import check, fill, play


@check
async def the_depth_of_a_queue(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2, 3)
    # For the client, "Default" is any partition.
    [message] = await queen.queue(queue).group("g").batch(1).pop()
    assert (await queen.ack(message, True, {"group": "g"}))["success"]
    depth = await queen.admin.get_queue_depth(queue, "g")
    told = [depth[name] for name in ("queue", "group", "pending", "partitionsPending", "conflation")]
    assert told == [queue, "g", 2, 1, False]
    assert depth["partitions"] == [{"partition": "Default", "pending": 2}]
    assert await queen.queue(queue).group("newest").conflation().batch(1).pop()
    await fill(queen, queue, 4, 5)
    depth = await queen.admin.get_queue_depth(queue, "newest")
    assert (depth["conflation"], depth["pending"], depth["effectivePending"]) == (True, 3, 1)


@check
async def ephemeral_queues_are_refused(queen: Queen, queue: str) -> None:
    try:
        await queen.ephemeral.push(queue, [{"n": 1}])
    except Exception as error:
        assert getattr(error, "code", None) == "ephemeral_unsupported", error
    else:
        raise AssertionError("it was accepted")


@check
async def changed_partitions_are_refused(queen: Queen, queue: str) -> None:
    try:
        await queen.queue(queue).changed_since()
    except Exception as error:
        assert "partitions" in str(error)
    else:
        raise AssertionError("it was answered")


@check
async def binary_pushes_are_refused(_: Queen, queue: str) -> None:
    async with Queen(url=sys.argv[1], binary_push=True) as binary:
        try:
            await binary.queue(queue).push([{"data": 1}])
        except Exception as error:
            assert "binary" in str(error)
        else:
            raise AssertionError("it was accepted")


if __name__ == "__main__":
    play()
