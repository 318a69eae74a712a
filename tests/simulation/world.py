"""The simulated cluster: a heap of things to come, a virtual clock, and chance from one seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from queenmq.cluster import frame as wire
from queenmq.cluster.events import MEMBERS, IdentityConflict, OtherVersion, deliver
from queenmq.cluster.frame import Frame
from queenmq.cluster.membership import Address
from queenmq.cluster.messages import Greeting, MessageType, decode
from queenmq.cluster.outbox import Outgoing
from queenmq.cluster.refusal import Refusal
from queenmq.cluster.state import SharedState
from simulation import invariants
from simulation.database import Database
from simulation.network import FAIR, Network, Weather
from simulation.node import REFRESH_S, RING, Node

TICK_S = 0.25
DEAD_EVERYWHERE_S = 6.0
# Two heartbeats until servers that were apart have met again, then a whole pause between two snapshots of presence: the
# first may have been sent in the middle of the meeting, when the receiver does not believe it yet.
SETTLED_S = 8.5
SETTLED_AFTER_POISON_S = 14.0
MOST_RECORDED = 2000
_REPORTS = (IdentityConflict, OtherVersion)
_STALE = (Refusal.OLD_EPOCH, Refusal.REPLAYED, Refusal.TOO_OLD, Refusal.WRONG_RECEIVER, Refusal.UNKNOWN_SENDER)


@dataclass(slots=True)
class Recorded:
    """A packet that an eavesdropper has kept."""

    source: Address
    datagram: bytes
    frame: Frame


class World:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now = 0.0
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.poisoned = self.chance.random() < 0.2
        self.database = Database()
        self.network = Network(self.chance, self.after, self.deliver)
        self.nodes = self._make_nodes()
        self.by_address = {node.address: node for node in self.nodes}
        self.by_name = {node.name: node for node in self.nodes}
        self.network.addresses = list(self.by_address)
        self.recorded: list[Recorded] = []
        self.trace = 0  # a fingerprint of the whole run
        for node in self.nodes:
            self.boot(node)
            self.after(self.chance.random() * TICK_S, lambda node=node: self._tick(node))
            self.after(self.chance.random() * REFRESH_S, lambda node=node: self._refresh(node))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._coming, (self.now + delay_s, next(self._numbers), action))

    def run_until(self, moment: float) -> None:
        while self._coming and self._coming[0][0] <= moment:
            self.now, _, action = heapq.heappop(self._coming)
            action()
        self.now = moment

    def settle(self) -> None:
        """No more accidents: the network is whole, and everything has the time to come right."""
        self.network.heal()
        self.network.weather = FAIR
        self.run_until(self.now + (SETTLED_AFTER_POISON_S if self.poisoned else SETTLED_S))

    def living(self) -> list[tuple[Node, SharedState]]:
        return [(node, node.running) for node in self.nodes if node.running is not None]

    def boot(self, node: Node) -> None:
        node.boot(self.database.boot(node.name), self.database.read(), self.now)

    def crash(self, node: Node) -> None:
        node.crash(self.now)
        crashed_at = self.now
        if not self.poisoned:
            self.after(DEAD_EVERYWHERE_S, lambda: invariants.dead_everywhere(self, node, crashed_at))

    def send(self, node: Node, outgoing: list[Outgoing]) -> None:
        self.network.send(node.address, outgoing)

    def deliver(self, source: Address, address: Address, datagram: bytes) -> None:
        """A packet arrives, and the receiver must refuse what is not new."""
        node = self.by_address.get(address)
        if node is None or node.running is None:
            return
        state = node.running
        frame = wire.open(RING, datagram)
        dropped, stale = state.traffic.dropped.total(), _stale(state)
        node.moment = self.now
        events = state.receive(datagram, source, node.monotonic())
        for event in events:
            deliver(node.caches, event)
        refused = state.traffic.dropped.total() > dropped
        told = [event for event in events if not isinstance(event, _REPORTS)]
        assert not (refused and told), "what is refused has no effect"
        self.trace = hash((self.trace, len(datagram), refused, len(events), self.now))
        if isinstance(frame, Frame) and frame.sender != node.name:
            if _stale(state) == stale and _says_something(frame, refused):
                new = self.poisoned or not node.life.must_refuse(frame)
                assert new, f"{node.name} acted on {frame} a second time, or of a former life"
                node.life.take(frame)
                invariants.no_older_configs(self, node)
            self._record(Recorded(source, datagram, frame))
        invariants.within_bounds(node, state)
        invariants.nobody_is_elsewhere(self, node, state)
        if state.has_replies or any(isinstance(event, MEMBERS) for event in events):
            self._greet(node, state)

    def _record(self, packet: Recorded) -> None:
        if len(self.recorded) < MOST_RECORDED:
            self.recorded.append(packet)
        else:
            self.recorded[self.chance.randrange(MOST_RECORDED)] = packet

    def _greet(self, node: Node, state: SharedState) -> None:
        self.send(node, state.tick(node.clock(self.now)).outgoing)

    def _tick(self, node: Node) -> None:
        if node.running is not None:
            self._greet(node, node.running)
        self.after(TICK_S, lambda: self._tick(node))

    def _refresh(self, node: Node) -> None:
        """Read the database; what was read arrives a moment later."""
        reading, started, state = self.database.read(), self.now, node.running

        def arrive() -> None:
            if node.running is state:
                node.refresh(reading, started, self.now)

        self.after(self.chance.random() * 0.2, arrive)
        self.after(REFRESH_S, lambda: self._refresh(node))

    def _make_nodes(self) -> list[Node]:
        """Either all know all addresses, their own included, or all are workers that only know the first."""
        size = self.chance.choice([2, 3, 3, 4])
        workers = self.chance.random() < 0.3
        addresses = [("10.0.0.1", 7000 + n) if workers else (f"10.0.0.{n}", 6634) for n in range(size)]
        ports = [port for _, port in addresses] if workers else []
        peers = addresses[:1] if workers else addresses
        self.spared = 1 if workers else 0  # who crashes is not the one that all others know
        return [Node(f"queen-{n}", address, peers, ports, self.chance) for n, address in enumerate(addresses)]

    def change_weather(self) -> None:
        self.network.weather = Weather.any(self.chance)


def _says_something(frame: Frame, refused: bool) -> bool:
    """A greeting that meets no challenge says nothing that would be believed."""
    if frame.type != MessageType.GREETING:
        return True
    greeting = decode(frame.type, frame.payload)
    return not refused and isinstance(greeting, Greeting) and bool(greeting.met)


def _stale(state: SharedState) -> int:
    """How many packets were refused because they were not new."""
    dropped = state.traffic.dropped
    return sum(dropped[refusal] for refusal in _STALE)
