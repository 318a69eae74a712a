"""RabbitMQ through aio-pika: one durable quorum queue per connection, publisher confirms, prefetch as large as a batch.

A quorum queue writes to its log and syncs it before it confirms, as a push here is committed before it is answered. A
lane always goes to the same queue, which has one consumer, so order is defined as with partitions.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from queen_bench.broker import Consumer, Want
from queen_bench.errors import BenchError, PeerMissing
from queen_bench.layout import Layout
from queen_bench.peers.daemon import Daemon, free_port, library, output_of, temporary
from queen_bench.processes import Watch

# The one in sbin changes the user by itself and wants a log folder of the system.
SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
NODE: Final = "queenbench@localhost"
USER: Final = "rabbitmq"
DRAIN_PREFETCH: Final = 1000
LEAST_WAIT_MS: Final = 100
TRIES: Final = 50
RETRY_S: Final = 0.2


@contextmanager
def errors() -> Iterator[None]:
    """The errors of the library as ours."""
    from aio_pika.exceptions import AMQPError

    try:
        yield
    except (AMQPError, OSError, RuntimeError) as error:
        raise BenchError(f"RabbitMQ: {error!r}") from None


class Channel:
    """One connection with one channel, with confirms."""

    def __init__(self, connection: Any, channel: Any) -> None:
        self._connection = connection
        self.channel = channel

    @classmethod
    async def open(cls, port: int) -> Channel:
        import aio_pika

        with errors():
            connection = await aio_pika.connect(host="127.0.0.1", port=port)
            return cls(connection, await connection.channel())

    async def declare(self, queue: str) -> Any:
        with errors():
            return await self.channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum"})

    async def close(self) -> None:
        with suppress(BenchError), errors():
            await self._connection.close()


class RabbitProducer:
    def __init__(self, channel: Channel, broker: RabbitBroker) -> None:
        self._channel = channel
        self._exchange = channel.channel.default_exchange
        self._broker = broker
        self._body = broker.layout.payload.encode()

    async def push(self, lane: int, first: int, count: int) -> None:
        await self.push_each([(lane, sequence) for sequence in range(first, first + count)])

    async def push_each(self, messages: Sequence[tuple[int, int]]) -> None:
        """Publish all and return when each is confirmed."""
        with errors():
            await asyncio.gather(*(self._publish(lane, sequence) for lane, sequence in messages))

    def _publish(self, lane: int, sequence: int) -> Any:
        from aio_pika import DeliveryMode, Message

        message = Message(self._body, message_id=f"{lane}:{sequence}", delivery_mode=DeliveryMode.PERSISTENT)
        return self._exchange.publish(message, self._broker.queue(lane), mandatory=False)

    async def close(self) -> None:
        await self._channel.close()


class RabbitConsumer:
    def __init__(self, channel: Channel, want: Want) -> None:
        self._channel = channel
        self._want = want
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._last: Any = None

    async def start(self, queue: Any) -> None:
        with errors():
            await self._channel.channel.set_qos(self._want.batch)
            await queue.consume(self._arrived.put, no_ack=self._want.auto_ack)

    async def pop(self) -> list[str]:
        try:
            async with asyncio.timeout(max(self._want.wait_ms, LEAST_WAIT_MS) / 1000):
                taken = [await self._arrived.get()]
        except TimeoutError:
            if self._channel.channel.is_closed:
                raise BenchError("RabbitMQ closed the connection") from None
            return []
        while len(taken) < self._want.batch and not self._arrived.empty():
            taken.append(self._arrived.get_nowait())
        self._last = taken[-1]
        return [message.message_id for message in taken]

    async def ack(self) -> None:
        """One for all up to the last. RabbitMQ does not answer acknowledgements."""
        with errors():
            await self._last.ack(multiple=True)

    async def close(self) -> None:
        """Only what is answered after the last acknowledgement shows that it was not lost with the connection."""
        with suppress(BenchError), errors():
            await self._channel.channel.set_qos(1)
        await self._channel.close()


@dataclass(frozen=True)
class RabbitBroker:
    port: int
    layout: Layout
    connections: int

    def queue(self, lane: int) -> str:
        return f"{self.layout.run}-{lane % self.connections}"

    async def producer(self, number: int, *, client: bool = False) -> RabbitProducer:
        channel = await Channel.open(self.port)
        await channel.declare(self.queue(number))
        return RabbitProducer(channel, self)

    async def consumer(self, number: int, want: Want) -> RabbitConsumer:
        channel = await Channel.open(self.port)
        consumer = RabbitConsumer(channel, want)
        await consumer.start(await channel.declare(self.queue(number)))
        return consumer

    async def drainers(self, group: str, lanes: int, wait_ms: int) -> Sequence[Consumer]:
        want = Want(DRAIN_PREFETCH, auto_ack=True, wait_ms=wait_ms)
        return [await self.consumer(number, want) for number in range(self.connections)]


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
        library("aio_pika")

    def takes(self, scenario: str, peers: bool) -> bool:
        return peers

    def facts(self) -> dict[str, str]:
        found = output_of("dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server").strip()
        return {
            "version": found or "unknown",
            "client": f"aio-pika {version('aio-pika')}",
            "durability": "quorum queues of one node, publisher confirms",
        }

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
            await (await Channel.open(port)).close()
        except BenchError:
            await asyncio.sleep(RETRY_S)
        else:
            return
    raise BenchError("RabbitMQ listens but takes no connection")
