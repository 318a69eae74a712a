"""Headers of a message: a map of strings to strings that is stored, shown and searched beside its payload. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from queenmq.core.names import check_name, check_text
from queenmq.errors import InvalidRequest

MAX_HEADERS: Final = 100
MAX_HEADER_BYTES: Final = 16 * 1024


def encode_headers(headers: Mapping[str, str], field: str) -> str | None:
    """As they are stored: JSON, or None if there are none. Raises InvalidRequest for what cannot be headers."""
    if not headers:
        return None
    if len(headers) > MAX_HEADERS:
        raise InvalidRequest(f"{field} has {len(headers)} headers, at most {MAX_HEADERS} are allowed", field)
    for name, value in headers.items():
        check_name(name, f"the name of a header in {field}")
        check_text(value, f"{field}[{name!r}]")
    encoded = msgspec.json.encode(headers)
    if len(encoded) > MAX_HEADER_BYTES:
        raise InvalidRequest(f"{field} has {len(encoded)} bytes, at most {MAX_HEADER_BYTES} are allowed", field)
    return encoded.decode()
