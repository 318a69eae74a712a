"""Payloads at rest: AES-256-GCM, kept as a JSON object of base64 texts and the fingerprint of its key.

A payload is bound to its place: queue, partition and transaction id. What was encrypted for one message does not open
as that of another. These three stay the same for as long as the message is anywhere: in the operation queue, in its
partition, among the dead letters, and when it is redriven with a new id. The payload of a timer is bound to the timer.

Records without a fingerprint were made before there were several keys. They are bound to nothing and may be of any
key; they are read, and never made. Whether a payload is encrypted is known from a flag stored with it, never from its
content; that flag belongs to the callers.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenmq.errors import QueenError

KEY_BYTES = 32
IV_BYTES = 16  # random, so long that no two of a key meet by chance, however many payloads it has
TAG_BYTES = 16
FINGERPRINT_BYTES = 8

_CONTEXT = b"queen payload 2"


class DecryptionFailed(QueenError):
    """The record is damaged, was written with another key or for another message; nothing of it can be trusted."""

    code: ClassVar[str] = "decryption_failed"


class Place(NamedTuple):
    """Where a payload belongs."""

    queue: str
    partition: str
    transaction_id: str


def place_of_timer(queue: str, partition: str, key: str) -> Place:
    """Where the payload of a timer belongs, whose messages each have another transaction id. None of them is such."""
    return Place(queue, partition, f"\0timer {key}")


class _Record(msgspec.Struct):
    encrypted: str
    iv: str
    authTag: str
    key: str | None = None


_decoder = msgspec.json.Decoder(_Record)


class PayloadKeys:
    """The keys of a server: the first one encrypts, and all of them decrypt."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Raises ValueError unless there is a key, and each has 32 bytes."""
        if not keys:
            raise ValueError("there is no encryption key")
        self._ciphers = {fingerprint(key): _cipher(key) for key in keys}
        self._first = fingerprint(keys[0])
        self._encrypt = self._ciphers[self._first].encrypt
        self.beginning = b'{"key":"%b",' % self._first.encode()
        """How each record begins that is made with the first key and bound to its place."""

    def encrypt(self, payload: bytes, place: Place) -> bytes:
        """The record of the payload as JSON; no two are alike."""
        iv = os.urandom(IV_BYTES)
        sealed = self._encrypt(iv, payload, _bound_to(place))
        parts = (self.beginning, b64encode(sealed[:-TAG_BYTES]), b64encode(iv), b64encode(sealed[-TAG_BYTES:]))
        return b'%b"encrypted":"%b","iv":"%b","authTag":"%b"}' % parts

    def decrypt(self, stored: bytes, place: Place) -> bytes:
        """The payload byte for byte. Raises DecryptionFailed for a key that is not here, or a record that was changed
        or belongs to another message."""
        key, iv, sealed = _parse(stored)
        if key is None:
            return self._decrypt_unbound(iv, sealed)
        cipher = self._ciphers.get(key)
        if cipher is None:
            raise DecryptionFailed(
                f"payload cannot be decrypted: it needs the key with the fingerprint {key[: 2 * FINGERPRINT_BYTES]!r}, "
                "which is neither in QUEEN_ENCRYPTION_KEY nor in QUEEN_ENCRYPTION_KEYS_PREVIOUS"
            )
        try:
            return cipher.decrypt(iv, sealed, _bound_to(place))
        except InvalidTag:
            raise DecryptionFailed(
                "payload cannot be decrypted: its record was changed, or belongs to another message"
            ) from None

    def _decrypt_unbound(self, iv: bytes, sealed: bytes) -> bytes:
        for cipher in self._ciphers.values():
            try:
                return cipher.decrypt(iv, sealed, None)
            except InvalidTag:
                continue
        raise DecryptionFailed("payload cannot be decrypted: wrong key or changed record")


def is_bound(stored: bytes) -> bool:
    """Whether it is a record that opens only at its place."""
    try:
        return _parse(stored)[0] is not None
    except DecryptionFailed:
        return False


def fingerprint(key: bytes) -> str:
    """Says which key is meant, and nothing else about it."""
    return hashlib.blake2b(key, digest_size=FINGERPRINT_BYTES, person=b"queen payload").hexdigest()


def _bound_to(place: Place) -> bytes:
    """The names with their lengths, so that no two places are the same bytes."""
    parts = [text.encode(errors="surrogatepass") for text in place]
    return _CONTEXT + b"".join([len(part).to_bytes(4, "big") + part for part in parts])


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:
        raise ValueError(f"encryption key must have {KEY_BYTES} bytes")
    return AESGCM(key)


def _parse(stored: bytes) -> tuple[str | None, bytes, bytes]:
    try:
        record = _decoder.decode(stored)
        iv, tag = b64decode(record.iv, validate=True), b64decode(record.authTag, validate=True)
        ciphertext = b64decode(record.encrypted, validate=True)
    except ValueError:
        raise DecryptionFailed("payload cannot be decrypted: not an encrypted record") from None
    if len(iv) != IV_BYTES or len(tag) != TAG_BYTES:
        raise DecryptionFailed("payload cannot be decrypted: not an encrypted record")
    return record.key, iv, ciphertext + tag
