"""A connection of kombu: a client, its event loop in a thread, and the consumers that run there."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty
from typing import Any, Final, TypeVar

from kombu.transport import virtual

from queenmq.client import (
    ClientClosed,
    Consumer,
    InvalidResponse,
    Message,
    NetworkError,
    PushFailed,
    Queen,
    QueenError,
    Reject,
    RequestError,
    Unavailable,
)
from queenmq.integrations.kombu.channel import SHARED_OPTIONS, Channel, Source
from queenmq.integrations.kombu.inbox import Inbox
from queenmq.integrations.tasks import OPTIONS, PARTITIONS, TaskQueues, ThreadedTaskQueues

T = TypeVar("T")

_AT_ONCE: Final = 100
_END_S: Final = 10.0
_FIRST: Final = 100  # a priority above all of kombu's


class Transport(virtual.Transport):
    """Options, in `broker_transport_options`: `priority_steps`, `partitions`, `queue_options`, `client_options`."""

    Channel = Channel
    default_port = 6632
    driver_type = "queen"
    driver_name = "queenmq"
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic", "fanout"]))
    connection_errors = (
        *virtual.Transport.connection_errors,
        ClientClosed,
        InvalidResponse,
        NetworkError,
        Unavailable,
    )
    channel_errors = (*virtual.Transport.channel_errors, PushFailed, RequestError)

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        given: Mapping[str, Any] = client.transport_options
        self.priority_steps: list[int] = sorted({0, *given.get("priority_steps", ())})
        self.inbox = Inbox()
        self.bound: dict[str, list[Source]] = {}  # to fanout and topic exchanges
        self.given_back: deque[str] = deque(maxlen=1000)  # ids of messages, so that they are known when they come again
        self._watching: set[asyncio.Future[None]] = set()
        self._queues = ThreadedTaskQueues(self._make)

    def _make(self) -> TaskQueues:
        given: Mapping[str, Any] = self.client.transport_options
        queue_options = {**OPTIONS, **given.get("queue_options", {})}
        return TaskQueues(self._make_client(given), queue_options, given.get("partitions", PARTITIONS))

    def _make_client(self, given: Mapping[str, Any]) -> Queen:
        params = self.client
        context = _ssl_context(params.ssl)
        scheme = "http" if context is None else "https"
        host = f"[{params.hostname}]" if ":" in (params.hostname or "") else params.hostname or "127.0.0.1"
        options = {"bearer_token": params.password or None, "ssl_context": context}
        return Queen(
            f"{scheme}://{host}:{params.port or self.default_port}", **options | given.get("client_options", {})
        )

    def run(self, work: Callable[[TaskQueues], Awaitable[T]]) -> T:
        return self._queues.run(work)

    def resolve(self, settled: asyncio.Future[Reject | None], reject: Reject | None) -> None:
        self._queues.portal.call(lambda: None if settled.done() else settled.set_result(reject))

    def start_consumer(
        self, source: Source, handle: Callable[[Message], Awaitable[None]], concurrency: int
    ) -> Future[Consumer]:
        async def start(tasks: TaskQueues) -> Consumer:
            await tasks.declare(source.name, None if source.group is None else SHARED_OPTIONS)
            consumer = tasks.consume(source.name, handle, concurrency, source.group, source.since)
            watching = asyncio.ensure_future(self._watch(consumer))
            self._watching.add(watching)
            watching.add_done_callback(self._watching.discard)
            return consumer

        return self._queues.start(start)

    async def _watch(self, consumer: Consumer) -> None:
        try:
            await consumer
        except QueenError as error:
            self.inbox.put(_FIRST, error)

    def stop_consumer(self, starting: Future[Consumer]) -> None:
        """End it when what its handlers have is settled."""

        def stop() -> None:
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                starting.result().stop()
            else:
                starting.cancel()

        self._queues.portal.call(stop)

    def wait_for(self, stopped: list[Future[Consumer]]) -> None:
        """Return when they have ended, and what was acknowledged is."""

        async def wait(_: TaskQueues) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    for one in stopped:
                        if one.done() and not one.cancelled() and one.exception() is None:
                            await one.result().ended()

        if stopped:
            self.run(wait)

    # What kombu calls.

    def establish_connection(self) -> Any:
        self.run(lambda tasks: tasks.queen.admin.health())
        return super().establish_connection()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        for channel in self.channels:
            channel.start()
        try:
            delivery = self.inbox.get(timeout)
        except Empty:
            raise TimeoutError from None
        delivery.channel.deliver(delivery)
        # What else is there costs no waiting.
        with suppress(Empty):
            for _ in range(_AT_ONCE):
                delivery = self.inbox.get(0)
                delivery.channel.deliver(delivery)

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        self._queues.close()

    def driver_version(self) -> str:
        from importlib.metadata import version

        return version("queenmq")


def _ssl_context(given: Any) -> ssl.SSLContext | None:
    """Of `broker_use_ssl`: true, or a dict with `ca_certs`, `certfile`, `keyfile` and `cert_reqs`."""
    if not given:
        return None
    said: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    context = ssl.create_default_context(cafile=said.get("ca_certs"))
    if said.get("certfile"):
        context.load_cert_chain(said["certfile"], said.get("keyfile"))
    if said.get("cert_reqs") == ssl.CERT_NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
