"""Consuming over a consumer connection: where there is one, while it breaks, and without it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import asyncpg
import pytest
from integration.queen import expire_leases, leases, until
from server_settings import changed, settings_with

from queenmq.broker.finish import Finished, Taken
from queenmq.client import InvalidUse, Message, NotFound, Queen
from queenmq.client.errors import InvalidResponse
from queenmq.client.link import Link
from queenmq.client.queue import Queue
from queenmq.client.transport import Socket, Transport
from queenmq.config import Settings
from queenmq.errors import DatabaseUnavailable
from queenmq.server import Server


class Seen:
    """A handler that keeps what it got, and an event that ends a consumer when it got enough."""

    def __init__(self, enough: int) -> None:
        self.data: list[Any] = []
        self.done = asyncio.Event()
        self._enough = enough

    def __call__(self, message: Message) -> None:
        self.data.append(message.data)
        if len(set(self.data)) == self._enough:
            self.done.set()


async def until_true(find: Callable[[], Awaitable[Any]], fits: Callable[[Any], bool]) -> None:
    async def found() -> bool:
        return fits(await find())

    await until(found)


def cut_all(server: Server) -> None:
    for connection in tuple(server.front.connections):
        if connection._socket is not None:
            connection.abort()


async def test_no_polls_while_there_is_a_connection(queen: Queen, server: Server) -> None:
    await queen.queue("q").push(list(range(20)))
    before = server.front.requests_total
    seen = Seen(20)
    async with asyncio.timeout(30):
        stats = await queen.queue("q").consume(seen, signal=seen.done)
    assert seen.data == list(range(20))
    assert (stats.handled, stats.refused) == (20, 0)
    assert server.front.requests_total - before <= 2, "the upgrade, and the last acknowledgement"
    await until(lambda: not server.broker.consumers)
    assert await queen.queue("q").wait(False).pop() == []


async def test_workers_and_what_is_fetched_for_them(queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
    for number in range(9):
        await queen.queue("q").partition(str(number)).push(number)
    go_on = asyncio.Event()
    seen = Seen(9)

    async def handle(message: Message) -> None:
        await go_on.wait()
        seen(message)

    async def six() -> bool:
        return await leases(sql) == 6

    running = asyncio.ensure_future(queen.queue("q").concurrency(4).prefetch(2).consume(handle, signal=seen.done))
    await until(six)
    go_on.set()
    assert (await running).handled == 9
    assert await leases(sql) == 0


async def test_what_was_fetched_is_given_back_when_it_stops(
    queen: Queen, server: Server, sql: asyncpg.Connection
) -> None:
    for number in range(3):
        await queen.queue("q").partition(str(number)).push(number)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()

    async def held(count: int) -> None:
        async def enough() -> bool:
            return await leases(sql) == count

        await until(enough)

    async with queen.queue("q").prefetch(2).consume(handle) as consumer:
        await begun.wait()
        await held(3)
        consumer.stop()
        await held(1)
        go_on.set()
    assert await leases(sql) == 0
    again = await queen.queue("q").batch(5).partitions(5).pop()
    assert sorted((message.data, message.retry_count) for message in again) == [(1, 0), (2, 0)]


async def test_connections_that_break_lose_nothing(queen: Queen, server: Server) -> None:
    """What is in hand when a connection breaks may come again, and nothing is lost or overtaken."""
    for partition in range(4):
        await queen.queue("q").partition(str(partition)).push([[partition, n] for n in range(30)])
    seen: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(tuple(message.data))
        if len(set(seen)) == 120:
            done.set()

    async def breaking() -> None:
        while not done.is_set():
            count = len(seen)
            await until(lambda count=count: len(seen) > count + 5 or done.is_set())  # type: ignore[misc]
            cut_all(server)

    async with asyncio.timeout(60):
        await asyncio.gather(queen.queue("q").concurrency(3).consume(handle, signal=done), breaking())
    for partition in range(4):
        firsts = list(dict.fromkeys(n for p, n in seen if p == partition))
        assert firsts == list(range(30))
    assert await queen.queue("q").wait(False).pop() == []


async def test_an_acknowledgement_whose_answer_got_lost(
    queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.queue("q").push([1, 2])
    seen = Seen(2)
    send = Socket.send
    sent = 0

    async def send_and_cut(self: Socket, data: bytes) -> None:
        nonlocal sent
        await send(self, data)
        sent += 1
        if sent == 1:
            cut_all(server)

    monkeypatch.setattr(Socket, "send", send_and_cut)
    async with asyncio.timeout(30):
        stats = await queen.queue("q").consume(seen, signal=seen.done)
    assert Counter(seen.data)[2] == 1
    assert stats.refused == 0
    assert await queen.queue("q").wait(False).pop() == []


async def test_a_lease_that_has_expired(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.queue("q").push([1])
    seen = Seen(1)
    calls = 0

    async def handle(message: Message) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await expire_leases(sql)
            [taken] = await queen.queue("q").pop()
            assert taken.data == 1
            seen(message)

    async with asyncio.timeout(30):
        stats = await queen.queue("q").consume(handle, signal=seen.done)
    assert (calls, stats.refused) == (1, 1)
    assert await leases(sql) == 1, "somebody else's"


class TestAServerThatStops:
    @pytest.fixture
    async def two(self, settings: Settings, database_url: str) -> AsyncIterator[tuple[Server, Server]]:
        servers = tuple(
            Server(changed(settings, server={"worker_id": name}), database_url) for name in ("one", "other")
        )
        for server in servers:
            await server.start()
        yield servers[0], servers[1]
        for server in servers:
            await server.stop()

    async def test_its_clients_finish_and_go_on_elsewhere(self, two: tuple[Server, Server]) -> None:
        urls = ["http://{}:{}".format(*server.address) for server in two]
        seen = Seen(10)
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await go_on.wait()
            seen(message)

        async with Queen(urls, retry_delay_millis=10) as queen:
            await queen.queue("q").push(list(range(10)))
            running = asyncio.ensure_future(queen.queue("q").consume(handle, signal=seen.done))
            await begun.wait()
            assert len(two[0].broker.consumers) == 1
            stopping = asyncio.ensure_future(two[0].stop())
            await until(lambda: not two[0].front.is_listening)
            go_on.set()
            await stopping
            async with asyncio.timeout(30):
                stats = await running
        assert seen.data == list(range(10)), "each once"
        assert (stats.handled, stats.refused) == (10, 0)


class TestWithoutOne:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(consumers={"max_connections": 0})

    async def test_long_polls_do_the_same(self, queen: Queen, server: Server) -> None:
        await queen.queue("q").push(list(range(5)))
        seen = Seen(5)
        async with asyncio.timeout(30):
            stats = await queen.queue("q").consume(seen, signal=seen.done)
        assert (seen.data, stats.handled, stats.refused) == (list(range(5)), 5, 0)

    async def test_unless_a_connection_is_demanded(self, queen: Queen) -> None:
        with pytest.raises(NotFound):
            async with asyncio.timeout(30):
                await queen.queue("q").connection(True).consume(print)


async def test_a_proxy_that_knows_no_websockets(queen: Queen, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object) -> None:
        raise InvalidResponse("it opens no WebSocket")

    monkeypatch.setattr(Transport, "connect", connect)
    await queen.queue("q").push(list(range(5)))
    seen = Seen(5)
    async with asyncio.timeout(30):
        await queen.queue("q").consume(seen, signal=seen.done)
    assert seen.data == list(range(5))


async def test_none_is_opened_if_it_is_not_wanted(queen: Queen, server: Server) -> None:
    await queen.queue("q").push([1])

    def handle(message: Message) -> None:
        assert not server.broker.consumers

    stats = await queen.queue("q").connection(False).limit(1).consume(handle)
    assert stats.handled == 1


async def test_what_it_cannot_do(queen: Queen) -> None:
    asked: list[Callable[[], Queue[Any]]] = [
        lambda: queen.queue("q").limit(1),
        lambda: queen.queue("q").commit_on_delivery(),
        lambda: queen.queue("q").batch(2).each().ack_millis(0),
        lambda: queen.queue("q").wait(False),
    ]
    for words in asked:
        with pytest.raises(InvalidUse):
            words().connection(True).consume(print)
    with pytest.raises(InvalidUse):
        queen.queue("q").prefetch(-1)


async def test_a_batch_whose_lease_is_gone_makes_room_for_the_next(
    queen: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was fetched and became stale is dropped; its place at the server is free again."""
    monkeypatch.setattr("queenmq.client.prefetched._STALE_S", 0.0)
    for number in range(4):
        await queen.queue("q").partition(str(number)).push(number)
    begun, go_on = asyncio.Event(), asyncio.Event()
    seen = Seen(4)

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()
        seen(message)

    async def held(count: int) -> None:
        async def enough() -> bool:
            return await leases(sql) == count

        await until(enough)

    running = asyncio.ensure_future(queen.queue("q").prefetch(1).consume(handle, signal=seen.done))
    await begun.wait()
    await held(2)
    await expire_leases(sql)
    go_on.set()
    async with asyncio.timeout(30):
        await running
    assert set(seen.data) == set(range(4))


