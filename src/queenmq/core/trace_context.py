"""The W3C trace context of a message. No I/O.

A message keeps the trace id of its push and nothing else: that is a UUID, which every way that a message can take
carries already. The span that made it has an id that follows from the id of the message, so the whole context can be
derived wherever the message is, also after an outage or from the dead letters; a pop does it in the database
(`queen.trace_fields`).
"""

from __future__ import annotations

import re
from typing import Final

_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 1


def parse_traceparent(header: bytes) -> tuple[str, str, int] | None:
    """Trace id, span id (both hexadecimal) and flags of a `traceparent`; None if it is none."""
    match = _TRACEPARENT.fullmatch(header.strip())
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None) or not int(trace, 16) or not int(span, 16):
        return None
    return trace.decode(), span.decode(), int(flags, 16)


def trace_id_of(header: bytes) -> str | None:
    """The trace that a push with this `traceparent` belongs to, as a UUID; None if it is not sampled."""
    parsed = parse_traceparent(header)
    if parsed is None or not parsed[2] & _SAMPLED:
        return None
    trace = parsed[0]
    return f"{trace[:8]}-{trace[8:12]}-{trace[12:16]}-{trace[16:20]}-{trace[20:]}"


def span_id_of(message_id: str) -> str:
    """The id of the span that made a message: the random half of the message's id."""
    return message_id[-17:-13] + message_id[-12:]
