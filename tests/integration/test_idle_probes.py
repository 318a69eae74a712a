"""What long polls cost that find nothing, where each group has consumers at every server."""

from __future__ import annotations

import asyncio
import os

import aiohttp
import pytest

from integration.cluster import Member, cluster
from integration.consuming import url_of

GROUPS = [f"g{number}" for number in range(12)]
IDLE_S = 10 if os.environ.get("QUEEN_LONG") == "1" else 3


def probes(members: list[Member]) -> int:
    """How often the servers have looked for messages."""
    return sum(member.server.broker.lanes["pop"].requests for member in members)


async def idle_probes(database_url: str, *, gathers: bool) -> int:
    """How often they look in the time, while every group waits through each of three servers. Unless it `gathers`, each
    serves those that ask it, as without a coordinator."""
    async with cluster(database_url, gathers=gathers) as members:
        await members[0].http.post("/api/v1/configure", json={"queue": "q"})
        for member in members:
            for group in GROUPS:
                await member.pop("q", consumerGroup=group)
        polls = [
            asyncio.create_task(member.pop("q", consumerGroup=group, wait=True, timeout=(IDLE_S + 20) * 1000))
            for member in members
            for group in GROUPS
        ]
        try:
            async with asyncio.timeout(60):
                while sum(member.server.broker.long_polls.registry.total for member in members) < len(polls):
                    await asyncio.sleep(0.05)
            before = probes(members)
            await asyncio.sleep(IDLE_S)
            return probes(members) - before
        finally:
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)


@pytest.mark.slow
async def test_groups_that_come_together_look_a_third_as_often(database_url: str) -> None:
    apart = await idle_probes(database_url, gathers=False)
    together = await idle_probes(database_url, gathers=True)
    print(f"in {IDLE_S} s: {apart} probes without a coordinator, {together} with one")  # noqa: T201
    assert apart >= 3 * len(GROUPS)
    # A third, and something for a machine that is busy at one time and not at the other.
    assert together < apart * 0.55


@pytest.mark.slow
async def test_consumer_connections_wait_where_they_were_opened(database_url: str) -> None:
    """And each server probes for the groups that wait there."""
    async with cluster(database_url, gathers=True) as members, aiohttp.ClientSession() as session:
        await members[0].http.post("/api/v1/configure", json={"queue": "q"})
        sockets = [
            await session.ws_connect(url_of(member.server, "q"), params={"consumerGroup": group})
            for member in members
            for group in GROUPS
        ]
        async with asyncio.timeout(60):
            while [member.server.broker.long_polls.registry.total for member in members] != [len(GROUPS)] * 3:
                await asyncio.sleep(0.05)
        before = [probes([member]) for member in members]
        await asyncio.sleep(IDLE_S)
        looked = [probes([member]) - first for member, first in zip(members, before, strict=True)]
        for socket in sockets:
            await socket.close()
    print(f"in {IDLE_S} s: {looked} probes for connections to three servers")  # noqa: T201
    assert min(looked) >= len(GROUPS)
