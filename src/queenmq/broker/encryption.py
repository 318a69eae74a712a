"""Sealing the payloads of queues that demand it, and opening them.

Which queues do is only advice here: `queen.push` refuses a payload in clear for a queue that demands encryption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from queenmq.broker.queue_options import QueueOptions
from queenmq.core.encryption import PayloadKeys, Place, place_of_timer
from queenmq.core.message import BETWEEN, Message
from queenmq.errors import QueenError, UnavailableError

_decode_fields = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class NoEncryptionKey(UnavailableError):
    code = "no_encryption_key"

    def __init__(self) -> None:
        super().__init__("the queue is encrypted and this server has no QUEEN_ENCRYPTION_KEY")


class PayloadEncryption:
    def __init__(self, keys: Sequence[bytes], options: QueueOptions) -> None:
        """The first key encrypts; without keys nothing is encrypted, and nothing can be read that is."""
        self._keys = PayloadKeys(keys) if keys else None
        self._options = options
        self.available = self._keys is not None

    def require_key_for(self, queues: Iterable[str]) -> None:
        """Raise NoEncryptionKey if one of them is known to demand what this server cannot do."""
        if self._keys is None and any(self._options.encrypted(queue) for queue in queues):
            raise NoEncryptionKey

    def seal(self, messages: Sequence[Message], timers: Sequence[str] = ()) -> list[tuple[bytes, bool]] | None:
        """The payloads as they are to be stored, each with whether it is encrypted; None: as they are. `timers` are the
        keys of the timers that have these messages.

        Without a key that is so: if a queue really demands encryption, the database refuses it.
        """
        if self._keys is None:
            return None
        encrypt = self._keys.encrypt
        places = (
            [place_of_timer(m.queue, m.partition, key) for m, key in zip(messages, timers, strict=True)]
            if timers
            else [Place(m.queue, m.partition, m.transaction_id) for m in messages]
        )
        return [
            (encrypt(message.payload, place), True)
            if self._options.encrypted(message.queue)
            else (message.payload, False)
            for message, place in zip(messages, places, strict=True)
        ]

    def require_key(self) -> None:
        """A queue demands encryption for certain. Raises NoEncryptionKey."""
        if self._keys is None:
            raise NoEncryptionKey

    def open_or_none(self, stored: bytes | None, is_encrypted: bool, place: Place) -> bytes | None:
        """The payload as it was pushed; None if there is none, or it cannot be decrypted here."""
        if stored is None:
            return None
        try:
            return self.open(stored, place) if is_encrypted else stored
        except QueenError:
            return None

    def open_glued(self, glued: bytes, queue: str, partition: str) -> bytes:
        """Messages as `queen.pop` writes them, with the encrypted ones opened. Raises as `open` does."""
        messages = _decode_fields(b"[%b}]" % glued.replace(BETWEEN, b"},"))
        for message in messages:
            if message.pop("isEncrypted", None) is not None:
                place = Place(queue, partition, _decode_text(message["transactionId"]))
                message["data"] = Raw(self.open(bytes.fromhex(_decode_text(message["data"])), place))
        return BETWEEN.join(_encode(message)[:-1] for message in messages)

    def open(self, stored: bytes, place: Place) -> bytes:
        """The encrypted payload as it was pushed. Raises NoEncryptionKey or DecryptionFailed."""
        if self._keys is None:
            raise NoEncryptionKey
        return self._keys.decrypt(stored, place)
