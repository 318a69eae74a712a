"""The blocking twin: the same client, run on an event loop in a thread of its own.

There is one implementation, the asynchronous one; here are only its words for callers that wait. A thread and not
generated code, because leases must be renewed and buffers sent while the caller's thread is busy with something else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from queenmq.client.admin import BlockingAdmin
from queenmq.client.client import Context, Queen
from queenmq.client.consumer import Consumer
from queenmq.client.dead_letters import DeadLetterFilter
from queenmq.client.handling import ConsumerStats, check_handler, check_result
from queenmq.client.items import Item
from queenmq.client.keys import Keys
from queenmq.client.models import (
    AckResult,
    BufferStats,
    DeadLetters,
    Json,
    Message,
    Operation,
    PushResults,
    RenewResult,
    TraceResult,
    TransactionResult,
)
from queenmq.client.options import AckStatus, Options
from queenmq.client.payload import Payload
from queenmq.client.portal import Portal
from queenmq.client.queue import Handed, Queue, QueueSpec
from queenmq.client.reads import Read
from queenmq.client.session import Session
from queenmq.client.signals import drained
from queenmq.client.timers import Timer
from queenmq.client.transaction import TransactionSteps

if TYPE_CHECKING:
    from queenmq.client.answers import GroupDeleted, SubscriptionMoved

_SIGNAL_LOOK_S = 0.05


class BlockingConsumer:
    """A consumer that runs in the background. Leave it as a context manager, or `stop` and `join` it."""

    def __init__(self, portal: Portal, queue: Queue[Any], handler: Callable[[Any], object], threads: int) -> None:
        self._portal = portal
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="queenmq-handler")
        self._consumer: Consumer | None = None
        self._ended: Future[ConsumerStats] = portal.start(lambda: self._run(queue, handler))

    async def _run(self, queue: Queue[Any], handler: Callable[[Any], object]) -> ConsumerStats:
        loop = asyncio.get_running_loop()

        async def in_thread(given: Any) -> object:
            return check_result(await loop.run_in_executor(self._threads, handler, given))

        self._consumer = queue.consume(in_thread, handle_signals=False)
        return await self._consumer

    def stop(self) -> None:
        """End soon: nothing new is popped, what the handlers have is finished and acknowledged, the rest given back."""
        self._portal.call(lambda: None if self._consumer is None else self._consumer.stop())

    def join(self, timeout_s: float | None = None) -> ConsumerStats:
        """Wait until it has ended; raises what ended it. Raises TimeoutError if it still runs after `timeout_s`."""
        try:
            return self._ended.result(timeout_s)
        finally:
            if self._ended.done():
                self._threads.shutdown()

    @property
    def running(self) -> bool:
        return not self._ended.done()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.join()


class BlockingQueue(QueueSpec[Handed]):
    """A queue of a blocking client. The words are those of `Queue`; the verbs return when they are done."""

    def __init__(self, portal: Portal, session: Session, name: str | None) -> None:
        super().__init__(session, name)
        self._portal = portal
        self._queue: Queue[Handed] = Queue(session, said=self._said)

    @overload
    def batch(self, size: Literal[1]) -> BlockingQueue[Message]: ...  # type: ignore[overload-overlap]

    @overload
    def batch(self, size: int | Literal["auto"]) -> BlockingQueue[list[Message]]: ...

    def batch(self, size: int | Literal["auto"]) -> BlockingQueue[Any]:
        """As `Queue.batch`."""
        return self._batch(size)

    def each(self) -> BlockingQueue[Message]:
        """As `Queue.each`."""
        queue: BlockingQueue[Any] = self._consumer(each=True)
        return queue

    def create(self, *, replace: bool = True) -> Json:
        """As `Queue.create`."""
        return self._portal.run(lambda: self._queue.create(replace=replace))

    def delete(self) -> Json:
        """As `Queue.delete`."""
        return self._portal.run(self._queue.delete)

    def push(self, items: Item | Payload, *, expected_last_offset: int | None = None) -> PushResults:
        """As `Queue.push`: one result per item. Raises PushFailed, which has all results, if some were refused."""
        return self._portal.run(lambda: self._queue.push(items, expected_last_offset=expected_last_offset))

    def read(self, offset: int | None = None, *, since: datetime | None = None, limit: int = 1000) -> Read:
        """As `Queue.read`."""
        return self._portal.run(lambda: self._queue.read(offset, since=since, limit=limit))

    def schedule(
        self,
        data: Payload,
        *,
        key: str,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        schedule: str | None = None,
        time_zone: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Timer:
        """As `Queue.schedule`."""
        return self._portal.run(
            lambda: self._queue.schedule(
                data, key=key, delay=delay, at=at, schedule=schedule, time_zone=time_zone, headers=headers
            )
        )

    def cancel(self, key: str) -> Timer:
        """As `Queue.cancel`."""
        return self._portal.run(lambda: self._queue.cancel(key))

    def timers(self, limit: int = 1000) -> list[Timer]:
        """As `Queue.timers`."""
        return self._portal.run(lambda: self._queue.timers(limit))

    def pop(self) -> list[Message]:
        """As `Queue.pop`."""
        return self._portal.run(self._queue.pop)

    def consume(
        self,
        handler: Callable[[Handed], object],
        *,
        signal: threading.Event | None = None,
        handle_signals: bool = True,
    ) -> ConsumerStats:
        """As `Queue.consume`: returns when it ends, also on SIGTERM and SIGINT.

        The handler is called in threads, one for each worker. They cannot be cancelled, so a second signal has its
        usual effect.
        """
        with ExitStack() as stack:
            consumer = stack.enter_context(self.start_consumer(handler))
            if handle_signals:
                stack.enter_context(drained(consumer.stop))
            while consumer.running and not (signal is not None and signal.is_set()):
                with suppress(TimeoutError):
                    return consumer.join(_SIGNAL_LOOK_S)
            consumer.stop()
            return consumer.join()

    def start_consumer(self, handler: Callable[[Handed], object]) -> BlockingConsumer:
        """The same in the background. Signals are left alone: use it as a context manager, or `stop` and `join` it."""
        check_handler(handler, is_blocking=True)
        return BlockingConsumer(self._portal, self._queue, handler, self._said.consumer.concurrency)

    def flush_buffer(self) -> None:
        """As `Queue.flush_buffer`."""
        self._portal.run(self._queue.flush_buffer)

    def dlq(self, group: str | None = None) -> BlockingDeadLetterQuery:
        """As `Queue.dlq`."""
        return BlockingDeadLetterQuery(self._portal, self._session, *self._of(group))


class BlockingDeadLetterQuery(DeadLetterFilter):
    def __init__(
        self, portal: Portal, session: Session, queue: str | None, group: str | None, partition: str | None
    ) -> None:
        super().__init__(session, queue, group, partition)
        self._portal = portal

    def get(self) -> DeadLetters:
        """As `DeadLetterQuery.get`."""
        return self._portal.run(self._get)


class BlockingTransaction(TransactionSteps):
    def __init__(self, portal: Portal, session: Session) -> None:
        super().__init__(session)
        self._portal = portal

    def commit(self) -> TransactionResult:
        """As `Transaction.commit`."""
        return self._portal.run(self._commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_settled = True
        if kind is None:
            self.commit()


class BlockingQueen:
    """`Queen` for code without asyncio; may be used from any number of threads.

    >>> with BlockingQueen("http://127.0.0.1:6632") as queen:  # doctest: +SKIP
    ...     queen.queue("orders").partition("customer-17").push({"order": 1})
    ...     for message in queen.queue("orders").group("billing").batch(10).pop():
    ...         queen.ack(message)
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        url: str | None = None,
        urls: Sequence[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._queen = Queen(servers, url=url, urls=urls, **options)
        self._portal = Portal()
        verbs = self._queen._session.verbs
        self.admin = BlockingAdmin(lambda *call: self._portal.run(lambda: verbs.ask(*call)))
        """Administration: `queen.admin.list_queues()`."""
        self.keys: Keys[Any] = Keys(lambda *call: self._portal.run(lambda: verbs.ask_once(*call)))
        """Values under keys, counters and locks."""

    def queue(self, name: str | None = None) -> BlockingQueue[Message]:
        """As `Queen.queue`."""
        return BlockingQueue(self._portal, self._queen._session, name)

    def transaction(self) -> BlockingTransaction:
        """As `Queen.transaction`."""
        return BlockingTransaction(self._portal, self._queen._session)

    @overload
    def ack(
        self,
        messages: Message,
        status: bool | AckStatus = True,
        context: Context | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> AckResult: ...

    @overload
    def ack(
        self,
        messages: Sequence[Message],
        status: bool | AckStatus = True,
        context: Context | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> list[AckResult]: ...

    def ack(
        self,
        messages: Any,
        status: bool | AckStatus = True,
        context: Context | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> Any:
        """As `Queen.ack`."""
        return self._portal.run(lambda: self._queen.ack(messages, status, context, group=group, error=error))

    @overload
    def renew(self, what: Message | str, seconds: int = 60) -> RenewResult: ...

    @overload
    def renew(self, what: Sequence[Message], seconds: int = 60) -> list[RenewResult]: ...

    def renew(self, what: Any, seconds: int = 60) -> Any:
        """As `Queen.renew`."""
        return self._portal.run(lambda: self._queen.renew(what, seconds))

    def trace(
        self, message: Message, data: Any, *, names: str | Sequence[str] = (), event_type: str = "info"
    ) -> TraceResult:
        """As `Queen.trace`."""
        return self._portal.run(lambda: self._queen.trace(message, data, names=names, event_type=event_type))

    def operation(self, operation_id: str) -> Operation:
        """As `Queen.operation`."""
        return self._portal.run(lambda: self._queen.operation(operation_id))

    def wait_for_operation(self, operation_id: str) -> Operation:
        """As `Queen.wait_for_operation`."""
        return self._portal.run(lambda: self._queen.wait_for_operation(operation_id))

    def delete_consumer_group(self, group: str, delete_metadata: bool = True) -> GroupDeleted:
        """As `Queen.delete_consumer_group`."""
        return self._portal.run(lambda: self._queen.delete_consumer_group(group, delete_metadata))

    def update_consumer_group_timestamp(self, group: str, timestamp: str) -> SubscriptionMoved:
        """As `Queen.update_consumer_group_timestamp`."""
        return self._portal.run(lambda: self._queen.update_consumer_group_timestamp(group, timestamp))

    def flush_all_buffers(self) -> None:
        """As `Queen.flush_all_buffers`."""
        self._portal.run(self._queen.flush_all_buffers)

    def get_buffer_stats(self) -> BufferStats:
        """As `Queen.get_buffer_stats`."""

        async def stats() -> BufferStats:
            return self._queen.get_buffer_stats()

        return self._portal.run(stats)

    def close(self) -> None:
        """As `Queen.close`; the thread ends, too."""
        if self._portal.closed:
            return
        try:
            self._portal.run(self._queen.close)
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
