"""The progress of a stream as Spark keeps it in its checkpoint: a queue and a position for each of its partitions.
Pure.

A position is the last offset that was read. Beside the positions stand the newest record of a dropped partition that
was read, and the ids of a few messages that were read last: in a database that was restored from an older copy,
other messages have their offsets. Few partitions are a readable map of partition numbers; many are packed:
numbers and positions as differences in 7-bit groups, deflated, so that a hundred thousand partitions are a text of
some hundred kilobytes.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from queenmq.pipeline.errors import PipelineError

READABLE: Final = 200


class Read(NamedTuple):
    """A message that was read: where it was, which it was, and when it had come (microseconds since 1970)."""

    number: int
    offset: int
    id: str
    at: int


@dataclass(slots=True)
class Progress:
    queue_id: str
    positions: dict[int, int] = field(default_factory=dict)
    dropped: int | None = None  # None: written by a version that kept no records of dropped partitions
    newest: tuple[Read, ...] = ()

    def document(self) -> dict[str, Any]:
        """What Spark stores; equal progress makes an equal document."""
        made: dict[str, Any] = {"queue": self.queue_id}
        if len(self.positions) <= READABLE:
            made["offsets"] = {str(n): self.positions[n] for n in sorted(self.positions)}
        else:
            made["packed"] = pack(self.positions)
        if self.dropped is not None:
            made["dropped"] = self.dropped
        if self.newest:
            made["newest"] = [list(one) for one in self.newest]
        return made

    @classmethod
    def of(cls, document: dict[str, Any]) -> Progress:
        """Raises PipelineError for a document that this version cannot read."""
        try:
            if "packed" in document:
                positions = unpack(document["packed"])
            else:
                positions = {int(n): int(at) for n, at in document["offsets"].items()}
            newest = tuple(Read(int(n), int(at), str(key), int(us)) for n, at, key, us in document.get("newest", ()))
            return cls(document["queue"], positions, document.get("dropped"), newest)
        except (KeyError, ValueError, TypeError, AttributeError, zlib.error):
            raise PipelineError("the checkpoint holds progress that this version of Queen cannot read") from None


def pack(positions: dict[int, int]) -> str:
    """Numbers ascending as differences, then the positions in the same order."""
    numbers = sorted(positions)
    raw = bytearray()
    _add(raw, len(numbers))
    before = 0
    for number in numbers:
        _add(raw, number - before)
        before = number
    for number in numbers:
        _add(raw, positions[number])
    return b64encode(zlib.compress(bytes(raw), 1)).decode()


def unpack(text: str) -> dict[int, int]:
    values = _values(zlib.decompress(b64decode(text, validate=True)))
    count = values[0]
    if len(values) != 1 + 2 * count:
        raise ValueError("the packed positions are cut off")
    numbers, number = [], 0
    for step in values[1 : count + 1]:
        number += step
        numbers.append(number)
    return dict(zip(numbers, values[count + 1 :], strict=True))


def _add(raw: bytearray, value: int) -> None:
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    raw.append(value)


def _values(raw: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in raw:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
        else:
            values.append(value)
            value = shift = 0
    return values
