"""Payloads at rest: AES-256-GCM, kept as a JSON object of three base64 texts.

Whether a payload is encrypted is known from a flag stored with it, never from its content; that flag
and the key belong to the callers.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from typing import ClassVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from queenmq.errors import QueenError

KEY_BYTES = 32
IV_BYTES = 16
TAG_BYTES = 16


class DecryptionFailed(QueenError):
    """The record is damaged or was written with another key; nothing of it can be trusted."""

    code: ClassVar[str] = "decryption_failed"


class _Record(msgspec.Struct):
    encrypted: str
    iv: str
    authTag: str


_decoder = msgspec.json.Decoder(_Record)


def encrypt(key: bytes, payload: bytes) -> bytes:
    """Return the record of the payload as JSON; no two are alike.

    Raises ValueError unless the key has 32 bytes.
    """
    iv = os.urandom(IV_BYTES)
    sealed = _cipher(key).encrypt(iv, payload, None)
    parts = (b64encode(sealed[:-TAG_BYTES]), b64encode(iv), b64encode(sealed[-TAG_BYTES:]))
    return b'{"encrypted":"%b","iv":"%b","authTag":"%b"}' % parts


def decrypt(key: bytes, stored: bytes) -> bytes:
    """Return the payload byte for byte.

    Raises DecryptionFailed for a wrong key or a changed record, ValueError unless the key has 32 bytes.
    """
    cipher = _cipher(key)
    iv, sealed = _parse(stored)
    try:
        return cipher.decrypt(iv, sealed, None)
    except InvalidTag:
        raise DecryptionFailed("payload cannot be decrypted: wrong key or changed record") from None


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:
        raise ValueError(f"encryption key must have {KEY_BYTES} bytes")
    return AESGCM(key)


def _parse(stored: bytes) -> tuple[bytes, bytes]:
    try:
        record = _decoder.decode(stored)
        iv, tag = b64decode(record.iv, validate=True), b64decode(record.authTag, validate=True)
        ciphertext = b64decode(record.encrypted, validate=True)
    except ValueError:
        raise DecryptionFailed("payload cannot be decrypted: not an encrypted record") from None
    if len(iv) != IV_BYTES or len(tag) != TAG_BYTES:
        raise DecryptionFailed("payload cannot be decrypted: not an encrypted record")
    return iv, ciphertext + tag
