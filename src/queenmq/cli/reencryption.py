"""Encrypting stored payloads anew: those of previous keys, and those that are bound to no message.

Walks through the messages, the dead letters and the timers, in steps of their keys. Each step is short statements of
its own, and a payload is replaced by one that decrypts to the same: servers go on meanwhile, and a walk that was
interrupted may begin anywhere, because what is done is passed over.
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
FIRST: Final = "00000000-0000-0000-0000-000000000000"


@dataclass(kw_only=True)
class Progress:
    """How far a walk has come. `partition` and `offset` are of the last message that was examined."""

    partition: str = FIRST
    offset: int = -1
    examined: int = 0
    replaced: int = 0
    letters_replaced: int = 0
    timers_replaced: int = 0
    unreadable: int = 0
    named: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        return f"{self.partition}:{self.offset}"


class Reencryption:
    def __init__(self, database: Database, keys: PayloadKeys, step: int, progress: Progress) -> None:
        self._database = database
        self._keys = keys
        self._step = step
        self.progress = progress

    async def run(self, advance: Callable[[float], None]) -> int:
        """Walk to the end. Returns how many pushes of the operation queue still have payloads of other keys."""
        beginning = self._keys.beginning
        while examined := await self._messages():
            advance(examined)
        after = FIRST
        while True:
            after, examined = await self._letters(after)
            if not examined:
                break
            advance(examined)
        last = ("", "")
        while found := await self._database.fetch(statement("timers_to_reencrypt"), *last, beginning, MOST_TIMERS):
            await self._timers(found)
            last = found[-1]["queue_name"], found[-1]["key"]
        waiting: int = await self._database.fetchval(statement("operations_to_reencrypt"), beginning)
        return waiting

    async def _messages(self) -> int:
        done = self.progress
        row = await self._database.fetchrow(
            statement("messages_to_reencrypt"), done.partition, done.offset, self._step, self._keys.beginning
        )
        if row is None or not row["examined"]:
            return 0
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
                done.replaced += len(changed)
        done.partition, done.offset = str(row["last_partition"]), row["last_offset"]
        done.examined += row["examined"]
        return int(row["examined"])

    async def _letters(self, after: str) -> tuple[str, int]:
        row = await self._database.fetchrow(statement("letters_to_reencrypt"), after, self._step, self._keys.beginning)
        if row is None or not row["examined"]:
            return after, 0
        for first, last in _pieces(row["sizes"]):
            found = await self._database.fetch(statement("encrypted_letters"), row["ids"][first:last])
            anew = [(one, sealed) for one in found if (sealed := self._anew(one, "a dead letter"))]
            if anew:
                changed = await self._database.fetch(
                    statement("replace_letters"),
                    [one["id"] for one, _ in anew],
                    [one["transaction_id"] for one, _ in anew],
                    [sealed for _, sealed in anew],
                )
                self.progress.letters_replaced += len(changed)
        self.progress.examined += row["examined"]
        return str(row["last_id"]), int(row["examined"])

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
        self.progress.examined += len(found)

    def _anew(self, row: Any, which: str) -> bytes | None:
        return self._sealed(row["payload"], Place(row["queue"], row["partition"], row["transaction_id"]), which)

    def _sealed(self, stored: bytes, place: Place, which: str) -> bytes | None:
        """None if none of the keys decrypts it: then it stays as it is, and is named."""
        try:
            return self._keys.encrypt(self._keys.decrypt(stored, place), place)
        except DecryptionFailed as error:
            self.progress.unreadable += 1
            if len(self.progress.named) < MOST_NAMED:
                self.progress.named.append(f"{place.queue}/{place.partition}, {which}: {error.message}")
            return None


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
