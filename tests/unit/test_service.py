"""The loop of a background service: what it tells while it cannot work."""

from __future__ import annotations

import asyncio
import logging

import pytest
from passing_time import pass_time

from queenmq.clock import ManualClock
from queenmq.errors import DatabaseUnavailable
from queenmq.server import _ended
from queenmq.services.service import Service


class Scripted(Service):
    """Works or fails as the script says; `ended` is set at its end."""

    name = "scripted"

    def __init__(self, *works: bool) -> None:
        self.clock = ManualClock()
        super().__init__(1000, self.clock)
        self.turns = 0
        self._script = list(works)
        self.ended = asyncio.Event()

    async def work(self) -> None:
        self.turns += 1
        if not self._script:
            self.ended.set()
            return
        if not self._script.pop(0):
            raise DatabaseUnavailable("away")


async def test_each_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    service = Scripted(False, False, False, True, False, False)
    with caplog.at_level(logging.INFO, "queenmq.services.service"):
        service.start()
        for _ in range(7):
            await pass_time(service.clock, 1)
        await service.stop()
    assert service.ended.is_set()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", "scripted: away")] * 2


async def test_it_works_at_its_interval_and_knows_how_late_the_loop_was() -> None:
    service = Scripted()
    service.start()
    await pass_time(service.clock, 0.999)
    assert service.turns == 0
    await pass_time(service.clock, 0.001)
    assert (service.turns, service.late_s) == (1, 0.0)
    service.clock.advance(1.25)  # the loop is busy meanwhile
    await pass_time(service.clock, 0)
    assert (service.turns, service.late_s) == (2, 0.25)
    await service.stop()
    await pass_time(service.clock, 10)
    assert service.turns == 2


async def test_an_interval_of_0_switches_a_service_off() -> None:
    service = Scripted()
    service._interval_s = 0
    service.start()
    await pass_time(service.clock, 10)
    assert service.turns == 0
    await service.stop()


class Stubborn(Service):
    """Turns the first cancellation into an error, as a driver may do that fails while it is cancelled."""

    name = "stubborn"

    def __init__(self) -> None:
        super().__init__(interval_ms=1)
        self.begun = asyncio.Event()
        self.cancellations = 0

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancellations += 1
            if self.cancellations == 1:
                raise OSError("broken while it was cancelled") from None
            raise


async def test_it_ends_also_if_a_cancellation_gets_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.services.service._CANCEL_AGAIN_S", 0.01)
    service = Stubborn()
    service.start()
    await asyncio.wait_for(service.begun.wait(), 30)
    await asyncio.wait_for(service.stop(), 30)
    assert service.cancellations >= 1


async def test_what_does_not_end_is_named_and_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    await asyncio.wait_for(_ended("broker", never(), 0.01), 30)
    [record] = caplog.records
    assert "broker did not stop within 0.01 s and is abandoned; it waits at" in record.getMessage()
    assert "test_service.py" in record.getMessage()


async def test_what_fails_at_the_end_is_not_hidden() -> None:
    async def fails() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await _ended("broker", fails(), 30)
