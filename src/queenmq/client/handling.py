"""What becomes of messages that a worker has got: the handler gets them, their leases are renewed meanwhile, and they
are acknowledged: each, all together, or with the next poll.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from queenmq.client.errors import InvalidUse, QueenError, Reject
from queenmq.client.finish import Excepted, Finish, finish_what_is_left, to_excepted
from queenmq.client.link import Link
from queenmq.client.models import FinishResult, Message
from queenmq.client.options import ConsumerOptions
from queenmq.client.push import finished
from queenmq.client.renewal import Renewal
from queenmq.client.session import Session
from queenmq.client.tracing import in_trace_of
from queenmq.client.verbs import Ack, to_ack
from queenmq.clock import SYSTEM

logger = logging.getLogger("queenmq.client")

RELEASE_S = 2.0
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

    def acks(self) -> list[Ack]:
        """The same for each message, for servers that know only that."""
        others = {(one.partition_id, one.transaction_id): one for one in self.finish.excepted}
        said = ((m, others.get((m.partition_id, m.transaction_id), self.finish)) for m in self.messages)
        return [to_ack(message, how.status, how.error) for message, how in said]


Say = Callable[[], Awaitable[Handled | None]]


@dataclass(slots=True)
class ConsumerStats:
    """`refused` counts acknowledgements that the server did not take, because the lease was over."""

    handled: int = 0
    failed: int = 0
    refused: int = 0


@dataclass(slots=True)
class Worker:
    handled: Handled | None = None  # and not acknowledged yet
    has_failed: bool = False  # the last list that the handler got


class Gathered:
    """Completed messages of one lease. `send` acknowledges some and returns whether the server has answered.

    None waits longer than `hold_s` while the handler goes on; with 0, `add` returns when it is sent. What is left when
    the lease ends need not be sent: finishing the lease acknowledges it.
    """

    def __init__(self, send: Callable[[list[Message]], Awaitable[bool]], hold_s: float) -> None:
        self.left: list[Message] = []
        self._send = send
        self._hold_s = hold_s
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    async def add(self, message: Message) -> None:
        self.left.append(message)
        if not self._hold_s:
            await self.flush()
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_later())

    async def flush(self) -> None:
        """Send what is left. What cannot be sent stays."""
        async with self._sending:
            sent, self.left = self.left, []
            is_sent = False
            try:
                is_sent = not sent or await self._send(sent)
            finally:
                if not is_sent:
                    self.left[:0] = sent

    async def end(self) -> None:
        """Send nothing more by itself, and wait for what is under way."""
        self._is_over = True  # also if this wait is given up
        async with self._sending:
            self.close()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _send_later(self) -> None:
        while not self._is_over:
            await SYSTEM.sleep(self._hold_s)
            await self.flush()


class Handling:
    """`can_take`: whether a lease can be finished with the next poll. `stopping` is set when the consumer is to end."""

    def __init__(
        self,
        session: Session,
        handler: Any,
        options: ConsumerOptions,
        stopping: asyncio.Event,
        link: Link | None,
        *,
        can_take: bool,
    ) -> None:
        self.stats = ConsumerStats()
        self.is_list = options.batch != 1 and not options.each  # what the handler gets
        self.on_success: Callable[[Any, Any], object] | None = None
        self.on_error: Callable[[Any, Exception], object] | None = None
        self._session = session
        self._handler = handler
        self._options = options
        self._stopping = stopping
        self._link = link
        self._can_take = can_take
        self._finishing: set[asyncio.Task[None]] = set()

    def note(self, result: FinishResult, messages: int, was_uncertain: bool) -> None:
        if result.success or result.uncertain or was_uncertain:
            return
        logger.warning("consuming %s: %d acks refused: %s", self._options.name, messages, result.error)
        self.stats.refused += messages

    def taken(self, result: FinishResult, handled: Handled, was_uncertain: bool) -> None:
        """What became of the lease that was to be finished with a poll. If it is as it was, it is finished behind the
        handler, so that its partitions are not held until it expires."""
        if result.is_over:
            self.note(result, len(handled.messages), was_uncertain)
            return
        handled.is_uncertain = was_uncertain or result.uncertain or result.code == "outcome_unknown"
        task = asyncio.create_task(self.finish(handled))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def end(self, within_s: float) -> None:
        """Wait for what is finished behind the handler."""
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=within_s)
        for task in self._finishing:
            task.cancel()

    async def finish(self, handled: Handled) -> None:
        """Acknowledge what was handled without popping again."""
        if not self._session.can_take:
            await self._ack(handled)
            return
        try:
            result = await finish_what_is_left(self._session.verbs.finish, handled.lease_id, handled.finish)
        except QueenError as failure:
            logger.warning("consuming %s: not acknowledged: %s", self._options.name, failure)
            if not handled.is_uncertain:
                self.stats.refused += len(handled.messages)
        else:
            self.note(result, len(handled.messages), handled.is_uncertain)

    async def take(self, messages: list[Message], worker: Worker) -> None:
        """Hand them over and acknowledge; or note what is to be acknowledged with the next poll."""
        async with Renewal(self._session.verbs, messages, self._options.renew_millis) as renewal:
            if self.is_list:
                await self._hand_over_lease(messages, messages, worker)
            elif len(messages) == 1:
                await self._hand_over_lease(messages[0], messages, worker)
            else:
                await self._hand_over_each(messages, renewal, worker)

    async def _hand_over_lease(self, given: Any, messages: list[Message], worker: Worker) -> None:
        """Hand over all that a lease has."""
        try:
            finish = await self._hand_over(given, messages)
        except asyncio.CancelledError:
            await self.release(messages)
            raise
        worker.has_failed = finish.status != _COMPLETED
        await self._say(worker, partial(self._said, Handled(messages, finish)))

    async def _hand_over_each(self, messages: list[Message], renewal: Renewal, worker: Worker) -> None:
        """One by one. What is completed is acknowledged behind the handler; the last of it ends the lease."""
        gathered = Gathered(self._ack_completed, self._options.ack_millis / 1000)
        failed: dict[str, Excepted] = {}  # by partition: the rest of it comes again, in order
        back: list[Message] = []
        for place, message in enumerate(messages):
            is_cut = self._stopping.is_set() and place > 0 and message.lease_id and self.acks
            if is_cut or renewal.lost or message.partition_id in failed:
                back.append(message)
                continue
            try:
                finish = await self._hand_over(message, [message])
                if finish.status != _COMPLETED:
                    failed[message.partition_id] = to_excepted(message, finish)
                    back.append(message)
                elif place + 1 < len(messages):
                    await gathered.add(message)
                else:
                    gathered.left.append(message)
            except asyncio.CancelledError:
                await self._say_soon(worker, partial(self._end_each, gathered, failed, back + messages[place:]))
                raise
            except BaseException:  # of a callback: the consumer ends with it
                gathered.close()
                raise
        if not renewal.lost:
            await self._say(worker, partial(self._end_each, gathered, failed, back))
            return
        # Somebody else has it. On a connection this makes room for the next.
        await gathered.end()
        await gathered.flush()
        if self._link is not None:
            self._link.drop(messages)

    async def _say(self, worker: Worker, say: Say) -> None:
        """Have something said of what was handled: also if the worker is cancelled while that is under way, and nobody
        knows whether it was done."""
        try:
            worker.handled = await say()
        except asyncio.CancelledError:
            await self._say_soon(worker, say)
            raise

    @staticmethod
    async def _say_soon(worker: Worker, say: Say) -> None:
        """The same for a worker that was cancelled: what cannot be said in time is left to the end of the lease."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                worker.handled = await say()

    async def _end_each(self, gathered: Gathered, failed: dict[str, Excepted], back: list[Message]) -> Handled | None:
        """What is to be said of the lease: it is completed, or what is in `back` is given back, or has failed."""
        await gathered.end()
        if not self.acks:
            back = [message for message in back if message.partition_id in failed]
        if not back:  # of a handler that acknowledges and was cancelled, there may be nothing to say
            return await self._said(Handled(gathered.left, Finish())) if gathered.left else None
        await gathered.flush()
        self.stats.refused += len(gathered.left)  # they come again
        return await self._said(Handled(back, Finish(status="retry", excepted=list(failed.values()))))

    async def _said(self, handled: Handled) -> Handled | None:
        """Returned to be said with the next poll; or said now, if that is not possible."""
        messages, lease_id = handled.messages, handled.lease_id
        can_take = self._session.can_take or (self._link is not None and self._link.holds(lease_id))
        can_take = can_take and self.acks and self._can_take
        if can_take and lease_id and all(one.lease_id == lease_id for one in messages):
            return handled
        if self.acks:
            await self._ack(handled)
        elif handled.finish.status != _COMPLETED and self.on_error is None and lease_id:
            await self._say_failed(handled)
        return None

    async def _say_failed(self, handled: Handled) -> None:
        """Where the handler acknowledges: it raised, so what it has not settled has failed, or is as it said.

        Safe whatever the handler has begun: of it and of this, the lease lets only the first take effect.
        """
        try:
            results = await self._session.verbs.ack(handled.acks(), self._group(handled.messages))
        except QueenError as failure:
            logger.warning("consuming %s: not acknowledged: %s", self._options.name, failure)
            return
        if refused := [result.error for result in results if not result.success]:
            text = "consuming %s: the failure changes nothing for %d messages, settled already or lost: %s"
            logger.info(text, self._options.name, len(refused), refused[0])

    async def _hand_over(self, given: Any, messages: list[Message]) -> Finish:
        """Call the handler; what is to be said of the messages."""
        try:
            with in_trace_of(messages):
                result = await finished(self._handler(given))
        except Exception as error:
            self._log_failure(messages, error)
            self.stats.failed += len(messages)
            if self.on_error is not None:
                await finished(self.on_error(given, error))
            return Finish(status=error.status if isinstance(error, Reject) else "failed", error=_text(error))
        self.stats.handled += len(messages)
        if self.on_success is not None:
            await finished(self.on_success(given, result))
        return Finish(status=_COMPLETED)

    def _log_failure(self, messages: list[Message], error: Exception) -> None:
        name, which = self._options.name, _described(messages)
        if isinstance(error, Reject):
            logger.info("consuming %s: the handler rejected %s: %s (%s)", name, which, error, error.status)
            return
        # A callback for errors reports them; without one, this line is the only place where a person sees them.
        level = logging.WARNING if self.on_error is None else logging.INFO
        logger.log(level, "consuming %s: the handler failed with %s", name, which, exc_info=error)

    @property
    def acks(self) -> bool:
        if self._options.auto_ack is not None:
            return self._options.auto_ack
        return self.on_success is None and self.on_error is None

    async def _ack(self, handled: Handled) -> None:
        if self.acks and not await self._send_acks(handled.acks(), handled.messages):
            # The lease ends by itself, and the messages come again.
            self.stats.refused += len(handled.messages)

    async def _ack_completed(self, messages: list[Message]) -> bool:
        return not self.acks or await self._send_acks(Handled(messages, Finish()).acks(), messages)

    async def _send_acks(self, acks: list[Ack], messages: Sequence[Message]) -> bool:
        """Whether the server has answered."""
        try:
            results = await self._session.verbs.ack(acks, self._group(messages))
        except QueenError as failure:
            logger.warning("consuming %s: not acknowledged: %s", self._options.name, failure)
            return False
        refused = [result for result in results if not result.success]
        if refused:
            logger.warning("consuming %s: %d acks refused: %s", self._options.name, len(refused), refused[0].error)
            self.stats.refused += len(refused)
        return True

    async def release(self, messages: Sequence[Message]) -> None:
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._ack(Handled(messages, Finish(status="retry")))
        except TimeoutError:
            logger.warning("consuming %s: %d messages could not be given back", self._options.name, len(messages))

    def _group(self, messages: Sequence[Message]) -> str | None:
        return self._options.group or messages[0].consumer_group or None


