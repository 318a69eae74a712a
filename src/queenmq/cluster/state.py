"""The state that servers share, as one of them sees it: keys, members, hints, and what to send.

It does no I/O. The owner hands it the packets that come in, the things that happen here, and the time; it gets back
events to act on and packets to send. It has to call `tick` several times a heartbeat, and at once after an event that
names a member, so that a newcomer is greeted, or when there are replies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.events import Event, MemberDied
from queenmq.cluster.greetings import Greetings
from queenmq.cluster.inbox import Inbox, Reply
from queenmq.cluster.keys import KeyRing
from queenmq.cluster.lease_hints import LeaseHints
from queenmq.cluster.membership import Address, Membership
from queenmq.cluster.messages import (
    TOKEN_BYTES,
    Goodbye,
    Greeting,
    Heartbeat,
    MaintenanceSet,
    MessageType,
    QueueConfigSet,
)
from queenmq.cluster.outbox import Outbox, Outgoing
from queenmq.cluster.own_consumers import OwnConsumers
from queenmq.cluster.presence import Presence
from queenmq.cluster.replay import ReplayGuard
from queenmq.cluster.statistics import statistics
from queenmq.cluster.traffic import Traffic
from queenmq.core.maintenance import Switch
from queenmq.core.options import OptionValues


class Ticked(NamedTuple):
    outgoing: list[Outgoing]
    events: list[Event]


class SharedState:
    def __init__(
        self,
        bounds: ClusterBounds,
        ring: KeyRing,
        server_id: str,
        epoch: int,
        *,
        random: Callable[[], float],
        peers: Iterable[Address] = (),
        token: Callable[[], bytes] = lambda: os.urandom(TOKEN_BYTES),
        own_address: Callable[[Address], Address] = lambda _to: ("", 0),
    ) -> None:
        """`epoch` must be greater than in every former life of this server. `random` gives numbers in [0, 1), `token`
        numbers that nobody can guess, `own_address` where a server at an address reaches this one: an empty host if
        it cannot know.

        Raises ValueError for a server id that does not fit the frame.
        """
        self.server_id = server_id
        self.epoch = epoch
        self.bounds = bounds
        self.own_heartbeat = Heartbeat("", 0, [])  # for the owner to replace whenever something in it changes
        self._life = token()
        self._own_address = own_address
        self.members = Membership(bounds, peers)
        self.greetings = Greetings(bounds, token)
        self.replay = ReplayGuard(bounds)
        self.traffic = Traffic()
        self.own_consumers = OwnConsumers(bounds.deregister_after_s)
        self.presence = Presence(bounds)
        self.lease_hints = LeaseHints(bounds, is_alive=self.members.is_alive, random=random)
        self._inbox = Inbox(
            ring,
            server_id,
            epoch,
            life=self._life,
            greetings=self.greetings,
            replay=self.replay,
            members=self.members,
            presence=self.presence,
            lease_hints=self.lease_hints,
            traffic=self.traffic,
        )
        self.outbox = Outbox(ring, server_id, epoch, members=self.members, presence=self.presence, traffic=self.traffic)
        self.registrations_sent = self.deregistrations_sent = 0  # queues, not packets
        self._heartbeat_due = float("-inf")
        self._snapshot_due = float("-inf")

    def receive(self, datagram: bytes, source: Address, now: float) -> list[Event]:
        """Take a packet in. Never raises; what is refused is counted by its reason."""
        return self._inbox.receive(datagram, source, now)

    def tick(self, now: float) -> Ticked:
        """Heartbeats, deaths, snapshots, and the end of what has had its time."""
        died = self.members.check(now)
        for member in died:
            self.presence.forget_server(member.id)
            self.lease_hints.forget_server(member.id)
        outgoing = self._reply(now)
        outgoing += self._greet_newcomers()
        outgoing += self._send_gone(now)
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + self.bounds.heartbeat_s
            outgoing += self.outbox.send(self.own_heartbeat, self.members.everyone())
            outgoing += [self._greeting(address, Reply(), now) for address in self.members.to_greet(now)]
        if now >= self._snapshot_due:
            self._snapshot_due = now + self.bounds.presence_snapshot_s
            self.presence.expire(now)
            self.lease_hints.expire(now)
            outgoing += self.outbox.send_presence(self.own_consumers.queues(), self.members.reachable())
        return Ticked(outgoing, [MemberDied(member.id, member.has_left) for member in died])

    def pushed(self, queues: Sequence[tuple[str, list[str]]]) -> list[Outgoing]:
        """Something became readable in these partitions of these queues; an empty list: in any of them."""
        return self.outbox.notify(MessageType.MESSAGE_AVAILABLE, queues)

    def lease_acquired(self, leases: Sequence[tuple[str, str, str, float]]) -> list[Outgoing]:
        """This server got leases: (queue, partition, group, lease time in seconds)."""
        hints = []
        for queue, partition, group, lease_s in leases:
            self.lease_hints.forget(queue, partition, group)
            ttl_s = min(lease_s * self.bounds.lease_hint_share, self.bounds.lease_hint_longest_s)
            hints.append((queue, partition, group, int(ttl_s * 1000)))
        return self.outbox.hint(MessageType.LEASE_HINT_ACQUIRED, hints)

    def lease_released(self, leases: Sequence[tuple[str, str, str]]) -> list[Outgoing]:
        """Leases of this server ended: (queue, partition, group)."""
        return self.outbox.hint(MessageType.LEASE_HINT_RELEASED, leases)

    def consumer_registered(self, queue: str) -> list[Outgoing]:
        """The first consumer of the queue waits here."""
        if not self.own_consumers.came(queue):
            return []
        self.registrations_sent += 1
        return self.outbox.send_list(MessageType.CONSUMER_REGISTERED, [queue], self.members.reachable())

    def consumer_deregistered(self, queue: str, now: float) -> list[Outgoing]:
        """The last consumer left. That is announced when none has come back for a moment."""
        self.own_consumers.went(queue, now)
        return self._send_gone(now)

    def goodbye(self) -> list[Outgoing]:
        """This server stops: the others need not wait until its silence tells."""
        return self.outbox.send(Goodbye(), self.members.everyone())

    def config_set(self, queue: str, options: OptionValues, version: int) -> list[Outgoing]:
        """The queue was made or changed here, with that database version."""
        return self.outbox.send(QueueConfigSet(queue, options, version), self.members.reachable())

    def config_deleted(self, queues: Sequence[tuple[str, int]]) -> list[Outgoing]:
        """Queues were deleted here, each with its database version."""
        for queue, _ in queues:
            self.presence.forget_queue(queue)
            self.lease_hints.forget_queue(queue)
        return self.outbox.send_list(MessageType.QUEUE_CONFIG_DELETE, queues, self.members.reachable())

    def partition_deleted(self, partitions: Sequence[tuple[str, str]]) -> list[Outgoing]:
        """(queue, partition) were deleted here."""
        for queue, partition in partitions:
            self.lease_hints.forget_partition(queue, partition)
        return self.outbox.send_list(MessageType.PARTITION_DELETED, partitions, self.members.reachable())

    def maintenance_set(self, switch: Switch, on: bool, version: int) -> list[Outgoing]:
        """A switch was moved here, with that database version."""
        return self.outbox.send(MaintenanceSet(switch, on, version), self.members.reachable())

    def epochs_refreshed(self, epochs: Mapping[str, int], read_started_at: float) -> None:
        """The newest boot epoch of every server that the database had when it was read."""
        self.replay.know_epochs({s: e for s, e in epochs.items() if s != self.server_id}, read_started_at)

    def statistics(self, now: float, wall: datetime) -> dict[str, object]:
        """Every counter; `wall` is the time of day at `now`."""
        return statistics(self, now, wall)

    @property
    def has_replies(self) -> bool:
        """Somebody waits for an answer to its greeting: `tick` now."""
        return bool(self._inbox.replies)

    def _reply(self, now: float) -> list[Outgoing]:
        replies, self._inbox.replies = self._inbox.replies, {}
        return [self._greeting(address, reply, now) for address, reply in replies.items()]

    def _greeting(self, address: Address, reply: Reply, now: float) -> Outgoing:
        """With a challenge of our own, unless nothing new could be learned by it."""
        host, port = self._own_address(address)
        needless = reply.is_last or self.members.is_known_at(address, reply.life, now)
        challenge = b"" if needless else self.greetings.challenge(address, now)
        return self.outbox.greet(
            Greeting(host, port, self._life, challenge, reply.challenge, self.own_heartbeat), address
        )

    def _greet_newcomers(self) -> list[Outgoing]:
        newcomers = self.members.recipients(self._inbox.newcomers)
        self._inbox.newcomers.clear()
        return [
            *self.outbox.send(self.own_heartbeat, newcomers),
            *self.outbox.send_presence(self.own_consumers.queues(), newcomers),
        ]

    def _send_gone(self, now: float) -> list[Outgoing]:
        gone = self.own_consumers.gone(now)
        self.deregistrations_sent += len(gone)
        return self.outbox.send_list(MessageType.CONSUMER_DEREGISTERED, gone, self.members.reachable())
