"""RabbitMQ: one durable quorum queue per connection, publisher confirms, consumers that acknowledge.

A quorum queue writes to its log and syncs it before it confirms, as a push here is committed before it is answered. A
lane always goes to the same queue, which has one consumer, so order is defined as with partitions.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from queenmq.bench.broker import Consumer, Want
from queenmq.bench.errors import BenchError, PeerMissing
from queenmq.bench.layout import Layout
from queenmq.bench.peers import amqp
from queenmq.bench.peers.daemon import Daemon, free_port, output_of, temporary
from queenmq.bench.processes import Watch

# The one in sbin changes the user by itself and wants a log folder of the system.
SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
NODE: Final = "queenbench@localhost"
USER: Final = "rabbitmq"
DRAIN_PREFETCH: Final = 1000
LEAST_WAIT_MS: Final = 100
TRIES: Final = 50
RETRY_S: Final = 0.2


class Channel(asyncio.Protocol):
    """One connection with one channel."""

    def __init__(self) -> None:
        self.deliveries: deque[tuple[int, str]] = deque()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._reply: asyncio.Future[None] | None = None
        self._awaited: tuple[int, int] | None = None
        self._unconfirmed: set[int] = set()
        self._published = 0
        self._tag = 0
        self._failure: BenchError | None = None

    @classmethod
    async def open(cls, port: int) -> Channel:
        _, channel = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        await channel.call(amqp.GREETING, amqp.START)
        await channel.call(amqp.start_ok(), amqp.TUNE)
        await channel.call(amqp.tune_ok(), amqp.OPEN_OK)
        await channel.call(amqp.channel_open(), amqp.CHANNEL_OPEN_OK)
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"RabbitMQ closed the connection ({error or 'end of file'})")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def call(self, request: bytes, answer: tuple[int, int]) -> None:
        self._awaited = answer
        await self._ask(request)

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish and wait until all are confirmed."""
        self._unconfirmed = set(range(self._published + 1, self._published + len(messages) + 1))
        self._published += len(messages)
        await self._ask(b"".join(messages))

    async def delivery(self, timeout_s: float) -> bool:
        """Wait until there is one."""
        if not self.deliveries:
            self._awaited = amqp.DELIVER
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ask(b"")
            except TimeoutError:
                return False
        return True

    def write(self, data: bytes) -> None:
        if self._failure is not None or self._transport is None:
            raise self._failure or BenchError("RabbitMQ is not connected")
        self._transport.write(data)

    def _ask(self, request: bytes) -> asyncio.Future[None]:
        self._reply = asyncio.get_running_loop().create_future()
        self.write(request)
        return self._reply

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for frame in amqp.frames(self._buffer):
            if frame.kind == amqp.METHOD:
                self._method(frame)
            elif frame.kind == amqp.HEADER:
                self.deliveries.append((self._tag, amqp.message_id(frame)))
        if self.deliveries and self._awaited == amqp.DELIVER:
            self._done()

    def _method(self, frame: amqp.Frame) -> None:
        method = frame.method
        if method == amqp.DELIVER:
            self._tag = amqp.delivery_tag(frame)
        elif method == amqp.ACK:
            self._confirmed(*amqp.tag_of(frame))
        elif method in (amqp.CONNECTION_CLOSE, amqp.CHANNEL_CLOSE):
            self._fail(f"RabbitMQ: {amqp.close_reason(frame)}")
        elif method == amqp.NACK:
            self._fail("RabbitMQ did not confirm a message")
        elif method == self._awaited:
            self._done()

    def _confirmed(self, tag: int, multiple: bool) -> None:
        if multiple:
            self._unconfirmed = {other for other in self._unconfirmed if other > tag}
        else:
            self._unconfirmed.discard(tag)
        if not self._unconfirmed:
            self._done()

    def _done(self) -> None:
        self._awaited = None
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or BenchError(reason)
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(self._failure)