def _described(messages: Sequence[Message]) -> str:
    first, *more = messages
    others = f" and {len(more)} more" if more else ""
    return f"{first.transaction_id} of {first.partition}{others} (attempt {first.retry_count + 1})"


def _text(error: Exception) -> str:
    return (str(error) or type(error).__name__).replace("\0", "")[:_LONGEST_ERROR]


def check_handler(handler: object, *, is_blocking: bool = False) -> None:
    """Raises InvalidUse unless it takes one argument: else every message would fail, and become a dead letter. One that
    `is_blocking` must not be a coroutine function: nobody would run what it returns."""
    if not callable(handler):
        raise InvalidUse(f"a handler is a function that is called with what was popped, not {handler!r}")
    try:
        inspect.signature(handler).bind(None)
    except TypeError as error:
        raise InvalidUse(f"the handler cannot be called with what was popped, one argument: {error}") from None
    except ValueError:
        pass  # written in C: it does not say what it takes
    if is_blocking and any(inspect.iscoroutinefunction(one) for one in (handler, type(handler).__call__)):
        raise InvalidUse("the handler is an async function: use Queen instead of BlockingQueen, or a plain function")


def check_result(result: object) -> object:
    """What a blocking handler has returned. Raises InvalidUse for a coroutine, which has done nothing yet."""
    if inspect.iscoroutine(result):
        result.close()
        raise InvalidUse("the handler returned a coroutine: use Queen instead of BlockingQueen, or a plain function")
    return result
