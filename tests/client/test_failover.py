"""Several servers: going to the next one, coming back, and sharing the load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from integration.queen import until

from client.faults import REFUSED, Answer, Cut, Proxy, Stall
from queenmq.client import NetworkError, Queen
from queenmq.client.servers import Servers

A, B, C = "http://a", "http://b", "http://c"


@pytest.fixture
async def second(url: str) -> AsyncIterator[Proxy]:
    async with Proxy(url) as running:
        yield running


async def test_the_next_server_takes_over_without_a_pause(proxy: Proxy, second: Proxy, queen: Queen) -> None:
    async with Queen([proxy.url, second.url], retry_delay_millis=60_000, server_cooldown_millis=60_000) as client:
        await client.queue("q").push(0)
        assert not second.seen
        for n, fault in enumerate([Cut(), REFUSED, Answer(201, b"nonsense")], 1):
            proxy.script.append(fault)
            client._session.servers.worked(proxy.url)
            async with asyncio.timeout(30):
                await client.queue("q").push(n)
            assert second.seen[-1].body == proxy.seen[-1].body
    messages = await queen.queue("q").batch(10).pop()
    assert [message.data for message in messages] == [0, 1, 2, 3]


async def test_a_server_that_failed_is_left_alone(proxy: Proxy, second: Proxy) -> None:
    proxy.script.append(REFUSED)
    async with Queen([proxy.url, second.url], server_cooldown_millis=60_000) as client:
        for n in range(5):
            await client.queue("q").push(n)
    assert (len(proxy.seen), len(second.seen)) == (1, 5)


async def test_it_goes_back_when_the_first_works_again(proxy: Proxy, second: Proxy) -> None:
    async with Queen(urls=[proxy.url, second.url], server_cooldown_millis=50) as client:
        await proxy.stop()
        await client.queue("q").push(1)
        await client.queue("q").push(2)
        assert len(second.seen) == 2
        await proxy.start()
        before = len(proxy.seen)

        async def returned() -> bool:
            await client.queue("q").push("again")
            return len(proxy.seen) > before

        await until(returned)
        taken = len(second.seen)
        for n in range(5):
            await client.queue("q").push(n)
        assert len(second.seen) == taken


async def test_4xx_and_429_are_no_reason_to_leave_a_server(proxy: Proxy, second: Proxy) -> None:
    proxy.script.append(Answer(429, {"error": "busy"}, (("Retry-After", "0"),)))
    async with Queen([proxy.url, second.url]) as client:
        await client.queue("q").push(1)
        assert (await client.renew("no lease")).success is False
    assert len(proxy.seen) == 3
    assert not second.seen


async def test_all_servers_are_tried_in_every_round(proxy: Proxy, second: Proxy) -> None:
    proxy.script.extend([Cut()] * 5)
    second.script.extend([Cut()] * 5)
    async with Queen([proxy.url, second.url], retry_attempts=2, retry_delay_millis=1) as client:
        with pytest.raises(NetworkError):
            await client.queue("q").push(1)
    assert (len(proxy.seen), len(second.seen)) == (2, 2)


async def test_round_robin_uses_all_that_work(proxy: Proxy, second: Proxy) -> None:
    async with Queen([proxy.url, second.url], load_balancing="round-robin") as client:
        for n in range(4):
            await client.queue("q").push(n)
        assert (len(proxy.seen), len(second.seen)) == (2, 2)
        await second.stop()
        for n in range(4):
            await client.queue("q").push(n)
        assert len(proxy.seen) == 6


async def test_a_consumer_moves_on_with_its_poll(proxy: Proxy, second: Proxy, queen: Queen) -> None:
    seen: list[object] = []
    done = asyncio.Event()

    def handle(message: object) -> None:
        seen.append(message)
        done.set()

    proxy.script.append(Stall())
    async with Queen([proxy.url, second.url]) as client, client.queue("q").consume(handle):
        await proxy.arrived.wait()
        await proxy.stop()
        await second.arrived.wait()
        await queen.queue("q").push(1)
        await done.wait()
    assert len(seen) == 1


def test_a_server_that_failed_rests_and_is_then_tried_by_one_request() -> None:
    servers = Servers([A, B], cooldown_s=5)
    assert servers.choose(0) == A
    servers.failed(A, 0)
    assert servers.choose(4.9) == B
    assert servers.choose(5) == A
    # The others stay where they are until that one has an answer.
    assert servers.choose(5) == B
    servers.worked(A)
    assert servers.choose(5) == A
    assert servers.working() == [A, B]


def test_when_none_works_the_tried_ones_come_last() -> None:
    servers = Servers([A, B, C], cooldown_s=5)
    for url in (A, B, C):
        servers.failed(url, 0)
    assert servers.choose(1) == A
    assert servers.choose(1, {A}) == B
    assert servers.choose(1, {A, B}) == C
    assert servers.choose(1, {A, B, C}) is None
    assert not servers.has_other_than({A, B, C})


def test_round_robin_turns() -> None:
    servers = Servers([A, B, C], cooldown_s=5, round_robin=True)
    assert [servers.choose(0) for _ in range(4)] == [A, B, C, A]
    servers.failed(B, 0)
    assert [servers.choose(0) for _ in range(3)] == [C, C, A]
