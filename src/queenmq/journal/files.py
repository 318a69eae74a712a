"""The journal: an append-only log on local disk that answers only for what is synced.

Appends that come while the disk is busy are written and synced together (group commit). What was replayed is marked
in the same log, and a file goes when everything in it and before it is. It is bounded in bytes and in records; beyond
a bound appends are refused. What a record means is the caller's.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from queenmq.errors import Overloaded, UnavailableError
from queenmq.journal.folder import JournalFolder
from queenmq.journal.records import encode
from queenmq.journal.segment import Recovered, Segment, sync_folder

log = logging.getLogger(__name__)
Result = TypeVar("Result")

PUSH: Final = 1
DONE: Final = 2
_SEQUENCE: Final = struct.Struct("<Q")


class JournalFailed(UnavailableError):
    """503: the disk refused the record; nothing was kept."""

    code = "journal_failed"


@dataclass(frozen=True, slots=True)
class JournalBounds:
    max_bytes: int
    max_records: int
    records_per_file: int


@dataclass(slots=True, eq=False)
class RecordRef:
    """Where a record lies that is not replayed yet."""

    sequence: int
    segment: Segment
    start: int
    end: int


@dataclass(slots=True)
class _Write:
    kind: int
    sequence: int
    body: bytes
    written: asyncio.Future[RecordRef | None]


class JournalFiles:
    """Made by `open`, which recovers what is there; `recovered` has the unfinished records, oldest first."""

    def __init__(self, folder: JournalFolder, bounds: JournalBounds) -> None:
        self._folder = folder
        self._bounds = bounds
        self._segments: list[Segment] = []
        self._writes: list[_Write] = []
        self._writer: asyncio.Task[None] | None = None
        # One thread: what is written, read and removed happens in order.
        self._thread = ThreadPoolExecutor(1, "journal")
        self._next = 1
        self._open = 0
        self._waiting_bytes = 0
        self.recovered: list[RecordRef] = []
        self.aside = (0, 0)  # how many records are in the quarantine, and their bytes
        self.damaged = 0
        self.torn_bytes = 0
        self.syncs = 0
        self.healthy = True

    @classmethod
    async def open(cls, folder: JournalFolder, bounds: JournalBounds) -> JournalFiles:
        journal = cls(folder, bounds)
        await journal.run(journal._recover)
        await journal.look_aside()
        return journal

    @property
    def size(self) -> int:
        """On disk and waiting to be."""
        return sum(segment.size for segment in self._segments) + self._waiting_bytes

    @property
    def open_records(self) -> int:
        return self._open

    @property
    def folder(self) -> JournalFolder:
        return self._folder

    async def look_aside(self) -> None:
        """Count what is in the quarantine: people take files away."""
        sizes = await self.run(self._folder.aside_sizes)
        self.aside = (len(sizes), sum(sizes))

    def append(self, body: bytes) -> tuple[int, asyncio.Future[RecordRef | None]]:
        """Put a record behind all others. It is durable when the future is done.

        Its place in the order is taken before this returns. Raises Overloaded if the journal is full; the future raises
        JournalFailed if the disk refuses.
        """
        if self._open >= self._bounds.max_records or self.size + len(body) > self._bounds.max_bytes:
            raise Overloaded("the journal is full until the database is back and has caught up", retry_after_s=5)
        self._open += 1
        return self._put(PUSH, body)

    async def finish(self, refs: Iterable[RecordRef]) -> None:
        """These are replayed: they never come back, also not after a restart."""
        finished = list(refs)
        _, written = self._put(DONE, b"".join(_SEQUENCE.pack(ref.sequence) for ref in finished))
        await written
        self._open -= len(finished)
        await self.run(lambda: self._remove(finished))

    async def read(self, ref: RecordRef) -> bytes | None:
        """The body; None if the disk has damaged it since."""
        record = await self.run(lambda: ref.segment.read(ref.start, ref.end))
        return None if record is None else record.body

    async def set_aside(self, ref: RecordRef, body: bytes | None, why: str) -> None:
        """Keep a record that cannot be replayed in the quarantine, and go on without it."""
        name = f"{ref.segment.path.stem}.{ref.start}"
        kept = await self.run(lambda: _raw(ref)) if body is None else body
        await self.run(lambda: self._folder.set_aside(name, kept, why))
        self.damaged += 1
        log.error("journal: record %d was quarantined as %s/%s: %s", ref.sequence, self._folder.aside, name, why)
        self.aside = (self.aside[0] + 1, self.aside[1] + len(kept))
        await self.finish([ref])

    async def close(self) -> None:
        if self._writer is not None:
            await asyncio.wait((self._writer,))
        self._thread.shutdown()
        self._folder.release()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do something that blocks, behind what was asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Writing

    def _put(self, kind: int, body: bytes) -> tuple[int, asyncio.Future[RecordRef | None]]:
        loop = asyncio.get_running_loop()
        write = _Write(kind, self._next, body, loop.create_future())
        self._next += 1
        self._waiting_bytes += len(body)
        self._writes.append(write)
        if self._writer is None:
            self._writer = loop.create_task(self._write_all())
        return write.sequence, write.written

    async def _write_all(self) -> None:
        while self._writes:
            group, self._writes = self._writes, []
            try:
                refs = await self.run(lambda group=group: self._write(group))  # type: ignore[misc]
            except OSError as error:
                self._refuse(group, error)
            else:
                self.healthy = True
                for write, ref in zip(group, refs, strict=True):
                    if not write.written.done():
                        write.written.set_result(ref)
            self._waiting_bytes -= sum(len(write.body) for write in group)
        self._writer = None

    def _write(self, group: list[_Write]) -> list[RecordRef | None]:
        segment = self._current()
        parts, refs, at = [], list[RecordRef | None](), segment.size
        for write in group:
            part = encode(segment.salt, write.kind, write.sequence, write.body)
            parts.append(part)
            refs.append(RecordRef(write.sequence, segment, at, at + len(part)) if write.kind == PUSH else None)
            at += len(part)
        segment.append(b"".join(parts))
        pushes = sum(ref is not None for ref in refs)
        segment.records += pushes
        segment.open_records += pushes
        self.syncs += 1
        return refs

    def _current(self) -> Segment:
        newest = self._segments[-1] if self._segments else None
        if newest is None or newest.is_full(self._bounds.records_per_file):
            newest = Segment.create(self._folder.path, newest.number + 1 if newest else 1)
            self._segments.append(newest)
        return newest

    def _refuse(self, group: list[_Write], error: OSError) -> None:
        log.error("journal: a record could not be written to disk: %s", error)
        self.healthy = False
        for write in group:
            self._open -= write.kind == PUSH
            if not write.written.done():
                write.written.set_exception(JournalFailed(f"the journal cannot be written: {error.strerror}"))

    def _remove(self, finished: Iterable[RecordRef] = ()) -> None:
        """Files go oldest first: the marks for a record are in its own file or in a later one."""
        for ref in finished:
            ref.segment.open_records -= 1
        while self._segments and not self._segments[0].open_records:
            self._segments[0].remove()
            del self._segments[0]
            sync_folder(self._folder.path)

    # Recovery

    def _recover(self) -> None:
        """Bodies are not kept: the replay reads them one by one."""
        done: set[int] = set()
        pushes: list[RecordRef] = []
        self._segments = self._folder.segments()
        for segment in self._segments:
            found = segment.recover()
            self._report(segment, found)
            for record in found.records:
                self._next = max(self._next, record.sequence + 1)
                if record.kind == DONE:
                    done.update(sequence for (sequence,) in _SEQUENCE.iter_unpack(record.body))
                else:
                    pushes.append(RecordRef(record.sequence, segment, record.start, record.end))
                    segment.records += 1
        self.recovered = [ref for ref in pushes if ref.sequence not in done]
        for ref in self.recovered:
            ref.segment.open_records += 1
        self._open = len(self.recovered)
        self._remove()

    def _report(self, segment: Segment, found: Recovered) -> None:
        self.torn_bytes += found.torn_bytes
        if found.torn_bytes:
            log.warning("journal: %d bytes of an incomplete record were cut off %s", found.torn_bytes, segment.path)
        for damage, data in found.damaged:
            self.damaged += 1
            why = "its bytes are damaged"
            if self._folder.set_aside(f"{segment.path.stem}.{damage.start}", data, why):
                log.error(
                    "journal: damaged bytes %d to %d of %s were quarantined", damage.start, damage.end, segment.path
                )


def _raw(ref: RecordRef) -> bytes:
    with ref.segment.path.open("rb") as file:
        file.seek(ref.start)
        return file.read(ref.end - ref.start)
