"""Leases: they end, they can be renewed by hand and by the client, and only while they live."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from queen import Queen
from stage import HAS_PARTITIONS, check, check_since, data_of, fill, gives, is_empty, play

# Long enough for a busy machine to do something with the message in time.
_SECONDS = 3

Message = dict[str, object]


async def _leased(queen: Queen, queue: str, lease_s: int) -> Message:
    """The first of two messages, leased for so long."""
    await queen.queue(queue).config({"lease_time": lease_s}).create()
    await fill(queen, queue, 1, 2)
    [message] = await queen.queue(queue).batch(1).pop()
    return message


def _seconds_left(renewed: dict[str, object]) -> float:
    return (datetime.fromisoformat(renewed["newExpiresAt"]) - datetime.now(UTC)).total_seconds()


@check
async def an_expired_lease_delivers_again(queen: Queen, queue: str) -> None:
    begin = time.monotonic()
    message = await _leased(queen, queue, _SECONDS)
    [again] = await queen.queue(queue).batch(1).pop()
    assert time.monotonic() - begin >= _SECONDS
    assert again["id"] == message["id"]
    assert again["leaseId"] != message["leaseId"]
    assert again["retryCount"] == 0, "an expired lease is no failure"
    assert (await queen.ack(message))["error"] == "Invalid or expired lease"
    assert (await queen.renew(message))["success"] is False
    assert (await queen.ack(again))["success"] is True
    await gives(queen, queue, [2])


@check
async def what_was_acknowledged_does_not_come_again(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"lease_time": _SECONDS}).create()
    await fill(queen, queue, *range(4))
    messages = await queen.queue(queue).batch(3).pop()
    for message in messages[:2]:
        assert (await queen.ack(message))["success"]
    assert data_of(await queen.queue(queue).batch(10).pop()) == [2, 3]


@check
async def renewing_by_hand(queen: Queen, queue: str) -> None:
    # A long lease, so that a slow machine cannot lose it; the client asks for 60 s more.
    message = await _leased(queen, queue, 20)
    renewed = await queen.renew(message)
    assert (renewed["success"], renewed["leaseId"]) == (True, message["leaseId"])
    assert 30 < _seconds_left(renewed) < 61
    again = await queen.renew(message["leaseId"])
    assert again["success"] is True
    assert again["newExpiresAt"] >= renewed["newExpiresAt"]
    assert (await queen.ack(message))["success"] is True
    await gives(queen, queue, [2])


@check
async def renewing_never_shortens(queen: Queen, queue: str) -> None:
    message = await _leased(queen, queue, 300)
    assert _seconds_left(await queen.renew(message)) > 200


@check
async def a_renewed_lease_outlives_its_time(queen: Queen, queue: str) -> None:
    message = await _leased(queen, queue, _SECONDS)
    assert (await queen.renew(message))["success"] is True
    # The time of the first lease has to pass.
    await asyncio.sleep(_SECONDS + 0.2)
    assert await is_empty(queen, queue)
    assert (await queen.ack(message))["success"] is True
    await gives(queen, queue, [2])


@check
async def an_expired_lease_cannot_be_renewed(queen: Queen, queue: str) -> None:
    message = await _leased(queen, queue, 2)
    # The time of the lease has to pass, and nobody else may take the partition meanwhile.
    await asyncio.sleep(2.2)
    answer = await queen.renew(message)
    assert (answer["success"], answer["error"]) == (False, "Lease not found")
    assert (await queen.ack(message))["error"] == "Invalid or expired lease"
    await gives(queen, queue, [1, 2])


@check
async def a_released_lease_cannot_be_renewed(queen: Queen, queue: str) -> None:
    message = await _leased(queen, queue, 60)
    assert (await queen.ack(message))["leaseReleased"] is True
    assert (await queen.renew(message))["success"] is False
    for unknown in ("no-lease", "00000000-0000-7000-8000-000000000000"):
        assert (await queen.renew(unknown))["success"] is False
    assert (await queen.renew({}))["success"] is False


@check
async def renewing_a_list(queen: Queen, queue: str) -> None:
    await fill(queen, queue, 1, 2, 3)
    messages = await queen.queue(queue).batch(3).pop()
    results = await queen.renew(messages)
    assert [result["success"] for result in results] == [True] * len(results)
    # 0.12 renews the lease once for every message that shares it.
    assert len(results) == (1 if HAS_PARTITIONS else 3)


@check_since(0, 15)
async def one_renewal_covers_all_partitions(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"lease_time": _SECONDS}).create()
    for partition in ("a", "b", "c"):
        await fill(queen, queue, partition, partition=partition)
    messages = await queen.queue(queue).batch(10).partitions(3).pop()
    assert len(messages) == 3
    assert [result["success"] for result in await queen.renew(messages)] == [True]
    # The time of the first lease has to pass.
    await asyncio.sleep(_SECONDS + 0.2)
    assert await is_empty(queen, queue)
    for message in messages:
        assert (await queen.ack(message))["success"] is True


@check
async def the_client_renews_while_a_handler_works(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"lease_time": _SECONDS}).create()
    await fill(queen, queue, 1, 2)
    seen: list[object] = []

    async def handler(message: Message) -> None:
        # Longer than the lease.
        await asyncio.sleep(_SECONDS + 0.5)
        assert await is_empty(queen, queue), "somebody else got the message"
        seen.append(message["data"])

    await queen.queue(queue).batch(1).renew_lease(True, 500).limit(1).consume(handler)
    assert seen == [1]
    await gives(queen, queue, [2])


if __name__ == "__main__":
    play()