async def test_a_function_for_the_token_that_raises(url: str, queen: Queen) -> None:
    def token() -> str:
        raise LookupError("no token today")

    async with Queen(url, bearer_token=token) as other:
        with pytest.raises(LookupError):
            async with asyncio.timeout(30):
                await other.queue("q").consume(print)


async def test_a_proxy_although_a_connection_is_demanded(queen: Queen, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object) -> None:
        raise InvalidResponse("it opens no WebSocket")

    monkeypatch.setattr(Transport, "connect", connect)
    with pytest.raises(InvalidUse, match="it opens no WebSocket"):
        async with asyncio.timeout(30):
            await queen.queue("q").connection(True).consume(print)


async def test_closing_the_client_waits_for_the_acknowledgements(
    url: str, queen: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.queue("q").push([1, 2])
    seen = Seen(2)
    other = Queen(url)
    running = asyncio.ensure_future(other.queue("q").consume(seen, signal=seen.done))
    send = Socket.send

    async def send_late(self: Socket, data: bytes) -> None:
        await asyncio.sleep(0.2)
        await send(self, data)

    monkeypatch.setattr(Socket, "send", send_late)
    await seen.done.wait()
    await other.close()
    assert (await running).refused == 0
    assert await queen.queue("q").wait(False).pop() == []
    assert await leases(sql) == 0


async def test_many_acknowledgements_with_long_errors(queen: Queen, server: Server) -> None:
    """More than the server takes in one message are sent in several."""
    await queen.queue("q").config(retry_limit=0).create()
    for number in range(200):
        await queen.queue("q").partition(str(number)).push(number)
    begun: list[int] = []
    go_on = asyncio.Event()
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.append(message.data)
        if len(begun) == 200:
            go_on.set()
        await go_on.wait()
        done.set()
        raise RuntimeError("\x01" * 2000)

    async with asyncio.timeout(60):
        stats = await queen.queue("q").concurrency(200).consume(handle, signal=done)
    assert (stats.failed, stats.refused) == (200, 0)


class TestSilence:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(consumers={"ping_s": 0.1})

    async def test_is_no_end_while_pings_are_answered(
        self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("queenmq.client.transport._HEARTBEAT_S", 0.15)
        said: Counter[str] = Counter()
        for name in ("ping", "pong"):
            say = getattr(aiohttp.ClientWebSocketResponse, name)

            async def counted(*about: Any, name: str = name, say: Any = say) -> None:
                said[name] += 1
                await say(*about)

            monkeypatch.setattr(aiohttp.ClientWebSocketResponse, name, counted)
        seen = Seen(1)
        running = asyncio.ensure_future(queen.queue("q").consume(seen, signal=seen.done))
        await until(lambda: bool(server.broker.consumers))
        [connection] = server.broker.consumers
        await until(lambda: said["ping"] + said["pong"] >= 8)
        assert tuple(server.broker.consumers) == (connection,)
        await queen.queue("q").push(1)
        async with asyncio.timeout(30):
            await running

    async def test_of_a_server_is_its_end(self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("queenmq.client.transport._HEARTBEAT_S", 0.05)
        seen = Seen(1)
        running = asyncio.ensure_future(queen.queue("q").consume(seen, signal=seen.done))
        await until(lambda: bool(server.broker.consumers))
        [connection] = server.broker.consumers
        with monkeypatch.context() as deaf:
            deaf.setattr("queenmq.httpserver.websocket.WebSocket.feed", lambda *_: None)
            deaf.setattr("queenmq.httpserver.websocket.WebSocket.expire", lambda *_: None)
            await until(lambda: connection not in server.broker.consumers)
        await queen.queue("q").push(1)
        async with asyncio.timeout(30):
            await running


async def test_batches_grow_and_shrink_on_one_connection(queen: Queen, server: Server) -> None:
    await queen.queue("q").push(list(range(600)))
    before = server.front.requests_total
    sizes: list[int] = []
    seen: list[Any] = []
    done = asyncio.Event()

    def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))
        seen.extend(message.data for message in messages)
        if len(seen) == 600:
            done.set()

    async with asyncio.timeout(30):
        stats = await queen.queue("q").batch("auto").consume(handle, signal=done)
    assert seen == list(range(600))
    assert (sizes[0], max(sizes) >= 64) == (1, True), sizes
    assert stats.refused == 0
    assert server.front.requests_total - before <= 2


async def test_one_by_one_with_failures_is_one_finish(queen: Queen, server: Server) -> None:
    """Two partitions under one lease: of one of them the rest comes again."""
    await queen.queue("q").config(retry_delay=1).create()
    for name in ("a", "b"):
        await queen.queue("q").partition(name).push([f"{name}{number}" for number in range(5)])
    seen: list[str] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.data)
        if seen.count("a2") == 1 and message.data == "a2":
            raise RuntimeError("not yet")
        if {"a4", "b4"} <= set(seen):
            done.set()

    async with asyncio.timeout(30):
        stats = await queen.queue("q").batch(10).partitions(2).each().connection(True).consume(handle, signal=done)
    assert [data for data in seen if data[0] == "a"] == ["a0", "a1", "a2", "a2", "a3", "a4"]
    assert [data for data in seen if data[0] == "b"] == ["b0", "b1", "b2", "b3", "b4"]
    assert (stats.handled, stats.failed, stats.refused) == (10, 1, 0)
    assert await queen.queue("q").wait(False).pop() == []


