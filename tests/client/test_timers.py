"""Timers of the client: `schedule`, `cancel` and `timers`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queenmq.client import BlockingQueen, InvalidRequest, InvalidUse, Queen

NOON = datetime(2126, 1, 1, 12, tzinfo=UTC)


async def test_it_comes_after_its_delay(queen: Queen) -> None:
    timer = await queen.queue("q").partition("p").schedule({"n": 2**70}, key="k/1", delay=timedelta(milliseconds=50))
    assert (timer.status, timer.queue, timer.key) == ("scheduled", "q", "k/1")
    [message] = await queen.queue("q").pop()
    assert (message.data, message.partition, message.id) == ({"n": 2**70}, "p", timer.message_id)
    assert (await queen.queue("q").cancel("k/1")).status == "absent"


async def test_listing_and_cancelling(queen: Queen) -> None:
    for number in range(3):
        await queen.queue("q").schedule(number, key=f"k{number}", at=NOON)
    await queen.queue("q").schedule(1, key="daily", schedule="0 9 * * *", time_zone="Europe/Rome")
    shown = [(timer.key, timer.status, timer.schedule) for timer in await queen.queue("q").timers()]
    assert shown == [("daily", "waiting", "0 9 * * *"), *((f"k{n}", "waiting", None) for n in range(3))]
    assert len(await queen.queue("q").timers(2)) == 2
    cancelled = await queen.queue("q").cancel("k1")
    assert (cancelled.status, cancelled.deliver_at) == ("cancelled", "2126-01-01T12:00:00.000Z")


async def test_the_blocking_twin(url: str, queen: Queen) -> None:
    def work() -> list[str]:
        with BlockingQueen(url) as client:
            queue = client.queue("q")
            return [
                queue.schedule(1, key="k", delay=3600).status,
                queue.timers()[0].key,
                queue.cancel("k").status,
            ]

    assert await asyncio.to_thread(work) == ["scheduled", "k", "cancelled"]


@pytest.mark.parametrize(
    "when",
    [
        {},
        {"delay": 1, "at": NOON},
        {"at": NOON.replace(tzinfo=None)},
        {"delay": 1, "time_zone": "Europe/Rome"},
    ],
)
async def test_what_says_no_moment(queen: Queen, when: dict[str, Any]) -> None:
    with pytest.raises(InvalidUse):
        await queen.queue("q").schedule(1, key="k", **when)


async def test_what_the_server_refuses(queen: Queen) -> None:
    with pytest.raises(InvalidRequest, match="neither a cron expression"):
        await queen.queue("q").schedule(1, key="k", schedule="sometimes")
