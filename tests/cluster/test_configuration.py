"""Options, deletions and dropped partitions: one server is told, all of them act on it, and lost packets do no harm."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import asyncpg
import pytest
from integration.queen import age_partitions, parked, push_op, stored, until

from cluster.members import Member, cluster
from queenmq.faults.network import Relay
from queenmq.services.retention import Retention

log = logging.getLogger(__name__)

Trio = tuple[Relay, list[Member]]
ON_A_BUSY_MACHINE_S = 2.0
DELETIONS = 500 if os.environ.get("QUEEN_LONG", "") not in ("", "0") else 25


@pytest.fixture
async def trio(database_url: str) -> AsyncIterator[Trio]:
    async with cluster(database_url, server={"encryption_key": bytes(32)}) as running:
        yield running


async def pushed_by_all(members: list[Member], queue: str, partition: str = "p") -> set[str]:
    """Everybody has used the queue and has it in the caches. Returns the ids of the partition that were answered."""
    answers = [
        await m.queen.push(queue, f"{queue} by {m.name} {time.monotonic()}", partition=partition) for m in members
    ]
    assert all(answer[0]["status"] == "queued" for answer in answers)
    return {m.caches.partition_ids.get(queue, partition, m.server.node.now) or "" for m in members}


async def encrypted(sql: asyncpg.Connection) -> list[bool]:
    """Of all messages, oldest first."""
    return [row["is_encrypted"] for row in await sql.fetch("SELECT is_encrypted FROM queen.messages ORDER BY id")]


class TestOptions:
    async def test_a_change_is_used_everywhere(self, trio: Trio, sql: asyncpg.Connection) -> None:
        _, members = trio
        await pushed_by_all(members, "q")
        assert await encrypted(sql) == [False] * 3
        await members[0].queen.configure("q", encryptionEnabled=True)
        changed_at = time.perf_counter()
        await until(lambda: all(m.broker._options.encrypted("q") for m in members), ON_A_BUSY_MACHINE_S)
        log.info("used everywhere after %.2f ms", 1000 * (time.perf_counter() - changed_at))
        refused = AsyncMock()
        for member in members:
            # Called when the database has refused what a cache that is out of date let pass.
            member.broker._pusher._targets.demand_encryption = refused
        await pushed_by_all(members, "q")
        assert await encrypted(sql) == [False] * 3 + [True] * 3
        assert not refused.called, "the cache was not trusted"

    async def test_a_change_is_used_at_once_although_its_packet_is_lost(
        self, trio: Trio, sql: asyncpg.Connection
    ) -> None:
        """The database refuses what is in clear, and the server that did not know finds out."""
        relay, members = trio
        await pushed_by_all(members, "q")
        relay.cut()
        await members[0].queen.configure("q", encryptionEnabled=True)
        assert not members[1].broker._options.encrypted("q")
        await pushed_by_all(members, "q")
        assert await encrypted(sql) == [False] * 3 + [True] * 3
        assert members[1].broker._options.encrypted("q")

    async def test_the_change_back_too(self, trio: Trio, sql: asyncpg.Connection) -> None:
        _, members = trio
        await members[0].queen.configure("q", encryptionEnabled=True)
        await pushed_by_all(members, "q")
        await members[2].queen.configure("q", encryptionEnabled=False)
        await until(lambda: not any(m.broker._options.encrypted("q") for m in members), ON_A_BUSY_MACHINE_S)
        await pushed_by_all(members, "q")
        assert await encrypted(sql) == [True] * 3 + [False] * 3

    async def test_of_two_changes_the_later_one_stays(self, trio: Trio) -> None:
        """Told in the wrong order, the version of the database decides."""
        relay, members = trio
        for path in relay.of():
            path.longest_delay_s = 0.05
        for number in range(20):
            await members[number % 3].queen.configure("q", leaseTime=100 + number)
        await until(lambda: all(m.broker._options.lease_s("q") == 119 for m in members))
        for path in relay.of():
            path.longest_delay_s = 0
        await self._settled(relay)
        assert [m.broker._options.lease_s("q") for m in members] == [119] * 3

    @staticmethod
    async def _settled(relay: Relay) -> None:
        """Return when packets that were sent later than every delayed one have passed."""
        passed = {id(path): path.passed for path in relay.of()}
        await until(lambda: all(path.passed >= passed[id(path)] + 2 for path in relay.of()))

    async def test_what_was_lost_is_read_from_the_database(self, trio: Trio) -> None:
        relay, members = trio
        relay.cut()
        await members[0].queen.configure("q", leaseTime=77)
        await members[1].server._shared_state.work()
        assert members[1].caches.options.peek("q") is not None
        assert members[1].broker._options.lease_s("q") == 77


class TestLies:
    """What a server believes of a queue's options is wrong, with a version that nothing will ever beat."""

    NEWEST = 2**63 - 1

    async def test_an_encrypted_queue_stays_encrypted(self, trio: Trio, sql: asyncpg.Connection) -> None:
        _, (a, b, _) = trio
        await a.queen.configure("q", encryptionEnabled=True)
        for member in (a, b):
            assert member.caches.options.receive(
                "q", {"encryption_enabled": False}, self.NEWEST, member.server.node.now
            )
        await a.queen.push("q", "by push")
        await b.queen.transact(push_op("q", "by transaction"))
        assert await encrypted(sql) == [True, True]

    @pytest.mark.parametrize("exists", [True, False])
    async def test_a_server_without_a_key_is_not_talked_into_needing_one(
        self, database_url: str, sql: asyncpg.Connection, exists: bool
    ) -> None:
        async with cluster(database_url, "a", "b") as (_, members):
            if exists:
                await members[0].queen.configure("q")
            for m in members:
                assert m.caches.options.receive("q", {"encryption_enabled": True}, self.NEWEST, m.server.node.now)
            await members[0].queen.push("q", "by push")
            await members[1].queen.transact(push_op("q", "by transaction"))
        assert await encrypted(sql) == [False, False]

    async def test_a_queue_that_needs_a_key_is_refused_without_one(self, database_url: str) -> None:
        async with cluster(database_url, "a", "b") as (_, (a, b)):
            await a.restart(server={"encryption_key": bytes(32)})
            await a.queen.configure("q", encryptionEnabled=True)
            answer = await b.http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]})
            assert (answer.status_code, answer.json()["code"]) == (503, "no_encryption_key")

    async def test_a_lease_time_that_is_none_harms_no_pop(self, trio: Trio) -> None:
        _, (a, *_) = trio
        await a.queen.push("q", *range(4))
        for version, lie in enumerate(("long", -1, None, 2**63 - 1), start=self.NEWEST - 4):
            assert a.caches.options.receive("q", {"lease_time_s": lie}, version, a.server.node.now)
            [message] = await a.queen.pop("q")
            assert (await a.queen.ack(message))["success"]


