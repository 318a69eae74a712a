"""What the parts of one client share: its connections, verbs, buffers and running consumers, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from queenmq.client.buffer import Buffers
from queenmq.client.caller import Caller
from queenmq.client.errors import ClientClosed
from queenmq.client.options import ClientOptions
from queenmq.client.servers import Servers
from queenmq.client.transport import Transport
from queenmq.client.verbs import Verbs


class Stoppable(Protocol):
    def stop(self) -> None: ...

    def cancel(self) -> None: ...

    async def ended(self) -> None: ...


class Session:
    def __init__(self, urls: Sequence[str], options: ClientOptions) -> None:
        self.options = options
        self.transport = Transport(options)
        round_robin = options.load_balancing == "round-robin"
        self.servers = Servers(urls, options.server_cooldown_millis / 1000, round_robin=round_robin)
        self.verbs = Verbs(Caller(options, self.transport, self.servers), options)
        self.buffers = Buffers(self.verbs.push)
        self.consumers: set[Stoppable] = set()
        self.can_take = True  # until a server has said that it does not know how
        self.closed = False
        self._closing = asyncio.Lock()

    def check_open(self) -> None:
        if self.closed:
            raise ClientClosed

    def check_may_consume(self) -> None:
        if self.closed or self._closing.locked():
            raise ClientClosed

    async def close(self) -> None:
        """Let consumers finish what they have in hand, send what is buffered, close the connections. Once."""
        async with self._closing:
            if self.closed:
                return
            try:
                # Handlers that are at work may still push and acknowledge.
                await self._end_consumers()
                self.closed = True
                await self.buffers.flush_all()
            finally:
                self.closed = True
                self.buffers.stop()
                await self.transport.close()

    async def _end_consumers(self) -> None:
        consumers = tuple(self.consumers)
        for consumer in consumers:
            consumer.stop()
        ends = [asyncio.ensure_future(consumer.ended()) for consumer in consumers]
        if not ends:
            return
        _, late = await asyncio.wait(ends, timeout=self.options.close_timeout_millis / 1000)
        if late:
            for consumer in consumers:
                consumer.cancel()
            await asyncio.wait(late)