WAYS = pytest.mark.parametrize("connection", [True, False], ids=["connection", "polls"])


class TestWhatCannotBeFinished:
    @WAYS
    async def test_because_a_message_was_deleted_while_its_handler_failed(
        self, queen: Queen, sql: asyncpg.Connection, connection: bool
    ) -> None:
        """Of what is gone nothing can be said; what is said of the rest of its lease is done all the same."""
        await queen.queue("q").config(retry_delay=1).create()
        for name in ("a", "b"):
            await queen.queue("q").partition(name).push([f"{name}{number}" for number in range(4)])
        seen: list[str] = []
        done = asyncio.Event()

        async def handle(message: Message) -> None:
            seen.append(message.data)
            if message.data in ("a1", "b1"):
                if message.data == "a1":
                    await queen.admin.delete_message(message.partition_id, message.transaction_id)
                if seen.count(message.data) == 1:
                    raise RuntimeError("not yet")
            if {"a3", "b3"} <= set(seen):
                done.set()

        words = queen.queue("q").batch(8).partitions(2).each().connection(connection)
        async with asyncio.timeout(30):
            stats = await words.consume(handle, signal=done)
        assert [data for data in seen if data[0] == "a"] == ["a0", "a1", "a2", "a3"]
        assert [data for data in seen if data[0] == "b"] == ["b0", "b1", "b1", "b2", "b3"]
        assert stats.refused == 0
        assert await leases(sql) == 0

    async def test_by_a_poll_because_a_row_is_locked_is_finished_later(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(3):
            await queen.queue("q").partition(str(number)).push(number)
        seen = Seen(3)
        both = server.broker._finisher._both

        async def locked(finish: Any, claim: Any) -> Taken:
            monkeypatch.setattr(server.broker._finisher, "_both", both)
            return Taken(Finished("a row is locked", "row_locked"), None)

        monkeypatch.setattr(server.broker._finisher, "_both", locked)
        async with asyncio.timeout(30):
            stats = await queen.queue("q").connection(False).consume(seen, signal=seen.done)
        assert (seen.data, stats.refused) == ([0, 1, 2], 0)
        assert await leases(sql) == 0
        assert await sql.fetchval("SELECT sum(position) FROM queen.partition_consumers") == 3

    async def test_until_the_lease_is_over_is_told(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing was done by the tries before, so nobody can take the refusal for that of a repetition."""
        await queen.queue("q").push([1])
        done = asyncio.Event()
        monkeypatch.setattr("queenmq.client.link._REPEAT_S", 0.01)

        async def away(*_: object) -> Any:
            if not done.is_set():
                await expire_leases(sql)
                monkeypatch.undo()
                done.set()
            raise DatabaseUnavailable("away")

        for verb in ("take_now", "finish"):
            monkeypatch.setattr(server.broker, verb, away)
        async with asyncio.timeout(30):
            stats = await queen.queue("q").consume(lambda _: None, signal=done)
        assert stats.refused == 1


class TestWhatWasFetched:
    """Batches that wait for a worker, behind a handler that takes long."""

    @pytest.fixture
    async def begun(self, queen: Queen) -> Any:
        await queen.queue("q").config(lease_time=20).create()
        for number in range(4):
            await queen.queue("q").partition(str(number)).push(number)
        begun: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        go_on, seen = asyncio.Event(), Seen(4)

        async def handle(message: Message) -> None:
            if not begun.done():
                begun.set_result(message)
            await go_on.wait()
            seen(message)

        return begun, go_on, handle, seen

    async def test_is_renewed(self, queen: Queen, sql: asyncpg.Connection, begun: Any) -> None:
        first, go_on, handle, seen = begun
        words = queen.queue("q").prefetch(3).renew_lease(interval_millis=50)
        running = asyncio.ensure_future(words.consume(handle, signal=seen.done))
        await first

        async def all_live_for_long() -> bool:
            return (
                await sql.fetchval(
                    "SELECT count(*) FROM queen.partition_consumers WHERE lease_expires_at > clock_timestamp() + '40s'"
                )
                == 4
            )

        await until(all_live_for_long)
        go_on.set()
        async with asyncio.timeout(30):
            stats = await running
        assert (sorted(seen.data), stats.refused) == ([0, 1, 2, 3], 0)

    async def test_is_dropped_when_its_lease_is_over(self, queen: Queen, sql: asyncpg.Connection, begun: Any) -> None:
        """And makes room at once, so that it comes again while the handler is at work."""
        first, go_on, handle, seen = begun
        words = queen.queue("q").prefetch(3).renew_lease(interval_millis=50)
        running = asyncio.ensure_future(words.consume(handle, signal=seen.done))
        at_work = (await first).lease_id

        async def leased() -> set[str]:
            rows = await sql.fetch("SELECT lease_id FROM queen.partition_consumers WHERE lease_id IS NOT NULL")
            return {str(row[0]) for row in rows} - {at_work}

        await until_true(leased, lambda found: len(found) == 3)
        before = await leased()
        await sql.execute(
            "UPDATE queen.partition_consumers SET lease_expires_at = clock_timestamp(), ready_at = clock_timestamp() "
            "WHERE lease_id = ANY ($1)",
            list(before),
        )
        await until_true(leased, lambda found: len(found) == 3 and not found & before)
        go_on.set()
        async with asyncio.timeout(30):
            await running
        assert sorted(seen.data) == [0, 1, 2, 3]

    async def test_is_given_back_when_it_has_waited_for_too_long(
        self, queen: Queen, sql: asyncpg.Connection, begun: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, go_on, handle, seen = begun
        monkeypatch.setattr("queenmq.client.prefetched._LONGEST_S", 0.0)
        drop, dropped = Link.drop, asyncio.Event()

        def noted(self: Link, batch: list[Message]) -> None:
            dropped.set()
            drop(self, batch)

        monkeypatch.setattr(Link, "drop", noted)
        words = queen.queue("q").prefetch(3).renew_lease(interval_millis=50)
        running = asyncio.ensure_future(words.consume(handle, signal=seen.done))
        await first
        async with asyncio.timeout(30):
            await dropped.wait()
        monkeypatch.undo()
        go_on.set()
        async with asyncio.timeout(30):
            await running
        assert sorted(seen.data) == [0, 1, 2, 3]

    async def test_is_given_back_when_it_stops_while_it_is_renewed(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another worker is at work still, and the consumer ends only after it."""
        monkeypatch.setattr("queenmq.client.prefetched._STALE_S", 0.0)
        for number in range(3):
            await queen.queue("q").partition(str(number)).push(number)
        go_on = {number: asyncio.Event() for number in range(3)}
        at_work: set[int] = set()
        renewing = asyncio.Event()

        async def renew(lease_id: str, seconds: int) -> None:
            renewing.set()
            await asyncio.Event().wait()

        async def handle(message: Message) -> None:
            at_work.add(message.data)
            await go_on[message.data].wait()

        async def held(count: int) -> None:
            async def enough() -> bool:
                return await leases(sql) == count

            await until(enough)

        async with queen.queue("q").concurrency(2).prefetch(1).consume(handle) as consumer:
            await held(3)
            await until(lambda: len(at_work) == 2)
            monkeypatch.setattr(server.broker, "renew", renew)
            go_on[min(at_work)].set()
            async with asyncio.timeout(30):
                await renewing.wait()
            consumer.stop()
            try:
                await held(1)
            finally:
                for event in go_on.values():
                    event.set()
        assert await leases(sql) == 0

    async def test_is_renewed_although_there_was_no_token_once(
        self, url: str, queen: Queen, sql: asyncpg.Connection, begun: Any
    ) -> None:
        """The same holds for what the handler has in hand."""
        first, go_on, handle, seen = begun
        failures: list[str] = []

        def token() -> str:
            if first.done() and len(failures) < 4:
                failures.append("no token just now")
                raise LookupError(failures[-1])
            return "any"

        async with Queen(url, bearer_token=token) as other:
            words = other.queue("q").prefetch(3).renew_lease(interval_millis=50)
            running = asyncio.ensure_future(words.consume(handle, signal=seen.done))
            await first

            async def all_live_for_long() -> bool:
                return (
                    await sql.fetchval(
                        "SELECT count(*) FROM queen.partition_consumers "
                        "WHERE lease_expires_at > clock_timestamp() + '40s'"
                    )
                    == 4
                )

            await until(all_live_for_long)
            go_on.set()
            async with asyncio.timeout(30):
                stats = await running
        assert (sorted(seen.data), stats.refused) == ([0, 1, 2, 3], 0)
        assert len(failures) == 4
