"""How long the calls that are being made wait for a lock before they give up."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

# Long against the time that servers hold a row for each other, short against what a client notices.
FIRST_TIMEOUT_MS: Final = 50
# While something is known to be locked, more of it may be.
NEXT_TIMEOUT_MS: Final = 10
# In the call of those who have waited there is nobody else, and they are to get a row that many want.
AGAIN_TIMEOUT_MS: Final = 500

patience_ms: ContextVar[int | None] = ContextVar("patience_ms", default=None)


def is_impatient() -> bool:
    """Whether the call that is being made waits only a moment for a lock."""
    return patience_ms.get() is not None


class Impatient:
    """No generator: there is one for every call."""

    __slots__ = ("_milliseconds", "_token")

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    def __enter__(self) -> None:
        self._token = patience_ms.set(self._milliseconds)

    def __exit__(self, *_: object) -> None:
        patience_ms.reset(self._token)
