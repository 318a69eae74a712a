"""The records of a journal file: bytes in, records out. No I/O.

A record is a header and a body. The header has the length of the body and a checksum of it, and ends with a checksum
of itself, so that damage in one record never hides the next one. Both checksums are keyed with the salt of the file:
a body that resembles a record, by chance or on purpose, is never taken for one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"QnJ1"
SALT_BYTES: Final = 16
_DIGEST_BYTES: Final = 8
_FIELDS: Final = struct.Struct("<4sBxxxQI8s")  # magic, kind, sequence, length of the body, checksum of the body
HEADER_BYTES: Final = _FIELDS.size + _DIGEST_BYTES
MAX_BODY_BYTES: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Record:
    start: int
    end: int
    kind: int
    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Damaged:
    """These bytes were a record once, or several."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Torn:
    """From here to the end: a record whose writing was cut short."""

    start: int


def encode(salt: bytes, kind: int, sequence: int, body: bytes) -> bytes:
    fields = _FIELDS.pack(MAGIC, kind, sequence, len(body), _digest(salt, body))
    return fields + _digest(salt, fields) + body


def scan(salt: bytes, data: bytes) -> Iterator[Record | Damaged | Torn]:
    """Everything in a file, in order and without gaps."""
    position = 0
    while position < len(data):
        if len(data) - position < HEADER_BYTES:
            yield Torn(position)
            return
        length = _body_length(salt, data, position)
        if length is None:
            after = _next_header(salt, data, position + 1)
            yield Damaged(position, after)
            position = after
            continue
        end = position + HEADER_BYTES + length
        if end > len(data):
            yield Torn(position)
            return
        yield _record(salt, data, position, end) or Damaged(position, end)
        position = end


def read(salt: bytes, data: bytes) -> Record | None:
    """The one record that `data` is; None if it is damaged."""
    if len(data) < HEADER_BYTES or _body_length(salt, data, 0) != len(data) - HEADER_BYTES:
        return None
    return _record(salt, data, 0, len(data))


def _record(salt: bytes, data: bytes, start: int, end: int) -> Record | None:
    _, kind, sequence, _, digest = _FIELDS.unpack_from(data, start)
    body = data[start + HEADER_BYTES : end]
    return Record(start, end, kind, sequence, body) if _digest(salt, body) == digest else None


def _body_length(salt: bytes, data: bytes, position: int) -> int | None:
    """What the header says; None if it is none."""
    fields = data[position : position + _FIELDS.size]
    if not fields.startswith(MAGIC):
        return None
    if _digest(salt, fields) != data[position + _FIELDS.size : position + HEADER_BYTES]:
        return None
    length: int = _FIELDS.unpack(fields)[3]
    return length


def _next_header(salt: bytes, data: bytes, position: int) -> int:
    """Where the next record begins; the end of the data if there is none."""
    while (position := data.find(MAGIC, position)) >= 0:
        if len(data) - position >= HEADER_BYTES and _body_length(salt, data, position) is not None:
            return position
        position += 1
    return len(data)


def _digest(salt: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=salt, digest_size=_DIGEST_BYTES).digest()
