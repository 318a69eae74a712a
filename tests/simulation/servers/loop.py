"""A deterministic event loop: its time is virtual, and what a killed process has begun never goes on.

What asyncio promises is kept: callbacks run in the order in which they were scheduled. Chance is in how long things
take that a program cannot know: answers of the database, packets, the disk.
"""

from __future__ import annotations

import asyncio
import heapq
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar
from itertools import count
from typing import Any


class Life:
    """A process. What was begun in its context ends with it, in the middle and without a word."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = False


LIFE: ContextVar[Life | None] = ContextVar("LIFE", default=None)


class PowerCut(BaseException):
    """Raised by the disk in the middle of a write: the process that writes ends there."""


def _is_over(context: Context) -> bool:
    life = context.get(LIFE)
    return life is not None and life.ended


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        if not _is_over(self._context):  # type: ignore[attr-defined]
            super()._run()  # type: ignore[misc]


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        if not _is_over(self._context):  # type: ignore[attr-defined]
            super()._run()  # type: ignore[misc]


class _Future(asyncio.Future[Any]):
    """Sets of them are visited in the same order in every run."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        context = options.get("context")
        self.life = LIFE.get() if context is None else context.get(LIFE)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class _Standstill(Exception):
    """Nothing will ever happen any more, and something still waits."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """`disk_s` says how long a call in another thread takes; `power_cut` gets the process that was cut off in one."""

    def __init__(self, disk_s: Callable[[], float]) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self
        self._clock_resolution = 1e-9
        self._numbers = count(1)
        self._disk_s = disk_s
        self._busy: dict[object, float] = {}
        self._dead: list[_Task] = []
        self.power_cut: Callable[[Life], None] = lambda life: None
        self.complaints: list[str] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[object]:
        """Instead of waiting for sockets."""
        if timeout is None:
            raise _Standstill("everything waits, and nothing will happen any more")
        self._now += timeout
        return []

    def _process_events(self, _events: list[object]) -> None:
        """There are none."""

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(next(self._numbers), self)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return _Task(next(self._numbers), coroutine, loop=loop, **options)

    # Threads: one call of an executor after the other, each at once when its time has come.

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = self.create_future()
        due = max(self._now, self._busy.get(executor, 0.0)) + self._disk_s()
        self._busy[executor] = due
        self.call_at(due, self._execute, done, func, args)
        return done

    def _execute(self, done: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result = func(*args)
        except PowerCut:
            life = LIFE.get()
            if life is None:
                raise AssertionError("a disk without a process") from None
            self.call_soon(self.power_cut, life, context=Context())
            life.ended = True
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)

    # The end of processes, and of everything

    def kill(self, life: Life) -> None:
        life.ended = True
        for task in asyncio.all_tasks(self):
            if isinstance(task, _Task) and task.life is life:
                # Kept, so that nothing of them runs when they are collected.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self._dead.append(task)

    def bury(self) -> None:
        """Throw away what killed processes have left."""
        dead, self._dead = self._dead, []
        self.set_exception_handler(lambda loop, context: None)
        with warnings.catch_warnings(action="ignore"):  # of what they begin when they are ended
            for task in dead:
                coroutine: Any = task.get_coro()
                with suppress(BaseException):
                    coroutine.close()

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Generators of killed processes are not ended."""

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.complaints.append(f"{context.get('message')}: {error!r}")
