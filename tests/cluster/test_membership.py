"""Who belongs to the cluster: death, return, replayed packets, other secrets, rotation."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from integration.queen import until

from cluster.members import OTHER_SECRET, SECRET, Member, cluster, joined
from cluster.processes import SECRET as SECRET_TEXT
from cluster.processes import Remote, ServeProcess
from queenmq.cluster.frame import VERSION
from queenmq.cluster.messages import MessageType
from queenmq.faults.network import Relay

log = logging.getLogger(__name__)

Trio = tuple[Relay, list[Member]]
# Twice the threshold on a quiet machine; a silent peer is never given up without it.
DEAD_WITHIN_S = 60.0


class Victim:
    """Three processes with the settings that servers have by default, and the network between them."""

    def __init__(self, relay: Relay, processes: dict[str, ServeProcess], stack: AsyncExitStack) -> None:
        self.relay = relay
        self.processes = processes
        self._stack = stack

    async def remote(self, name: str) -> Remote:
        http = httpx.AsyncClient(base_url=self.processes[name].url, timeout=30)
        return Remote(await self._stack.enter_async_context(http))


@pytest.fixture
async def victims(database_url: str, tmp_path: Path) -> AsyncIterator[Victim]:
    relay = Relay("a", "b", "c")
    await relay.open()
    relay.recording = True
    async with AsyncExitStack() as stack:
        stack.callback(relay.close)
        processes = {}
        for name in relay.servers:
            peers = ",".join(f"{host}:{port}" for host, port in relay.peers_of(name))
            processes[name] = ServeProcess(
                tmp_path,
                name,
                DATABASE_URL=database_url,
                QUEEN_UDP_PORT="0",
                QUEEN_UDP_PEERS=peers,
                QUEEN_SYNC_SECRET=SECRET_TEXT,
                DB_POOL_SIZE="6",
            )
            stack.callback(processes[name].make_sure_it_is_gone)
            processes[name].launch()
        for process in processes.values():
            await asyncio.to_thread(process.until_up)
        yield Victim(relay, processes, stack)


def holds(ask: Callable[[], Awaitable[object]], value: object) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return await ask() == value

    return condition


async def dropped(remote: Remote, reason: str) -> int:
    return int((await remote.figures())["transport"]["dropped"][reason])


async def health(remote: Remote, name: str) -> int:
    return int((await remote.figures())["server_health"][name])


async def test_a_killed_server_is_dead_everywhere_and_believed_when_it_returns(victims: Victim) -> None:
    relay, processes = victims.relay, victims.processes
    a, b, c = [await victims.remote(name) for name in relay.servers]
    for remote in (a, b, c):
        await until(holds(remote.alive, 2))

    # What a has told the others of itself: a consumer, and a lease.
    await b.queen.push("q", "first", "second", partition="p")
    assert await a.queen.pop("q", "p")
    poll = asyncio.ensure_future(a.http.get("/api/v1/pop/queue/q", params={"wait": True, "timeout": 60_000}))

    async def has_heard(remote: Remote) -> tuple[int, int]:
        figures = await remote.figures()
        return figures["consumer_presence"]["servers_tracked"], figures["lease_hints"]["size"]

    for remote in (b, c):
        await until(holds(lambda remote=remote: has_heard(remote), (1, 1)))

    killed_at = time.monotonic()
    processes["a"].kill()
    with pytest.raises(httpx.HTTPError):
        await poll
    for remote in (b, c):
        await until(holds(lambda remote=remote: health(remote, "servers_dead"), 1), DEAD_WITHIN_S)
        assert await has_heard(remote) == (0, 0)
    log.info("dead everywhere after %.2f s", time.monotonic() - killed_at)
    assert "server a is silent" in processes["b"].log

    # Nobody believes what it said in its former life, while it is dead, while it lives again, or to a newcomer.
    former = relay.recorded("a")
    kinds = {datagram[1] for datagram in former}
    assert kinds >= {MessageType.HEARTBEAT, MessageType.CONSUMER_REGISTERED, MessageType.LEASE_HINT_ACQUIRED}
    await replay_to_b(relay, b, relay.paths["a", "b"].recorded, "replayed", "too_old")
    assert await health(b, "servers_dead") == 1

    await processes["a"].start()
    for remote in (b, c):
        await until(holds(remote.alive, 2), 3)
        assert await health(remote, "restarts_detected") == 1
    await replay_to_b(relay, b, former, "old_epoch", "wrong_receiver")
    assert (await health(b, "restarts_detected"), await b.alive()) == (1, 2)
    assert (await has_heard(b))[1] == 0

    # One that has only just started, and has not heard of the present life, gets packets for its own former life.
    processes["b"].kill()
    relay.paths["a", "b"].cut = True
    sent = relay.paths["b", "a"].passed
    await processes["b"].start()
    await until(lambda: relay.paths["b", "a"].passed > sent)
    newcomer = await victims.remote("b")
    await replay_to_b(relay, newcomer, former, "wrong_receiver")
    assert await newcomer.alive() <= 1
    relay.heal()
    await until(holds(newcomer.alive, 2))
    assert await health(newcomer, "restarts_detected") == 0
    assert (await has_heard(newcomer))[1] == 0


async def test_a_server_that_stops_says_so(database_url: str, tmp_path: Path) -> None:
    """The others know at once: that it is silent would tell them after ten minutes."""
    relay = Relay("a", "b")
    await relay.open()
    processes = {}
    async with AsyncExitStack() as stack:
        stack.callback(relay.close)
        for name in relay.servers:
            [(host, port)] = relay.peers_of(name)
            processes[name] = ServeProcess(
                tmp_path,
                name,
                *("--log-level", "info"),
                DATABASE_URL=database_url,
                QUEEN_UDP_PORT="0",
                QUEEN_UDP_PEERS=f"{host}:{port}",
                QUEEN_SYNC_SECRET=SECRET_TEXT,
                QUEEN_SYNC_DEAD_THRESHOLD_MS="600000",
                DB_POOL_SIZE="4",
            )
            stack.callback(processes[name].make_sure_it_is_gone)
            processes[name].launch()
        for process in processes.values():
            await asyncio.to_thread(process.until_up)
        http = httpx.AsyncClient(base_url=processes["a"].url, timeout=30)
        a = Remote(await stack.enter_async_context(http))
        await until(holds(a.alive, 1))
        assert await asyncio.to_thread(processes["b"].stop) == 0
        stopped_at = time.monotonic()
        await until(holds(a.alive, 0))
        log.info("known %.2f s after its end", time.monotonic() - stopped_at)
        assert "server b has stopped" in processes["a"].log
        assert "is silent" not in processes["a"].log
        await processes["b"].start()
        await until(holds(a.alive, 1))


async def replay_to_b(relay: Relay, remote: Remote, datagrams: list[bytes], *reasons: str) -> None:
    """Send to b what a has sent before. Returns when all of it was dropped for one of the reasons, but for greetings:
    they are believed by nobody, but may be answered."""

    async def refused() -> int:
        return sum([await dropped(remote, reason) for reason in reasons])

    before = await refused()
    relay.inject("a", "b", datagrams)
    meant = sum(datagram[1] != MessageType.GREETING for datagram in datagrams)
    await until(lambda: _at_least(refused, before + meant))


async def _at_least(ask: Callable[[], Awaitable[int]], count: int) -> bool:
    return await ask() >= count


async def test_an_outsider_who_sends_packets_on_takes_nobodys_address(trio: Trio) -> None:
    """What a tells b, re-sent to c from another address, and what it tells c, too."""
    relay, members = trio
    c = members[2].server.node
    relay.recording = True
    await until(lambda: len(relay.paths["a", "b"].recorded) > 3 and len(relay.paths["a", "c"].recorded) > 3)
    before = c.state.members.recipients(["a", "b"])
    refused = c.state.traffic.dropped.total()
    packets = relay.paths["a", "b"].recorded[:] + relay.paths["a", "c"].recorded[:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outsider:
        for packet in packets:
            outsider.sendto(packet, ("127.0.0.1", c._transport.port))
        await until(lambda: c.state.traffic.dropped.total() >= refused + len(packets))
        assert c.state.members.recipients(["a", "b"]) == before
        outsider.setblocking(False)
        with pytest.raises(BlockingIOError):
            outsider.recv(1)


async def test_a_recorded_session_means_nothing_to_a_server_that_has_restarted(trio: Trio) -> None:
    """While its sender is silent, so that nothing newer is known of it; from its own address and from another one."""
    relay, (a, b, _) = trio
    relay.recording = True
    poll = asyncio.ensure_future(a.http.get("/api/v1/pop/queue/q", params={"wait": True, "timeout": 60_000}))
    await until(lambda: "a" in (b.presence.servers_for("q") or ()))
    heartbeats = len(relay.paths["a", "b"].recorded)
    await until(lambda: len(relay.paths["a", "b"].recorded) > heartbeats + 10)
    relay.recording = False
    poll.cancel()
    await asyncio.wait([poll])
    await a.stop()
    await b.restart()
    await until(lambda: b.alive == {"c"})
    state = b.server.node.state
    session = relay.recorded("a")
    received = state.traffic.packets_received
    relay.inject("a", "b", session)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outsider:
        for packet in session:
            outsider.sendto(packet, ("127.0.0.1", b.server.node._transport.port))
        await until(lambda: state.traffic.packets_received >= received + 2 * len(session))
    assert b.alive == {"c"}
    assert state.members.get("a") is None
    assert state.presence.queues_of("a") == set()


async def test_packets_that_are_sent_back_to_their_sender_do_nothing(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    relay, (a, b, c) = trio
    relay.recording = True
    await until(lambda: len(relay.paths["a", "b"].recorded) > 10)
    await a.queen.push("q", 1)
    before, members = a.dropped["own_packet"], a.server.node.state.members.recipients(["b", "c"])
    packets = relay.recorded("a")
    relay.inject("b", "a", packets)
    await until(lambda: a.dropped["own_packet"] >= before + len(packets))
    assert a.server.node.state.members.recipients(["b", "c"]) == members
    assert (a.alive, b.alive, c.alive) == ({"b", "c"}, {"a", "c"}, {"a", "b"})
    assert a.figures["transport"]["conflicts"] == 0
    assert "same name" not in caplog.text


class TestANetworkThatBreaks:
    async def test_makes_them_dead_to_each_other_until_it_heals(self, trio: Trio) -> None:
        relay, members = trio
        relay.cut("a")
        await until(lambda: [m.alive for m in members] == [set(), {"c"}, {"b"}])
        relay.heal()
        await joined(members)
        assert [m.figures["server_health"]["restarts_detected"] for m in members] == [0, 0, 0]

    async def test_in_one_direction_only(self, trio: Trio) -> None:
        relay, (a, b, _) = trio
        relay.paths["a", "b"].cut = True
        await until(lambda: "a" not in b.alive)
        assert "b" in a.alive
        relay.heal()
        await until(lambda: "a" in b.alive)


class TestSecrets:
    async def test_a_server_with_another_secret_is_never_a_member(self, database_url: str) -> None:
        async with cluster(database_url, "a", "b") as (_, members):
            stranger = members[1]
            await stranger.restart(cluster={"secret": OTHER_SECRET})
            a = members[0]
            for member in members:
                before = member.dropped["unknown_key"]
                await until(lambda member=member, before=before: member.dropped["unknown_key"] >= before + 5)
            await until(lambda: "b" not in a.alive)
            assert stranger.alive == set()
            assert a.figures["server_health"]["restarts_detected"] == 0

    async def test_is_changed_on_one_server_after_the_other_without_losing_a_member(self, database_url: str) -> None:
        """First everybody accepts the new one, then everybody uses it, then nobody accepts the former one."""
        async with cluster(database_url) as (_, members):
            for step in (
                {"secret": SECRET, "secret_previous": OTHER_SECRET},
                {"secret": OTHER_SECRET, "secret_previous": SECRET},
                {"secret": OTHER_SECRET, "secret_previous": None},
            ):
                for member in members:
                    others = [m for m in members if m is not member]
                    await member.restart(cluster=step)
                    await joined(members, 3)
                    assert all(m.figures["server_health"]["servers_dead"] == 0 for m in others)
            assert all(m.dropped["unknown_key"] == 0 for m in members)


async def test_a_server_that_takes_anothers_name_is_reported(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(database_url, "a", "b") as (_, (a, b)):
        await b.restart(cluster={"server_id": "a"})
        await until(lambda: a.figures["transport"]["conflicts"] == 1)
        assert "has the same name a: give each server its own QUEEN_SERVER_ID" in caplog.text


async def test_a_server_of_another_version_is_reported_and_does_no_harm(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(database_url, "a", "b") as (relay, (a, b)):
        relay.recording = True
        await until(lambda: len(relay.paths["b", "a"].recorded) > 3)
        relay.recording = False
        before = a.dropped["wrong_version"]
        older = [bytes([VERSION - 1]) + packet[1:] for packet in relay.paths["b", "a"].recorded]
        relay.inject("b", "a", [*older, *older])
        await until(lambda: a.dropped["wrong_version"] >= before + 2 * len(older))
        assert caplog.text.count(f"have version {VERSION - 1}, this server has {VERSION}") == 1
        assert "through the database" in caplog.text
        assert (a.alive, b.alive) == ({"b"}, {"a"})
