"""A server does not ask for what another one has leased, and stops believing so as soon as it is not true."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from integration.queen import data, expire_leases, parked, until

from cluster.members import NO_SAFETY_NET, Member, cluster
from queenmq.cluster.messages import MessageType
from queenmq.core.names import QUEUE_MODE
from queenmq.faults.network import Relay

Trio = tuple[Relay, list[Member]]
AT_ONCE_S = 2.0
ABOUT_A_SECOND_S = 2.5
POPS = 50


async def leased(a: Member, others: list[Member], queue: str = "q") -> dict[str, object]:
    """The first of two messages of partition p, leased on `a`, of which the others know."""
    await a.queen.configure(queue, leaseTime=60)
    await a.queen.push(queue, "first", "second", partition="p")
    [first] = await a.queen.pop(queue, "p")
    for member in others:
        # No check by chance: only those that are due.
        member.lease_hints._random = lambda: 1.0
        hints = member.lease_hints
        await until(lambda hints=hints: hints.believes(queue, "p", QUEUE_MODE))
    return first


async def asks(member: Member, pops: int = POPS) -> int:
    """How often that many pops of the partition asked the database."""
    before = member.broker.lanes["pop"].calls
    for _ in range(pops):
        assert await member.queen.pop("q", "p") == []
    return member.broker.lanes["pop"].calls - before


class TestWhileItIsLeased:
    async def test_nobody_else_asks(self, trio: Trio) -> None:
        _, (a, *others) = trio
        await leased(a, others)
        for member in others:
            began = member.server.node.now
            asked = await asks(member)
            # Once it was believed for a second, a hint is checked.
            assert asked <= member.server.node.now - began + 1
            assert member.figures["lease_hints"]["hints_used"] >= POPS - asked

    async def test_without_caches_everybody_asks(self, database_url: str) -> None:
        async with cluster(database_url, cache={"enabled": False}) as (_, (a, b, _)):
            await leased(a, [b])
            assert await asks(b) >= POPS

    async def test_another_group_and_another_partition_are_asked_for(self, trio: Trio) -> None:
        _, (a, b, c) = trio
        await leased(a, [b, c])
        await a.queen.push("q", "elsewhere", partition="other")
        assert data(await b.queen.pop("q", "p", consumerGroup="g")) == ["first"]
        assert data(await c.queen.pop("q", "other")) == ["elsewhere"]

    async def test_a_pop_of_the_whole_queue_gets_the_other_partitions(self, trio: Trio) -> None:
        _, (a, b, _) = trio
        await leased(a, [b])
        await a.queen.push("q", "elsewhere", partition="other")
        assert data(await b.queen.pop("q")) == ["elsewhere"]


class TestWhenItIsReleased:
    async def test_a_waiting_poll_gets_it_at_once(self, database_url: str) -> None:
        async with cluster(database_url, **NO_SAFETY_NET) as (_, (a, b, _)):
            first = await leased(a, [b])
            poll = asyncio.ensure_future(b.queen.wait("q", "p"))
            await parked(b.server)
            await a.queen.ack(first)
            async with asyncio.timeout(AT_ONCE_S):
                assert data(await poll) == ["second"]

    async def test_a_pop_gets_it_at_once(self, trio: Trio) -> None:
        _, (a, b, _) = trio
        first = await leased(a, [b])
        await a.queen.ack(first)
        await until(lambda: not b.lease_hints.believes("q", "p", QUEUE_MODE), AT_ONCE_S)
        assert data(await b.queen.pop("q", "p")) == ["second"]

    @pytest.mark.parametrize("waits", [True, False], ids=["poll", "pop"])
    async def test_within_about_a_second_if_the_word_of_it_is_lost(self, trio: Trio, waits: bool) -> None:
        relay, (a, b, _) = trio
        for path in relay.of():
            path.lost = frozenset({MessageType.LEASE_HINT_RELEASED, MessageType.MESSAGE_AVAILABLE})
        first = await leased(a, [b])
        poll = asyncio.ensure_future(b.queen.wait("q", "p") if waits else popped(b))
        await a.queen.ack(first)
        async with asyncio.timeout(ABOUT_A_SECOND_S):
            assert data(await poll) == ["second"]
        assert b.figures["lease_hints"]["hints_wrong"] == 1

    async def test_a_lease_that_expired_is_asked_for(self, database_url: str) -> None:
        """A hint lives for a fifth of the lease, so it never outlives it."""
        async with cluster(database_url) as (_, (a, b, _)):
            await a.queen.configure("q", leaseTime=1)
            await a.queen.push("q", "first", partition="p")
            assert await a.queen.pop("q", "p")
            async with asyncio.timeout(ABOUT_A_SECOND_S):
                assert data(await b.queen.wait("q", "p")) == ["first"]


async def popped(member: Member) -> list[dict[str, object]]:
    """What pops without waiting, one after the other, get at last."""
    while True:
        if found := await member.queen.pop("q", "p"):
            return found


class TestWhenTheHolderIsDead:
    async def test_the_others_ask(self, trio: Trio) -> None:
        relay, (a, b, c) = trio
        await leased(a, [b, c])
        relay.cut("a")
        for member in (b, c):
            await until(lambda member=member: "a" not in member.alive)
            assert not member.lease_hints.believes("q", "p", QUEUE_MODE)
            assert await asks(member) >= POPS

    async def test_and_get_it_when_the_lease_has_ended(self, trio: Trio, sql: asyncpg.Connection) -> None:
        relay, (a, b, _) = trio
        await leased(a, [b])
        relay.cut("a")
        await until(lambda: "a" not in b.alive)
        poll = asyncio.ensure_future(b.queen.wait("q", "p"))
        await parked(b.server)
        await expire_leases(sql)
        async with asyncio.timeout(ABOUT_A_SECOND_S):
            assert data(await poll) == ["first"]


class TestAccuracy:
    async def test_is_unknown_until_a_hint_was_checked(self, trio: Trio) -> None:
        _, (a, b, _) = trio
        await leased(a, [b])
        assert b.figures["lease_hints"]["accuracy"] is None

    async def test_counts_what_was_right_and_what_was_wrong(self, trio: Trio) -> None:
        relay, (a, b, _) = trio
        first = await leased(a, [b])
        b.lease_hints._random = lambda: 0.0  # every hint is checked
        for _ in range(3):
            assert await b.queen.pop("q", "p") == []
        assert b.figures["lease_hints"]["accuracy"] == 1.0
        relay.cut()
        await a.queen.ack(first)
        assert data(await b.queen.pop("q", "p")) == ["second"]
        answer = (await b.http.get("/internal/api/shared-state/stats")).json()["lease_hints"]
        assert (answer["hints_used"], answer["hints_checked"], answer["hints_wrong"]) == (4, 4, 1)
        assert answer["accuracy"] == 0.75
