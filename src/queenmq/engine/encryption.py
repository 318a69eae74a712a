"""Which queues demand encrypted payloads, and sealing and opening them.

The set of encrypted queues is only advice: `queen.push` refuses a payload in clear for a queue that demands
encryption and names the queue, which is how a server learns of it.
"""

from __future__ import annotations

import msgspec

from queenmq.core.encryption import decrypt, encrypt
from queenmq.errors import UnavailableError


class NoEncryptionKey(UnavailableError):
    code = "no_encryption_key"

    def __init__(self) -> None:
        super().__init__("the queue is encrypted and this server has no QUEEN_ENCRYPTION_KEY")


class PayloadEncryption:
    def __init__(self, key: bytes | None) -> None:
        self._key = key
        self._queues: set[str] = set()

    @property
    def available(self) -> bool:
        return self._key is not None

    def learn(self, names: str) -> None:
        """Remember the queues of a JSON list as encrypted."""
        self._queues.update(msgspec.json.decode(names, type=list[str]))

    def remember(self, queue: str, encrypted: bool) -> None:
        (self._queues.add if encrypted else self._queues.discard)(queue)

    def seal(self, queue: str, payload: bytes) -> tuple[bytes, bool]:
        """The payload as it is to be stored, and whether that is encrypted."""
        if queue not in self._queues:
            return payload, False
        if self._key is None:
            raise NoEncryptionKey
        return encrypt(self._key, payload), True

    def open(self, stored: bytes, is_encrypted: bool) -> bytes:
        """The payload as it was pushed."""
        if not is_encrypted:
            return stored
        if self._key is None:
            raise NoEncryptionKey
        return decrypt(self._key, stored)
