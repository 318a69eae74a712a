"""A push that has not been sent yet, to which callbacks can be added: `await queue.push(items).on_duplicate(…)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self

from queenmq.client.errors import PushFailed, QueenError
from queenmq.client.models import PushResult, PushResults

Callback = Callable[[list[PushResult]], object]
ErrorCallback = Callable[[list[PushResult], QueenError], object]


class _Callbacks:
    success: Callback | None = None
    duplicate: Callback | None = None
    error: ErrorCallback | None = None


class Push(Awaitable[PushResults]):
    """Await it to push. It is sent once it is awaited; one that never is warns, as coroutines do.

    Results with the status `failed` are raised as PushFailed unless `on_error` takes them.
    """

    def __init__(self, send: Callable[[], Awaitable[PushResults]]) -> None:
        self._callbacks = _Callbacks()
        self._running = _run(send, self._callbacks)

    def on_success(self, callback: Callback) -> Self:
        """Call with the results of the messages that were stored or accepted."""
        self._callbacks.success = callback
        return self

    def on_duplicate(self, callback: Callback) -> Self:
        """Call with the results of the messages that had been stored before."""
        self._callbacks.duplicate = callback
        return self

    def on_error(self, callback: ErrorCallback) -> Self:
        """Call with the results of the messages that were refused, and the error that would have been raised."""
        self._callbacks.error = callback
        return self

    def __await__(self) -> Generator[Any, Any, PushResults]:
        return self._running.__await__()


async def _run(send: Callable[[], Awaitable[PushResults]], callbacks: _Callbacks) -> PushResults:
    results = await send()
    refused, duplicates = results.with_status("failed"), results.with_status("duplicate")
    done = [result for result in results if result.status not in ("failed", "duplicate")]
    if done and callbacks.success:
        await finished(callbacks.success(done))
    if duplicates and callbacks.duplicate:
        await finished(callbacks.duplicate(duplicates))
    if refused:
        error = PushFailed(results)
        if callbacks.error is None:
            raise error
        await finished(callbacks.error(refused, error))
    return results


async def finished(result: object) -> object:
    """What a callback or handler returns, which may be plain or awaitable."""
    return await result if inspect.isawaitable(result) else result
