"""Pushes that are kept in the journal until the database takes them.

Knows which partitions have journalled messages: a push to one of them has to wait behind them. A partition is push
from the moment in which the first of its messages is put into the journal, before any other request can check.
With a key every record is encrypted as a whole, whatever its queues demand: during an outage nobody can ask them.

What the journals of processes that are gone have left is replayed from where it is. A record that cannot be stored for
now is parked, and with it what is behind it in its partitions; the others go on. A record that needs another key waits
for a start with that key, its partitions with it.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from pathlib import Path

from queenmq.clock import SYSTEM, Clock
from queenmq.core.message import Message
from queenmq.errors import DatabaseUnavailable, StartupError
from queenmq.ids import uuid7_text
from queenmq.journal.board import JournalBoard, JournalFigures
from queenmq.journal.files import JournalBounds, JournalFiles, RecordRef
from queenmq.journal.folder import JournalFolder, take_all
from queenmq.journal.interface import JournalledOperation
from queenmq.journal.pending import JournalledPush, PendingPushes
from queenmq.journal.push_records import Locked, Opened, Partition, RecordCodec, marks_of, partitions_of
from queenmq.journal.quarantine import QuarantineIndex

log = logging.getLogger(__name__)

_UNDECODABLE = "its bytes are as they were written, but they are no push"
UNKNOWN_KEY = "unknown"  # in records of versions that did not write which one
_DAMAGED = "its bytes are damaged"


class PushJournal:
    """`board` shows other processes of this server what is push."""

    def __init__(
        self,
        folder: Path,
        bounds: JournalBounds,
        keys: Sequence[bytes],
        board: JournalBoard | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._folder = folder
        self.bounds = bounds
        self._codec = RecordCodec(keys)
        self._has_key = bool(keys)
        self._board = board
        self._is_counted = False
        self._files: list[JournalFiles] = []  # the own ones first
        self._pending = PendingPushes(clock)
        self._quarantine = QuarantineIndex(folder, self._codec)
        self._past: Counter[str] = Counter()  # of journals that are let go
        self.replayed = 0
        self.replay_failures = 0
        self.failing = False

    async def open(self) -> None:
        """Recover what is there, also what processes that are gone have left. Raises StartupError."""
        try:
            for folder in take_all(self._folder):
                self._files.append(await JournalFiles.open(folder, self.bounds))
            recovered = [[one async for one in self._recover(files)] for files in self._files]
        except OSError as error:
            raise StartupError(f"the journal folder {self._folder} cannot be used: {error.strerror}") from None
        # The ids have the time in which a push was accepted; within a journal its own order counts.
        for _, push in heapq.merge(*recovered, key=lambda one: one[0]):
            self._add(push)
        self._count_anew()
        self._warn_of_locked()
        await self._let_go()

    async def close(self) -> None:
        for files in self._files:
            await files.close()
        self._files = []

    @property
    def own_files(self) -> JournalFiles:
        """The files that are written to."""
        if not self._files:
            raise RuntimeError("the journal is not open")
        return self._files[0]

    # Putting

    def holds(self, messages: Iterable[Message]) -> bool:
        """Whether any of their partitions has journalled messages."""
        pending = self._pending
        if not (pending.partitions or pending.locked):
            return False
        return pending.holds({(message.queue, message.partition) for message in messages})

    def holds_any(self, partitions: Iterable[Partition]) -> bool:
        return self._pending.holds(partitions)

    async def turn(self, partitions: Iterable[Partition], timeout_s: float) -> bool:
        """Return True when the partitions have no journalled messages any more, False if that takes too long."""
        return await self._pending.turn(partitions, timeout_s)

    async def require_turn(self, messages: Sequence[Message], timeout_s: float) -> None:
        """For what is never journalled: wait until nothing of its partitions is. Raises DatabaseUnavailable."""
        if self.holds(messages) and not await self.turn(partitions_of(messages), timeout_s):
            raise DatabaseUnavailable("database connection is catching up after an outage (ECONNREFUSED)")

    async def put(self, messages: Sequence[Message], operation_id: str | None = None) -> tuple[str, int]:
        """Journal a push; returns when it is on disk, with the id of its operation and the number of those before it.

        The partitions are push before this first waits. Raises Overloaded or JournalFailed, and then nothing is kept.
        What is put again with the same id is there once.
        """
        known = None if operation_id is None else self._pending.by_id.get(operation_id)
        if known is not None:
            if known.written is not None:
                await asyncio.shield(known.written)
            return known.operation_id, 0
        ahead = self.pending
        operation_id = operation_id or uuid7_text()
        partitions = partitions_of(messages)
        marks = marks_of(partitions)
        _, written = self.own_files.append(self._codec.seal(operation_id, messages, marks))
        push = JournalledPush(
            operation_id=operation_id,
            count=len(messages),
            partitions=partitions,
            marks=marks,
            files=self.own_files,
            written=written,
            queues=_queues(messages),
        )
        self._add(push)
        # In a callback, because a caller who goes away must not leave a record that nobody knows of.
        written.add_done_callback(lambda done: self._written(push, done))
        await asyncio.shield(written)
        return operation_id, ahead

    def _written(self, push: JournalledPush, done: asyncio.Future[RecordRef | None]) -> None:
        push.written = None
        if done.exception() is None:
            push.ref = done.result()
        else:
            self._remove(push)

    def _add(self, push: JournalledPush) -> None:
        self._pending.add(push)
        self._count(push, 1)

    def _remove(self, push: JournalledPush) -> None:
        if self._pending.remove(push):
            self._count(push, -1)

    # Replaying

    @property
    def pending(self) -> int:
        """Pushes that are not replayed yet."""
        return len(self._pending)

    @property
    def messages(self) -> int:
        return self._pending.messages

    @property
    def has_failed(self) -> bool:
        """Whether something is parked because it could not be stored."""
        return any(push.tries for push in self._pending.parked.values())

    async def held_in(self, queue: str, partition: str | None) -> dict[str, int]:
        """How many journalled pushes a queue has, by partition; or only those of one partition."""
        return self._pending.count_in(queue, partition)

    def messages_of(self, queue: str) -> int:
        """How many journalled messages a queue has, as far as is known without the keys of others."""
        return self._pending.messages_of[queue]

    async def find(self, operation_id: str) -> JournalledOperation | None:
        push = self._pending.by_id.get(operation_id)
        if push is None:
            return None
        queue, partition = push.partitions[0] if push.partitions else ("", "")
        return JournalledOperation(operation_id, queue, partition, push.count)

    async def find_quarantined(self, operation_id: str) -> JournalledOperation | None:
        return await self.own_files.run(lambda: self._quarantine.find(operation_id))

    async def oldest(self, most: int, most_messages: int) -> list[tuple[JournalledPush, list[Message]]]:
        """The next pushes to replay, in order. What cannot be read any more is set aside on the way.

        What is behind a push that is parked, or waits for its key, is parked, too. What has failed before comes alone.
        """
        found: list[tuple[JournalledPush, list[Message]]] = []
        count = 0
        while not found and self._pending.line:
            for push in list(islice(self._pending.line.values(), most)):
                if push.ref is None or (found and (push.tries or count + push.count > most_messages)):
                    return found
                if self._pending.park_if_behind(push):
                    continue
                messages = await self._read(push, push.ref)
                if messages is not None:
                    found.append((push, messages))
                    count += push.count
                if push.tries:
                    break
        return found

    def park(self, push: JournalledPush, until: float) -> None:
        """It cannot be stored for now: leave it, and all that is behind it, until that time."""
        push.tries += 1
        self._pending.park(push, until)

    def unpark(self, now: float) -> bool:
        """Try what is due again, in its ref, and what may be behind it. False if nothing is due."""
        return self._pending.unpark(now)

    async def finish(self, replayed: Sequence[JournalledPush]) -> None:
        """The database has them. Pushes that wait behind them may go on."""
        for files in self._files:
            refs = [push.ref for push in replayed if push.files is files and push.ref is not None]
            if refs:
                await files.finish(refs)
        for push in replayed:
            self.replayed += push.count
            self._remove(push)

    async def set_aside(self, push: JournalledPush, why: str) -> None:
        """The database will never take it: keep it in the quarantine and go on."""
        if push.ref is not None:
            await push.files.set_aside(push.ref, await push.files.read(push.ref), why)
        self._remove(push)

    async def _read(self, push: JournalledPush, ref: RecordRef) -> list[Message] | None:
        body = await push.files.read(ref)
        opened = None if body is None else self._codec.open(body)
        if isinstance(opened, Opened):
            return opened.messages
        await push.files.set_aside(ref, body, _DAMAGED if body is None else _UNDECODABLE)
        self._remove(push)
        return None

    # Recovery

    async def _recover(self, files: JournalFiles) -> AsyncIterator[tuple[str, JournalledPush]]:
        """What is not replayed, each with the id that says when it was accepted."""
        accepted = ""
        for ref in files.recovered:
            push = await self._recovered(files, ref, await files.read(ref))
            if push is not None:
                # Of some nothing is known, not even when they were accepted: right after the one before them.
                accepted = push.operation_id or accepted
                yield accepted, push

    async def _recovered(self, files: JournalFiles, ref: RecordRef, body: bytes | None) -> JournalledPush | None:
        found = None if body is None else self._codec.open(body)
        if isinstance(found, Opened):
            partitions = partitions_of(found.messages)
            return JournalledPush(
                operation_id=found.operation_id,
                count=len(found.messages),
                partitions=partitions,
                marks=marks_of(partitions),
                files=files,
                ref=ref,
                queues=_queues(found.messages),
            )
        if isinstance(found, Locked):
            return JournalledPush(
                operation_id=found.operation_id,
                count=found.messages,
                partitions=(),
                marks=found.marks,
                files=files,
                ref=ref,
                needs_key=found.key_id,
            )
        await files.set_aside(ref, body, _DAMAGED if body is None else _UNDECODABLE)
        return None

    def _warn_of_locked(self) -> None:
        if not self._pending.locked:
            return
        keys = sorted({push.needs_key or UNKNOWN_KEY for push in self._pending.locked})
        log.error(
            "journal: %d accepted pushes (%d messages) wait for the key with which they were encrypted, and later "
            "pushes to their partitions wait behind them; QUEEN_ENCRYPTION_KEY is %s: start the server with the key "
            "whose fingerprint is %s, or give them up with `queen journal give-up` if it is lost",
            len(self._pending.locked),
            sum(push.count for push in self._pending.locked),
            f"another one ({self._codec.key_id})" if self._has_key else "not set",
            " or ".join(keys),
        )

    # The quarantine

    async def take_back(self) -> None:
        """Journal again, behind everything, what a person wants to have replayed after all; and read the quarantine.

        Raises Overloaded or JournalFailed; what is not journalled by then stays where it is.
        """
        for files in self._files:
            if lost := await files.run(files.folder.given_up):
                await self._give_up(files, lost)
            for path in await files.run(files.folder.to_retry):
                await self._take_back(files.folder, path)
            await files.look_aside()
        await self._let_go()

    async def _let_go(self) -> None:
        """Journals that others have left and that are empty are free for the server that starts next."""
        for files in self._files[1:]:
            if not files.open_records and not files.size and not files.aside[0]:
                self._files.remove(files)
                self._past.update(syncs=files.syncs, damaged=files.damaged, torn_bytes=files.torn_bytes)
                await files.close()

    async def _give_up(self, files: JournalFiles, keys: Sequence[str]) -> None:
        """Set aside what waits for these keys, or failed and has one of these ids; and let go on what is behind it."""
        for push in [one for one in self._pending.parked.values() if one.tries and one.operation_id in keys]:
            if push.files is files:
                await self.set_aside(push, "it could not be stored, and was given up")
                self._pending.try_behind()
        for push in [
            one for one in self._pending.locked if one.files is files and (one.needs_key or UNKNOWN_KEY) in keys
        ]:
            if push.ref is not None:
                why = f"it needs the key with the fingerprint {push.needs_key or UNKNOWN_KEY}, which was given up"
                await files.set_aside(push.ref, await files.read(push.ref), why)
            self._pending.remove_locked(push)
            self._count_anew()
        await files.run(files.folder.forget_given_up)

    async def _take_back(self, folder: JournalFolder, path: Path) -> None:
        own = self.own_files
        body = await own.run(path.read_bytes)
        opened = self._codec.open(body)
        if not isinstance(opened, Opened):
            log.error(
                "journal: %s cannot be replayed: it is damaged, or needs another key; it stays in the quarantine", path
            )
            await own.run(lambda: path.rename(folder.aside / path.name))
            return
        if opened.operation_id not in self._pending.by_id:
            await self.put(opened.messages, opened.operation_id)
            log.info("journal: %s is replayed again, as operation %s", path.name, opened.operation_id)
        await own.run(lambda: path.unlink(missing_ok=True))
        await own.run(lambda: folder.forget_why(path.name))

    # What others see

    def figures(self) -> JournalFigures:
        all_files = self._files
        return JournalFigures(
            operations=self.pending,
            messages=self.messages,
            partitions=len(self._pending.partitions) + len(self._pending.locked_marks),
            bytes=sum(files.size for files in all_files),
            replayed_messages=self.replayed,
            syncs=self._past["syncs"] + sum(files.syncs for files in all_files),
            damaged=self._past["damaged"] + sum(files.damaged for files in all_files),
            torn_bytes=self._past["torn_bytes"] + sum(files.torn_bytes for files in all_files),
            healthy=int(all(files.healthy for files in all_files)),
            quarantined=sum(files.aside[0] for files in all_files),
            quarantined_bytes=sum(files.aside[1] for files in all_files),
            stuck=len(self._pending.parked),
            waiting_for_key=len(self._pending.locked),
            replay_failures=self.replay_failures,
            failing=int(self.failing),
        )

    def publish(self) -> None:
        """Let the other processes see the figures."""
        if self._board is not None:
            self._board.publish(self.figures())

    def _count(self, push: JournalledPush, change: int) -> None:
        # What was counted by a process before this one stays until all is recovered.
        if self._board is not None and self._is_counted:
            self._board.add(push.marks or (), change)
            self.publish()

    def _count_anew(self) -> None:
        self._is_counted = True
        if self._board is not None:
            self._board.reset([push.marks or () for push in self._pending], self._pending.locked_all is not None)
            self.publish()


def _queues(messages: Iterable[Message]) -> dict[str, int]:
    return dict(Counter(message.queue for message in messages))
