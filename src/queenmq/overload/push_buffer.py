"""Pushes that are kept in the journal until the database takes them.

Knows which partitions have journalled messages: a push to one of them has to wait behind them. A partition is held
from the moment in which the first of its messages is put into the journal, before any other request can look.
With a key every record is encrypted as a whole, whatever its queues demand: during an outage nobody can ask them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenmq.core.message import Message
from queenmq.errors import DatabaseUnavailable, Overloaded, StartupError
from queenmq.ids import uuid7_text
from queenmq.overload.journal import Journal, JournalBounds, Place
from queenmq.overload.journal_folder import take_all

log = logging.getLogger(__name__)

Partition = tuple[str, str]

_NONCE_BYTES: Final = 12
_CLEAR: Final = b"\0"
_SEALED: Final = b"\1"


class _Entry(msgspec.Struct, array_like=True):
    """A request in the journal."""

    operation_id: str
    messages: list[tuple[str, str, bytes, str, str, str | None, str | None]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Entry).decode


@dataclass(slots=True, eq=False)
class Held:
    """A journalled push. Its place is known once it is on disk."""

    operation_id: str
    sequence: int
    count: int
    partitions: tuple[Partition, ...]
    place: Place | None = None


class PushBuffer:
    def __init__(self, folder: Path, bounds: JournalBounds, key: bytes | None) -> None:
        self._folder = folder
        self.bounds = bounds
        self._cipher = None if key is None else AESGCM(key)
        self._journal: Journal | None = None
        self._held: dict[int, Held] = {}
        self._by_id: dict[str, Held] = {}
        self._pending: dict[Partition, int] = {}
        self._behind: dict[Partition, list[asyncio.Future[None]]] = {}
        self.messages = 0
        self.replayed = 0

    async def open(self) -> None:
        """Recover what is there, also what a process that is gone has left. Raises StartupError."""
        try:
            own, *left = take_all(self._folder)
            self._journal = await Journal.open(own, self.bounds)
            for place in self._journal.recovered:
                await self._recover(self._journal, place)
            for folder in left:
                await self._take_over(await Journal.open(folder, self.bounds))
        except OSError as error:
            raise StartupError(f"the journal folder {self._folder} cannot be used: {error.strerror}") from None

    async def close(self) -> None:
        if self._journal is not None:
            await self._journal.close()
            self._journal = None

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            raise RuntimeError("the journal is not open")
        return self._journal

    # Putting

    def holds(self, messages: Iterable[Message]) -> bool:
        """Whether any of their partitions has journalled messages."""
        pending = self._pending
        return bool(pending) and any((message.queue, message.partition) in pending for message in messages)

    async def wait_behind(self, messages: Iterable[Message], timeout_s: float) -> bool:
        """Return True when their partitions have no journalled messages any more, False if that takes too long.

        Whoever was told True must look again: others may have been faster.
        """
        waiting = []
        for partition in {(message.queue, message.partition) for message in messages} & self._pending.keys():
            cleared = asyncio.get_running_loop().create_future()
            self._behind.setdefault(partition, []).append(cleared)
            waiting.append(cleared)
        if not waiting:
            return True
        _, late = await asyncio.wait(waiting, timeout=timeout_s)
        for cleared in late:
            cleared.cancel()
        return not late

    async def require_turn(self, messages: Sequence[Message], timeout_s: float) -> None:
        """For what is never journalled: wait until nothing of its partitions is. Raises DatabaseUnavailable."""
        while self.holds(messages):
            if not await self.wait_behind(messages, timeout_s):
                raise DatabaseUnavailable("database connection is catching up after an outage (ECONNREFUSED)")

    async def put(self, messages: Sequence[Message]) -> tuple[Held, int]:
        """Journal a push; returns when it is on disk, with the number of pushes before it.

        The partitions are held before this first waits. Raises Overloaded or JournalFailed, and then nothing is kept.
        """
        ahead = len(self._held)
        operation_id = uuid7_text()
        sequence, written = self.journal.append(self._seal(_encode(_entry(operation_id, messages))))
        held = self._hold(Held(operation_id, sequence, len(messages), _partitions(messages)))
        # In a callback, because a caller who goes away must not leave a record that nobody knows of.
        written.add_done_callback(lambda done: self._written(held, done))
        await asyncio.shield(written)
        return held, ahead

    def _written(self, held: Held, done: asyncio.Future[Place | None]) -> None:
        if done.exception() is None:
            held.place = done.result()
        else:
            self._release(held)

    def _hold(self, held: Held) -> Held:
        self._held[held.sequence] = self._by_id[held.operation_id] = held
        self.messages += held.count
        for partition in held.partitions:
            self._pending[partition] = self._pending.get(partition, 0) + 1
        return held

    # Replaying

    @property
    def pending(self) -> int:
        """Pushes that are not replayed yet."""
        return len(self._held)

    @property
    def partitions_held(self) -> int:
        return len(self._pending)

    def held_in(self, queue: str, partition: str | None) -> dict[str, int]:
        """How many journalled pushes a queue has, by partition; or only those of one partition."""
        if partition is None:
            return {other: count for (name, other), count in self._pending.items() if name == queue}
        count = self._pending.get((queue, partition), 0)
        return {partition: count} if count else {}

    def find(self, operation_id: str) -> Held | None:
        return self._by_id.get(operation_id)

    async def oldest(self, most: int, most_messages: int) -> list[tuple[Held, list[Message]]]:
        """The next pushes to replay, in order. What cannot be read any more is set aside on the way."""
        found: list[tuple[Held, list[Message]]] = []
        count = 0
        for held in list(islice(self._held.values(), most)):
            if held.place is None or (found and count + held.count > most_messages):
                break
            messages = await self._read(held, held.place)
            if messages is not None:
                found.append((held, messages))
                count += held.count
        return found

    async def finish(self, replayed: Sequence[Held]) -> None:
        """The database has them. Whoever waits behind them may go on."""
        await self.journal.finish([held.place for held in replayed if held.place is not None])
        for held in replayed:
            self.replayed += held.count
            self._release(held)

    async def set_aside(self, held: Held, why: str) -> None:
        """The database will never take it: keep it in the quarantine and go on."""
        if held.place is not None:
            await self.journal.set_aside(held.place, await self.journal.read(held.place), why)
        self._release(held)

    def _release(self, held: Held) -> None:
        if self._held.pop(held.sequence, None) is None:
            return
        del self._by_id[held.operation_id]
        self.messages -= held.count
        for partition in held.partitions:
            self._pending[partition] -= 1
            if not self._pending[partition]:
                del self._pending[partition]
                for cleared in self._behind.pop(partition, ()):
                    if not cleared.done():
                        cleared.set_result(None)

    async def _read(self, held: Held, place: Place) -> list[Message] | None:
        body = await self.journal.read(place)
        entry = None if body is None else self._open(body)
        if entry is None:
            await self.journal.set_aside(place, body, "it is damaged, or was written with another key")
            self._release(held)
            return None
        return [Message(*fields) for fields in entry.messages]

    # Recovery

    async def _recover(self, journal: Journal, place: Place) -> None:
        body = await journal.read(place)
        entry = None if body is None else self._open(body)
        if entry is None:
            await journal.set_aside(place, body, "it is damaged, or was written with another key")
            return
        messages = [Message(*fields) for fields in entry.messages]
        self._hold(Held(entry.operation_id, place.sequence, len(messages), _partitions(messages), place))

    async def _take_over(self, other: Journal) -> None:
        """Copy the records into the own journal, then forget them there. What does not fit stays for a later start."""
        try:
            for place in other.recovered:
                body = await other.read(place)
                if body is None:
                    await other.set_aside(place, body, "it is damaged")
                    continue
                _, written = self.journal.append(body)
                copy = await written
                if copy is not None:
                    await self._recover(self.journal, copy)
                await other.finish([place])
        except Overloaded as full:
            log.error("pushes that another process has left stay in its journal: %s", full)
        finally:
            await other.close()

    # The record as bytes

    def _seal(self, body: bytes) -> bytes:
        if self._cipher is None:
            return _CLEAR + body
        nonce = os.urandom(_NONCE_BYTES)
        return _SEALED + nonce + self._cipher.encrypt(nonce, body, None)

    def _open(self, stored: bytes) -> _Entry | None:
        try:
            if stored[:1] == _CLEAR:
                return _decode(stored[1:])
            if self._cipher is None:
                return None
            nonce, sealed = stored[1 : 1 + _NONCE_BYTES], stored[1 + _NONCE_BYTES :]
            return _decode(self._cipher.decrypt(nonce, sealed, None))
        except (msgspec.DecodeError, InvalidTag, ValueError):
            return None


def _entry(operation_id: str, messages: Sequence[Message]) -> _Entry:
    return _Entry(
        operation_id,
        [(m.queue, m.partition, m.payload, m.id, m.transaction_id, m.trace_id, m.producer) for m in messages],
    )


def _partitions(messages: Iterable[Message]) -> tuple[Partition, ...]:
    return tuple({(message.queue, message.partition): None for message in messages})
