"""How two servers of a cluster speak on a connection on which nobody else can speak, and nobody else can listen. Pure.

Who opens the connection greets with a number that it has just drawn, and the other one answers with a number of its
own. Both sign the numbers and the names of both. So each knows, before it says anything else, that the other one has
the secret, and the answer shows that it is the server that is meant, and lives now. From the secret, both numbers and
both names each of them derives the keys of the connection, one for each direction. Everything after that is sealed with
AES-256-GCM under a count: what was recorded, repeated, left out, turned round, changed, or meant for another server or
another connection does not open. A greeting that somebody else repeats gets an answer, and nothing more.

With the secret, connections that were recorded before can be read. Headers and connections are the concern of others.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenmq.cluster.keys import KEY_BYTES, Key, KeyRing, derive

DRAWN_BYTES = 32
_COUNT_BYTES = 12
_GREETING = b"greeting of a connection"
_ANSWER = b"answer to the greeting of a connection"


class Ends(NamedTuple):
    """The names of the two servers, without line breaks."""

    caller: bytes
    called: bytes


class Session:
    """One end of a connection. Pieces open in the order in which they were sealed, and in no other."""

    __slots__ = ("_open", "_opened", "_seal", "_sealed")

    def __init__(self, seal_with: bytes, open_with: bytes) -> None:
        self._seal = AESGCM(seal_with).encrypt
        self._open = AESGCM(open_with).decrypt
        self._sealed = self._opened = 0

    def seal(self, piece: bytes) -> bytes:
        count, self._sealed = self._sealed, self._sealed + 1
        return self._seal(count.to_bytes(_COUNT_BYTES, "big"), piece, None)

    def open(self, sealed: bytes) -> bytes | None:
        """None if it is not the next piece that the other end has sealed."""
        try:
            piece = self._open(self._opened.to_bytes(_COUNT_BYTES, "big"), sealed, None)
        except InvalidTag:
            return None
        self._opened += 1
        return piece


class Greeting:
    """What a server that opens a connection says first; for one connection."""

    def __init__(self, key: Key, ends: Ends, drawn: bytes) -> None:
        self._key = key
        self._ends = ends
        self._drawn = drawn
        signature = key.sign_greeting(_said(_GREETING, ends, drawn))
        self.said = f"{key.id.hex()}.{drawn.hex()}.{signature.hex()}".encode()

    def answered(self, answer: bytes) -> Session | None:
        """The session, if it is the server that was meant that has answered this very greeting."""
        parts = _parts(answer)
        if parts is None or len(parts) != 2:
            return None
        theirs, signature = parts
        if not _is_signed(self._key, signature, _said(_ANSWER, self._ends, self._drawn, theirs)):
            return None
        there, back = _keys(self._key, self._ends, self._drawn, theirs)
        return Session(there, back)


def greet(ring: KeyRing, ends: Ends, draw: Callable[[int], bytes] = os.urandom) -> Greeting:
    return Greeting(ring.current, ends, draw(DRAWN_BYTES))


def answer(
    ring: KeyRing, ends: Ends, said: bytes, draw: Callable[[int], bytes] = os.urandom
) -> tuple[bytes, Session] | None:
    """What to answer to a greeting, and the session; None if no server of the cluster has said it to this one."""
    parts = _parts(said)
    if parts is None or len(parts) != 3:
        return None
    key_id, theirs, signature = parts
    key = ring.find(key_id)
    if key is None or not _is_signed(key, signature, _said(_GREETING, ends, theirs)):
        return None
    drawn = draw(DRAWN_BYTES)
    there, back = _keys(key, ends, theirs, drawn)
    proof = key.sign_greeting(_said(_ANSWER, ends, theirs, drawn))
    return f"{drawn.hex()}.{proof.hex()}".encode(), Session(back, there)


def _parts(text: bytes) -> list[bytes] | None:
    try:
        return [bytes.fromhex(part) for part in text.decode("ascii").split(".")]
    except ValueError:
        return None


def _said(what: bytes, ends: Ends, *drawn: bytes) -> bytes:
    return b"\n".join((what, *ends, *(number.hex().encode() for number in drawn)))


def _is_signed(key: Key, signature: bytes, said: bytes) -> bool:
    return hmac.compare_digest(signature, key.sign_greeting(said))


def _keys(key: Key, ends: Ends, *drawn: bytes) -> tuple[bytes, bytes]:
    """From the caller to the called, and back."""
    both = derive(key.connections, _said(b"keys of a connection", ends), b"".join(drawn), 2 * KEY_BYTES)
    return both[:KEY_BYTES], both[KEY_BYTES:]
