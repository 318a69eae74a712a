"""Replays the journal: whatever pushes it holds goes to the database, in order, as soon as that takes them."""

from __future__ import annotations

from queenmq.cluster.maintenance import Switch
from queenmq.config import Settings
from queenmq.core.message import Message
from queenmq.engine.encryption import NoEncryptionKey
from queenmq.engine.engine import Engine
from queenmq.errors import DatabaseUnavailable, InternalError
from queenmq.overload.push_buffer import Held, PushBuffer
from queenmq.services.service import Service
from queenmq.storage.database import Database

_TRIES = 3


class JournalReplay(Service):
    """Several pushes go into one call. One that the database refuses for its content is set aside, alone."""

    name = "journal replay"

    def __init__(self, database: Database, engine: Engine, buffer: PushBuffer, settings: Settings) -> None:
        super().__init__(settings.file_buffer_flush_ms)
        self._database = database
        self._engine = engine
        self._buffer = buffer
        self._most = settings.file_buffer_max_batch
        self._most_messages = settings.max_items_per_call

    async def work(self) -> None:
        maintenance = self._engine.maintenance
        while self._buffer.pending and self._database.is_open and maintenance.is_known:
            if maintenance.is_on(Switch.PUSH):
                return
            batch = await self._buffer.oldest(self._most, self._most_messages)
            if not batch:
                return
            try:
                await self._replay(batch)
            except DatabaseUnavailable:
                return

    async def _replay(self, batch: list[tuple[Held, list[Message]]]) -> None:
        try:
            await self._store(batch)
        except (InternalError, NoEncryptionKey) as error:
            if len(batch) > 1:
                for one in batch:
                    await self._replay([one])
                return
            await self._insist(*batch[0], error)

    async def _store(self, batch: list[tuple[Held, list[Message]]]) -> None:
        outcomes = await self._engine.pusher.store([messages for _, messages in batch])
        if any(outcome.status == "rejected" for request in outcomes for outcome in request):
            raise DatabaseUnavailable("the operation queue is full")
        dealt = [(held, messages, found) for (held, messages), found in zip(batch, outcomes, strict=True)]
        await self._engine.operations.replayed(dealt)
        await self._buffer.finish([held for held, _ in batch])

    async def _insist(self, held: Held, messages: list[Message], error: Exception) -> None:
        for _ in range(_TRIES - 1):
            try:
                await self._store([(held, messages)])
            except (InternalError, NoEncryptionKey) as again:
                error = again
            else:
                return
        await self._buffer.set_aside(held, f"the database refuses it: {error}")
