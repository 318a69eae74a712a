"""Secrets of a cluster: a current one and, while it is being rotated, the previous one.

Each purpose has a key of its own, derived with HKDF: one signs packets, one is for the greetings at the beginning of
HTTP connections between servers, and one gives the keys of those connections. So nothing that is made for one purpose
means anything for another. Owns the parsing of a secret, the derivation and the signature. Where secrets come from, and
whether there must be one, is the caller's matter.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SECRET_DIGITS = 64
KEY_ID_BYTES = 4
KEY_BYTES = 32
SIGNATURE_BYTES = 32


def derive(secret: bytes, purpose: bytes, salt: bytes = b"", length: int = KEY_BYTES) -> bytes:
    return HKDF(SHA256(), length, salt, b"queen cluster, " + purpose).derive(secret)


class Key:
    """What is derived from one secret, and the short name that packets carry for it, which gives nothing away.

    `connections` is what the keys of a connection are derived from.
    """

    __slots__ = ("_greetings", "_packets", "connections", "id")

    def __init__(self, secret: bytes) -> None:
        self.id = derive(secret, b"name of the key", length=KEY_ID_BYTES)
        self.connections = derive(secret, b"connections")
        self._packets = hmac.new(derive(secret, b"packets"), digestmod=hashlib.sha256)
        self._greetings = derive(secret, b"greetings")

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"

    def sign(self, before: bytes, after: bytes) -> bytes:
        """HMAC-SHA256 of both parts of a packet in a row."""
        mac = self._packets.copy()  # a third cheaper than hmac.digest, which hashes the padded key anew
        mac.update(before)
        mac.update(after)
        return mac.digest()

    def verifies(self, signature: bytes, before: bytes, after: bytes) -> bool:
        """Compared in constant time."""
        return hmac.compare_digest(signature, self.sign(before, after))

    def sign_greeting(self, said: bytes) -> bytes:
        """HMAC-SHA256 of what a server says at the beginning of a connection."""
        return hmac.digest(self._greetings, said, hashlib.sha256)


class KeyRing:
    """Signs with the current key; what either key signed is accepted."""

    __slots__ = ("_by_id", "current")

    def __init__(self, current: Key, previous: Key | None = None) -> None:
        self.current = current
        self._by_id = {key.id: key for key in (previous, current) if key is not None}

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key_id.hex() for key_id in self._by_id)})"

    def find(self, key_id: bytes) -> Key | None:
        return self._by_id.get(key_id)


def parse_secret(text: str) -> Key:
    """The key of a secret written as 64 hexadecimal digits. Raises ValueError, without showing the secret."""
    if re.fullmatch(rf"[0-9a-fA-F]{{{SECRET_DIGITS}}}", text) is None:
        raise ValueError(f"the secret must be {SECRET_DIGITS} hexadecimal digits")
    return Key(bytes.fromhex(text))
