"""The network between servers, in foreign hands: it loses, delays, doubles, records, replays, forges and cuts.

Every two servers have a pair of sockets, one that stands for the other at each end. What a server sends to its socket
leaves from the other one, because servers answer to where a packet came from.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import permutations

from queenmq.clock import SYSTEM

Address = tuple[str, int]

_LOOPBACK: Address = ("127.0.0.1", 0)


@dataclass(kw_only=True)
class Path:
    """What happens to the packets from one server to another."""

    loss: float = 0.0
    doubled: float = 0.0
    longest_delay_s: float = 0.0  # each packet has its own, so that they overtake each other
    cut: bool = False
    lost: frozenset[int] = frozenset()  # kinds of packets, the second byte of each
    recorded: list[bytes] = field(default_factory=list)
    passed: int = 0


class _Door(asyncio.DatagramProtocol):
    """The socket at which one server meets another."""

    def __init__(self, received: Callable[[bytes], None]) -> None:
        self._received = received
        self._transport: asyncio.DatagramTransport | None = None
        self.home: Address | None = None  # of the server on this side, as its last packet had it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self.home = addr
        self._received(data)

    def error_received(self, exc: Exception) -> None:
        """The server on this side is not there at the moment."""

    @property
    def address(self) -> Address:
        host, port = self._transport.get_extra_info("sockname") if self._transport is not None else _LOOPBACK
        return host, port

    def deliver(self, datagram: bytes) -> None:
        if self._transport is not None and self.home is not None:
            self._transport.sendto(datagram, self.home)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None


class Relay:
    """Paths go by (from, to)."""

    def __init__(self, *servers: str) -> None:
        self.servers = servers
        self.paths = {pair: Path() for pair in permutations(servers, 2)}
        self._doors: dict[tuple[str, str], _Door] = {}
        self._random = random.Random(random.getrandbits(32))  # noqa: S311 - a bad network, not a secret
        self.recording = False

    async def open(self) -> None:
        for near, far in self.paths:
            self._doors[near, far] = await self._open(near, far)

    async def _open(self, near: str, far: str) -> _Door:
        door = _Door(lambda datagram: self._forward(near, far, datagram))
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: door, local_addr=_LOOPBACK)
        return door

    def close(self) -> None:
        for door in self._doors.values():
            door.close()

    def peers_of(self, server: str) -> tuple[Address, ...]:
        """The addresses at which the server finds the others."""
        return tuple(door.address for (near, _), door in self._doors.items() if near == server)

    def of(self, *servers: str) -> list[Path]:
        """Every path from or to one of these servers; all paths if none is named."""
        return [p for pair, p in self.paths.items() if not servers or not set(servers).isdisjoint(pair)]

    def cut(self, *servers: str) -> None:
        for path in self.of(*servers):
            path.cut = True

    def heal(self, *servers: str) -> None:
        for path in self.of(*servers):
            path.cut = False

    def recorded(self, sender: str) -> list[bytes]:
        """What a server has sent while the relay was recording, each packet once."""
        return list(dict.fromkeys(d for (near, _), path in self.paths.items() if near == sender for d in path.recorded))

    def inject(self, sender: str, receiver: str, datagrams: Iterable[bytes]) -> None:
        """Deliver these as if they came from the sender, whatever is wrong with the path."""
        for datagram in datagrams:
            self._doors[receiver, sender].deliver(datagram)

    def forge(self) -> None:
        """Deliver every recorded packet again to where it went: as it was, changed, and cut short."""
        for (near, far), path in self.paths.items():
            for datagram in tuple(path.recorded):
                at = self._random.randrange(len(datagram))
                changed = datagram[:at] + bytes([datagram[at] ^ self._random.randrange(1, 256)]) + datagram[at + 1 :]
                self.inject(near, far, [datagram, changed, datagram[:at], self._random.randbytes(len(datagram))])

    def _forward(self, near: str, far: str, datagram: bytes) -> None:
        path, chance = self.paths[near, far], self._random
        if self.recording:
            path.recorded.append(datagram)
        if path.cut or datagram[1] in path.lost or chance.random() < path.loss:
            return
        path.passed += 1
        for _ in range(2 if chance.random() < path.doubled else 1):
            if path.longest_delay_s:
                delay_s = chance.uniform(0, path.longest_delay_s)
                SYSTEM.call_later(delay_s, self._doors[far, near].deliver, datagram)
            else:
                self._doors[far, near].deliver(datagram)
