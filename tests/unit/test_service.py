"""The loop of a background service: what it tells while it cannot work."""

from __future__ import annotations

import asyncio
import logging

import pytest

from queenmq.errors import DatabaseUnavailable
from queenmq.services.service import Service


class Scripted(Service):
    """Works or fails as the script says; `ended` is set at its end."""

    name = "scripted"

    def __init__(self, *works: bool) -> None:
        super().__init__(interval_ms=1)
        self._script = list(works)
        self.ended = asyncio.Event()

    async def work(self) -> None:
        if not self._script:
            self.ended.set()
            return
        if not self._script.pop(0):
            raise DatabaseUnavailable("away")


async def test_each_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    service = Scripted(False, False, False, True, False, False)
    with caplog.at_level(logging.INFO, "queenmq.services.service"):
        service.start()
        await asyncio.wait_for(service.ended.wait(), 30)
        await service.stop()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", "scripted: away")] * 2
