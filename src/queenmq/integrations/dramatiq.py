"""Dramatiq on Queen: `dramatiq.set_broker(QueenBroker("http://127.0.0.1:6632"))`.

A message with a delay, as retries have one, is a timer: there are no delay queues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from dramatiq import Broker, Message, MessageProxy, Middleware
from dramatiq.broker import Consumer
from dramatiq.errors import ConnectionClosed, DecodeError, QueueNotFound

from queenmq.client import NetworkError, Queen, Reject, Unavailable
from queenmq.clock import utc_now
from queenmq.ids import uuid7_text
from queenmq.integrations.tasks import (
    GIVEN_BACK,
    OPTIONS,
    PARTITIONS,
    REFUSED,
    Arrival,
    Arrivals,
    TaskQueues,
    ThreadedTaskQueues,
    as_task,
)

logger = logging.getLogger("queenmq.integrations")


class QueenBroker(Broker):
    """`namespace` is put before the names of queues. The options are those of the client."""

    def __init__(
        self,
        servers: str | list[str] | None = None,
        middleware: list[Middleware] | None = None,
        *,
        namespace: str = "dramatiq",
        partitions: int = PARTITIONS,
        queue_options: dict[str, Any] | None = None,
        **client: Any,
    ) -> None:
        super().__init__(middleware=middleware)
        self._namespace = namespace
        options = {**OPTIONS, **(queue_options or {})}
        self._queues = ThreadedTaskQueues(lambda: TaskQueues(Queen(servers, **client), options, partitions))

    def close(self) -> None:
        self._queues.close()

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        if message.queue_name not in self.queues:
            raise QueueNotFound(message.queue_name)
        at = None if delay is None else utc_now() + timedelta(milliseconds=delay)
        # Not the id of the message, which it has again when it is retried.
        name, task, key = self._name(message.queue_name), as_task(message.encode()), uuid7_text()
        self.emit_before("enqueue", message, delay)
        self._queues.run(lambda queues: queues.send(name, task, key, at))
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        return QueenConsumer(self._queues, self._name(queue_name), prefetch, timeout)

    def flush(self, queue_name: str) -> None:
        name = self._name(queue_name)
        self._queues.run(lambda queues: queues.clear(name))

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def _name(self, queue_name: str) -> str:
        return f"{self._namespace}.{queue_name}"


class QueenConsumer(Consumer):
    def __init__(self, queues: ThreadedTaskQueues, name: str, prefetch: int, timeout_ms: int) -> None:
        self._queues = queues
        self._timeout_s = timeout_ms / 1000

        async def begin(there: TaskQueues) -> Arrivals:
            await there.declare(name)
            return Arrivals(there, name, max(1, prefetch))

        self._arrivals = self._translated(begin)

    def __next__(self) -> MessageProxy | None:
        arrival = self._translated(lambda _: self._arrivals.next(self._timeout_s))
        if arrival is None:
            return None
        try:
            return Arrived(arrival)
        except DecodeError:
            # It would end the consumer, again and again, and give back what the others are working on.
            logger.exception("a message of %s is no task of Dramatiq; it becomes a dead letter", arrival.message.queue)
            self._queues.portal.call(lambda: arrival.settle(REFUSED))
            return None

    def ack(self, message: Any) -> None:
        self._settle(message, None)

    def nack(self, message: Any) -> None:
        self._settle(message, REFUSED)

    def requeue(self, messages: Iterable[Any]) -> None:
        for message in messages:
            self._settle(message, GIVEN_BACK)

    def close(self) -> None:
        self._queues.run(lambda _: self._arrivals.close())

    def _settle(self, message: Arrived, reject: Reject | None) -> None:
        self._queues.portal.call(lambda: message.arrival.settle(reject))

    def _translated(self, work: Any) -> Any:
        try:
            return self._queues.run(work)
        except (NetworkError, Unavailable) as error:
            raise ConnectionClosed(str(error)) from error


class Arrived(MessageProxy):
    def __init__(self, arrival: Arrival) -> None:
        super().__init__(Message.decode(bytes(arrival.message.raw)))
        self.arrival = arrival
