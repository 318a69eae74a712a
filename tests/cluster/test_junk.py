"""A flood of packets that nobody should have sent: each is counted by its reason, none is logged, requests go on."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from integration.queen import until
from ports import free_udp_port

from cluster.processes import SECRET, Remote, ServeProcess
from queenmq.cluster.frame import ANYBODY, HEADER, MAX_FRAME, encode_sender, seal
from queenmq.cluster.keys import KeyRing, parse_secret
from queenmq.cluster.messages import Greeting, Heartbeat, MessageType, encode
from queenmq.cluster.refusal import Refusal

PACKETS = 200_000 if os.environ.get("QUEEN_LONG", "") not in ("", "0") else 20_000
AT_A_TIME = 100  # as many as surely fit the receive buffer
SLOWEST_ANSWER_S = 1.0


@pytest.fixture
async def target(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[ServeProcess, Remote, int]]:
    """A server with a peer that is never there, its client, and its UDP port."""
    port = free_udp_port()
    server = ServeProcess(
        tmp_path,
        "target",
        DATABASE_URL=database_url,
        QUEEN_UDP_PORT=str(port),
        QUEEN_UDP_PEERS=f"127.0.0.1:{free_udp_port()}",
        QUEEN_SYNC_SECRET=SECRET,
        LOG_LEVEL="debug",
    )
    try:
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            yield server, Remote(http), port
    finally:
        server.make_sure_it_is_gone()


class Junk:
    """Packets that fail at every stage, and what each is refused for."""

    def __init__(self) -> None:
        self._random = random.Random(random.getrandbits(32))
        self._ring = KeyRing(parse_secret(SECRET))
        self._foreign = KeyRing(parse_secret("07" * 32))
        self._sequence = 0
        self.sent: Counter[str] = Counter()
        self._kinds = {
            Refusal.TOO_SHORT: lambda: self._random.randbytes(self._random.randrange(HEADER)),
            Refusal.TOO_LONG: lambda: self._random.randbytes(self._random.randint(MAX_FRAME + 1, 2 * MAX_FRAME)),
            Refusal.WRONG_VERSION: lambda: b"\0" + self._random.randbytes(self._random.randint(HEADER, 1000)),
            Refusal.WRONG_LENGTH: lambda: self._genuine() + b"more",
            Refusal.UNKNOWN_TYPE: lambda: self._sealed(self._ring, 99, b""),
            Refusal.UNKNOWN_KEY: lambda: self._sealed(self._foreign, MessageType.HEARTBEAT, b""),
            Refusal.BAD_SIGNATURE: self._forged,
            Refusal.UNDECODABLE: lambda: self._sealed(self._ring, MessageType.GREETING, self._random.randbytes(50)),
            Refusal.NOT_ASKED: lambda: self._sealed(
                self._ring,
                MessageType.GREETING,
                encode(Greeting("", 0, bytes(16), b"", self._random.randbytes(16), Heartbeat("", 0, []))),
            ),
            Refusal.WRONG_RECEIVER: lambda: self._sealed(
                self._ring, MessageType.CONSUMER_REGISTERED, encode((["queue"],))
            ),
        }

    def packets(self, count: int) -> list[bytes]:
        made = []
        for _ in range(count):
            kind, make = self._random.choice(list(self._kinds.items()))
            self.sent[kind.value] += 1
            made.append(make())  # type: ignore[no-untyped-call]
        return made

    def _sealed(self, ring: KeyRing, kind: int, payload: bytes) -> bytes:
        self._sequence += 1
        return seal(ring, kind, encode_sender("stranger"), ANYBODY, 1, self._sequence, payload)

    def _genuine(self) -> bytes:
        return self._sealed(self._ring, MessageType.HEARTBEAT, encode(Heartbeat("", 1, [])))

    def _forged(self) -> bytes:
        """Right in every respect, with the right key named, but for one bit behind it."""
        packet = bytearray(self._genuine())
        packet[self._random.randrange(8, len(packet))] ^= 1 << self._random.randrange(8)
        return bytes(packet)


async def test_a_flood_is_counted_and_costs_little(target: tuple[ServeProcess, Remote, int]) -> None:
    server, remote, port = target
    junk = Junk()
    logged = len(server.log)
    before = (await remote.figures())["transport"]["dropped"]
    slowest = 0.0

    async def counted() -> int:
        nonlocal slowest
        asked_at = asyncio.get_running_loop().time()
        dropped: dict[str, int] = (await remote.figures())["transport"]["dropped"]
        slowest = max(slowest, asyncio.get_running_loop().time() - asked_at)
        return sum(dropped.values()) - sum(before.values())

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
        for number in range(PACKETS // AT_A_TIME):
            for packet in junk.packets(AT_A_TIME):
                attacker.sendto(packet, ("127.0.0.1", port))
            await remote.queen.push("q", number)
            await until(lambda: _reached(counted, junk.sent.total()))
    after = (await remote.figures())["transport"]["dropped"]
    assert {reason: after[reason] - before[reason] for reason in after if after[reason] > before[reason]} == junk.sent
    assert server.log[logged:] == "", "something was logged"
    assert (await remote.figures())["server_health"]["servers_tracked"] == 0
    assert len(await remote.queen.drain("q")) == PACKETS // AT_A_TIME
    assert slowest < SLOWEST_ANSWER_S


async def _reached(counted: Callable[[], Awaitable[int]], count: int) -> bool:
    return await counted() >= count
