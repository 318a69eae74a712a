"""Queen through its own Python client, as the other brokers are spoken to through the libraries of their users."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from queen_bench.broker import Want
from queen_bench.connected import SHARED_BY
from queen_bench.errors import BenchError
from queen_bench.layout import Layout
from queenmq.client import Item, Message, Queen, QueenError


class ClientProducer:
    def __init__(self, url: str, layout: Layout) -> None:
        self._queen = Queen(url)
        self._layout = layout
        self._payload: Any = msgspec.json.decode(layout.payload)

    async def push(self, lane: int, first: int, count: int) -> None:
        await self.push_each([(lane, sequence) for sequence in range(first, first + count)])

    async def push_each(self, messages: Sequence[tuple[int, int]]) -> None:
        """Those of a partition together: the client pushes to one at a time."""
        layout = self._layout
        places: dict[tuple[str, str], list[Item]] = {}
        for lane, sequence in messages:
            item = Item(self._payload, transaction_id=f"{lane}:{sequence}")
            places.setdefault((layout.queue(lane), layout.partition(lane)), []).append(item)
        try:
            for (queue, partition), items in places.items():
                await self._queen.queue(queue).partition(partition).push(items)
        except QueenError as error:
            raise BenchError(f"a push of {len(messages)} failed: {error}") from error

    async def close(self) -> None:
        await self._queen.close()


class Workers:
    """One `consume` of a client, whose workers are consumers of the benchmark: `pop` gets what the handler of a worker
    was called with, and `ack` lets that handler return."""

    def __init__(self, url: str, layout: Layout, want: Want) -> None:
        self._queen = Queen(url)
        self._payload: Any = msgspec.json.decode(layout.payload)
        self._handed: asyncio.Queue[tuple[list[Message], asyncio.Future[None]]] = asyncio.Queue()
        queue = self._queen.queue(want.queue or layout.queue()).concurrency(SHARED_BY).prefetch(want.prefetch)
        if want.group:
            queue = queue.group(want.group).subscription_mode("all")
        if want.batch == 1:
            self._consumer = queue.consume(self._handle_one, handle_signals=False)
        else:
            self._consumer = queue.batch(want.batch).consume(self._handle, handle_signals=False)
        self._running: asyncio.Task[Any] | None = None
        self._in_hand: set[asyncio.Future[None]] = set()
        self.consumers = 0

    def open(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._consumer

    async def _handle_one(self, message: Message) -> None:
        await self._handle([message])

    async def _handle(self, messages: list[Message]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_hand.add(done)
        self._handed.put_nowait((messages, done))
        try:
            await done
        finally:
            self._in_hand.discard(done)

    async def next(self, wait_s: float) -> tuple[list[Message], asyncio.Future[None]] | None:
        if self._running is not None and self._running.done():
            raise BenchError(f"the client has stopped consuming: {self._running.exception()!r}")
        if not self._handed.empty():
            found = self._handed.get_nowait()
        else:
            try:
                found = await asyncio.wait_for(self._handed.get(), wait_s)
            except TimeoutError:
                return None
        if any(message.data != self._payload for message in found[0]):
            raise BenchError("a payload did not arrive as it was pushed")
        return found

    async def close(self) -> None:
        """What no consumer has asked for is given back: a handler that is cancelled has not failed."""
        self._consumer.stop()
        while not self._handed.empty():
            self._handed.get_nowait()
        if self._in_hand:
            self._consumer.cancel()
        if self._running is not None:
            await asyncio.wait((self._running,))
        await self._queen.close()


class ClientConsumer:
    def __init__(self, workers: Workers, want: Want) -> None:
        self._workers = workers
        self._wait_s = want.wait_ms / 1000
        self._done: asyncio.Future[None] | None = None
        workers.consumers += 1

    async def pop(self) -> list[str]:
        found = await self._workers.next(self._wait_s)
        if found is None:
            return []
        messages, self._done = found
        return [message.transaction_id for message in messages]

    async def ack(self) -> None:
        """The client acknowledges when the handler has returned, and does not wait for the answer."""
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        self._done = None

    async def close(self) -> None:
        await self.ack()
        self._workers.consumers -= 1
        if not self._workers.consumers:
            await self._workers.close()
