"""The state that servers share, as one of them sees it: keys, members, caches, and what to send.

It does no I/O. The owner hands it the packets that come in, the things that happen here, and the time; it gets back
events to act on and packets to send. It has to call `tick` several times a heartbeat, and at once after an event that
names a member, so that a newcomer is greeted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from queenmq.cluster.events import ConfigChanged, Event, MaintenanceChanged, MemberDied
from queenmq.cluster.inbox import Inbox
from queenmq.cluster.keys import KeyRing
from queenmq.cluster.maintenance import Switch
from queenmq.cluster.membership import Address, Membership
from queenmq.cluster.messages import Heartbeat, MaintenanceSet, MessageType, Options, QueueConfigSet
from queenmq.cluster.outbox import Outbox, Outgoing
from queenmq.cluster.own_consumers import OwnConsumers
from queenmq.cluster.queue_configs import Row
from queenmq.cluster.replay import ReplayGuard
from queenmq.cluster.settings import ClusterSettings
from queenmq.cluster.statistics import statistics
from queenmq.cluster.tiers import Tiers
from queenmq.cluster.traffic import Traffic


class Ticked(NamedTuple):
    outgoing: list[Outgoing]
    events: list[Event]


class SharedState:
    def __init__(
        self,
        settings: ClusterSettings,
        ring: KeyRing,
        server_id: str,
        epoch: int,
        *,
        random: Callable[[], float],
        peers: Iterable[Address] = (),
    ) -> None:
        """`epoch` must be greater than in every former life of this server. `random` gives numbers in [0, 1).

        Raises ValueError for a server id that does not fit the frame.
        """
        self.server_id = server_id
        self.epoch = epoch
        self.settings = settings
        self.own_heartbeat = Heartbeat("", 0, [])  # for the owner to replace whenever something in it changes
        self.members = Membership(settings, peers)
        self.replay = ReplayGuard(settings)
        self.traffic = Traffic()
        self.own_consumers = OwnConsumers(settings.deregister_after_s)
        self.tiers = Tiers(settings, is_alive=self.members.is_alive, random=random)
        self._inbox = Inbox(
            ring,
            server_id,
            epoch,
            replay=self.replay,
            members=self.members,
            tiers=self.tiers,
            traffic=self.traffic,
        )
        self.outbox = Outbox(
            ring, server_id, epoch, members=self.members, presence=self.tiers.presence, traffic=self.traffic
        )
        self._heartbeat_due = float("-inf")
        self._snapshot_due = float("-inf")

    def receive(self, datagram: bytes, source: Address, now: float) -> list[Event]:
        """Take a packet in. Never raises; what is refused is counted by its reason."""
        return self._inbox.receive(datagram, source, now)

    def tick(self, now: float) -> Ticked:
        """Heartbeats, deaths, snapshots, and the end of what has had its time."""
        died = self.members.check(now)
        for server in died:
            self.tiers.forget_server(server)
        outgoing = self._greet_newcomers()
        outgoing += self._tell_gone(now)
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + self.settings.heartbeat_s
            outgoing += self.outbox.tell(self.own_heartbeat, self.members.everyone())
        if now >= self._snapshot_due:
            self._snapshot_due = now + self.settings.presence_snapshot_s
            self.tiers.expire(now)
            living = self.members.addresses(member.id for member in self.members.members())
            outgoing += self.outbox.tell_presence(self.own_consumers.queues(), living)
        return Ticked(outgoing, [MemberDied(server) for server in died])

    def pushed(self, queues: Sequence[tuple[str, list[str]]]) -> list[Outgoing]:
        """Messages became readable in these partitions of these queues; an empty list: in whichever."""
        return self.outbox.notify(MessageType.MESSAGE_AVAILABLE, queues)

    def freed(self, queues: Sequence[tuple[str, list[str]]]) -> list[Outgoing]:
        """The same without a message: a seek, a changed option, a lease given back."""
        return self.outbox.notify(MessageType.PARTITION_FREE, queues)

    def lease_acquired(self, leases: Sequence[tuple[str, str, str, float]]) -> list[Outgoing]:
        """This server got leases: (queue, partition, group, lease time in seconds)."""
        hints = []
        for queue, partition, group, lease_s in leases:
            self.tiers.lease_hints.forget(queue, partition, group)
            ttl_s = min(lease_s * self.settings.lease_hint_share, self.settings.lease_hint_longest_s)
            hints.append((queue, partition, group, int(ttl_s * 1000)))
        return self.outbox.hint(MessageType.LEASE_HINT_ACQUIRED, hints)

    def lease_released(self, leases: Sequence[tuple[str, str, str]]) -> list[Outgoing]:
        """Leases of this server ended: (queue, partition, group)."""
        return self.outbox.hint(MessageType.LEASE_HINT_RELEASED, leases)

    def consumer_registered(self, queue: str) -> list[Outgoing]:
        """The first consumer of the queue waits here."""
        if not self.own_consumers.came(queue):
            return []
        return self.outbox.tell_list(MessageType.CONSUMER_REGISTERED, [queue], self.members.reachable())

    def consumer_deregistered(self, queue: str, now: float) -> list[Outgoing]:
        """The last one went; the others are told when none has come back for a moment."""
        self.own_consumers.went(queue, now)
        return self._tell_gone(now)

    def config_set(self, queue: str, options: Options, version: int, now: float) -> list[Outgoing]:
        """The queue was made or changed here, with that database version."""
        self.tiers.configs.loaded(queue, options, version, now)
        return self.outbox.tell(QueueConfigSet(queue, options, version), self.members.reachable())

    def config_deleted(self, queues: Sequence[tuple[str, int]], now: float) -> list[Outgoing]:
        """Queues were deleted here, each with its database version."""
        for queue, version in queues:
            self.tiers.delete_queue(queue, version, now)
        return self.outbox.tell_list(MessageType.QUEUE_CONFIG_DELETE, queues, self.members.reachable())

    def partition_deleted(self, partitions: Sequence[tuple[str, str]]) -> list[Outgoing]:
        """(queue, partition) were deleted here."""
        for queue, partition in partitions:
            self.tiers.delete_partition(queue, partition)
        return self.outbox.tell_list(MessageType.PARTITION_DELETED, partitions, self.members.reachable())

    def maintenance_set(self, switch: Switch, on: bool, version: int, now: float) -> list[Outgoing]:
        """A switch was moved here, with that database version."""
        self.tiers.maintenance.heard(switch, on, version, now)
        return self.outbox.tell(MaintenanceSet(switch, on, version), self.members.reachable())

    def configs_refreshed(
        self, rows: Iterable[Row], version_horizon: int, read_started_at: float, now: float
    ) -> list[Event]:
        """Every queue that the database had when it was read; there was nothing newer than `version_horizon`."""
        configs = self.tiers.configs
        changed = configs.replace_all(rows, version_horizon, read_started_at, now)
        return [ConfigChanged(queue, configs.peek(queue)) for queue in changed]

    def maintenance_refreshed(
        self, switch: Switch, on: bool, version: int, read_started_at: float, now: float
    ) -> list[Event]:
        """How the database had a switch when it was read."""
        moved = self.tiers.maintenance.refreshed(switch, on, version, read_started_at, now)
        return [MaintenanceChanged(switch, on)] if moved else []

    def epochs_refreshed(self, epochs: Mapping[str, int], read_started_at: float) -> None:
        """The newest boot epoch of every server that the database had when it was read."""
        self.replay.know_epochs({s: e for s, e in epochs.items() if s != self.server_id}, read_started_at)

    def statistics(self, now: float, wall: datetime) -> dict[str, object]:
        """Every counter; `wall` is the time of day at `now`."""
        return statistics(self, now, wall)

    def _greet_newcomers(self) -> list[Outgoing]:
        newcomers = self.members.addresses(self._inbox.newcomers)
        self._inbox.newcomers.clear()
        return [
            *self.outbox.tell(self.own_heartbeat, newcomers),
            *self.outbox.tell_presence(self.own_consumers.queues(), newcomers),
        ]

    def _tell_gone(self, now: float) -> list[Outgoing]:
        gone = self.own_consumers.gone(now)
        return self.outbox.tell_list(MessageType.CONSUMER_DEREGISTERED, gone, self.members.reachable())
