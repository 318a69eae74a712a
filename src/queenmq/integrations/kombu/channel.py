"""A channel of kombu: what is published, consumed and declared on it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from queenmq.client import Consumer, Forbidden, Message, NotFound, QueenError, Reject
from queenmq.clock import utc_now
from queenmq.integrations.kombu.inbox import Delivery
from queenmq.integrations.tasks import GIVEN_BACK, REFUSED, TaskQueues, as_task

if TYPE_CHECKING:
    from queenmq.integrations.kombu.transport import Transport

_UNLIMITED: Final = 10  # messages at a time for a consumer without a prefetch count
_SHARED: Final = "kombu."  # before the name of a fanout or topic exchange
# Of the queue of such an exchange: what nobody has read in time is of no interest any more.
SHARED_OPTIONS: Final = {"leaseTime": 60, "retentionEnabled": True, "retentionSeconds": 300}


@dataclass(frozen=True, slots=True)
class Source:
    """Where messages of a queue of kombu come from. `pattern`: of a topic, which keys are meant."""

    name: str
    priority: int = 0
    group: str | None = None
    pattern: str | None = None
    since: str | None = None


@dataclass(slots=True)
class Running:
    """The consumers of a queue of kombu."""

    concurrency: int = 0
    consumers: list[Future[Consumer]] = field(default_factory=list)


class QoS(virtual.QoS):
    def ack(self, delivery_tag: str) -> None:
        self._settle(delivery_tag, None)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._settle(delivery_tag, GIVEN_BACK if requeue else REFUSED)

    def _settle(self, delivery_tag: str, reject: Reject | None) -> None:
        self.channel.settle(delivery_tag, reject)
        super().ack(delivery_tag)
        connection = self.channel.connection  # none if the channel is closed meanwhile
        if connection is not None:
            connection.inbox.check_again()

    def restore_unacked(self) -> list[Any]:
        self._flush()
        for tag in list(self._delivered):
            self.channel.settle(tag, GIVEN_BACK)
        self._delivered.clear()
        return []


class TopicExchange(virtual.exchange.TopicExchange):
    def deliver(self, message: Any, exchange: str, routing_key: str, **options: Any) -> None:
        self.channel._put_fanout(exchange, message, routing_key, **options)


class Channel(virtual.Channel):
    QoS = QoS
    supports_fanout = True
    exchange_types = virtual.Channel.exchange_types | {"topic": TopicExchange}
    connection: Transport

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self._auto_delete: set[str] = set()
        self._running: dict[str, Running] = {}
        self._stopped: list[Future[Consumer]] = []
        self._without_ack: set[str] = set()
        self._deliveries: dict[str, Delivery] = {}

    # What is known of a queue.

    def _new_queue(self, queue: str, auto_delete: bool = False, **_options: Any) -> None:
        """Only noted: a queue of Queen is made when it is first used."""
        if auto_delete:
            self._auto_delete.add(queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        kind = self.typeof(exchange).type
        if kind in ("fanout", "topic"):
            pattern = pattern if kind == "topic" else None
            source = Source(f"{_SHARED}{exchange}", group=queue, pattern=pattern, since=utc_now().isoformat())
            self.connection.bound.setdefault(queue, []).append(source)

    def _sources(self, queue: str) -> list[Source]:
        steps = self.connection.priority_steps
        return self.connection.bound.get(queue) or [Source(self._place(queue, step), step) for step in reversed(steps)]

    def _place(self, queue: str, priority: int) -> str:
        """The queue of Queen for a priority: the highest step that is not above it."""
        step = max((one for one in self.connection.priority_steps if one <= priority), default=0)
        return f"{queue}.p{step}" if step else queue

    def _has_queue(self, queue: str, **_options: Any) -> bool:
        return any(self._detail(source.name) is not None for source in self._sources(queue))

    def _size(self, queue: str) -> int:
        if queue in self.connection.bound:
            return 0
        details = filter(None, (self._detail(source.name) for source in self._sources(queue)))
        return sum(int(detail["totals"]["messages"]["pending"]) for detail in details)

    def _detail(self, name: str) -> dict[str, Any] | None:
        async def ask(tasks: TaskQueues) -> Any:
            with suppress(Forbidden, NotFound):
                return await tasks.queen.admin.get_queue_detail(name)
            return None

        found: dict[str, Any] | None = self.connection.run(ask)
        return found

    def _purge(self, queue: str) -> int:
        size = self._size(queue)

        async def clear(tasks: TaskQueues) -> None:
            for source in self._sources(queue):
                with suppress(NotFound):
                    await tasks.queen.admin.clear_queue(source.name)

        self.connection.run(clear)
        return size

    def _delete(self, queue: str, *_binding: Any, **_options: Any) -> None:
        async def delete(tasks: TaskQueues) -> None:
            for source in self._sources(queue):
                with suppress(NotFound):
                    if source.group is None:
                        await tasks.queen.queue(source.name).delete()
                    else:
                        await tasks.queen.delete_consumer_group(source.group)

        self.connection.run(delete)
        self.connection.bound.pop(queue, None)
        self._auto_delete.discard(queue)

    # Publishing.

    def _put(self, queue: str, message: dict[str, Any], **_options: Any) -> None:
        name = self._place(queue, self._get_message_priority(message))
        task, tag, eta = as_task(dumps(message).encode()), message["properties"]["delivery_tag"], _eta(message)
        self.connection.run(lambda tasks: tasks.send(name, task, tag, eta))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_options: Any) -> None:
        name, task = f"{_SHARED}{exchange}", as_task(dumps(message).encode())

        async def put(tasks: TaskQueues) -> None:
            await tasks.declare(name, SHARED_OPTIONS)
            await tasks.queen.queue(name).push([task])

        self.connection.run(put)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """A key that nobody has bound here is the beginning of the name of the queue, as for replies to a mailbox."""
        found: list[str] = super()._lookup(exchange, routing_key, default)
        return found or [f"{routing_key}.{exchange}"]

    # Consuming.

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **options: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        (self._without_ack.add if no_ack else self._without_ack.discard)(queue)

    def start(self) -> None:
        """Begin to consume, or consume more, as much as the prefetch count says by now."""
        active = set(self._active_queues)
        wanted = max(1, (self.qos.prefetch_count or _UNLIMITED) // max(1, len(active)))
        for queue in active:
            running = self._running.setdefault(queue, Running())
            if running.concurrency < wanted:
                more, running.concurrency = wanted - running.concurrency, wanted
                running.consumers += [
                    self._consume(queue, source, more)
                    for source in self._sources(queue)
                    if source.group is None or not running.consumers
                ]

    def _consume(self, queue: str, source: Source, concurrency: int) -> Future[Consumer]:
        inbox = self.connection.inbox
        matches = re.compile(source.pattern).match if source.pattern else None

        async def handle(message: Message) -> None:
            raw = loads(bytes(message.raw).decode())
            if matches is not None and not matches(raw["properties"]["delivery_info"].get("routing_key") or ""):
                return
            if _is_expired(raw, message):
                return
            settled: asyncio.Future[Reject | None] = asyncio.get_running_loop().create_future()
            tag = f"{message.id}/{message.lease_id}"
            self._tag(raw, message, tag)
            delivery = self._deliveries[tag] = Delivery(self, queue, tag, raw, settled)
            inbox.put(source.priority, delivery)
            reject = await settled
            if reject is not None:
                raise reject

        # What is shared is in one partition, which is delivered in order, one at a time.
        return self.connection.start_consumer(source, handle, concurrency if source.group is None else 1)

    def _tag(self, raw: dict[str, Any], message: Message, tag: str) -> None:
        properties = raw["properties"]
        properties["delivery_tag"] = tag
        is_known = message.retry_count > 0 or message.id in self.connection.given_back
        properties["delivery_info"] = {**(properties.get("delivery_info") or {}), "redelivered": is_known}

    def settle(self, tag: str, reject: Reject | None) -> None:
        """Say what becomes of a message; also from another thread."""
        delivery = self._deliveries.pop(tag, None)
        if delivery is None:
            return
        if reject is GIVEN_BACK:
            self.connection.given_back.append(tag.partition("/")[0])
        if delivery.settled is not None:
            self.connection.resolve(delivery.settled, reject)
        elif (message := delivery.message) is not None:
            status = "completed" if reject is None else reject.status
            self.connection.run(lambda tasks: tasks.queen.ack(message, status))

    def deliver(self, delivery: Delivery) -> None:
        if delivery.queue not in self._active_queues:
            # It was on its way when the consumer was cancelled.
            self.settle(delivery.tag, GIVEN_BACK)
            return
        if delivery.queue in self._without_ack:
            self.settle(delivery.tag, None)
        self.connection._deliver(delivery.raw, delivery.queue)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues:
            return
        for consumer in self._running.pop(queue, Running()).consumers:
            self.connection.stop_consumer(consumer)
            self._stopped.append(consumer)
        for delivery in self.connection.inbox.take_back(self, queue):
            self.settle(delivery.tag, GIVEN_BACK)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        async def pop(tasks: TaskQueues) -> tuple[Message, dict[str, Any]] | None:
            for source in self._sources(queue):
                asking = tasks.queen.queue(source.name).wait(False)
                if source.group is not None:
                    asking = asking.group(source.group).subscription_from(source.since or "now")
                while messages := await asking.pop():
                    raw = loads(bytes(messages[0].raw).decode())
                    if not _is_expired(raw, messages[0]):
                        return messages[0], raw
                    await tasks.queen.ack(messages[0])
            return None

        found = self.connection.run(pop)
        if found is None:
            raise Empty
        message, raw = found
        tag = f"{message.id}/{message.lease_id}"
        self._tag(raw, message, tag)
        self._deliveries[tag] = Delivery(self, queue, tag, raw, message=message)
        return raw

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        message = super().basic_get(queue, no_ack=no_ack, **options)
        if message is not None and no_ack:
            self.settle(message.delivery_tag, None)
        return message

    def close(self) -> None:
        """Give back what is not acknowledged, and delete queues that were meant to live as long as this."""
        if not self.closed and self.connection is not None:
            for tag in list(self._consumers):
                self.basic_cancel(tag)
            self.qos.restore_unacked_once()
            self.connection.wait_for(self._stopped)
            for queue in list(self._auto_delete):
                with suppress(QueenError):
                    self._delete(queue)
        super().close()


def _is_expired(raw: Mapping[str, Any], message: Message) -> bool:
    """Whether it has waited for longer than its publisher wants it to be delivered. Tasks that have expired are left to
    Celery's workers, which note it in the result."""
    expiration_ms = raw["properties"].get("expiration")
    if not expiration_ms or (raw.get("headers") or {}).get("expires"):
        return False
    return utc_now() - datetime.fromisoformat(message.created_at) > timedelta(milliseconds=float(expiration_ms))


def _eta(message: Mapping[str, Any]) -> datetime | None:
    """When Celery wants the task to run, if it says so."""
    eta = (message.get("headers") or {}).get("eta")
    if not eta:
        return None
    at = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
