"""Consuming: workers that pop, hand over, renew leases meanwhile, and acknowledge.

A worker survives outages: it tries again until it is stopped. What ends it early is a refusal (4xx), which would be the
same the next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from queenmq.client.errors import InvalidResponse, NetworkError, QueenError, Reject, RequestError, Unavailable
from queenmq.client.link import Link
from queenmq.client.models import FinishResult, Message, PopAnswer
from queenmq.client.options import ConsumerOptions
from queenmq.client.polls import Polls
from queenmq.client.push import finished
from queenmq.client.renewal import Renewal
from queenmq.client.session import Session
from queenmq.client.signals import drained
from queenmq.client.tracing import in_trace_of
from queenmq.client.verbs import Finish, to_ack
from queenmq.clock import SYSTEM

logger = logging.getLogger("queenmq.client")

_EMPTY_PAUSE_S = 0.1
_OUTAGE_PAUSE_S = 1.0
_RELEASE_S = 2.0
_CLOSE_S = 10.0
_LONGEST_ERROR = 2000
_COMPLETED = "completed"


@dataclass(slots=True)
class Handled:
    """Messages of a lease that were handled, and what is to be said of them with the next poll, or at the end."""

    messages: Sequence[Message]
    finish: Finish
    is_uncertain: bool = False  # it was sent, and no answer came

    @property
    def lease_id(self) -> str:
        return self.messages[0].lease_id


@dataclass(slots=True)
class ConsumerStats:
    """`refused` counts acknowledgements that the server did not take, because the lease was over."""

    handled: int = 0
    failed: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Worker:
    handled: Handled | None = None  # and not acknowledged yet


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
        self.stats = ConsumerStats()
        self._session = session
        self._polls = polls
        self._handler = handler
        self._options = options
        self._signal = signal
        self._link = link
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()  # the acknowledgements are sent, too
        self._on_success: Callable[[Any, Any], object] | None = None
        self._on_error: Callable[[Any, Exception], object] | None = None
        self._running = self._run()
        self._task: asyncio.Task[ConsumerStats] | None = None
        self._workers: list[asyncio.Task[None]] = []

    def on_success(self, callback: Callable[[Any, Any], object]) -> Self:
        """Call with what the handler got and returned. Then acknowledging is up to the callbacks, unless
        `auto_ack(True)` was said."""
        self._on_success = callback
        return self

    def on_error(self, callback: Callable[[Any, Exception], object]) -> Self:
        """Call with what the handler got and raised. Then acknowledging is up to the callbacks, as above."""
        self._on_error = callback
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
        if self._link is not None and self._acks:
            self._polls = self._link.open(self._note)
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._options.concurrency)]
        watcher = asyncio.create_task(self._watch())
        with ExitStack() as stack:
            stack.callback(self._ended.set)
            stack.callback(self._session.consumers.discard, self)
            stack.callback(watcher.cancel)
            if self._options.handle_signals:
                stop, cancel = (partial(loop.call_soon_threadsafe, end) for end in (self._stop_on_signal, self.cancel))
                stack.enter_context(drained(stop, cancel, raise_again=self._task is not None))
            try:
                await self._until_all_end()
            finally:
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

    async def _work(self) -> None:
        worker = _Worker()
        try:
            await self._poll_and_handle(worker)
        except asyncio.CancelledError:
            # What was handled is handled, but nobody waits for long.
            if worker.handled is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RELEASE_S):
                        await self._finish(worker.handled)
            raise
        except QueenError:
            if worker.handled is not None:
                await self._finish(worker.handled)
            raise
        if worker.handled is not None:
            await self._finish(worker.handled)

    async def _poll_and_handle(self, worker: _Worker) -> None:
        options = self._options
        left = options.limit
        last = SYSTEM.monotonic()
        while not self._stopping.is_set() and left != 0:
            size = options.batch if left is None else min(options.batch, left)
            wait_ms = self._wait_ms(SYSTEM.monotonic() - last)
            asked = SYSTEM.monotonic()
            messages = await self._poll(size, wait_ms, worker)
            if messages and self._stopping.is_set() and messages[0].lease_id:
                await self._release(messages)
            elif messages:
                left = None if left is None else left - len(messages)
                worker.handled = await self._take(messages)
                last = SYSTEM.monotonic()
            elif options.idle_millis is not None and SYSTEM.monotonic() - last >= options.idle_millis / 1000:
                return
            elif SYSTEM.monotonic() - asked < _EMPTY_PAUSE_S:
                # An empty answer that came at once would come at once again.
                await self._pause(_EMPTY_PAUSE_S)

    def _wait_ms(self, idle_s: float) -> int:
        """How long the next poll may wait: not beyond the moment at which an idle worker ends."""
        wait, idle = self._options.wait_millis, self._options.idle_millis
        return wait if idle is None else max(1, min(wait, int(idle - idle_s * 1000) + 1))

    async def _poll(self, size: int, wait_ms: int, worker: _Worker) -> list[Message]:
        """Messages; none also when it is stopped or the servers are away."""
        popping = asyncio.ensure_future(self._next(size, wait_ms, worker))
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((popping, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not popping.done():
                popping.cancel()
                await asyncio.wait((popping,))
            return [] if popping.cancelled() else popping.result()
        except (Unavailable, NetworkError, InvalidResponse) as error:
            logger.warning("consuming %s: %s; going on", self._options.name, error)
            await self._pause(_OUTAGE_PAUSE_S)
            return []
        except asyncio.CancelledError:
            if popping.done() and not popping.cancelled() and popping.exception() is None and popping.result():
                await self._release(popping.result())
            raise
        finally:
            stopped.cancel()
            popping.cancel()

    async def _next(self, size: int, wait_ms: int, worker: _Worker) -> list[Message]:
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
            await self._finish(handled)
            worker.handled = None
            return await self._polls.pop(size, wait_ms)
        worker.handled = None
        self._note(taken, len(handled.messages), was_uncertain)
        if taken.take_error is not None:
            logger.warning("consuming %s: nothing could be popped: %s", self._options.name, taken.take_error)
        answer = taken.taken or PopAnswer()
        return [message for message in answer.messages if message is not None]

    def _note(self, result: FinishResult, messages: int, was_uncertain: bool) -> None:
        if result.success or result.uncertain or was_uncertain:
            return
        logger.warning("consuming %s: %d acks refused: %s", self._options.name, messages, result.error)
        self.stats.refused += messages

    async def _finish(self, handled: Handled) -> None:
        """Acknowledge what was handled without popping again."""
        if not self._session.can_take:
            await self._ack(handled.messages, handled.finish.status, handled.finish.error)
            return
        try:
            result = await self._session.verbs.finish(handled.lease_id, handled.finish)
        except QueenError as failure:
            logger.warning("consuming %s: not acknowledged: %s", self._options.name, failure)
            if not handled.is_uncertain:
                self.stats.refused += len(handled.messages)
        else:
            self._note(result, len(handled.messages), handled.is_uncertain)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _take(self, messages: list[Message]) -> Handled | None:
        """Hand them over and acknowledge; or say what is to be acknowledged with the next poll."""
        async with Renewal(self._session.verbs, messages, self._options.renew_millis) as renewal:
            if self._options.batch > 1 and not self._options.each:
                return await self._hand_over_lease(messages, messages)
            if len(messages) == 1:
                return await self._hand_over_lease(messages[0], messages)
            given_up: set[str] = set()
            for place, message in enumerate(messages):
                # After a failure the lease of its partition is over: the rest of it comes again, in order.
                if message.partition_id in given_up or renewal.lost:
                    continue
                if self._stopping.is_set() and place > 0 and message.lease_id and self._acks:
                    await self._release([left for left in messages[place:] if left.partition_id not in given_up])
                    return None
                finish = await self._hand_over(message, [message])
                await self._ack([message], finish.status, finish.error)
                if finish.status != _COMPLETED:
                    given_up.add(message.partition_id)
            return None

    async def _hand_over_lease(self, given: Any, messages: list[Message]) -> Handled | None:
        """Hand over all that a lease has."""
        finish = await self._hand_over(given, messages)
        lease_id = messages[0].lease_id
        can_take = self._session.can_take or (self._link is not None and self._link.holds(lease_id))
        can_take = can_take and self._acks and self._polls.take is not None
        if can_take and lease_id and all(one.lease_id == lease_id for one in messages):
            return Handled(messages, finish)
        await self._ack(messages, finish.status, finish.error)
        return None

    async def _hand_over(self, given: Any, messages: list[Message]) -> Finish:
        """Call the handler; what is to be said of the messages."""
        try:
            with in_trace_of(messages):
                result = await finished(self._handler(given))
        except asyncio.CancelledError:
            await self._release(messages)
            raise
        except Exception as error:
            # A callback for errors reports them; without one, this line is the only place where a person sees them.
            level = logging.WARNING if self._on_error is None and not isinstance(error, Reject) else logging.INFO
            logger.log(level, "consuming %s: the handler failed", self._options.name, exc_info=error)
            self.stats.failed += len(messages)
            if self._on_error is not None:
                await finished(self._on_error(given, error))
            return Finish(status=error.status if isinstance(error, Reject) else "failed", error=_text(error))
        self.stats.handled += len(messages)
        if self._on_success is not None:
            await finished(self._on_success(given, result))
        return Finish(status=_COMPLETED)

    @property
    def _acks(self) -> bool:
        if self._options.auto_ack is not None:
            return self._options.auto_ack
        return self._on_success is None and self._on_error is None

    async def _ack(self, messages: Sequence[Message], status: str, error: str | None) -> None:
        if not self._acks:
            return
        try:
            results = await self._session.verbs.ack([to_ack(m, status, error) for m in messages], self._group(messages))
        except QueenError as failure:
            # The lease ends by itself, and the messages come again.
            logger.warning("consuming %s: not acknowledged: %s", self._options.name, failure)
            self.stats.refused += len(messages)
            return
        refused = [result for result in results if not result.success]
        if refused:
            logger.warning("consuming %s: %d acks refused: %s", self._options.name, len(refused), refused[0].error)
            self.stats.refused += len(refused)

    async def _release(self, messages: Sequence[Message]) -> None:
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._ack(messages, "retry", None)
        except TimeoutError:
            logger.warning("consuming %s: %d messages could not be given back", self._options.name, len(messages))

    def _group(self, messages: Sequence[Message]) -> str | None:
        return self._options.group or messages[0].consumer_group or None


def _text(error: Exception) -> str:
    return (str(error) or type(error).__name__).replace("\0", "")[:_LONGEST_ERROR]
