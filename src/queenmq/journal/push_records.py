"""A journalled push as bytes, and back: encoded, and encrypted as a whole if there is a key. No I/O.

What is encrypted has a header in clear that says which key it needs, and which partitions it is about (as marks, from
which no name can be read): so a server without that key can let the record wait, and with it only its partitions.
"""

from __future__ import annotations

import hashlib
import os
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenmq.core.message import Message

Partition = tuple[str, str]
# Of a message, in the order in which they are written.
MessageFields = tuple[str, str, bytes, str, str, str | None, str | None]

MARK_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_CLEAR: Final = 0
_SEALED_BLINDLY: Final = 1  # until 1.0: nothing is known of such a record without its key
_SEALED: Final = 2
_HEADER: Final = struct.Struct("<B8s16sII")  # kind, id of the key, id of the operation, messages, marks


class JournalledPush(msgspec.Struct, array_like=True):
    """A request in the journal. `headers` has those of each message, and is empty if none has any; an older version
    does not read them."""

    operation_id: str
    messages: list[MessageFields]
    headers: list[str | None] = []

    @classmethod
    def of(cls, operation_id: str, messages: Sequence[Message]) -> JournalledPush:
        headers = [message.headers for message in messages]
        return cls(operation_id, [_fields_of(message) for message in messages], headers if any(headers) else [])

    def read(self) -> list[Message]:
        messages = [_message_of(fields) for fields in self.messages]
        for message, headers in zip(messages, self.headers, strict=False):
            message.headers = headers
        return messages


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JournalledPush).decode


@dataclass(frozen=True, slots=True)
class Opened:
    operation_id: str
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Locked:
    """It cannot be read without its key, or by this version. Without marks, it may be about any partition."""

    operation_id: str = ""
    key_id: str = ""
    messages: int = 1
    marks: tuple[int, ...] | None = None


def mark_of(queue: str, partition: str) -> int:
    """64 bits that stand for a partition."""
    name = f"{len(queue)}:{queue}{partition}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=MARK_BYTES).digest(), "little")


def marks_of(partitions: Iterable[Partition]) -> tuple[int, ...]:
    return tuple(mark_of(*partition) for partition in partitions)


def partitions_of(messages: Iterable[Message]) -> tuple[Partition, ...]:
    """The partitions of the messages, each once."""
    return tuple({(message.queue, message.partition): None for message in messages})


def _fields_of(message: Message) -> MessageFields:
    return (
        message.queue,
        message.partition,
        message.payload,
        message.id,
        message.transaction_id,
        message.trace_id,
        message.producer,
    )


def _message_of(fields: MessageFields) -> Message:
    queue, partition, payload, message_id, transaction_id, trace_id, producer = fields
    return Message(queue, partition, payload, message_id, transaction_id, trace_id=trace_id, producer=producer)


class RecordCodec:
    """The first key encrypts, and all of them decrypt; without a key records are written in clear."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        # By a fingerprint that says which key is meant, and nothing else about it.
        self._keys = {hashlib.blake2b(key, digest_size=8, person=b"queen journal").digest(): key for key in keys}
        self._key_id = next(iter(self._keys), b"")
        self._cipher = AESGCM(keys[0]) if keys else None

    @property
    def key_id(self) -> str:
        return self._key_id.hex()

    def seal(self, operation_id: str, messages: Sequence[Message], marks: Sequence[int]) -> bytes:
        body = _encode(JournalledPush.of(operation_id, messages))
        if self._cipher is None:
            return bytes((_CLEAR,)) + body
        fields = (_SEALED, self._key_id, uuid.UUID(operation_id).bytes, len(messages), len(marks))
        header = _HEADER.pack(*fields) + struct.pack(f"<{len(marks)}Q", *marks)
        nonce = os.urandom(_NONCE_BYTES)
        return header + nonce + self._cipher.encrypt(nonce, body, header)

    def open(self, stored: bytes) -> Opened | Locked | None:
        """None: its bytes are as they were written, and yet it is no push."""
        kind = stored[0] if stored else -1
        try:
            if kind == _CLEAR:
                return _opened(stored[1:])
            if kind == _SEALED_BLINDLY:
                return self._decrypted(stored, 1, Locked())
            if kind == _SEALED:
                locked, end = _read_header(stored)
                return self._decrypted(stored, end, locked)
        except (msgspec.MsgspecError, struct.error, ValueError):
            return None
        return Locked()

    def _decrypted(self, stored: bytes, start: int, locked: Locked) -> Opened | Locked:
        """The reader has checked the bytes of a record: if it cannot be decrypted, it was written with another key."""
        nonce, sealed = stored[start : start + _NONCE_BYTES], stored[start + _NONCE_BYTES :]
        for key_id, key in self._keys.items():
            if locked.key_id and locked.key_id != key_id.hex():
                continue
            try:
                return _opened(AESGCM(key).decrypt(nonce, sealed, stored[:start] if start > 1 else None))
            except InvalidTag:
                continue
        return locked


def _opened(body: bytes) -> Opened:
    entry = _decode(body)
    return Opened(entry.operation_id, entry.read())


def _read_header(stored: bytes) -> tuple[Locked, int]:
    """What is known without the key, and where the header ends."""
    _, key_id, operation_id, messages, count = _HEADER.unpack_from(stored)
    marks = struct.unpack_from(f"<{count}Q", stored, _HEADER.size)
    locked = Locked(str(uuid.UUID(bytes=operation_id)), key_id.hex(), messages, marks)
    return locked, _HEADER.size + count * MARK_BYTES