class TestDeletion:
    async def test_goes_through_the_caches_of_every_server(self, trio: Trio) -> None:
        _, members = trio
        a, b, c = members
        await pushed_by_all(members, "q")
        polls = [asyncio.ensure_future(m.queen.wait("q", "other", timeout=20_000)) for m in (b, c)]
        await parked(b.server)
        await parked(c.server)
        assert await a.queen.pop("q", "p")
        await until(lambda: all(m.lease_hints.believes("q", "p", "__QUEUE_MODE__") for m in (b, c)))
        await until(lambda: sorted(a.presence.servers_for("q") or []) == ["b", "c"])
        await b.queen.delete_queue("q")
        for member in members:
            caches = member.caches
            await until(lambda caches=caches: caches.options.peek("q") is None)
            assert caches.partition_ids.get("q", "p", member.server.node.now) is None
            assert not member.lease_hints.believes("q", "p", "__QUEUE_MODE__")
            assert member.presence.servers_for("q") is None
        for poll in polls:
            poll.cancel()
        await asyncio.wait(polls)

    async def test_another_queue_keeps_its_entries(self, trio: Trio) -> None:
        """Not even one whose name begins alike."""
        _, members = trio
        a, b, _ = members
        for queue in ("q", "q:2", "qq"):
            await pushed_by_all(members, queue)
        await a.queen.delete_queue("q")
        await until(lambda: b.caches.options.peek("q") is None)
        for queue in ("q:2", "qq"):
            assert b.caches.options.peek(queue) is not None
            assert b.caches.partition_ids.get(queue, "p", b.server.node.now) is not None

    @pytest.mark.parametrize("told", [True, False], ids=["told", "lost"])
    async def test_a_push_right_after_makes_it_anew(self, trio: Trio, sql: asyncpg.Connection, told: bool) -> None:
        """Whether or not the others have heard: they have ids of partitions that are gone."""
        relay, members = trio
        [former] = await pushed_by_all(members, "q")
        if not told:
            relay.cut()
        await members[0].queen.delete_queue("q")
        [present] = await pushed_by_all(members[::-1], "q")
        assert present != former
        assert await stored(sql, "q") == len(members)
        assert len(await members[1].queen.drain("q")) == len(members)

    async def test_pushes_while_it_is_deleted_again_and_again(self, trio: Trio, sql: asyncpg.Connection) -> None:
        """Every push is answered with 201, and what was pushed after the last deletion is there."""
        _, members = trio
        done = False

        async def push(member: Member) -> int:
            number = 0
            while not done:
                number += 1
                await member.queen.push("q", f"{member.name}{number}", partition=f"p{number % 3}")
            return number

        pushing = [asyncio.ensure_future(push(m)) for m in members]
        for number in range(DELETIONS):
            await members[number % 3].queen.delete_queue("q")
        done = True
        assert all(count > 0 for count in await asyncio.gather(*pushing))
        await members[0].queen.delete_queue("q")
        await pushed_by_all(members, "q")
        assert await stored(sql, "q") == len(members)

    async def test_a_poll_goes_on_waiting_and_is_woken_by_the_new_queue(self, trio: Trio) -> None:
        _, (a, b, _) = trio
        await a.queen.push("q", "old", partition="p")
        [old] = await b.queen.pop("q", "p")
        await b.queen.ack(old)
        poll = asyncio.ensure_future(b.queen.wait("q", "p"))
        await parked(b.server)
        await a.queen.delete_queue("q")
        await until(lambda: b.caches.options.peek("q") is None)
        await a.queen.push("q", "new", partition="p")
        async with asyncio.timeout(5):
            assert [message["data"] for message in await poll] == ["new"]


class TestDroppedPartitions:
    @pytest.mark.parametrize("told", [True, False], ids=["told", "lost"])
    async def test_retention_drops_them_for_every_server(self, trio: Trio, sql: asyncpg.Connection, told: bool) -> None:
        relay, members = trio
        await members[0].queen.configure("q", retentionEnabled=True, retentionSeconds=10)
        [former] = await pushed_by_all(members, "q")
        await age_partitions(sql, "q", 31)
        if not told:
            relay.cut()
        sweeper = members[0].server
        [retention] = [service for service in sweeper._services if isinstance(service, Retention)]
        await retention.work()
        assert await sql.fetchval("SELECT count(*) FROM queen.partitions WHERE name = 'p'") == 0
        if told:
            for member in members:
                ids, node = member.caches.partition_ids, member.server.node
                await until(lambda ids=ids, node=node: ids.get("q", "p", node.now) is None)
        [present] = await pushed_by_all(members, "q")
        assert present != former
        assert await stored(sql, "q") == len(members)
