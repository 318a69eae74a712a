"""Calls that share their fate with no other request: all of one or nothing of it, so they are not merged.

They are bounded like the lanes of the sidecar, a few run at once, and each is repeated while others are in its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from queenmq.core.message import Message
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.maintenance import Maintenance
from queenmq.engine.places import Places
from queenmq.engine.sidecar import Policy
from queenmq.errors import Overloaded
from queenmq.overload.push_buffer import PushBuffer
from queenmq.storage.database import EncryptionRequired, TryAgain

Result = TypeVar("Result")

_TRIES = 6
_FIRST_PAUSE_S = 0.005


class Unmerged:
    def __init__(
        self,
        name: str,
        encryption: PayloadEncryption,
        places: Places,
        maintenance: Maintenance,
        policy: Policy,
        buffer: PushBuffer | None,
        wait_behind_s: float,
    ) -> None:
        """`name` is what is called, in the plural, for people."""
        self._name = name
        self._encryption = encryption
        self._places = places
        self._maintenance = maintenance
        self._buffer = buffer
        self._wait_behind_s = wait_behind_s
        self._slots = asyncio.Semaphore(policy.max_concurrent)
        self._max_pending = policy.max_pending
        self._pending = 0

    async def run(self, messages: Sequence[Message], call: Callable[[], Awaitable[Result]]) -> Result:
        """What `call` returns or raises; it is made again for every try. `messages` are those that it pushes."""
        if messages:
            self._maintenance.require_pushes()
        if self._pending >= self._max_pending:
            raise Overloaded(f"too many {self._name} are waiting for the database")
        self._pending += 1
        try:
            if self._buffer is not None:
                await self._buffer.require_turn(messages, self._wait_behind_s)
            async with self._slots:
                return await self._encrypted(call)
        finally:
            self._pending -= 1

    async def _encrypted(self, call: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await self._try(call)
        except EncryptionRequired as refusal:
            self._encryption.require_key()
            await self._places.demand_encryption(refusal.detail)
            return await self._try(call)

    @staticmethod
    async def _try(call: Callable[[], Awaitable[Result]]) -> Result:
        pause = _FIRST_PAUSE_S
        for _ in range(_TRIES - 1):
            try:
                return await call()
            except TryAgain:
                await asyncio.sleep(pause)
                pause *= 2
        return await call()
