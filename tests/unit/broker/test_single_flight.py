"""Single flight: one load for all, failures for all, and nobody's going away ends it."""

from __future__ import annotations

import asyncio

import pytest

from queenmq.broker.single_flight import SingleFlight
from queenmq.errors import ServerStopping


class Loader:
    def __init__(self) -> None:
        self.calls = 0
        self.answers: list[asyncio.Future[str]] = []

    async def __call__(self) -> str:
        self.calls += 1
        answer = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_load_serves_all_of_its_time() -> None:
    flights: SingleFlight[str] = SingleFlight()
    loader = Loader()
    waiting = [asyncio.create_task(flights.load("k", loader)) for _ in range(5)]
    await turns()
    loader.answers[0].set_result("v")
    assert await asyncio.gather(*waiting) == ["v"] * 5
    assert (loader.calls, flights.loads, flights.shared, len(flights)) == (1, 1, 4, 0)


async def test_keys_fly_apart() -> None:
    flights: SingleFlight[str] = SingleFlight()
    one, two = Loader(), Loader()
    waiting = [asyncio.create_task(flights.load(1, one)), asyncio.create_task(flights.load(2, two))]
    await turns()
    two.answers[0].set_result("two")
    one.answers[0].set_result("one")
    assert await asyncio.gather(*waiting) == ["one", "two"]


async def test_a_failure_fails_everybody_and_the_next_one_tries_again() -> None:
    flights: SingleFlight[str] = SingleFlight()
    loader = Loader()
    waiting = [asyncio.create_task(flights.load("k", loader)) for _ in range(3)]
    await turns()
    loader.answers[0].set_exception(OSError("database"))
    assert [type(r) for r in await asyncio.gather(*waiting, return_exceptions=True)] == [OSError] * 3
    again = asyncio.create_task(flights.load("k", loader))
    await turns()
    loader.answers[1].set_result("v")
    assert await again == "v"


@pytest.mark.parametrize("leaving", [0, 1])
async def test_who_goes_away_does_not_take_the_load_along(leaving: int) -> None:
    flights: SingleFlight[str] = SingleFlight()
    loader = Loader()
    waiting = [asyncio.create_task(flights.load("k", loader)) for _ in range(2)]
    await turns()
    waiting[leaving].cancel()
    await turns()
    loader.answers[0].set_result("v")
    assert await waiting[1 - leaving] == "v"
    assert waiting[leaving].cancelled()


async def test_a_failure_that_nobody_waits_for_is_not_reported_as_unseen() -> None:
    flights: SingleFlight[str] = SingleFlight()
    loader = Loader()
    alone = asyncio.create_task(flights.load("k", loader))
    await turns()
    alone.cancel()
    await turns()
    loader.answers[0].set_exception(OSError("database"))
    await turns()
    assert len(flights) == 0


async def test_closing_gives_up_what_flies() -> None:
    flights: SingleFlight[str] = SingleFlight()
    waiting = asyncio.create_task(flights.load("k", Loader()))
    await turns()
    flights.close()
    with pytest.raises(ServerStopping):
        await waiting
