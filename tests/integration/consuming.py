"""A consumer connection for tests, on a WebSocket client that is not the server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from queenmq.server import Server

Json = dict[str, Any]
LONG_ENOUGH_S = 30


class Connection:
    """Everything that was sent is kept in lists; `until_…` reads on."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.batches: list[Json] = []
        self.finished: list[Json] = []
        self.renewed: list[Json] = []
        self.is_stopping = False

    async def next_batch(self) -> Json:
        while not self.batches:
            await self.read()
        return self.batches.pop(0)

    async def next_data(self) -> list[Any]:
        return [message["data"] for message in (await self.next_batch())["messages"]]

    async def send(self, **frame: Any) -> None:
        await self.socket.send_json(frame)

    async def finish(self, batch: Json, **said: Any) -> Json:
        """Finish the lease of a batch; the result."""
        await self.send(finish=[{"leaseId": batch["leaseId"]} | said])
        while not any(result["leaseId"] == batch["leaseId"] for result in self.finished):
            await self.read()
        [result] = [result for result in self.finished if result["leaseId"] == batch["leaseId"]]
        self.finished.remove(result)
        return result

    async def read(self) -> None:
        """The next message. Raises ConnectionError at the end."""
        async with asyncio.timeout(LONG_ENOUGH_S):
            message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError(self.socket.close_code)
        frame = message.json()
        self.batches += frame.get("delivered", ())
        self.finished += frame.get("finished", ())
        self.renewed += frame.get("renewed", ())
        self.is_stopping = self.is_stopping or frame.get("stopping", False)

    async def end(self) -> tuple[int | None, str]:
        """Wait until the server closes; its code and reason."""
        while True:
            async with asyncio.timeout(LONG_ENOUGH_S):
                message = await self.socket.receive()
            if message.type is aiohttp.WSMsgType.CLOSE:
                return message.data, message.extra or ""
            if message.type is not aiohttp.WSMsgType.TEXT:
                return self.socket.close_code, ""

    def cut(self) -> None:
        """End the connection without a word."""
        connection = self.socket._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()


def url_of(server: Server, queue: str = "orders") -> str:
    host, port = server.address
    return f"ws://{host}:{port}/api/v1/consume/queue/{queue}"


@asynccontextmanager
async def consuming(
    server: Server | str, queue: str = "orders", headers: Mapping[str, str] | None = None, **params: Any
) -> AsyncIterator[Connection]:
    url = server if isinstance(server, str) else url_of(server, queue)
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, params=params, headers=headers, max_msg_size=0) as socket,
    ):
        yield Connection(socket)
