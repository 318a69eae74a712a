"""The advice gone wrong, under load: slower, never wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import uuid
from collections.abc import AsyncIterator, Callable
from typing import ClassVar

import pytest
from integration.queen import until

from cluster.load import GROUPS, QUEUE, Load
from cluster.members import NAMES, SECRET, Member, ShiftedClock, cluster
from queenmq.cluster.frame import MAX_PAYLOAD, encode_sender, seal
from queenmq.cluster.keys import Key, KeyRing
from queenmq.cluster.messages import EVERY_QUEUE, MAX_HASH, Heartbeat, MessageType, encode
from queenmq.faults.network import Relay

SECONDS = 60.0 if os.environ.get("QUEEN_LONG", "") not in ("", "0") else 1.5
BETWEEN_LIES_S = 0.005
GREATEST = 2**63 - 1
HOUR_S = 3600.0


@contextlib.asynccontextmanager
async def meanwhile(what: Callable[[], None], pause_s: float) -> AsyncIterator[None]:
    """Do something again and again in the background. Its failure fails the test."""

    async def again() -> None:
        while True:
            what()
            await asyncio.sleep(pause_s)

    task = asyncio.ensure_future(again())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait((task,))


def every_kind_was_asked(load: Load) -> None:
    assert set(load.kinds) == {
        "push",
        "transaction",
        "queue",
        "partition",
        "several",
        "namespace",
        "ack",
        "ack in a transaction",
    }


async def test_all_is_well(database_url: str) -> None:
    """The measure of the others: the advice is right and it is used."""
    async with cluster(database_url) as (_, members):
        load = Load(members)
        await load.run(SECONDS)
        every_kind_was_asked(load)
        assert sum(m.figures["lease_hints"]["hints_used"] for m in members) > 0
        assert sum(m.figures["consumer_presence"]["notifications_targeted"] for m in members) > 0


async def test_every_packet_is_lost(database_url: str) -> None:
    async with cluster(database_url, separated=True) as (relay, members):
        load = Load(members)
        await load.run(SECONDS)
        every_kind_was_asked(load)
        assert [m.alive for m in members] == [set()] * 3
        assert all(m.figures["transport"]["packets_sent"] > 0 for m in members)
        assert sum(path.passed for path in relay.of()) == 0


async def test_a_third_of_the_packets_is_lost_and_the_rest_is_reordered_and_doubled(database_url: str) -> None:
    async with cluster(database_url) as (relay, members):
        for path in relay.of():
            path.loss, path.doubled, path.longest_delay_s = 0.3, 0.3, 0.05
        await Load(members).run(SECONDS)
        assert all(m.dropped["replayed"] > 0 for m in members)
        assert all(m.figures["server_health"]["restarts_detected"] == 0 for m in members)


async def test_a_network_that_breaks_and_heals(database_url: str) -> None:
    async with cluster(database_url, cluster={"dead_threshold_ms": 400}) as (relay, members):
        load = Load(members)

        async def break_and_heal() -> None:
            for name in NAMES if SECONDS < 10 else NAMES * 10:
                relay.cut(name)
                await until(lambda name=name: all(name not in m.alive for m in members))
                relay.heal()
                await until(lambda: all(len(m.alive) == 2 for m in members))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(break_and_heal())
            tasks.create_task(load.run(SECONDS))


class Liar:
    """Signs with the real key whatever comes to its mind, under its own name and under those of the others."""

    def __init__(self, relay: Relay, members: list[Member], load: Load) -> None:
        self._relay = relay
        self._members = members
        self._partitions = load.partitions
        self._random = random.Random(random.getrandbits(32))
        self._ring = KeyRing(Key(SECRET))
        self._sequence = 0
        self.told = 0

    def lie(self) -> None:
        """One random message to each server."""
        for member in self._members:
            sender = self._random.choice([name for name in NAMES if name != member.name])
            kind = self._random.choice(list(self._nonsense))
            self._relay.inject(sender, member.name, self._signed(sender, kind, member.server.node.state._life))
            self.told += 1

    def _signed(self, sender: str, kind: MessageType, receiver: bytes) -> list[bytes]:
        """As a made-up server; or as the sender, in its present life, some packets ahead."""
        payload = self._nonsense[kind](self)
        if self._random.random() < 0.1:
            payload = self._random.randbytes(self._random.randrange(MAX_PAYLOAD))
        name, epoch = f"liar-{self._random.randrange(20)}", GREATEST
        if self._random.random() < 0.6:
            name = sender
            epoch = next(m.server.node.state.epoch for m in self._members if m.name == sender)
        self._sequence += self._random.randint(1, 3)
        hello = self._seal(name, epoch, MessageType.HEARTBEAT, self._heartbeat(), receiver)
        return [hello, self._seal(name, epoch, kind, payload, receiver)]

    def _seal(self, name: str, epoch: int, kind: MessageType, payload: bytes, receiver: bytes) -> bytes:
        self._sequence += 1
        return seal(self._ring, kind, encode_sender(name), receiver, epoch, self._sequence, payload)

    def _queue(self) -> str:
        return self._random.choice([QUEUE, QUEUE, EVERY_QUEUE, f"none-{self._random.randrange(100)}"])

    def _partition(self) -> str:
        return self._random.choice([*self._partitions, f"none-{self._random.randrange(100)}"])

    def _group(self) -> str:
        return self._random.choice([*GROUPS, "none"])

    def _version(self) -> int:
        return self._random.choice([0, GREATEST, self._random.randrange(GREATEST)])

    def _heartbeat(self) -> bytes:
        return encode(Heartbeat("", self._random.randrange(65536), []))

    def _places(self) -> bytes:
        return encode(([(self._queue(), [self._partition() for _ in range(self._random.randrange(3))])],))

    def _options(self) -> bytes:
        options = {
            "lease_time_s": self._random.choice([0, -1, GREATEST, "long", None]),
            "encryption_enabled": self._random.choice([True, False, 7, "yes", None]),
            "max_size": 1,
            "retention_s": 0,
            "nonsense": None,
        }
        return encode((self._queue(), options, self._version()))

    def _deletion(self) -> bytes:
        return encode(([(self._queue(), self._version())],))

    def _queues(self) -> bytes:
        return encode(([self._queue()],))

    def _snapshot(self) -> bytes:
        return encode((0, MAX_HASH, [self._queue() for _ in range(self._random.randrange(2))]))

    def _dropped(self) -> bytes:
        return encode(([(self._queue(), self._partition())],))

    def _hint(self) -> bytes:
        ttl_ms = self._random.choice([0, 1, 2**31 - 1])
        return encode(([(self._queue(), self._partition(), self._group(), ttl_ms)],))

    def _release(self) -> bytes:
        return encode(([(self._queue(), self._partition(), self._group())],))

    _nonsense: ClassVar[
        dict[MessageType, Callable[[Liar], bytes]]
    ] = {  # all but the maintenance switches, which do what they say
        MessageType.MESSAGE_AVAILABLE: _places,
        MessageType.HEARTBEAT: _heartbeat,
        MessageType.QUEUE_CONFIG_SET: _options,
        MessageType.QUEUE_CONFIG_DELETE: _deletion,
        MessageType.CONSUMER_REGISTERED: _queues,
        MessageType.CONSUMER_DEREGISTERED: _queues,
        MessageType.PRESENCE_SNAPSHOT: _snapshot,
        MessageType.PARTITION_DELETED: _dropped,
        MessageType.LEASE_HINT_ACQUIRED: _hint,
        MessageType.LEASE_HINT_RELEASED: _release,
    }


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["no encryption key", "encryption key"])
async def test_every_cache_is_poisoned(database_url: str, key: bytes | None) -> None:
    async with cluster(database_url, server={"encryption_key": key}) as (relay, members):
        load = Load(members)
        liar = Liar(relay, members, load)
        async with meanwhile(liar.lie, BETWEEN_LIES_S):
            await load.run(SECONDS)
        assert liar.told > 100
        assert not any(name.startswith("liar") for m in members for name in m.alive), "it has met no challenge"
        # Only what is signed, fresh and from a peer is decoded.
        assert all(m.figures["transport"]["dropped"]["undecodable"] > 0 for m in members), "nobody listened"


async def test_the_clocks_are_an_hour_apart(database_url: str) -> None:
    clocks = {name: ShiftedClock(HOUR_S * (number - 1)) for number, name in enumerate(NAMES)}
    async with cluster(database_url, clocks=clocks) as (_, members):
        await Load(members).run(SECONDS)
        assert [len(m.alive) for m in members] == [2, 2, 2]


async def test_the_partition_ids_are_nonsense(database_url: str) -> None:
    async with cluster(database_url) as (_, members):
        load = Load(members)

        def poison() -> None:
            member = random.choice(members)
            partition = random.choice(load.partitions)
            member.caches.partition_ids.put(QUEUE, partition, str(uuid.uuid4()), member.server.node.now)

        async with meanwhile(poison, 0.001):
            await load.run(SECONDS)


async def test_the_partition_ids_are_those_of_a_deleted_queue(database_url: str) -> None:
    async with cluster(database_url) as (_, members):
        load = Load(members)
        for partition in load.partitions:
            await members[0].queen.push(QUEUE, "old", partition=partition)
        ids, now = members[0].caches.partition_ids, members[0].server.node.now
        former = {partition: ids.get(QUEUE, partition, now) for partition in load.partitions}
        await members[0].queen.delete_queue(QUEUE)

        def restore() -> None:
            for member in members:
                for partition, old in former.items():
                    member.caches.partition_ids.put(QUEUE, partition, old or "", member.server.node.now)

        async with meanwhile(restore, 0.01):
            await load.run(SECONDS)
