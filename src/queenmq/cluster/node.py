"""This server as a member of its cluster: the shared state, its socket, its clock, and what waits to be sent.

A server without peers has a node, too: its caches are the same, it only sends nothing. What happens in one turn of the
event loop goes out together, so that a merged call is one packet and not one for each of its partitions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from queenmq.clock import Clock, process_cpu_s, utc_now
from queenmq.cluster import transport
from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.coordinator import Coordinator, url_of
from queenmq.cluster.coordinator_bounds import CoordinatorBounds
from queenmq.cluster.events import (
    MEMBERS,
    Event,
    IdentityConflict,
    MemberDied,
    MemberJoined,
    MemberRestarted,
    MemberReturned,
    OtherVersion,
    deliver,
)
from queenmq.cluster.frame import VERSION as FRAME_VERSION
from queenmq.cluster.keys import Key, KeyRing
from queenmq.cluster.membership import Address
from queenmq.cluster.messages import EVERY_QUEUE, Heartbeat
from queenmq.cluster.outbox import Outgoing
from queenmq.cluster.own_load import OwnLoad
from queenmq.cluster.port import Advice, Receiver
from queenmq.cluster.state import SharedState
from queenmq.config import MAX_SERVER_ID_BYTES, Settings
from queenmq.core.maintenance import Switch
from queenmq.core.options import OptionValues
from queenmq.errors import DatabaseUnavailable, StartupError

log = logging.getLogger(__name__)

_TICKS_A_HEARTBEAT = 4
_MOST_NAMES = 16  # of partitions in a notification; beyond, the receiver probes all of them
_RESOLVE_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Siblings:
    """The other worker processes of the same `queen serve`, and the socket that was bound for this one."""

    index: int
    own: socket.socket
    others: tuple[Address, ...]


class Node:
    """The port of the broker to the other servers (`queenmq.cluster.port.Cluster`)."""

    def __init__(self, settings: Settings, clock: Clock, siblings: Siblings | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._siblings = siblings
        self._named = settings.cluster.peers if settings.cluster.enabled else ()
        self.linked = bool(self._named or siblings)
        if settings.coordinator.enabled and not self.linked:
            raise StartupError(
                "QUEEN_COORDINATOR_ENABLED needs other servers to forward requests to; "
                "name the other servers with QUEEN_UDP_PEERS, or switch it off"
            )
        self.ring = _key_ring(settings)
        self.server_id = server_id(settings, siblings)
        self._deaths: dict[str, asyncio.Future[None]] = {}
        self._receiver: Receiver | None = None
        self._state: SharedState | None = None
        self._transport: transport.Transport | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._flush: asyncio.Handle | None = None
        self._readable: dict[str, set[str] | None] = {}
        self._released: dict[tuple[str, str, str], None] = {}
        self._acquired: list[tuple[str, str, str, float]] = []
        self._advertised: Address | None = None
        self._resolve_due = 0.0
        self._resolving: asyncio.Task[None] | None = None
        self._coordinator: Coordinator | None = None
        self._own_load: OwnLoad | None = None
        self._measure_due = 0.0

    @property
    def coordinator(self) -> Coordinator:
        """Raises DatabaseUnavailable before the first contact with the database, as `state` does."""
        if self._coordinator is None:
            raise DatabaseUnavailable
        return self._coordinator

    @property
    def wall_ms(self) -> int:
        return int(self._clock.wall() * 1000)

    @property
    def state(self) -> SharedState:
        """Raises DatabaseUnavailable before the first contact with the database, which gives the boot epoch."""
        if self._state is None:
            raise DatabaseUnavailable
        return self._state

    @property
    def is_open(self) -> bool:
        return self._state is not None

    @property
    def now(self) -> float:
        return self._clock.monotonic()

    def death_of(self, server: str) -> asyncio.Future[None]:
        """Done when that server, which lives now, counts as dead."""
        if server not in self._deaths:
            self._deaths[server] = asyncio.get_running_loop().create_future()
        return self._deaths[server]

    async def open(self, epoch: int, receiver: Receiver) -> None:
        """Take part from now on; `receiver` gets what the others say. Raises StartupError if the UDP address cannot be
        had."""
        self._receiver = receiver
        settings = self._settings
        peers = await self._peers()
        self._state = SharedState(
            cluster_bounds(settings),
            self.ring,
            self.server_id,
            epoch,
            random=random.random,
            peers=peers,
            own_address=self._own_address,
        )
        self._coordinator = Coordinator(
            CoordinatorBounds.of(settings), self._state, enabled=settings.coordinator.enabled, random=random.random
        )
        if not self.linked:
            return
        bound = transport.listen(settings.cluster) if self._siblings is None else self._siblings.own
        self._transport = transport.Transport(self._receive)
        await self._transport.start(bound)
        self._ticker = asyncio.get_running_loop().create_task(self._tick_for_ever(), name="cluster")

    def announce(self, http: Address) -> None:
        """Where the others reach this server; said in every heartbeat."""
        host = "" if http[0] in ("0.0.0.0", "::") else http[0]
        ports = [port for _, port in self._siblings.others] if self._siblings and self._named else []
        self.state.own_heartbeat = Heartbeat(
            host, http[1], ports, started_at_ms=self.wall_ms, coordinates=self._settings.coordinator.enabled
        )
        self.coordinator.local.url = url_of(http)
        if self._receiver is not None:
            # From now on, without what the start has used.
            self._own_load = OwnLoad(self._receiver.requests, process_cpu_s, self.now)

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait((self._ticker,))
            self._ticker = None
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.wait((self._resolving,))
            self._resolving = None
        if self._transport is not None:
            if self._state is not None:
                self._send(self._state.goodbye())
            self._transport.close()
            self._transport = None

    # What happens here

    def readable(self, queue: str, partitions: Collection[str] | None) -> None:
        """Something became readable in these partitions; None if it is not known in which."""
        if self._transport is None:
            return
        known = self._readable.setdefault(queue, set())
        if partitions is None or known is None:
            self._readable[queue] = None
        else:
            known.update(partitions)
        self._flush_soon()

    def acquired(self, queue: str, partition: str, group: str, lease_s: float) -> None:
        if self._transport is not None:
            self._acquired.append((queue, partition, group, lease_s))
            self._flush_soon()

    def released(self, leases: Collection[tuple[str, str, str]]) -> None:
        """Leases ended: (queue, partition, group). Elsewhere that ends their hints and wakes who waits for them."""
        if self._transport is not None:
            for lease in leases:
                self.state.lease_hints.forget(*lease)
                self._released[lease] = None
            self._flush_soon()

    def consumer_came(self, queue: str) -> None:
        """The first long poll of a queue is parked here; an empty name stands for those over several queues."""
        if self._transport is not None:
            self._send(self.state.consumer_registered(queue or EVERY_QUEUE))

    def consumer_went(self, queue: str) -> None:
        if self._transport is not None:
            self._send(self.state.consumer_deregistered(queue or EVERY_QUEUE, self.now))

    def lease_advice(self, queue: str, partition: str, group: str) -> Advice:
        return self.state.lease_hints.advice(queue, partition, group, self.now)

    def lease_verified(self, queue: str, partition: str, group: str, *, was_wrong: bool) -> None:
        self.state.lease_hints.verified(queue, partition, group, self.now, was_wrong=was_wrong)

    def found_free(self, queue: str, partition: str, group: str) -> None:
        if self.state.lease_hints.believes(queue, partition, group):
            self.lease_verified(queue, partition, group, was_wrong=True)

    def config_set(self, queue: str, options: OptionValues, version: int) -> None:
        self._send(self.state.config_set(queue, options, version))

    def config_deleted(self, queue: str, version: int) -> None:
        self._send(self.state.config_deleted([(queue, version)]))

    def partitions_deleted(self, partitions: Sequence[tuple[str, str]]) -> None:
        self._send(self.state.partition_deleted(partitions))

    def maintenance_set(self, switch: Switch, on: bool, version: int) -> None:
        self._send(self.state.maintenance_set(switch, on, version))

    def statistics(self) -> dict[str, object]:
        figures = self.state.statistics(self.now, utc_now(self._clock))
        return {"enabled": self.linked, "running": self._transport is not None, **figures}

    # What happens elsewhere

    def _act(self, events: list[Event]) -> None:
        receiver = self._receiver
        if receiver is None:
            raise AssertionError("nothing is received before the node is open")
        for event in events:
            match event:
                case MemberJoined(server) | MemberReturned(server):
                    log.info("server %s has joined", server)
                case MemberRestarted(server):
                    log.info("server %s has restarted", server)
                case MemberDied(server, has_left):
                    if has_left:
                        log.info("server %s has stopped", server)
                    else:
                        log.warning("server %s is silent and counts as dead", server)
                    if server in self._deaths:
                        self._deaths.pop(server).set_result(None)
                case IdentityConflict(server, (host, port)):
                    log.error(
                        "another server, at %s:%d, has the same name %s: give each server its own QUEEN_SERVER_ID",
                        host,
                        port,
                        server,
                    )
                case OtherVersion((host, port), version):
                    log.warning(
                        "packets from %s:%d have version %d, this server has %d: the two exchange no hints and forward "
                        "no requests until both have the same version of Queen; meanwhile they work together through "
                        "the database",
                        host,
                        port,
                        version,
                        FRAME_VERSION,
                    )
                case _:
                    deliver(receiver, event)

    def _receive(self, datagram: bytes, source: Address) -> None:
        events = self.state.receive(datagram, source, self.now)
        if events:
            self._act(events)
        if self.state.has_replies or any(isinstance(event, MEMBERS) for event in events):
            self._tick()

    def _own_address(self, to: Address) -> Address:
        """Where a server at that address reaches this one; ("", 0) if that cannot be known."""
        # Of several workers only the first has the configured port.
        if self._advertised is not None and (self._siblings is None or self._siblings.index == 0):
            return self._advertised
        return ("", 0) if self._transport is None else self._transport.address_towards(to)

    async def _tick_for_ever(self) -> None:
        pause_s = self._settings.cluster.heartbeat_ms / 1000 / _TICKS_A_HEARTBEAT
        while True:
            if self.now >= self._resolve_due and (self._resolving is None or self._resolving.done()):
                # Not here: heartbeats must not wait for a name server.
                self._resolving = asyncio.create_task(self._resolve())
            self._tick()
            await self._clock.sleep(pause_s)

    def _tick(self) -> None:
        self.measure()
        outgoing, events = self.state.tick(self.now)
        self._send(outgoing)
        self._act(events)
        self.coordinator.observe(self.now)

    def measure(self) -> None:
        """Measure how busy this process is, once a heartbeat."""
        now = self.now
        if now < self._measure_due or self._own_load is None:
            return
        self._measure_due = now + self._settings.cluster.heartbeat_ms / 1000
        sample = self._own_load.measure(now)
        self.coordinator.measured(sample)
        self.state.own_heartbeat = msgspec.structs.replace(
            self.state.own_heartbeat,
            parked_polls=sample.parked_polls,
            outstanding_requests=sample.outstanding_requests,
            cpu_per_mille=round(sample.cpu * 1000),
        )

    async def _resolve(self) -> None:
        self.state.members.set_peers(await self._peers())
        if self._transport is not None:
            self._transport.forget_routes()

    async def _peers(self) -> list[Address]:
        """Names may point elsewhere after a while, as containers come and go."""
        self._resolve_due = self.now + _RESOLVE_AGAIN_S
        loop = asyncio.get_running_loop()
        named = await loop.run_in_executor(None, transport.resolve, self._named)
        if self._settings.cluster.advertise is not None:
            found = await loop.run_in_executor(None, transport.resolve, [self._settings.cluster.advertise])
            self._advertised = found[0] if found else self._advertised
        return [*(self._siblings.others if self._siblings else ()), *named]

    def _flush_soon(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        state = self.state
        readable, self._readable = self._readable, {}
        released, self._released = self._released, {}
        acquired, self._acquired = self._acquired, []
        if acquired:
            # What was given and given back at once is free.
            self._send(state.lease_acquired([lease for lease in acquired if lease[:3] not in released]))
        if released:
            self._send(state.lease_released(list(released)))
        if readable:
            self._send(state.pushed([_news(queue, partitions) for queue, partitions in readable.items()]))

    def _send(self, outgoing: list[Outgoing]) -> None:
        if outgoing and self._transport is not None:
            self._transport.send(outgoing)


def _news(queue: str, partitions: set[str] | None) -> tuple[str, list[str]]:
    return queue, [] if partitions is None or len(partitions) > _MOST_NAMES else list(partitions)


def cluster_bounds(settings: Settings) -> ClusterBounds:
    return ClusterBounds(
        heartbeat_s=settings.cluster.heartbeat_ms / 1000,
        dead_after_s=settings.cluster.dead_threshold_ms / 1000,
        lease_hints_max=settings.cache.partition_max,
    )


def require_secret(settings: Settings) -> None:
    """Raises StartupError if other servers are named and there is nothing to sign packets with."""
    if settings.cluster.enabled and settings.cluster.peers and settings.cluster.secret is None:
        raise StartupError(
            "QUEEN_UDP_PEERS names other servers, but there is no QUEEN_SYNC_SECRET to sign packets with; "
            "make one with `openssl rand -hex 32` and give it to all of them"
        )


def _key_ring(settings: Settings) -> KeyRing:
    require_secret(settings)
    if settings.cluster.secret is None:
        return KeyRing(Key(os.urandom(32)))
    previous = settings.cluster.secret_previous
    return KeyRing(Key(settings.cluster.secret), None if previous is None else Key(previous))


def server_id(settings: Settings, siblings: Siblings | None) -> str:
    name = settings.cluster.server_id or f"{socket.gethostname()}:{settings.http.port}"
    if siblings is not None:
        name += f"#{siblings.index}"
    if len(name.encode()) <= MAX_SERVER_ID_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name.encode()[: MAX_SERVER_ID_BYTES - 9].decode(errors="ignore") + "-" + digest
