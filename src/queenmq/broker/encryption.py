"""Sealing the payloads of queues that demand it, and opening them.

Which queues do is only advice here: `queen.push` refuses a payload in clear for a queue that demands encryption.
"""

from __future__ import annotations

from collections.abc import Iterable

from queenmq.broker.queue_options import QueueOptions
from queenmq.core.encryption import decrypt, encrypt
from queenmq.core.message import Message
from queenmq.errors import QueenError, UnavailableError


class NoEncryptionKey(UnavailableError):
    code = "no_encryption_key"

    def __init__(self) -> None:
        super().__init__("the queue is encrypted and this server has no QUEEN_ENCRYPTION_KEY")


class PayloadEncryption:
    def __init__(self, key: bytes | None, options: QueueOptions) -> None:
        self._key = key
        self._options = options
        self.available = key is not None

    def require_key_for(self, queues: Iterable[str]) -> None:
        """Raise NoEncryptionKey if one of them is known to demand what this server cannot do."""
        if self._key is None and any(self._options.encrypted(queue) for queue in queues):
            raise NoEncryptionKey

    def seal(self, messages: Iterable[Message]) -> list[tuple[bytes, bool]] | None:
        """The payloads as they are to be stored, each with whether it is encrypted; None: as they are.

        Without a key that is so: if a queue really demands encryption, the database refuses it.
        """
        if self._key is None:
            return None
        return [
            (encrypt(self._key, message.payload), True)
            if self._options.encrypted(message.queue)
            else (message.payload, False)
            for message in messages
        ]

    def require_key(self) -> None:
        """A queue demands encryption for certain. Raises NoEncryptionKey."""
        if self._key is None:
            raise NoEncryptionKey

    def open_or_none(self, stored: bytes | None, is_encrypted: bool) -> bytes | None:
        """The payload as it was pushed; None if there is none, or it cannot be decrypted here."""
        if stored is None:
            return None
        try:
            return self.open(stored) if is_encrypted else stored
        except QueenError:
            return None

    def open(self, stored: bytes) -> bytes:
        """The encrypted payload as it was pushed."""
        if self._key is None:
            raise NoEncryptionKey
        return decrypt(self._key, stored)
