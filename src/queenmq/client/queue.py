"""The fluent grammar: `queen.queue("orders").partition("eu").group("billing").batch(10).pop()`.

`QueueSpec` gathers what is said; the verbs that do something are in `Queue`, and in the blocking twin.
A word changes the builder and returns it; a verb takes what has been said up to then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from queenmq.client.buffer import BufferLimits
from queenmq.client.consumer import Consumer
from queenmq.client.dead_letters import DeadLetterQuery
from queenmq.client.errors import InvalidUse
from queenmq.client.finish import Finish
from queenmq.client.handling import check_handler
from queenmq.client.items import Item, to_push_items
from queenmq.client.link import Link
from queenmq.client.models import DEFAULT_PARTITION, Json, Message, TakeResult
from queenmq.client.options import RENEW_MILLIS, QueueOptions, SubscriptionMode, named, timestamp
from queenmq.client.payload import Payload
from queenmq.client.polls import Polls
from queenmq.client.push import Push
from queenmq.client.reads import Read, read_partition, where_from
from queenmq.client.said import Said
from queenmq.client.session import Session
from queenmq.client.sizing import Size
from queenmq.client.timers import Timer, cancel_timer, list_timers, moment, set_timer
from queenmq.client.verbs import path_of

logger = logging.getLogger("queenmq.client")

# What a handler gets: a message, or a list of them.
Handed = TypeVar("Handed")


class QueueSpec(Generic[Handed]):
    def __init__(self, session: Session, name: str | None = None, said: Said | None = None) -> None:
        self._session = session
        self._said = said or Said(queue=None if name is None else named("queue", name))

    # What it is

    def namespace(self, name: str) -> Self:
        """For `create`: the namespace of the queue. For a pop without a queue: pop from all queues of it."""
        self._said.namespace = name
        return self

    def task(self, name: str) -> Self:
        """As `namespace`, with the task."""
        self._said.task = name
        return self

    def config(self, options: Mapping[str, Any] | None = None, **more: Unpack[QueueOptions]) -> Self:
        """Options for `create`, in either spelling: `lease_time=60` or `{"leaseTime": 60}`.

        Until it has sent them, other verbs raise InvalidUse. A dict may have options that only a newer server knows.
        """
        known = {spelling for name in QueueOptions.__annotations__ for spelling in (name, _camel(name))}
        for name in more.keys() - known:
            near = "".join(f"; did you mean {meant}?" for meant in get_close_matches(name, known, 1))
            raise InvalidUse(f"a queue has no option {name}{near}")
        given = {**(options or {}), **more}
        self._said.config = {_camel(name): value for name, value in given.items()}
        self._said.is_created = False
        return self

    def partition(self, name: str) -> Self:
        """The partition to push to (`Default` if none is named) or to pop from (any)."""
        self._said.partition = named("partition", name)
        return self

    def buffer(
        self,
        options: Mapping[str, int] | None = None,
        *,
        message_count: int | None = None,
        time_millis: int | None = None,
    ) -> Self:
        """Push through the client-side buffer of this partition, which is sent when it is full or old enough.

        A message counts as pushed only when the buffer has been sent: `flush_buffer`, `flush_all_buffers` and `close`
        say what went wrong. Also `max_size`: how many messages may wait before a push has to.
        """
        given = dict(options or {})
        if message_count is not None:
            given["message_count"] = message_count
        if time_millis is not None:
            given["time_millis"] = time_millis
        self._said.buffer = BufferLimits(**given)
        return self

    # How it is read

    def group(self, name: str) -> Self:
        """Read as this consumer group; without one, all readers share the queue."""
        self._said.group = named("group", name)
        return self

    def subscription_mode(self, mode: SubscriptionMode) -> Self:
        """Where a group starts that is new to the queue: `all` or `new`."""
        self._said.subscription_mode = mode
        return self

    def subscription_from(self, moment: str | datetime) -> Self:
        """Where a group starts that is new to the queue: `now`, or a moment, as ISO 8601 if it is text."""
        self._said.subscription_from = timestamp(moment, "subscription_from")
        return self

    def partitions(self, count: int) -> Self:
        """At most so many partitions at once, all under one lease."""
        self._said.partitions = _positive("partitions", count)
        return self

    def wait(self, enabled: bool = True) -> Self:
        """Whether to wait for a message if there is none (the default), or to come back with nothing."""
        self._said.wait = enabled
        return self

    def timeout_millis(self, millis: int) -> Self:
        """How long to wait for a message, at the server."""
        self._said.wait_ms = _positive("timeout_millis", millis)
        return self

    def auto_ack(self, enabled: bool = True) -> Self:
        """`consume`: whether the client acknowledges what was handled (the default). `pop`: consume at delivery."""
        self._said.auto_ack = enabled
        return self

    def commit_on_delivery(self, enabled: bool = True) -> Self:
        """Messages are finished when they are delivered: at most once, no lease, nothing to acknowledge."""
        self._said.commit_on_delivery = enabled
        return self

    # How it is consumed

    def concurrency(self, count: int) -> Self:
        """So many workers, each with its own batch. Two never have the same partition of a group at once."""
        return self._consumer(concurrency=_positive("concurrency", count))

    def limit(self, count: int) -> Self:
        """Each worker ends after so many messages."""
        return self._consumer(limit=_positive("limit", count))

    def idle_millis(self, millis: int) -> Self:
        """A worker ends when nothing came for so long."""
        return self._consumer(idle_millis=_positive("idle_millis", millis))

    def renew_lease(self, enabled: bool = True, interval_millis: int | None = None) -> Self:
        """Whether to renew leases while a handler works (the default), and how often (10 s).

        The interval must be shorter than the queue's `leaseTime`.
        """
        interval = RENEW_MILLIS if interval_millis is None else interval_millis
        return self._consumer(renew_millis=_positive("interval_millis", interval) if enabled else None)

    def prefetch(self, count: int) -> Self:
        """So many batches are fetched beyond those that the workers have, on a consumer connection (0)."""
        if not isinstance(count, int) or count < 0:
            raise InvalidUse("prefetch must be a whole number, and not negative")
        return self._consumer(prefetch=count)

    def connection(self, wanted: bool | None = None) -> Self:
        """`consume`: over a consumer connection where that is possible, else by long polls (None, the default); over a
        connection and not without it (True); or by long polls (False)."""
        return self._consumer(connection=wanted)

    def ack_millis(self, millis: int) -> Self:
        """`each`: acknowledgements are gathered for so long while the handler goes on (100). With 0, each message is
        acknowledged before the next is handed over."""
        if not isinstance(millis, int | float) or millis < 0:
            raise InvalidUse("ack_millis must be a number, and not negative")
        return self._consumer(ack_millis=millis)

    def _batch(self, size: int | Literal["auto"]) -> Self:
        if isinstance(size, str) and size != "auto":
            raise InvalidUse(f"batch must be a number or 'auto', not {size!r}")
        self._said.batch = None if isinstance(size, str) else _positive("batch", size)
        return self

    def _consumer(self, **changes: Any) -> Self:
        self._said.consumer = replace(self._said.consumer, **changes)
        return self

    def _name(self) -> str:
        if self._said.queue is None:
            raise InvalidUse("name a queue first: queen.queue(name)")
        return self._said.queue

    def _check_created(self, verb: str) -> None:
        if not self._said.is_created:
            raise InvalidUse(
                f"{verb} does not apply the options given to config: await create() first, or leave config out"
            )

    def _of(self, group: str | None) -> tuple[str | None, str | None, str | None]:
        """Of which queue, group and partition the dead letters are meant."""
        return self._said.queue, group or self._said.group, self._said.partition


class Queue(QueueSpec[Handed]):
    """A queue of an asynchronous client; `Queue[Message]`, or `Queue[list[Message]]` if handlers get lists."""

    @overload
    def batch(self, size: Literal[1]) -> Queue[Message]: ...  # type: ignore[overload-overlap]

    @overload
    def batch(self, size: int | Literal["auto"]) -> Queue[list[Message]]: ...

    def batch(self, size: int | Literal["auto"]) -> Queue[Any]:
        """At most so many messages at once. A handler gets a list if it is more than one, unless `each` is said.

        With `"auto"`, `consume` finds out by itself how many, and of how many partitions unless `partitions` says that:
        so many that waiting for a batch takes a tenth of its handling. A pop is sized by the server.
        """
        return self._batch(size)

    def each(self) -> Queue[Message]:
        """Hand over and acknowledge the messages of a batch one by one: `batch(20).each()`."""
        queue: Queue[Any] = self._consumer(each=True)
        return queue

    async def create(self, *, replace: bool = True) -> Json:
        """Create the queue, or replace all of its options: what is not in `config` returns to its default. With
        `replace=False`, what is not in it stays as it is."""
        mode = "replace" if replace else "merge"
        body: Json = {"queue": self._name(), "options": self._said.config, "mode": mode}
        body |= {"namespace": self._said.namespace, "task": self._said.task}
        answer: Json = await self._session.verbs.ask("POST", "/api/v1/configure", body)
        self._said.is_created = True
        for name in sorted(self._said.config.keys() - answer.get("options", self._said.config).keys()):
            logger.warning("the server knows no option %r of a queue and has ignored it", name)
        return answer

    async def delete(self) -> Json:
        """Delete the queue with everything in it."""
        path = path_of("api", "v1", "resources", "queues", self._name())
        answer: Json = await self._session.verbs.ask("DELETE", path)
        return answer

    def push(self, items: Item | Payload, *, expected_last_offset: int | None = None) -> Push:
        """Push one item or a list of them, in order; await it for one result per item.

        An item is a payload (any JSON), an `Item`, or a dict with `data`, `transactionId` or `traceId`, and `headers`
        if you like. Other dicts that could be meant as a message with properties (just `data`, or `data` with
        `headers`) are refused with InvalidItem: `Item` says what is meant.

        >>> await queen.queue("orders").partition("customer-17").push({"order": 1})  # doctest: +SKIP
        >>> await queen.queue("orders").push([Item({"order": 2}, transaction_id="order-2")])  # doctest: +SKIP

        With `expected_last_offset`, all items are stored if that is the last offset of the partition (0 if it is new),
        and else none: OffsetConflict says which it is.

        Raises PushFailed if the server refuses items one by one, unless `.on_error(…)` takes them.
        """
        self._session.check_open()
        self._check_created("push")
        queue, partition = self._name(), self._said.partition or DEFAULT_PARTITION
        given = to_push_items(items, queue, partition)
        limits = self._said.buffer
        if limits is not None:
            if expected_last_offset is not None:
                raise InvalidUse("a push through the buffer cannot expect a last offset")
            return Push(lambda: self._session.buffers.add(queue, partition, limits, given))
        return Push(lambda: self._session.verbs.push(given, expected_last_offset))

    async def read(self, offset: int | None = None, *, since: datetime | None = None, limit: int = 1000) -> Read:
        """Messages of the partition (`Default` if none is named) from an offset or a moment on, without a group.

        Nothing changes by it: no lease, no position. It ends at `limit` or at the bounds of the server, so go on at
        `next_offset` until nothing comes. A partition that does not exist has no messages. Raises ReadFailed if the
        messages at that offset are deleted already, or cannot be decrypted.

        >>> history = await queen.queue("orders").partition("customer-17").read()  # doctest: +SKIP
        """
        self._session.check_open()
        entry = {"queue": self._name(), "partition": self._said.partition or DEFAULT_PARTITION}
        entry |= where_from(offset, since) | {"limit": _positive("limit", limit)}
        return await read_partition(self._session.verbs, entry)

    async def schedule(
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
        """Have the server push `data` after `delay` (seconds), `at` a moment, or again and again by a `schedule`.

        A schedule is a cron expression with five fields, in `time_zone` (UTC if none is named), or `@every 10m`. A
        timer of the same key in this queue is replaced, so that repeating the call is safe.

        >>> await queen.queue("orders").schedule({"order": 1}, key="expire-1", delay=1800)  # doctest: +SKIP
        """
        self._session.check_open()
        self._check_created("schedule")
        partition = self._said.partition or DEFAULT_PARTITION
        operation: Json = {"queue": self._name(), "timerKey": key, "partition": partition}
        operation |= {"headers": headers} if headers else {}
        return await set_timer(self._session.verbs, operation | moment(delay, at, schedule, time_zone), data)

    async def cancel(self, key: str) -> Timer:
        """Cancel the timer of this key; its status is `absent` if there is none, also if it was pushed already."""
        return await cancel_timer(self._session.verbs, self._name(), key)

    async def timers(self, limit: int = 1000) -> list[Timer]:
        """The timers of this queue that wait for their moment, by key."""
        return await list_timers(self._session.verbs, self._name(), _positive("limit", limit))

    async def pop(self) -> list[Message]:
        """The next messages under a lease; an empty list if none came in time.

        Acknowledge each with `queen.ack`, or it is delivered again when the lease ends.
        """
        self._session.check_open()
        self._check_created("pop")
        said = self._said
        params = said.params(consume_at_delivery=said.commit_on_delivery or said.auto_ack is True)
        return await self._session.verbs.pop(said.path(), params, said.wait_ms if said.wait else None)

    def consume(
        self,
        handler: Callable[[Handed], object],
        *,
        signal: asyncio.Event | None = None,
        handle_signals: bool = True,
    ) -> Consumer:
        """Call `handler` for every message (or list of them) that comes; await it to run until it ends.

        It ends when `limit` or `idle_millis` says so, when `signal` is set, when `stop()` is called on it, when the
        client is closed, or when the process gets SIGTERM or SIGINT. What a handler has in hand is finished and
        acknowledged first, and messages that were fetched beyond that are given back at once. A second SIGTERM or
        SIGINT cancels the handlers and gives back what they had. `handle_signals=False` leaves signals alone, and so
        do signals for which the program has a handler of its own, and consumers outside of the main thread.

        What the handler raises becomes a `failed` acknowledgement, so the messages come again until they are dead
        letters.

        >>> await queen.queue("orders").group("billing").batch(20).concurrency(4).consume(bill)  # doctest: +SKIP
        """
        self._session.check_open()
        self._check_created("consume")
        check_handler(handler)
        said = replace(self._said)

        async def pop(size: Size, wait_ms: int) -> list[Message]:
            now = replace(said, batch=size.batch, partitions=size.partitions, wait_ms=wait_ms)
            params = now.params(consume_at_delivery=said.commit_on_delivery)
            return await self._session.verbs.pop(now.path(), params, wait_ms if now.wait else None)

        async def take(lease_id: str, finish: Finish, size: Size, wait_ms: int) -> TakeResult:
            now = replace(said, batch=size.batch, partitions=size.partitions, wait_ms=wait_ms)
            return await self._session.verbs.take(lease_id, finish, now.taking(), wait_ms if now.wait else None)

        options = replace(
            said.consumer,
            batch=said.batch,
            partitions=said.partitions,
            group=said.group,
            wait_millis=said.wait_ms if said.wait else 0,
            auto_ack=False if said.commit_on_delivery else said.auto_ack,
            handle_signals=handle_signals,
            queue=said.queue,
            name=said.queue or f"{said.namespace or '*'}/{said.task or '*'}",
        )
        polls = Polls(pop, take if said.queue is not None and not said.commit_on_delivery else None)
        path = (said if said.batch is not None else replace(said, batch=1)).connecting()
        if path is None and options.connection:
            raise InvalidUse("connection(True) needs a queue, and no limit, wait(False) or commit_on_delivery")
        link = None if path is None else Link(self._session, path, polls, options)
        return Consumer(self._session, polls, handler, options, signal, link)

    async def flush_buffer(self) -> None:
        """Send what is in the buffer of this partition. Raises what the server refused, or BufferNotFlushed."""
        await self._session.buffers.flush(self._name(), self._said.partition or DEFAULT_PARTITION)

    def dlq(self, group: str | None = None) -> DeadLetterQuery:
        """The dead letters of the queue, perhaps of one group and partition: `.dlq("billing").limit(10).get()`."""
        return DeadLetterQuery(self._session, *self._of(group))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise InvalidUse(f"{name} must be a whole number, at least 1")
    return value
