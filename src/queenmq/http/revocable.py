"""Long polls that wait with tokens that Queen has made: they end when their token is revoked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from queenmq.errors import Unauthenticated


class RevocablePolls:
    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Task[Any]]] = {}
        self._ended: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def waiting(self, token_id: str) -> Iterator[None]:
        """While the running request waits. Raises Unauthenticated if the token is revoked meanwhile."""
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("requests are served in tasks")
        self._waiting.setdefault(token_id, set()).add(task)
        try:
            yield
        except asyncio.CancelledError:
            # A client that goes away at the same moment has cancelled it, too.
            if task in self._ended and not task.uncancel():
                raise Unauthenticated("Token revoked") from None
            raise
        finally:
            self._ended.discard(task)
            waiting = self._waiting.get(token_id, set())
            waiting.discard(task)
            if not waiting:
                self._waiting.pop(token_id, None)

    def revoked(self, token_id: str) -> None:
        for task in self._waiting.pop(token_id, ()):
            self._ended.add(task)
            task.cancel()
