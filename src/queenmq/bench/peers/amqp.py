"""As much of AMQP 0-9-1 as a load generator needs: publish with confirms, consume, acknowledge. No I/O in here."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

GREETING: Final = b"AMQP\x00\x00\x09\x01"
END: Final = b"\xce"
FRAME_BYTES: Final = 131_072

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3

START: Final = (10, 10)
TUNE: Final = (10, 30)
OPEN_OK: Final = (10, 41)
CONNECTION_CLOSE: Final = (10, 50)
CHANNEL_OPEN_OK: Final = (20, 11)
CHANNEL_CLOSE: Final = (20, 40)
DECLARE_OK: Final = (50, 11)
QOS_OK: Final = (60, 11)
CONSUME_OK: Final = (60, 21)
DELIVER: Final = (60, 60)
ACK: Final = (60, 80)
NACK: Final = (60, 120)
SELECT_OK: Final = (85, 11)

# Delivery mode and message id, persistent.
_PROPERTIES: Final = 0x1000 | 0x0080
_HEADERS: Final = 0x2000
_PERSISTENT: Final = b"\x02"
_NO_TABLE: Final = b"\x00\x00\x00\x00"
_DURABLE: Final = b"\x02"
_NO_ACK: Final = b"\x02"


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes

    @property
    def method(self) -> tuple[int, int]:
        return struct.unpack_from(">HH", self.payload)


def frames(buffer: bytearray) -> Iterator[Frame]:
    """Take the complete frames off the front of the buffer."""
    start = 0
    while len(buffer) - start >= 8:
        kind, channel, size = struct.unpack_from(">BHI", buffer, start)
        if len(buffer) - start < size + 8:
            break
        yield Frame(kind, channel, bytes(buffer[start + 7 : start + 7 + size]))
        start += size + 8
    del buffer[:start]


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def _method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return _frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def short_text(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def _long_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">I", len(raw)) + raw


def _table(entries: dict[str, str]) -> bytes:
    raw = b"".join(short_text(key) + b"S" + _long_text(value) for key, value in entries.items())
    return struct.pack(">I", len(raw)) + raw


def start_ok() -> bytes:
    return _method(0, 10, 11, _NO_TABLE + short_text("PLAIN") + _long_text("\0guest\0guest") + short_text("en_US"))


def tune_ok() -> bytes:
    """One channel and no heartbeats."""
    return _method(0, 10, 31, struct.pack(">HIH", 1, FRAME_BYTES, 0)) + _method(0, 10, 40, short_text("/") + b"\0\0")


def channel_open() -> bytes:
    return _method(1, 20, 10, b"\0")


def declare_quorum(queue: str) -> bytes:
    return _method(1, 50, 10, b"\0\0" + short_text(queue) + _DURABLE + _table({"x-queue-type": "quorum"}))


def confirm_select() -> bytes:
    return _method(1, 85, 10, b"\0")


def qos(prefetch: int) -> bytes:
    return _method(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0))


def consume(queue: str, no_ack: bool) -> bytes:
    return _method(1, 60, 20, b"\0\0" + short_text(queue) + b"\0" + (_NO_ACK if no_ack else b"\0") + _NO_TABLE)


def publish(queue: str, message_id: str, body: bytes) -> bytes:
    properties = _PERSISTENT + short_text(message_id)
    return (
        _method(1, 60, 40, b"\0\0" + short_text("") + short_text(queue) + b"\0")
        + _frame(HEADER, 1, struct.pack(">HHQH", 60, 0, len(body), _PROPERTIES) + properties)
        + _frame(BODY, 1, body)
    )


def acknowledge(tag: int) -> bytes:
    """Everything up to the tag."""
    return _method(1, 60, 80, struct.pack(">QB", tag, 1))


def tag_of(frame: Frame) -> tuple[int, bool]:
    """Of an ack: the tag, and whether it stands for everything before it too."""
    tag, bits = struct.unpack_from(">QB", frame.payload, 4)
    return tag, bool(bits & 1)


def delivery_tag(frame: Frame) -> int:
    """Of a delivery; the name of the consumer stands before it."""
    tag: int = struct.unpack_from(">Q", frame.payload, 5 + frame.payload[4])[0]
    return tag


def message_id(frame: Frame) -> str:
    """Of a header as we wrote it: delivery mode, then the id. What was given back has headers of the broker before."""
    (flags,) = struct.unpack_from(">H", frame.payload, 12)
    start = 15
    if flags & _HEADERS:
        start += 4 + int(struct.unpack_from(">I", frame.payload, 14)[0])
    length = frame.payload[start]
    return frame.payload[start + 1 : start + 1 + length].decode()


def close_reason(frame: Frame) -> str:
    code, length = struct.unpack_from(">HB", frame.payload, 4)
    return f"{code} {frame.payload[7 : 7 + length].decode(errors='replace')}"
