"""An event loop in a thread of its own: where the blocking client runs the asynchronous one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from queenmq.client.errors import ClientClosed

T = TypeVar("T")

_LAST_STEPS_S = 1.0


class Portal:
    """The loop, into which other threads send work and wait for it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="queenmq-client", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """What the work returns or raises. An interrupt (Ctrl-C) cancels the work."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                with suppress(Exception):
                    self.start(_nothing).result()
            raise

    def start(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        if self._loop.is_closed():
            raise ClientClosed
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking client cannot be used in its own event loop")

        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call it in the loop, soon."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def close(self) -> None:
        self.run(_end_tasks)
        self.run(self._loop.shutdown_asyncgens)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _nothing() -> None:
    return None


async def _end_tasks() -> None:
    """Let the other tasks of the loop come to their end; cancel those that do not."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if not others:
        return
    _, late = await asyncio.wait(others, timeout=_LAST_STEPS_S)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
