"""NATS JetStream: one file stream, synced on every write, a durable pull consumer per connection.

By default JetStream syncs every two minutes only; `sync_interval: always` makes it comparable, and needs NATS 2.10.
A lane always goes to the same subject, which has one consumer, so order is defined as with partitions.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from queenmq.bench.broker import Consumer, Want
from queenmq.bench.errors import BenchError, PeerMissing
from queenmq.bench.layout import Layout
from queenmq.bench.peers.daemon import Daemon, free_port, output_of, temporary
from queenmq.bench.processes import Watch

LEAST_VERSION: Final = (2, 10)
USER: Final = "nats"
DRAIN_BATCH: Final = 1000
CONFIG: Final = """\
listen: "127.0.0.1:{port}"
jetstream {{
  store_dir: "{folder}/store"
  sync_interval: always
}}
"""
# What a pull is answered with when there is nothing more.
EMPTY_STATUS: Final = (b"404", b"408")


class Message(NamedTuple):
    reply: str
    status: bytes | None
    body: bytes


class Client(asyncio.Protocol):
    """One connection: requests whose answers come to an inbox of its own."""

    def __init__(self) -> None:
        self.inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._messages: list[Message] = []
        self._wanted = 0
        self._complete: asyncio.Future[list[Message]] | None = None
        self._failure: BenchError | None = None

    @classmethod
    async def open(cls, port: int) -> Client:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        hello = {"verbose": False, "pedantic": False, "lang": "python", "version": "1", "protocol": 1, "headers": True}
        client.write(f"CONNECT {json.dumps(hello)}\r\nSUB {client.inbox} 1\r\n".encode())
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"NATS closed the connection ({error or 'end of file'})")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def write(self, data: bytes) -> None:
        if self._failure is not None or self._transport is None:
            raise self._failure or BenchError("NATS is not connected")
        self._transport.write(data)

    def request(self, subject: str, body: bytes) -> bytes:
        return f"PUB {subject} {self.inbox} {len(body)}\r\n".encode() + body + b"\r\n"

    async def ask(self, requests: bytes, answers: int) -> list[Message]:
        """Send, and collect that many answers, or fewer if one says that there are no more."""
        self._messages = []
        self._wanted = answers
        self._complete = asyncio.get_running_loop().create_future()
        self.write(requests)
        return await self._complete

    async def call(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the API of JetStream."""
        [answer] = await self.ask(self.request(f"$JS.API.{subject}", json.dumps(body).encode()), 1)
        decoded: dict[str, Any] = json.loads(answer.body)
        if "error" in decoded:
            raise BenchError(f"NATS refused {subject}: {decoded['error'].get('description')}")
        return decoded

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        start = 0
        while (end := self._buffer.find(b"\r\n", start)) >= 0:
            after = self._line(self._buffer[start:end], end + 2)
            if after is None:
                break
            start = after
        self._buffer = self._buffer[start:]

    def _line(self, line: bytes, after: int) -> int | None:
        """Handle one line and its payload; where the next begins, or None if this one is not complete."""
        if line.startswith((b"MSG ", b"HMSG ")):
            return self._message(line.split(), after)
        if line.startswith(b"PING"):
            self.write(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            self._fail(f"NATS: {line.decode(errors='replace')}")
        return after

    def _message(self, words: list[bytes], start: int) -> int | None:
        size = int(words[-1])
        if len(self._buffer) < start + size + 2:
            return None
        has_headers = words[0] == b"HMSG"
        head = int(words[-2]) if has_headers else 0
        reply = words[3].decode() if len(words) == (6 if has_headers else 5) else ""
        status = self._buffer[start : start + head].split(maxsplit=2)[1:2] if has_headers else []
        self._received(Message(reply, status[0] if status else None, self._buffer[start + head : start + size]))
        return start + size + 2

    def _received(self, message: Message) -> None:
        if message.status in EMPTY_STATUS:
            self._wanted = 0
        elif message.status == b"503":
            self._fail("NATS has nobody who answers this request")
        else:
            self._messages.append(message)
        if len(self._messages) >= self._wanted and self._complete is not None and not self._complete.done():
            self._complete.set_result(self._messages)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or BenchError(reason)
        if self._complete is not None and not self._complete.done():
            self._complete.set_exception(self._failure)


class NatsProducer:
    def __init__(self, client: Client, broker: NatsBroker) -> None:
        self._client = client
        self._broker = broker
        self._payload = broker.layout.payload

    async def push(self, lane: int, first: int, count: int) -> None:
        await self.push_each([(lane, sequence) for sequence in range(first, first + count)])

    async def push_each(self, messages: Sequence[tuple[int, int]]) -> None:
        requests = b"".join(map(self._request, messages))
        for answer in await self._client.ask(requests, len(messages)):
            if b'"seq":' not in answer.body:
                raise BenchError(f"NATS did not store a message: {answer.body.decode(errors='replace')}")

    def _request(self, message: tuple[int, int]) -> bytes:
        """The id stands before the payload, as NATS messages have none."""
        lane, sequence = message
        return self._client.request(self._broker.subject(lane), f"{lane}:{sequence} {self._payload}".encode())

    async def close(self) -> None:
        self._client.close()


class NatsConsumer:
    def __init__(self, client: Client, place: str, want: Want) -> None:
        self._client = client
        self._next = client.request(
            f"$JS.API.CONSUMER.MSG.NEXT.{place}", json.dumps({"batch": want.batch, "no_wait": True}).encode()
        )
        self._want = want
        self._last = ""

    async def pop(self) -> list[str]:
        messages = await self._client.ask(self._next, self._want.batch)
        if not messages:
            return []
        self._last = messages[-1].reply
        if self._want.auto_ack:
            await self.ack()
        return [message.body.partition(b" ")[0].decode() for message in messages]

    async def ack(self) -> None:
        """One acknowledgement for all up to the last, answered by the server."""
        await self._client.ask(self._client.request(self._last, b"+ACK"), 1)

    async def close(self) -> None:
        self._client.close()


@dataclass(frozen=True)
class NatsBroker:
    port: int
    layout: Layout
    connections: int

    def subject(self, lane: int) -> str:
        return f"{self.layout.run}.{lane % self.connections}"

    async def producer(self, number: int) -> NatsProducer:
        return NatsProducer(await self._open(), self)

    async def consumer(self, number: int, want: Want) -> NatsConsumer:
        client = await self._open()
        name = f"c{number}"
        config = {
            "durable_name": name,
            "ack_policy": "all",
            "deliver_policy": "all",
            "filter_subject": self.subject(number),
            "max_ack_pending": -1,
        }
        await client.call(
            f"CONSUMER.DURABLE.CREATE.{self.layout.run}.{name}", {"stream_name": self.layout.run, "config": config}
        )
        return NatsConsumer(client, f"{self.layout.run}.{name}", want)

    async def drainers(self, group: str, lanes: int, wait_ms: int) -> Sequence[Consumer]:
        want = Want(DRAIN_BATCH, auto_ack=True)
        return [await self.consumer(number, want) for number in range(self.connections)]

    async def _open(self) -> Client:
        """A connection, with the stream made if this is the first."""
        client = await Client.open(self.port)
        stream = {"name": self.layout.run, "subjects": [f"{self.layout.run}.*"], "storage": "file", "num_replicas": 1}
        await client.call(f"STREAM.CREATE.{self.layout.run}", stream)
        return client


@dataclass(frozen=True)
class NatsSubject:
    port: int
    watch: Watch

    def broker(self, layout: Layout, connections: int) -> NatsBroker:
        return NatsBroker(self.port, layout, connections)


class Nats:
    name = "nats"

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch
        self._program = shutil.which("nats-server") or "/usr/sbin/nats-server"
        self._version = output_of(self._program, "--version").rpartition("v")[2].strip()
        found = tuple(map(int, re.findall(r"\d+", self._version)[:2]))
        if found < LEAST_VERSION:
            have = f"{self._version} cannot sync every write" if found else "nats-server is not there"
            raise PeerMissing(f"{have}; put nats-server 2.10 or newer in the PATH (Debian 13: apt install nats-server)")

    def takes(self, scenario: str, peers: bool) -> bool:
        return peers

    def facts(self) -> dict[str, str]:
        return {"version": self._version, "durability": "file stream, sync_interval always, acks answered"}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NatsSubject]:
        async with temporary(self._scratch, self.name) as folder:
            daemon = Daemon(folder, USER)
            port = free_port()
            config = daemon.write("nats.conf", CONFIG.format(port=port, folder=folder))
            async with daemon.running([self._program, "--config", str(config)]) as server:
                await daemon.answers(server, port)
                yield NatsSubject(port, Watch(server.pid))
