"""Ending well: SIGTERM and SIGINT let running consumers finish what they have in hand.

Python's own answer to SIGTERM is to die at once, in the middle of a message whose lease then lasts until it expires.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True, eq=False)
class _Draining:
    stop: Callable[[], object]
    cancel: Callable[[], object] | None
    raise_again: bool
    signalled: bool = False

    def on_signal(self, number: int) -> None:
        if not self.signalled:
            self.signalled = True
            self.stop()
        elif self.cancel is not None:
            self.cancel()
        else:
            _restore_handlers()
            signal.raise_signal(number)


_draining: list[_Draining] = []
_replaced: dict[int, Any] = {}  # the handlers that ours stand for
_last_signal = 0


@contextmanager
def drained(
    stop: Callable[[], object], cancel: Callable[[], object] | None = None, *, raise_again: bool = False
) -> Iterator[None]:
    """Meanwhile the first SIGTERM or SIGINT calls `stop`, and each further one `cancel`, or has its usual effect.

    Does nothing outside of the main thread, and leaves a signal alone for which the program has a handler of its own.
    With `raise_again` the signal takes its usual effect when the last one that it has stopped is left: for those who
    have something else to do than to wait for `stop` to be obeyed, and would go on as if nothing had happened.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    entry = _Draining(stop, cancel, raise_again)
    if not _draining:
        _replace_handlers()
    _draining.append(entry)
    try:
        yield
    finally:
        _draining.remove(entry)
        if not _draining:
            _restore_handlers()
            if entry.raise_again and entry.signalled:
                signal.raise_signal(_last_signal)


def _replace_handlers() -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if _is_usual(handler):
            _replaced[number] = handler
            signal.signal(number, _on_signal)


def _restore_handlers() -> None:
    for number, handler in _replaced.items():
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, handler)
    _replaced.clear()


def _is_usual(handler: Any) -> bool:
    """Whether it is what Python has installed by itself; `asyncio.run` has one for SIGINT."""
    if isinstance(handler, functools.partial):
        return isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)
    return handler in (signal.SIG_DFL, signal.default_int_handler)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _last_signal
    _last_signal = number
    for entry in tuple(_draining):
        entry.on_signal(number)
