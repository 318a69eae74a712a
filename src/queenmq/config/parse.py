"""What a variable may be set to: each function takes its text and returns its value, or raises ValueError.

The reason in the error ends the sentence "NAME cannot be used: 'text' …".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from queenmq.core.flags import parse_flag as flag

__all__ = [
    "MAX_SERVER_ID_BYTES",
    "MOST_WORKERS",
    "address",
    "addresses",
    "byte_count",
    "choice",
    "count",
    "encryption_key",
    "encryption_keys",
    "factor",
    "flag",
    "host_names",
    "items",
    "origins",
    "path",
    "port_number",
    "positive",
    "server_name",
    "share",
    "sync_secret",
    "text",
    "worker_count",
]

ENCRYPTION_KEY_DIGITS = 64
SYNC_SECRET_DIGITS = 64
MAX_SERVER_ID_BYTES = 32
MOST_WORKERS = 128
MOST = 2**31 - 1  # what PostgreSQL takes for a time or a count
MOST_BYTES = 2**53


def text(raw: str) -> str:
    return raw


def _number(raw: str) -> int:
    """Plain digits; int() would also take underscores and the digits of other scripts."""
    if re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", raw, re.ASCII) is None:
        raise ValueError("is not a number")
    return int(raw)


def _decimal(raw: str) -> float:
    if re.fullmatch(r"\s*[+-]?[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?\s*", raw, re.ASCII | re.IGNORECASE) is None:
        raise ValueError("is not a number")
    return float(raw)


def count(raw: str) -> int:
    value = _number(raw)
    if value < 0:
        raise ValueError("must not be negative")
    if value > MOST:
        raise ValueError(f"must be at most {MOST}")
    return value


def positive(raw: str) -> int:
    value = _number(raw)
    if value < 1:
        raise ValueError("must be at least 1")
    if value > MOST:
        raise ValueError(f"must be at most {MOST}")
    return value


def byte_count(raw: str) -> int:
    value = _number(raw)
    if not 1 <= value <= MOST_BYTES:
        raise ValueError(f"must be between 1 and {MOST_BYTES}")
    return value


def worker_count(raw: str) -> int:
    value = _number(raw)
    if not 1 <= value <= MOST_WORKERS:
        raise ValueError(f"must be between 1 and {MOST_WORKERS}")
    return value


def port_number(raw: str) -> int:
    value = _number(raw)
    if not 0 <= value <= 65535:
        raise ValueError("must be between 0 and 65535")
    return value


def factor(raw: str) -> float:
    value = _decimal(raw)
    if not 1.0 <= value <= 100.0:
        raise ValueError("must be between 1 and 100")
    return value


def share(raw: str) -> float:
    value = _decimal(raw)
    if not 0.0 <= value <= 1.0:
        raise ValueError("must be between 0 and 1")
    return value


def path(raw: str) -> Path:
    try:
        return Path(raw).expanduser()
    except RuntimeError:
        raise ValueError("must not name the home of an unknown user") from None


def items(raw: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in raw.split(",") if part.strip())


def addresses(raw: str) -> tuple[tuple[str, int], ...]:
    """`host:port` pairs; an IPv6 address stands in brackets."""
    peers = []
    for part in items(raw):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ValueError(f"must be a list of host:port, and {part!r} is none")
        peers.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return tuple(peers)


def address(raw: str) -> tuple[str, int]:
    found = addresses(raw)
    if len(found) != 1:
        raise ValueError("must be one host:port")
    return found[0]


def origins(raw: str) -> tuple[str, ...]:
    """Origins as browsers write them, or `*`."""
    for part in items(raw):
        if (
            part != "*"
            and re.fullmatch(r"https?://[a-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?", part) is None
        ):
            raise ValueError(f"must be a list of origins such as https://shop.example, and {part!r} is none")
    return items(raw)


def host_names(raw: str) -> tuple[str, ...]:
    for part in items(raw):
        if re.fullmatch(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:]+", part) is None:
            raise ValueError(f"must be a list of host names without ports, and {part!r} is none")
    return items(raw)


def choice(*allowed: str) -> Callable[[str], str]:
    def parse(raw: str) -> str:
        if raw.strip() not in allowed:
            raise ValueError(f"must be one of {', '.join(repr(a) for a in allowed)}")
        return raw.strip()

    return parse


def encryption_key(raw: str) -> bytes:
    return _hexadecimal(raw, ENCRYPTION_KEY_DIGITS)


def encryption_keys(raw: str) -> tuple[bytes, ...]:
    try:
        return tuple(encryption_key(part) for part in items(raw))
    except ValueError as error:
        raise ValueError(f"{error} each, separated by commas") from None


def sync_secret(raw: str) -> bytes:
    return _hexadecimal(raw, SYNC_SECRET_DIGITS)


def _hexadecimal(raw: str, digits: int) -> bytes:
    # Secrets are often read from a file that ends with a newline.
    if re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", raw.strip()) is None:
        raise ValueError(f"must be {digits} hexadecimal digits")
    return bytes.fromhex(raw.strip())


def server_name(raw: str) -> str:
    if len(raw.encode()) > MAX_SERVER_ID_BYTES or "\0" in raw:
        raise ValueError(f"must have at most {MAX_SERVER_ID_BYTES} bytes")
    return raw
