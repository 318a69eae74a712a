"""The id of the request that is being served, for the log and for the answer. One is made only if somebody asks.

A task that a request starts inherits it. A call that serves several requests has the id of the one that started it.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Final

import msgspec

from queenmq.ids import uuid7_text

_USABLE: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestId(msgspec.Struct, eq=False):
    """`known` is what the client gave, or what was made when the log asked for it; None if neither happened."""

    known: bytes | None = None

    def __str__(self) -> str:
        if self.known is None:
            self.known = uuid7_text().encode()
        return self.known.decode()


def given_id(header: bytes) -> RequestId:
    """The id that a client gave; what is not harmless in a header and in a log is as if it was not given."""
    return RequestId(header if _USABLE.fullmatch(header) else None)


current: Final[ContextVar[RequestId | None]] = ContextVar("request", default=None)
