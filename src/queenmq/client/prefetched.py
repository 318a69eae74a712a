"""Batches that were fetched and that no worker has begun: their leases are renewed while they wait."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from queenmq.client.errors import QueenError
from queenmq.client.models import Message
from queenmq.client.verbs import Verbs
from queenmq.clock import SYSTEM

logger = logging.getLogger("queenmq.client")

_STALE_S: Final = 5.0
_LONGEST_S: Final = 600.0  # then other consumers may have it
_LEAST_SECONDS: Final = 60

Batch = list[Message]


@dataclass(slots=True, eq=False)
class _Waiting:
    batch: Batch
    since: float
    alive_at: float  # when its lease was live

    @property
    def lease_id(self) -> str:
        return self.batch[0].lease_id


class Prefetched:
    """`drop` gives back a batch whose lease is over, or that has waited for too long."""

    def __init__(self, verbs: Verbs, interval_ms: int, drop: Callable[[Batch], None]) -> None:
        self._verbs = verbs
        self._interval_s = interval_ms / 1000
        self._seconds = max(_LEAST_SECONDS, int(3 * self._interval_s))
        self._drop = drop
        self._waiting: deque[_Waiting] = deque()
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, batch: Batch) -> None:
        now = SYSTEM.monotonic()
        self._waiting.append(_Waiting(batch, now, now))

    def put_back(self, batch: Batch) -> None:
        """Of a worker that ends: it is the next that another gets."""
        if self._is_closed:
            self._drop(batch)
            return
        now = SYSTEM.monotonic()
        self._waiting.appendleft(_Waiting(batch, now, now))

    def close(self) -> None:
        """No worker gets one any more."""
        self._is_closed = True
        self.drop_all()

    def drop_all(self) -> None:
        left, self._waiting = self._waiting, deque()
        for one in left:
            self._drop(one.batch)

    async def take(self) -> Batch | None:
        """The first whose lease is still ours; None if there is none."""
        while self._waiting:
            one = self._waiting.popleft()
            try:
                if SYSTEM.monotonic() - one.alive_at < _STALE_S or await self._renew(one):
                    return one.batch
            except QueenError as error:
                logger.warning("lease %s could not be renewed: %s", one.lease_id, error)
            except BaseException:
                if self._is_closed:
                    self._drop(one.batch)
                else:
                    self._waiting.appendleft(one)
                raise
            self._drop(one.batch)
        return None

    async def keep(self) -> None:
        """Renew what waits, until it is cancelled."""
        while True:
            await SYSTEM.sleep(self._interval_s)
            for one in tuple(self._waiting):
                is_ours = SYSTEM.monotonic() - one.since < _LONGEST_S
                try:
                    is_ours = is_ours and await self._renew(one)
                except Exception as error:  # who takes it finds out
                    logger.warning("lease %s could not be renewed: %s", one.lease_id, error)
                    continue
                if not is_ours and one in self._waiting:
                    self._waiting.remove(one)
                    self._drop(one.batch)

    async def _renew(self, one: _Waiting) -> bool:
        renewed = await self._verbs.renew(one.lease_id, self._seconds)
        one.alive_at = SYSTEM.monotonic()
        return renewed.success
