"""A server of the simulation: the real shared state, a clock of its own, and the truth about its consumers."""

from __future__ import annotations

from random import Random

from unit.broker.remembering import Remembering

from queenmq.broker.caches import CacheBounds
from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.frame import Frame
from queenmq.cluster.keys import KeyRing, parse_secret
from queenmq.cluster.membership import Address
from queenmq.cluster.messages import TOKEN_BYTES, Heartbeat, QueueConfigDelete, QueueConfigSet, decode
from queenmq.cluster.state import SharedState
from simulation.database import Reading

RING = KeyRing(parse_secret("5e" * 32))
SETTINGS = ClusterBounds(
    deregister_after_s=0.5,
    replay_window=32,
    max_members=5,
    max_challenges=50,
    max_senders=16,
    max_epoch_floors=32,
    max_greeted=16,
    presence_max=60,
    lease_hints_max=25,
)
BOUNDS = CacheBounds(queues=40, tombstones=20, partition_ids=20)
REFRESH_S = 5.0


class Life:
    """What one life of a server has taken in: the oracle for what it must refuse."""

    def __init__(self, epochs: dict[str, int]) -> None:
        self.newest = dict(epochs)  # the newest epoch of each sender that it knows of
        self.taken: set[tuple[str, int, int]] = set()
        self.first: dict[tuple[str, int], int] = {}
        self.configs: dict[str, int] = {}  # the newest database version that it was told of, by queue

    def must_refuse(self, frame: Frame) -> bool:
        """Repeated, of a former life, or recorded before this server first heard that life of the sender."""
        epoch = (frame.sender, frame.epoch)
        return (
            frame.epoch < self.newest.get(frame.sender, 0)
            or (*epoch, frame.sequence) in self.taken
            or frame.sequence < self.first.get(epoch, 0)
        )

    def told(self, queue: str, version: int) -> None:
        self.configs[queue] = max(version, self.configs.get(queue, 0))

    def take(self, frame: Frame) -> None:
        self.taken.add((frame.sender, frame.epoch, frame.sequence))
        self.newest[frame.sender] = max(frame.epoch, self.newest.get(frame.sender, 0))
        self.first.setdefault((frame.sender, frame.epoch), frame.sequence)
        match decode(frame.type, frame.payload):
            case QueueConfigSet(queue, _, version):
                self.told(queue, version)
            case QueueConfigDelete(queues):
                for queue, version in queues:
                    self.told(queue, version)


class Node:
    def __init__(self, name: str, address: Address, peers: list[Address], siblings: list[int], chance: Random) -> None:
        self.name = name
        self.address = address
        self._peers = peers
        self._siblings = siblings
        self._chance = chance
        self._offset = chance.uniform(0, 7200)
        self._rate = chance.uniform(0.99, 1.01)
        self.consumers: dict[str, None] = {}
        self.leases: dict[tuple[str, str, str], None] = {}
        self.running: SharedState | None = None
        self.life = Life({})
        self.crashed_at = 0.0
        self.moment = 0.0  # of the world
        self.caches = Remembering(BOUNDS, self)

    def clock(self, moment: float) -> float:
        return self._offset + moment * self._rate

    def monotonic(self) -> float:
        return self.clock(self.moment)

    def wall(self) -> float:
        return self.monotonic()

    def boot(self, epoch: int, reading: Reading, moment: float) -> SharedState:
        self.consumers, self.leases = {}, {}
        self.caches = Remembering(BOUNDS, self)
        self.life = Life({name: known for name, known in reading.epochs.items() if name != self.name})
        state = self.running = SharedState(
            SETTINGS,
            RING,
            self.name,
            epoch,
            random=self._chance.random,
            peers=self._peers,
            token=lambda: self._chance.randbytes(TOKEN_BYTES),
            own_address=lambda _: self.address,
        )
        state.own_heartbeat = Heartbeat("", 6632, self._siblings)
        self.refresh(reading, moment, moment)
        return state

    def refresh(self, reading: Reading, started: float, moment: float) -> None:
        state, now = self.running, self.clock(moment)
        if state is None:
            return
        read_at = self.clock(started)
        self.caches.options.replace_all(reading.rows, reading.version, read_at, now)
        for switch, (on, version) in reading.switches.items():
            self.caches.switches.refreshed(switch, on, version, read_at, now)
        self.moment = moment
        self.caches.expire()
        state.epochs_refreshed(reading.epochs, read_at)
        versions = {row.queue: row.version for row in reading.rows}
        for queue in {*versions, *self.life.configs}:
            self.life.told(queue, versions.get(queue, reading.version))
        for name, epoch in reading.epochs.items():
            self.life.newest[name] = max(epoch, self.life.newest.get(name, 0))

    def crash(self, moment: float) -> None:
        self.running = None
        self.crashed_at = moment
