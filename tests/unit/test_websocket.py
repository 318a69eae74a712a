"""How much of what a client sends on a WebSocket is kept, and who else has a turn meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionType
from wsproto.events import TextMessage

from queenmq.httpserver.websocket import WebSocket


class Wire:
    """Both the connection and its transport."""

    write_paused = False

    def __init__(self) -> None:
        self.is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


async def test_many_small_messages_are_parsed_as_they_are_read() -> None:
    wire: Any = Wire()
    socket = WebSocket(wire, wire, 0.0)
    client = Frames(ConnectionType.CLIENT)
    numbers = range(20_000)
    socket.feed(b"".join(client.send(TextMessage(data=str(number))) for number in numbers), 0.0)
    assert (wire.is_reading, len(socket._unread) < 2000) == (False, True)
    socket.feed(client.send(TextMessage(data="last")), 0.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(others())
    received = [await socket.receive() for _ in range(20_001)]
    other.cancel()
    assert received == [*map(str, numbers), "last"]
    assert (wire.is_reading, turns > 1000) == (True, True)
