"""Encrypting stored payloads anew: those of previous keys, and those that are bound to no message.

A pass walks through queued pushes, timers, dead letters and messages, in steps of their keys. Each step is short
statements of its own, and a payload is replaced by one that decrypts to the same: servers go on meanwhile.

Meanwhile a payload can also come to a place that the pass has left already: a queued push is stored, a dead letter is
redriven. It stays in its partition, and comes to the end of it. So nothing is left when a whole pass has found nothing
to replace, nothing was waiting before it that becomes messages, and no partition had such dead letters at the moment
when the pass came to its end. The passes are repeated until one is like that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from queenmq.core.encryption import DecryptionFailed, PayloadKeys, Place, place_of_timer
from queenmq.storage.statements import statement

if TYPE_CHECKING:
    from queenmq.storage.database import Database

MOST_BYTES: Final = 8 * 1024 * 1024
MOST_NAMED: Final = 10
MOST_TIMERS: Final = 20
MOST_PASSES: Final = 10
FIRST: Final = "00000000-0000-0000-0000-000000000000"


@dataclass(kw_only=True)
class Progress:
    """How far it has come. `partition` and `offset` are of the last message that the first pass has examined, and
    `examined` counts what it has examined; `checked` counts that of the passes after it."""

    partition: str = FIRST
    offset: int = -1
    examined: int = 0
    checked: int = 0
    replaced: int = 0
    letters_replaced: int = 0
    timers_replaced: int = 0
    pushes_replaced: int = 0
    unreadable: int = 0
    named: list[str] = field(default_factory=list)
    waiting_pushes: int = 0
    """Pushes of the operation queue with payloads of other keys, which a server just stores."""
    waiting_rows: int = 0
    """Rows with payloads of other keys that pipelines have staged."""
    complete: bool = False
    """Nothing is left that needs another key."""

    @property
    def place(self) -> str:
        return f"{self.partition}:{self.offset}"


class Reencryption:
    def __init__(self, database: Database, keys: PayloadKeys, step: int, progress: Progress) -> None:
        self._database = database
        self._keys = keys
        self._step = step
        self._found = 0
        self.progress = progress

    async def run(self, advance: Callable[[float], None]) -> None:
        """Pass after pass, until one shows that nothing is left, or nothing more can be done now."""
        done = self.progress
        is_whole = (done.partition, done.offset) == (FIRST, -1)
        for number in range(MOST_PASSES):
            self._found, done.unreadable, done.named = 0, 0, []
            seen = _Count(advance)
            try:
                letters = await self._pass(seen, first=number == 0)
            finally:
                if number == 0:
                    done.examined = seen.total
                else:
                    done.checked += seen.total
            left = done.waiting_pushes + done.waiting_rows + done.unreadable
            if is_whole and not self._found and (left or not letters):
                await self._count_waiting()  # a server that still has the other key as its first one makes more
                done.complete = left + done.waiting_pushes + done.waiting_rows == 0
                return
            is_whole = True

    async def _pass(self, advance: Callable[[int], None], *, first: bool) -> bool:
        """Whether there were dead letters to encrypt anew when the pass came to the end of their partitions."""
        await self._all_pushes(advance)
        await self._all_timers(advance)
        await self._count_waiting()
        await self._all_letters(advance)
        done = self.progress
        partition, offset = (done.partition, done.offset) if first else (FIRST, -1)
        letters = False
        while True:
            row = await self._database.fetchrow(
                statement("messages_to_reencrypt"), partition, offset, self._step, self._keys.beginning
            )
            if row is None:
                raise AssertionError("messages_to_reencrypt returned no row")
            letters = letters or row["letters"]
            if not row["examined"]:
                return letters
            await self._messages(row)
            partition, offset = str(row["last_partition"]), row["last_offset"]
            if first:
                done.partition, done.offset = partition, offset
            advance(row["examined"])

    async def _count_waiting(self) -> None:
        row = await self._database.fetchrow(statement("waiting_to_reencrypt"), self._keys.beginning)
        if row is None:
            raise AssertionError("waiting_to_reencrypt returned no row")
        self.progress.waiting_pushes, self.progress.waiting_rows = row["pushes"], row["staged"]

    async def _messages(self, row: Any) -> None:
        for first, last in _pieces(row["sizes"]):
            found = await self._database.fetch(
                statement("encrypted_payloads"), row["partition_ids"][first:last], row["offsets"][first:last]
            )
            anew = [(one, sealed) for one in found if (sealed := self._anew(one, f"offset {one['offset']}"))]
            if anew:
                changed = await self._database.fetch(
                    statement("replace_payloads"),
                    [one["partition_id"] for one, _ in anew],
                    [one["offset"] for one, _ in anew],
                    [one["transaction_id"] for one, _ in anew],
                    [sealed for _, sealed in anew],
                )
                self.progress.replaced += len(changed)

    async def _all_letters(self, advance: Callable[[int], None]) -> None:
        after = FIRST
        while True:
            row = await self._database.fetchrow(
                statement("letters_to_reencrypt"), after, self._step, self._keys.beginning
            )
            if row is None or not row["examined"]:
                return
            for first, last in _pieces(row["sizes"]):
                await self._letters(row["ids"][first:last])
            after = str(row["last_id"])
            advance(row["examined"])

    async def _letters(self, ids: Sequence[Any]) -> None:
        found = await self._database.fetch(statement("encrypted_letters"), ids)
        anew = [(one, sealed) for one in found if (sealed := self._anew(one, "a dead letter"))]
        if anew:
            changed = await self._database.fetch(
                statement("replace_letters"),
                [one["id"] for one, _ in anew],
                [one["transaction_id"] for one, _ in anew],
                [sealed for _, sealed in anew],
            )
            self.progress.letters_replaced += len(changed)

    async def _all_timers(self, advance: Callable[[int], None]) -> None:
        last = ("", "")
        while found := await self._database.fetch(
            statement("timers_to_reencrypt"), *last, self._keys.beginning, MOST_TIMERS
        ):
            await self._timers(found)
            last = found[-1]["queue_name"], found[-1]["key"]
            advance(len(found))

    async def _timers(self, found: Sequence[Any]) -> None:
        anew = []
        for one in found:
            place = place_of_timer(one["queue_name"], one["partition_name"], one["key"])
            if sealed := self._sealed(one["payload"], place, f"timer {one['key']}"):
                anew.append((one, sealed))
        changed = await self._database.fetch(
            statement("replace_timer_payloads"),
            [one["queue_name"] for one, _ in anew],
            [one["key"] for one, _ in anew],
            [one["created_at"] for one, _ in anew],
            [sealed for _, sealed in anew],
        )
        self.progress.timers_replaced += len(changed)

    async def _all_pushes(self, advance: Callable[[int], None]) -> None:
        after = FIRST
        while row := await self._database.fetchrow(statement("queued_to_reencrypt"), after, self._keys.beginning):
            after = str(row["id"])
            stored = zip(row["transaction_ids"], row["payloads"], row["encrypted"], strict=True)
            sealed = [
                (self._sealed_queued(row, transaction, payload) if is_encrypted else None) or payload
                for transaction, payload, is_encrypted in stored
            ]
            if sealed != row["payloads"]:
                changed = await self._database.fetch(statement("replace_queued_payloads"), row["id"], sealed)
                self.progress.pushes_replaced += len(changed)
            advance(1)

    def _sealed_queued(self, row: Any, transaction: str, payload: bytes) -> bytes | None:
        place = Place(row["queue_name"], row["partition_name"], transaction)
        return self._sealed(payload, place, f"operation {row['id']}")

    def _anew(self, row: Any, which: str) -> bytes | None:
        return self._sealed(row["payload"], Place(row["queue"], row["partition"], row["transaction_id"]), which)

    def _sealed(self, stored: bytes, place: Place, which: str) -> bytes | None:
        """None if none of the keys decrypts it: then it stays as it is, and is named."""
        try:
            sealed = self._keys.encrypt(self._keys.decrypt(stored, place), place)
        except DecryptionFailed as error:
            self.progress.unreadable += 1
            if len(self.progress.named) < MOST_NAMED:
                self.progress.named.append(f"{place.queue}/{place.partition}, {which}: {error.message}")
            return None
        self._found += 1
        return sealed


class _Count:
    """Tells what is examined on, and counts it."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._advance = advance
        self.total = 0

    def __call__(self, examined: int) -> None:
        self.total += examined
        self._advance(examined)


def _pieces(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Spans of what is to be done, each of so many bytes that they fit into memory well; at least one payload each."""
    first, total = 0, 0
    for index, size in enumerate(sizes):
        if index > first and total + size > MOST_BYTES:
            yield first, index
            first, total = index, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)
