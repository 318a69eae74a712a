"""A streamed answer that ends when the token of its reader does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from queenmq.errors import Forbidden, Unauthenticated, UnavailableError
from queenmq.httpserver.messages import Source


class WhileValid:
    """A source, until `identify` raises Unauthenticated or Forbidden. While nobody can say, it goes on."""

    def __init__(self, source: Source, identify: Callable[[], Awaitable[None]]) -> None:
        self._source = source
        self._identify = identify

    async def read(self) -> bytes | None:
        part = await self._source.read()
        try:
            await self._identify()
        except (Unauthenticated, Forbidden):
            return None
        except UnavailableError:
            pass
        return part

    def close(self) -> None:
        self._source.close()
