"""The maintenance switches: moved on one server, followed by all, kept over a restart."""

from __future__ import annotations

import asyncio

import pytest
from integration.queen import data, parked, until

from cluster.members import Member
from queenmq.core.maintenance import Switch
from queenmq.faults.network import Relay

Trio = tuple[Relay, list[Member]]
PUSHES, POPS = "/api/v1/system/maintenance", "/api/v1/system/maintenance/pop"
SOON_S = 20.0


async def switch(member: Member, path: str, on: bool) -> None:
    answer = await member.http.post(path, json={"enabled": on})
    assert answer.status_code == 200, answer.text


async def everywhere(members: list[Member], which: Switch, on: bool) -> None:
    await until(lambda: all(m.caches.switches.is_on(which) is on for m in members), SOON_S)


async def held(member: Member) -> None:
    """Return when the server holds a long poll because pops are off."""
    await until(lambda: bool(member.broker._popper._moved._waiters))


async def refusal(member: Member) -> None:
    """A push is refused with a sentence for people, and nothing of it is kept."""
    for path, body in (
        ("/api/v1/push", {"items": [{"queue": "q", "payload": 1}]}),
        ("/api/v1/transaction", {"operations": [{"type": "push", "items": [{"queue": "q", "payload": 1}]}]}),
    ):
        answer = await member.http.post(path, json=body)
        assert answer.status_code == 503, answer.text
        assert answer.json() == {
            "error": "pushes are switched off for maintenance, try again later",
            "code": "maintenance",
        }


class TestPushes:
    async def test_are_refused_everywhere_and_taken_again(self, trio: Trio) -> None:
        _, members = trio
        await switch(members[0], PUSHES, True)
        await everywhere(members, Switch.PUSH, True)
        for member in members:
            await refusal(member)
        await switch(members[1], PUSHES, False)
        await everywhere(members, Switch.PUSH, False)
        for member in members:
            await member.queen.push("q", member.name)
        assert sorted(data(await members[2].queen.drain("q"))) == ["a", "b", "c"]

    async def test_what_is_there_can_still_be_read_and_acknowledged(self, trio: Trio) -> None:
        _, members = trio
        await members[0].queen.push("q", "before")
        await switch(members[0], PUSHES, True)
        await everywhere(members, Switch.PUSH, True)
        assert data(await members[1].queen.drain("q")) == ["before"]

    async def test_survive_a_restart_of_all_servers(self, trio: Trio) -> None:
        _, members = trio
        await switch(members[0], PUSHES, True)
        await switch(members[0], POPS, True)
        for member in members:
            await member.stop()
        for member in members:
            await member.start()
            await refusal(member)
            state = (await member.http.get(PUSHES)).json()
            assert (state["maintenanceMode"], state["popMaintenanceMode"]) == (True, True)

    async def test_a_server_that_did_not_hear_reads_it(self, trio: Trio) -> None:
        relay, members = trio
        relay.cut()
        await switch(members[0], PUSHES, True)
        assert not members[1].caches.switches.is_on(Switch.PUSH)
        await members[1].server._shared_state.work()
        await refusal(members[1])

    async def test_of_two_moves_the_later_one_stays(self, trio: Trio) -> None:
        relay, members = trio
        for path in relay.of():
            path.longest_delay_s = 0.05
        for number in range(21):
            await switch(members[number % 3], PUSHES, number % 2 == 0)
        await everywhere(members, Switch.PUSH, True)


class TestPops:
    async def test_find_nothing_while_they_are_off(self, trio: Trio) -> None:
        _, members = trio
        await members[0].queen.push("q", "kept")
        await switch(members[0], POPS, True)
        await everywhere(members, Switch.POP, True)
        for member in members:
            assert await member.queen.pop("q") == []
            assert await member.queen.pop("q", "Default") == []
            assert await member.queen.pop_matching(namespace="n") == []
            assert await member.queen.wait("q", timeout=50) == []
        await switch(members[1], POPS, False)
        await everywhere(members, Switch.POP, False)
        assert data(await members[2].queen.drain("q")) == ["kept"]

    @pytest.mark.parametrize("arrives", ["before", "after"])
    async def test_a_long_poll_is_held_until_they_are_on_again(self, trio: Trio, arrives: str) -> None:
        """Whether it was waiting when they were switched off, or came later."""
        _, (a, b, c) = trio
        members = [a, b, c]
        await a.queen.configure("q")
        await b.queen.pop("q")
        if arrives == "after":
            await switch(a, POPS, True)
            await everywhere(members, Switch.POP, True)
        poll = asyncio.ensure_future(b.queen.wait("q"))
        if arrives == "before":
            await parked(b.server)
            await switch(a, POPS, True)
            await everywhere(members, Switch.POP, True)
        await a.queen.push("q", "while they are off")
        await held(b)
        assert not poll.done()
        await switch(c, POPS, False)
        async with asyncio.timeout(SOON_S):
            assert data(await poll) == ["while they are off"]

    async def test_a_long_poll_that_is_held_ends_in_its_time(self, trio: Trio) -> None:
        _, members = trio
        await switch(members[0], POPS, True)
        await everywhere(members, Switch.POP, True)
        async with asyncio.timeout(SOON_S):
            assert await members[1].queen.wait("q", timeout=300) == []

    async def test_a_server_stops_at_once_although_it_holds_one(self, trio: Trio) -> None:
        _, (a, b, _) = trio
        await switch(a, POPS, True)
        await until(lambda: b.caches.switches.is_on(Switch.POP))
        poll = asyncio.ensure_future(b.queen.wait("q", timeout=30_000))
        await held(b)
        started = asyncio.get_running_loop().time()
        await b.server.stop()
        assert asyncio.get_running_loop().time() - started < b.settings.http.shutdown_grace_s
        assert await poll == []


BAD = ("", "{}", '{"enabled":1}', '{"enabled":"true"}', '{"enabled":null}', "[]", "null", "{")


@pytest.mark.parametrize("path", [PUSHES, POPS])
async def test_bad_input_moves_nothing(trio: Trio, path: str) -> None:
    _, members = trio
    for body in BAD:
        answer = await members[0].http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, body
        assert answer.json()["error"]
    assert not any(m.caches.switches.is_on(which) for m in members for which in Switch)
