"""Measures what a decision cannot measure for itself: the delay of the event loop, and the operation queue.

It is the only meter of that delay: what shows it or decides by it reads it from here.
"""

from __future__ import annotations

from queenmq.broker.load import DRAIN_WINDOW_S, LoadWatch
from queenmq.broker.vitals import Vitals
from queenmq.clock import SYSTEM, Clock
from queenmq.config import OverloadSettings
from queenmq.errors import DatabaseUnavailable
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_LOOK_MS = 100
_LOOKS_A_QUESTION = 5


class LoadMonitor(Service):
    name = "load monitor"

    def __init__(
        self, database: Database, load: LoadWatch, vitals: Vitals, settings: OverloadSettings, clock: Clock = SYSTEM
    ) -> None:
        super().__init__(_LOOK_MS, clock)
        self._database = database
        self._load = load
        self._vitals = vitals
        self._asks = settings.enabled
        self._looks = 0

    async def work(self) -> None:
        self._load.note_loop_delay(self.late_s)
        self._vitals.loop_lag_ms = self.late_s * 1000
        self._looks += 1
        if self._asks and self._looks % _LOOKS_A_QUESTION == 0 and self._database.is_open:
            await self._ask()

    async def _ask(self) -> None:
        try:
            row = await self._database.fetchrow(statement("operation_load"))
        except DatabaseUnavailable:
            return
        if row is not None:
            self._load.note(queue_depth=row["depth"], drain_rate=row["finished"] / DRAIN_WINDOW_S)
