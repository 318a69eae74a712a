"""Who consumes: what a client says of itself in the header `X-Queen-Consumer`, and what its connection and token say.

The header has the form of a query string: `name=billing&host=web-3&process=4242`. It is only shown, never believed, and
a header that cannot be read counts as none, so that no pop fails because of it.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

HEADER: Final = b"x-queen-consumer"
_MOST_BYTES: Final = 1024
_MOST_CHARACTERS: Final = 100
# Of this process. 32 bits are few: without a key, a client could find a name with the tag of somebody else's consumer.
_KEY: Final = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """`tag` is 32 bits in hexadecimal, in this process the same for everything else that is the same; in another one it
    is another. `said` is the header."""

    said: bytes
    address: str | None
    subject: str | None
    tag: str
    name: str | None = None
    host: str | None = None
    process: str | None = None


def consumer_of(said: bytes, address: str | None, subject: str | None) -> Consumer:
    """The consumer that sends `said` from an address with the token of a subject."""
    if len(said) > _MOST_BYTES:
        said = b""
    fields = _read(said)
    name, host, process = (fields.get(field) for field in ("name", "host", "process"))
    # A client that says who it is stays the same on every connection, also behind a proxy with several addresses.
    where = None if fields else address
    known = repr((name, host, process, where, subject)).encode()
    tag = hashlib.blake2b(known, digest_size=4, key=_KEY).hexdigest()
    return Consumer(said=said, address=address, subject=subject, tag=tag, name=name, host=host, process=process)


def _read(said: bytes) -> dict[str, str]:
    if not said:
        return {}
    try:
        pairs = parse_qsl(said.decode("ascii"), errors="strict", max_num_fields=10)
    except ValueError:
        return {}
    return {name: kept for name, value in pairs if (kept := shown(value))}


def shown(text: str | None) -> str | None:
    """The text without what cannot be printed or stored, cut to a bounded length; None if nothing is left."""
    if text is None:
        return None
    return "".join(letter for letter in text[:_MOST_CHARACTERS] if letter.isprintable()).strip() or None
