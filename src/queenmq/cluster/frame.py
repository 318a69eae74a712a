"""The wire frame: a signed header and a payload, in one UDP datagram.

    version u8 · type u8 · payload length u16 · key id 4 · signature 32
    sender 32 (UTF-8, zero padded) · receiver 16 · boot epoch u64 · sequence u64 · payload

Big endian. The signature covers every other field and the payload. The receiver is the number that it has given itself
for this life; only a greeting, which is believed by its challenge alone, may go to whom it may concern. Owns what
follows from one packet and the keys; whether the packet is a repetition, and what its payload means, is left to others.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from queenmq.cluster.keys import KEY_ID_BYTES, SIGNATURE_BYTES, KeyRing
from queenmq.cluster.messages import TOKEN_BYTES, MessageType
from queenmq.cluster.refusal import Refusal

VERSION = 3
MAX_FRAME = 1400
SENDER_BYTES = 32
ANYBODY = bytes(TOKEN_BYTES)

_BEFORE = struct.Struct(f">BBH{KEY_ID_BYTES}s")
_AFTER = struct.Struct(f">{SENDER_BYTES}s{TOKEN_BYTES}sQQ")
_SIGNED = _BEFORE.size
_REST = _SIGNED + SIGNATURE_BYTES
HEADER = _REST + _AFTER.size
MAX_PAYLOAD = MAX_FRAME - HEADER

_TYPES = frozenset(int(number) for number in MessageType)


class Frame(NamedTuple):
    type: int
    sender: str
    receiver: bytes
    epoch: int
    sequence: int
    payload: bytes


def seal(ring: KeyRing, type: int, sender: bytes, receiver: bytes, epoch: int, sequence: int, payload: bytes) -> bytes:
    """The datagram, signed with the current key. `sender` is what `encode_sender` gave.

    Raises ValueError for a payload that does not fit one frame.
    """
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a payload must have at most {MAX_PAYLOAD} bytes")
    key = ring.current
    before = _BEFORE.pack(VERSION, type, len(payload), key.id)
    after = _AFTER.pack(sender, receiver, epoch, sequence) + payload
    return before + key.sign(before, after) + after


def open(ring: KeyRing, datagram: bytes) -> Frame | Refusal:
    """What a datagram holds, or why it is refused. Raises for no bytes whatever; what is cheap is checked first."""
    size = len(datagram)
    if size < HEADER:
        return Refusal.TOO_SHORT
    if size > MAX_FRAME:
        return Refusal.TOO_LONG
    version, type, length, key_id = _BEFORE.unpack_from(datagram)
    if version != VERSION:
        return Refusal.WRONG_VERSION
    if length != size - HEADER:
        return Refusal.WRONG_LENGTH
    if type not in _TYPES:
        return Refusal.UNKNOWN_TYPE
    key = ring.find(key_id)
    if key is None:
        return Refusal.UNKNOWN_KEY
    if not key.verifies(datagram[_SIGNED:_REST], datagram[:_SIGNED], datagram[_REST:]):
        return Refusal.BAD_SIGNATURE
    padded, receiver, epoch, sequence = _AFTER.unpack_from(datagram, _REST)
    sender = decode_sender(padded)
    if sender is None:
        return Refusal.BAD_SENDER
    return Frame(type, sender, receiver, epoch, sequence, datagram[HEADER:])


def encode_sender(server_id: str) -> bytes:
    """As the header carries it. Raises ValueError for an id that is empty, has a NUL, or takes over 32 bytes."""
    encoded = server_id.encode()
    if not encoded or len(encoded) > SENDER_BYTES or b"\0" in encoded:
        raise ValueError(f"a server id must have 1 to {SENDER_BYTES} bytes of UTF-8 and no NUL")
    return encoded.ljust(SENDER_BYTES, b"\0")


def decode_sender(padded: bytes) -> str | None:
    encoded = padded.rstrip(b"\0")
    if not encoded or b"\0" in encoded:
        return None
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return None
