"""Identifiers: RFC 9562 version 7 UUIDs, strictly increasing within a process."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import threading
from uuid import UUID

from queenmq.clock import SYSTEM, Clock

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_RANDOM_BITS = 62
_COUNTER_BITS = 12
_COUNTER = (1 << _COUNTER_BITS) - 1
_STOCK = 512
_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62


class Uuid7Source:
    """Makes version 7 UUIDs: 48 bits of milliseconds, a 12-bit counter, 62 random bits.

    Within one source every value is greater than the one before, also when the clock stands still or
    steps back: then the counter goes on, and when it is used up the millisecond is borrowed from the future.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self._millisecond = -1
        self._prefix = ""  # of the texts of that millisecond
        self._stock: list[int] = []

    def next(self) -> UUID:
        return UUID(int=self.next_int())

    def next_text(self) -> str:
        """The canonical form. Made of two halves: arithmetic with 128 bits takes several times as long."""
        with self._lock:
            stamp, rest = self._draw()
            millisecond = stamp >> _COUNTER_BITS
            if millisecond != self._millisecond:
                self._millisecond = millisecond
                self._prefix = f"{millisecond >> 16:08x}-{millisecond & 0xFFFF:04x}-7"
            prefix = self._prefix
        digits = f"{rest:016x}"
        return f"{prefix}{stamp & _COUNTER:03x}-{digits[:4]}-{digits[4:]}"

    def next_int(self) -> int:
        with self._lock:
            stamp, rest = self._draw()
        return (stamp >> _COUNTER_BITS) << 80 | _VERSION | (stamp & _COUNTER) << 64 | rest

    def forget_stock(self) -> None:
        self._stock.clear()

    def _draw(self) -> tuple[int, int]:
        """Milliseconds and counter, and the half with the variant and the random bits. Under the lock."""
        self._last = stamp = max(self._last + 1, int(self._clock.wall() * 1000) << _COUNTER_BITS)
        if not self._stock:
            # The system's source is asked only once for many.
            self._stock.extend(struct.unpack(f"<{_STOCK}Q", os.urandom(_STOCK * 8)))
        return stamp, _VARIANT | self._stock.pop() >> (64 - _RANDOM_BITS)


_source = Uuid7Source()
os.register_at_fork(after_in_child=_source.forget_stock)  # a child must not draw the same numbers


def uuid7() -> UUID:
    return _source.next()


def uuid7_text() -> str:
    return _source.next_text()


def lease_for(tag: str) -> str:
    """The id of a lease of the consumer with this tag, 32 bits in hexadecimal: a version 8 UUID of 48 bits of
    milliseconds, the tag, and 42 random bits. Without a tag a version 7 UUID.

    So the database knows whose lease it is, and since when, and no row has to say it.
    """
    text = _source.next_text()
    return f"{text[:14]}8{tag[:3]}-{text[19]}{tag[3:6]}-{tag[6:]}{text[26:]}" if tag else text


def uuid7_for(origin: str, name: str) -> str:
    """The id of a part of something that has the version 7 UUID `origin`: the same on every server, and as old."""
    digest = int.from_bytes(hashlib.sha256(f"{origin} {name}".encode()).digest()[:16])
    milliseconds = int(origin[:8] + origin[9:13], 16)
    return _text(
        milliseconds << 80 | _VERSION | (digest >> 64 & _COUNTER) << 64 | _VARIANT | digest & (1 << _RANDOM_BITS) - 1
    )


def _text(number: int) -> str:
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def is_uuid(text: str) -> bool:
    """True for the canonical 36-character form, in either case."""
    return _UUID.fullmatch(text) is not None
