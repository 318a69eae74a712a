"""Servers of one cluster in this process, each with its own caches, sockets and clock, joined by a relay."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from integration.queen import Queen, until
from server_settings import changed, settings_with

from queenmq.broker.broker import Broker
from queenmq.broker.caches import Caches
from queenmq.clock import SYSTEM, Clock, SystemClock
from queenmq.cluster.lease_hints import LeaseHints
from queenmq.cluster.presence import Presence
from queenmq.config import Settings
from queenmq.faults.network import Relay
from queenmq.server import Server

SECRET = bytes.fromhex("5e" * 32)
OTHER_SECRET = bytes.fromhex("07" * 32)
NAMES = ("a", "b", "c")

# Only a packet can explain that a long poll is answered within the time of a test.
NO_SAFETY_NET = {"pop": {"wait_initial_interval_ms": 60_000, "wait_max_interval_ms": 60_000}}
QUICK = settings_with(
    cluster={"udp_port": 0, "secret": SECRET, "heartbeat_ms": 100, "dead_threshold_ms": 1000},
    database={"pool_size": 6, "vacuum_interval_ms": 0},
)


class ShiftedClock(SystemClock):
    """The time of this machine, so many seconds off."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._seconds

    def wall(self) -> float:
        return time.time() + self._seconds


class Member:
    """One server, that can be stopped and started again under its name."""

    def __init__(self, name: str, url: str, relay: Relay, settings: Settings, clock: Clock = SYSTEM) -> None:
        self.name = name
        self.settings = changed(settings, cluster={"server_id": name, "peers": relay.peers_of(name)})
        self._url = url
        self._clock = clock
        self._http: httpx.AsyncClient | None = None
        self._server: Server | None = None

    async def start(self, **changes: Any) -> None:
        self.settings = changed(self.settings, **changes)
        server = Server(self.settings, self._url, clock=self._clock)
        await server.start()
        host, port = server.address
        self._server, self._http = server, httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30)

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.aclose()
        if self._server is not None:
            await self._server.stop()
        self._server = self._http = None

    async def restart(self, **changes: Any) -> None:
        await self.stop()
        await self.start(**changes)

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    @property
    def http(self) -> httpx.AsyncClient:
        assert self._http is not None
        return self._http

    @property
    def queen(self) -> Queen:
        return Queen(self.http)

    @property
    def broker(self) -> Broker:
        return self.server.broker

    @property
    def caches(self) -> Caches:
        return self.broker.caches

    @property
    def lease_hints(self) -> LeaseHints:
        return self.server.node.state.lease_hints

    @property
    def presence(self) -> Presence:
        return self.server.node.state.presence

    @property
    def figures(self) -> dict[str, Any]:
        """As GET /internal/api/shared-state/stats has them."""
        return self.broker.shared_state()

    @property
    def dropped(self) -> Mapping[str, int]:
        return self.figures["transport"]["dropped"]

    @property
    def alive(self) -> set[str]:
        return {member.id for member in self.server.node.state.members.members() if member.alive}


async def joined(members: Sequence[Member], timeout_s: float = 10) -> None:
    """Return when each of these knows that all the others live."""
    names = {member.name for member in members}
    await until(lambda: all(member.alive >= names - {member.name} for member in members), timeout_s)


@asynccontextmanager
async def cluster(
    url: str,
    *names: str,
    settings: Settings = QUICK,
    clocks: Mapping[str, Clock] | None = None,
    separated: bool = False,
    **changes: Any,
) -> AsyncIterator[tuple[Relay, list[Member]]]:
    """Servers on the database at `url` that know each other; `separated`: no packet ever passes."""
    relay = Relay(*(names or NAMES))
    await relay.open()
    if separated:
        relay.cut()
    async with AsyncExitStack() as stack:
        stack.callback(relay.close)
        members = []
        for name in relay.servers:
            member = Member(name, url, relay, changed(settings, **changes), (clocks or {}).get(name, SYSTEM))
            stack.push_async_callback(member.stop)
            await member.start()
            members.append(member)
        if not separated:
            await joined(members)
        yield relay, members
