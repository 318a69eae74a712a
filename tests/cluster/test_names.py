"""Peers by name: names that are not known yet, that point elsewhere later, and name servers that do not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AsyncExitStack

import pytest
from integration.queen import until
from server_settings import changed

from cluster.members import QUICK
from queenmq.cluster import node, transport
from queenmq.cluster.membership import Address
from queenmq.server import Server


class Names:
    """What the name server says; `silent` makes it answer nothing."""

    def __init__(self) -> None:
        self.known: dict[Address, Address] = {}
        self.answers = threading.Event()
        self.answers.set()
        self.asked_in_vain = threading.Event()

    def resolve(self, peers: Iterable[Address]) -> list[Address]:
        if not self.answers.is_set():
            self.asked_in_vain.set()
            self.answers.wait(60)
        return [self.known[peer] for peer in peers if peer in self.known]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    table = Names()
    monkeypatch.setattr(transport, "resolve", table.resolve)
    monkeypatch.setattr(node, "_RESOLVE_AGAIN_S", 0.05)
    return table


async def started(stack: AsyncExitStack, url: str, name: str, peer: Address) -> Server:
    settings = changed(QUICK, cluster={"server_id": name, "peers": (peer,), "udp_host": "127.0.0.1"})
    server = Server(settings, url)
    await server.start()
    stack.push_async_callback(server.stop)
    return server


def address(server: Server) -> Address:
    assert server.node._transport is not None
    return "127.0.0.1", server.node._transport.port


def knows(server: Server, name: str) -> bool:
    return any(member.alive for member in server.node.state.members.members() if member.id == name)


async def test_a_server_is_found_when_its_name_is_known_and_again_when_it_has_moved(
    database_url: str, names: Names
) -> None:
    other = ("queen-1.queen-peers", 6634)
    async with AsyncExitStack() as stack:
        first = await started(stack, database_url, "queen-0", other)
        async with AsyncExitStack() as pod:
            second = await started(pod, database_url, "queen-1", ("nobody", 1))
            names.known[other] = address(second)
            await until(lambda: knows(first, "queen-1") and knows(second, "queen-0"), 20)
        moved = await started(stack, database_url, "queen-1", ("nobody", 1))
        names.known[other] = address(moved)
        await until(lambda: knows(moved, "queen-0") and knows(first, "queen-1"), 20)


async def test_heartbeats_go_on_while_the_name_server_does_not_answer(database_url: str, names: Names) -> None:
    async with AsyncExitStack() as stack:
        first = await started(stack, database_url, "queen-0", ("queen-1", 6634))
        second = await started(stack, database_url, "queen-1", ("queen-0", 6634))
        names.known = {("queen-0", 6634): address(first), ("queen-1", 6634): address(second)}
        await until(lambda: knows(first, "queen-1") and knows(second, "queen-0"), 20)
        names.answers.clear()
        stack.callback(names.answers.set)
        await until(names.asked_in_vain.is_set, 20)
        members = second.node.state.members
        before = members.heartbeats_received
        await until(lambda: members.heartbeats_received >= before + 15, 30)
        await until(lambda: knows(second, "queen-0"))