class RabbitProducer:
    def __init__(self, channel: Channel, broker: RabbitBroker) -> None:
        self._channel = channel
        self._broker = broker
        self._body = broker.layout.payload.encode()

    async def push(self, lane: int, first: int, count: int) -> None:
        await self.push_each([(lane, sequence) for sequence in range(first, first + count)])

    async def push_each(self, messages: Sequence[tuple[int, int]]) -> None:
        queue, body = self._broker.queue, self._body
        await self._channel.publish([amqp.publish(queue(lane), f"{lane}:{number}", body) for lane, number in messages])

    async def close(self) -> None:
        self._channel.close()


class RabbitConsumer:
    def __init__(self, channel: Channel, want: Want) -> None:
        self._channel = channel
        self._want = want
        self._last_tag = 0

    async def pop(self) -> list[str]:
        if not await self._channel.delivery(max(self._want.wait_ms, LEAST_WAIT_MS) / 1000):
            return []
        deliveries = self._channel.deliveries
        taken = [deliveries.popleft() for _ in range(min(self._want.batch, len(deliveries)))]
        self._last_tag = taken[-1][0]
        return [name for _, name in taken]

    async def ack(self) -> None:
        """RabbitMQ does not answer acknowledgements."""
        self._channel.write(amqp.acknowledge(self._last_tag))

    async def close(self) -> None:
        """Only what is answered after the last acknowledgement shows that it was not lost with the connection."""
        with suppress(BenchError):
            await self._channel.call(amqp.qos(1), amqp.QOS_OK)
        self._channel.close()


@dataclass(frozen=True)
class RabbitBroker:
    port: int
    layout: Layout
    connections: int

    def queue(self, lane: int) -> str:
        return f"{self.layout.run}-{lane % self.connections}"

    async def producer(self, number: int) -> RabbitProducer:
        channel = await self._open(number)
        await channel.call(amqp.confirm_select(), amqp.SELECT_OK)
        return RabbitProducer(channel, self)

    async def consumer(self, number: int, want: Want) -> RabbitConsumer:
        channel = await self._open(number)
        await channel.call(amqp.qos(want.batch), amqp.QOS_OK)
        await channel.call(amqp.consume(self.queue(number), want.auto_ack), amqp.CONSUME_OK)
        return RabbitConsumer(channel, want)

    async def drainers(self, group: str, lanes: int, wait_ms: int) -> Sequence[Consumer]:
        want = Want(DRAIN_PREFETCH, auto_ack=True, wait_ms=wait_ms)
        return [await self.consumer(number, want) for number in range(self.connections)]

    async def _open(self, number: int) -> Channel:
        channel = await Channel.open(self.port)
        await channel.call(amqp.declare_quorum(self.queue(number)), amqp.DECLARE_OK)
        return channel


@dataclass(frozen=True)
class RabbitSubject:
    port: int
    watch: Watch

    def broker(self, layout: Layout, connections: int) -> RabbitBroker:
        return RabbitBroker(self.port, layout, connections)


class RabbitMq:
    name = "rabbitmq"

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch
        if not SERVER.exists() or shutil.which("epmd") is None:
            raise PeerMissing("install it with: apt install rabbitmq-server")

    def takes(self, scenario: str, peers: bool) -> bool:
        return peers

    def facts(self) -> dict[str, str]:
        version = output_of("dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server").strip()
        return {"version": version or "unknown", "durability": "quorum queues of one node, publisher confirms"}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RabbitSubject]:
        async with temporary(self._scratch, self.name) as folder:
            daemon = Daemon(folder, USER)
            port, epmd_port = free_port(), free_port()
            environment = self._environment(folder, port, epmd_port)
            # Started by us, because the one that Erlang starts by itself would stay behind.
            async with (
                daemon.running(["epmd", "-port", str(epmd_port)], environment),
                daemon.running([str(SERVER)], environment) as server,
            ):
                await daemon.answers(server, port)
                await _accepts(port)
                yield RabbitSubject(port, Watch(server.pid))

    def _environment(self, folder: Path, port: int, epmd_port: int) -> dict[str, str]:
        return {
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }


async def _accepts(port: int) -> None:
    """It listens before it is ready for clients."""
    for _ in range(TRIES):
        try:
            (await Channel.open(port)).close()
        except (BenchError, OSError):
            await asyncio.sleep(RETRY_S)
        else:
            return
    raise BenchError("RabbitMQ listens but takes no connection")
