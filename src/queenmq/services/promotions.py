"""Finishes large writes of the data pipeline whose drivers have died, and removes what dead writes had staged.

A large write is decided in one transaction and then moved into its queues in steps. It is all of its rows or none, so
what a dead driver has left must not wait until somebody writes again.
"""

from __future__ import annotations

import logging

from queenmq.clock import SYSTEM, Clock
from queenmq.errors import UnavailableError
from queenmq.services.service import Service
from queenmq.storage.database import Database
from queenmq.storage.failures import TryAgain
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_INTERVAL_MS = 60_000
# A driver that is slow on purpose makes a step at least every few seconds.
_DEAD_AFTER_S = 600
_STEP_ROWS = 1000
# What is older than a day is removed; writes do it, too.
_SWEEP_S = 3600


class Promotions(Service):
    """Any server, and a driver that comes back, may make the next step: each is made once."""

    name = "promotions"

    def __init__(self, database: Database, clock: Clock = SYSTEM) -> None:
        super().__init__(_INTERVAL_MS, clock)
        self._database = database
        self._failing: dict[tuple[str, int], str] = {}  # epochs that cannot be finished, and why
        self._sweep_at = 0.0

    async def work(self) -> None:
        await self._finish()
        if (now := self._clock.monotonic()) >= self._sweep_at:
            removed = await self._database.fetchval(statement("pipeline_sweep"), "", -1)  # of no sink in particular
            self._sweep_at = now + _SWEEP_S
            if removed:
                log.info("removed %d rows that writes had staged a day ago or more and never committed", removed)

    async def _finish(self) -> None:
        failing: dict[tuple[str, int], str] = {}
        for row in await self._database.fetch(statement("promotions_left"), _DEAD_AFTER_S):
            epoch = row["sink"], row["epoch"]
            try:
                while await self._database.fetchval(statement("pipeline_promote_step"), *epoch, _STEP_ROWS):
                    pass
            except TryAgain:
                continue  # a partition has queued pushes, or is locked: the next turn goes on
            except UnavailableError:
                raise
            except Exception as error:
                failing[epoch] = str(error)
                again = self._failing.get(epoch) == failing[epoch]
                log.log(
                    logging.DEBUG if again else logging.ERROR,
                    "cannot finish epoch %d of sink %r, which its driver had left: %s",
                    *(epoch[1], epoch[0], error),
                )
                continue
            log.warning("finished epoch %d of sink %r, which its driver had left", epoch[1], epoch[0])
        self._failing = failing
