"""Consuming: workers that pop and hand over (`handling`), and their end.

A worker survives outages: it tries again until it is stopped. What ends it early is a refusal (4xx), which would be the
same the next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from queenmq.client import missing
from queenmq.client.errors import InvalidResponse, NetworkError, QueenError, RequestError, Unavailable
from queenmq.client.handling import RELEASE_S, ConsumerStats, Handling, Worker
from queenmq.client.link import Link
from queenmq.client.models import Message, PopAnswer
from queenmq.client.options import ConsumerOptions
from queenmq.client.polls import Polls
from queenmq.client.session import Session
from queenmq.client.signals import drained
from queenmq.client.sizing import BatchSize, Size
from queenmq.clock import SYSTEM

logger = logging.getLogger("queenmq.client")

_EMPTY_PAUSE_S = 0.1
_OUTAGE_PAUSE_S = 1.0
_CLOSE_S = 10.0
_LOOKED_S = 2.0


class Consumer(Awaitable[ConsumerStats]):
    """Await it to run it until it ends, or enter it as a context manager to run it meanwhile.

    >>> async with queen.queue("orders").consume(handle) as consumer:  # doctest: +SKIP
    ...     await something_else()
    """

    def __init__(
        self,
        session: Session,
        polls: Polls,
        handler: Any,
        options: ConsumerOptions,
        signal: asyncio.Event | None = None,
        link: Link | None = None,
    ) -> None:
        self._session = session
        self._polls = polls
        self._options = options
        self._signal = signal
        self._link = link
        self._sizes = BatchSize(options.partitions) if options.batch is None else None
        self._stopping = asyncio.Event()
        self._handling = Handling(session, handler, options, self._stopping, link, can_take=polls.take is not None)
        self.stats = self._handling.stats
        self._ended = asyncio.Event()  # the acknowledgements are sent, too
        self._has_got = False  # a message
        self._has_polled = asyncio.Event()  # and got an answer
        self._running = self._run()
        self._task: asyncio.Task[ConsumerStats] | None = None
        self._workers: list[asyncio.Task[None]] = []

    def on_success(self, callback: Callable[[Any, Any], object]) -> Self:
        """Call with what the handler got and returned. Then acknowledging is up to the callbacks, unless
        `auto_ack(True)` was said. Without `on_error`, what the handler raises is acknowledged all the same."""
        self._handling.on_success = callback
        return self

    def on_error(self, callback: Callable[[Any, Exception], object]) -> Self:
        """Call with what the handler got and raised. Then acknowledging is up to the callbacks, as above."""
        self._handling.on_error = callback
        return self

    def stop(self) -> None:
        """End soon: nothing new is popped, what the handlers have is finished and acknowledged, the rest given back."""
        self._stopping.set()
        if self._link is not None:
            self._link.stop()

    def cancel(self) -> None:
        """End now: handlers are cancelled and what they had in hand is given back, without counting as an attempt."""
        for worker in self._workers:
            worker.cancel()

    async def ended(self) -> None:
        """Return when it has ended. Does not raise its error: the caller that awaits the consumer gets that."""
        if self._workers:
            await self._ended.wait()

    def __await__(self) -> Generator[Any, Any, ConsumerStats]:
        return (self._running if self._task is None else self._task).__await__()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._running)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await self

    async def _run(self) -> ConsumerStats:
        self._session.check_may_consume()
        if self._signal is not None and self._signal.is_set():
            return self.stats
        self._session.consumers.add(self)
        loop = asyncio.get_running_loop()
        if self._link is not None and self._handling.acks:
            self._polls = self._link.open(self._handling.note)
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._options.concurrency)]
        watcher = asyncio.create_task(self._watch())
        looking = asyncio.create_task(self._look())
        with ExitStack() as stack:
            stack.callback(self._ended.set)
            stack.callback(self._session.consumers.discard, self)
            stack.callback(watcher.cancel)
            stack.callback(looking.cancel)
            if self._options.handle_signals:
                stop, cancel = (partial(loop.call_soon_threadsafe, end) for end in (self._stop_on_signal, self.cancel))
                stack.enter_context(drained(stop, cancel, raise_again=self._task is not None))
            try:
                await self._until_all_end()
                if self._has_polled.is_set() and not self._has_got:
                    await asyncio.wait((looking,), timeout=_LOOKED_S)
            finally:
                await self._handling.end(_CLOSE_S)
                if self._link is not None:
                    await self._link.close(_CLOSE_S)
        return self.stats

    def _stop_on_signal(self) -> None:
        logger.info("consuming %s: ends on a signal, when what is in hand is finished", self._options.name)
        self.stop()

    async def _until_all_end(self) -> None:
        """One worker that fails stops the others, which finish what they have. Raises the first failure."""
        try:
            await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
            self.stop()
            await asyncio.wait(self._workers)
        except asyncio.CancelledError:
            self.cancel()
            await asyncio.wait(self._workers)
            raise
        # All of them are asked, or those whose error is not raised would complain that nobody wanted to know it.
        errors = [worker.exception() for worker in self._workers if not worker.cancelled()]
        for error in filter(None, errors):
            raise error

    async def _watch(self) -> None:
        if self._signal is not None:
            await self._signal.wait()
            self.stop()

    async def _look(self) -> None:
        """If nothing comes, say whether there is such a queue at all, once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(missing.LOOK_S):
                await self._has_polled.wait()
        if self._has_got or self._options.queue is None:
            return
        told = await missing.missing_queue(self._session.verbs, self._options.queue)
        if told is not None and not self._has_got:
            logger.warning("consuming %s: %s", self._options.name, told)

    async def _work(self) -> None:
        worker = Worker()
        try:
            await self._poll_and_handle(worker)
        except asyncio.CancelledError:
            # What was handled is handled, but nobody waits for long.
            if worker.handled is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RELEASE_S):
                        await self._handling.finish(worker.handled)
            raise
        except QueenError:
            if worker.handled is not None:
                await self._handling.finish(worker.handled)
            raise
        if worker.handled is not None:
            await self._handling.finish(worker.handled)

    async def _poll_and_handle(self, worker: Worker) -> None:
        options = self._options
        left = options.limit
        last = SYSTEM.monotonic()
        while not self._stopping.is_set() and left != 0:
            size = self._size(left)
            wait_ms = self._wait_ms(SYSTEM.monotonic() - last)
            asked = SYSTEM.monotonic()
            messages = await self._poll(size, wait_ms, worker)
            if messages and self._stopping.is_set() and messages[0].lease_id:
                await self._handling.release(messages)
            elif messages:
                left = None if left is None else left - len(messages)
                began = SYSTEM.monotonic()
                await self._handling.take(messages, worker)
                last = SYSTEM.monotonic()
                self._learn(messages, began - asked, last - began, worker)
            elif options.idle_millis is not None and SYSTEM.monotonic() - last >= options.idle_millis / 1000:
                return
            elif SYSTEM.monotonic() - asked < _EMPTY_PAUSE_S:
                # An empty answer that came at once would come at once again.
                await self._pause(_EMPTY_PAUSE_S)

    def _size(self, left: int | None) -> Size:
        size = Size(self._options.batch or 1, self._options.partitions or 1) if self._sizes is None else self._sizes.now
        return size if left is None else size._replace(batch=min(size.batch, left))

    def _learn(self, messages: Sequence[Message], waited_s: float, handled_s: float, worker: Worker) -> None:
        if self._sizes is None:
            return
        got, before = Size(len(messages), len({one.partition_id for one in messages})), self._sizes.now
        self._sizes.learn(got, waited_s, handled_s, failed=worker.has_failed and self._handling.is_list)
        if self._link is not None and self._sizes.now != before:
            self._link.resize(self._sizes.now)

    def _wait_ms(self, idle_s: float) -> int:
        """How long the next poll may wait: not beyond the moment at which an idle worker ends."""
        wait, idle = self._options.wait_millis, self._options.idle_millis
        return wait if idle is None else max(1, min(wait, int(idle - idle_s * 1000) + 1))

    async def _poll(self, size: Size, wait_ms: int, worker: Worker) -> list[Message]:
        """Messages; none also when it is stopped or the servers are away."""
        popping = asyncio.ensure_future(self._next(size, wait_ms, worker))
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((popping, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not popping.done():
                popping.cancel()
                await asyncio.wait((popping,))
            if popping.cancelled():
                return []
            self._has_got = self._has_got or bool(popping.result())
            self._has_polled.set()
            return popping.result()
        except (Unavailable, NetworkError, InvalidResponse) as error:
            logger.warning("consuming %s: %s; going on", self._options.name, error)
            await self._pause(_OUTAGE_PAUSE_S)
            return []
        except asyncio.CancelledError:
            if popping.done() and not popping.cancelled() and popping.exception() is None and popping.result():
                await self._handling.release(popping.result())
            raise
        finally:
            stopped.cancel()
            popping.cancel()

    async def _next(self, size: Size, wait_ms: int, worker: Worker) -> list[Message]:
        """Pop; what was handled before is acknowledged in the same request, or before it."""
        handled, take = worker.handled, self._polls.take
        if handled is None or take is None:
            return await self._polls.pop(size, wait_ms)
        was_uncertain, handled.is_uncertain = handled.is_uncertain, True
        if self._link is not None and self._link.finishes(handled.lease_id):
            worker.handled = None
        try:
            taken = await take(handled.lease_id, handled.finish, size, wait_ms)
        except RequestError as error:
            if error.status not in (404, 405):
                raise
            # A server that knows only acknowledgements of messages.
            self._session.can_take = False
            handled.is_uncertain = was_uncertain
            await self._handling.finish(handled)
            worker.handled = None
            return await self._polls.pop(size, wait_ms)
        worker.handled = None
        self._handling.taken(taken, handled, was_uncertain)
        if taken.take_error is not None:
            logger.warning("consuming %s: nothing could be popped: %s", self._options.name, taken.take_error)
        answer = taken.taken or PopAnswer()
        return [message for message in answer.messages if message is not None]

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
