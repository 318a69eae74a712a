"""Payloads between Python and JSON. What the server stored is kept as it came, and parsed when asked for."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from queenmq.client.errors import InvalidPayload


def encode(value: Any) -> Raw:
    """`value` as JSON; a `msgspec.Raw` is JSON already and goes as it is. Raises InvalidPayload.

    With the standard library's encoder: integers of any size stay exact, NaN is refused instead of becoming null, and
    so are lone surrogates, which no server would take.
    """
    if isinstance(value, Raw):
        return value
    try:
        return Raw(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"the payload cannot be written as JSON: {error}") from error


def decode(raw: Raw) -> Any:
    """The Python value; integers of any size are exact."""
    return json.loads(bytes(raw))
