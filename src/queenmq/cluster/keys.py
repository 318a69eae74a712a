"""Secrets that packets are signed with: a current one and, while it is being rotated, the previous one.

Owns the parsing of a secret and the signature. Where secrets come from, and whether there must be one, is the
caller's matter.
"""

from __future__ import annotations

import hashlib
import hmac
import re

SECRET_DIGITS = 64
KEY_ID_BYTES = 4
SIGNATURE_BYTES = 32

_LABEL = b"queen cluster key id\0"


class Key:
    """A secret and the short name that packets carry for it; the name gives nothing of the secret away."""

    __slots__ = ("_prepared", "id")

    def __init__(self, secret: bytes) -> None:
        self.id = hashlib.sha256(_LABEL + secret).digest()[:KEY_ID_BYTES]
        self._prepared = hmac.new(secret, digestmod=hashlib.sha256)

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"

    def sign(self, before: bytes, after: bytes) -> bytes:
        """HMAC-SHA256 of both parts in a row."""
        mac = self._prepared.copy()  # a third cheaper than hmac.digest, which hashes the padded key anew
        mac.update(before)
        mac.update(after)
        return mac.digest()

    def verifies(self, signature: bytes, before: bytes, after: bytes) -> bool:
        """Compared in constant time."""
        return hmac.compare_digest(signature, self.sign(before, after))


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
