"""Keeping the lease of messages alive while somebody works on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from queenmq.client.models import Message
from queenmq.client.verbs import Verbs

logger = logging.getLogger("queenmq.client")

_LEAST_SECONDS = 60


class Renewal:
    """Renews the leases of `messages` every `interval_ms` until it is left; not at all if that is None.

    `lost` becomes True when a lease is over in spite of it: then somebody else may get the messages.
    """

    def __init__(self, verbs: Verbs, messages: Sequence[Message], interval_ms: int | None) -> None:
        self.lost = False
        self._verbs = verbs
        self._leases = list(dict.fromkeys(message.lease_id for message in messages if message.lease_id))
        self._interval_ms = interval_ms
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._leases and self._interval_ms is not None:
            self._task = asyncio.create_task(self._renew(self._interval_ms / 1000))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _renew(self, interval_s: float) -> None:
        seconds = max(_LEAST_SECONDS, int(3 * interval_s))
        while not self.lost:
            await asyncio.sleep(interval_s)
            for lease in self._leases:
                await self._renew_one(lease, seconds)

    async def _renew_one(self, lease: str, seconds: int) -> None:
        try:
            result = await self._verbs.renew(lease, seconds)
        except Exception as error:  # of the function that gives the token, for example: the next may succeed
            logger.warning("lease %s could not be renewed: %s", lease, error)
            return
        if not result.success:
            logger.warning("lease %s is lost: %s", lease, result.error)
            self.lost = True
