"""Consuming from a real server: order, workers, failures, leases, and the end of it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import defaultdict
from typing import Any

import asyncpg
import jwt
import pytest
from integration.queen import expire_leases, leases, parked, until
from server_settings import settings_with

from queenmq.client import ClientClosed, Forbidden, Message, NetworkError, NotFound, Queen, missing
from queenmq.client.session import Session
from queenmq.client.transport import Transport
from queenmq.client.verbs import Verbs
from queenmq.config import Settings
from queenmq.server import Server

SECRET = "a secret of more than thirty-two bytes"


@pytest.fixture(autouse=True, params=["connection", "take", "ack and pop", "older server"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Batches come on a consumer connection; or leases are finished with the next poll; or messages are acknowledged
    because the server cannot do that."""
    if request.param != "connection":
        monkeypatch.setattr(Transport, "connect", no_connection)
    if request.param == "ack and pop":
        monkeypatch.setattr(Session, "can_take", property(lambda _: False, lambda *_: None), raising=False)
    if request.param == "older server":

        async def unknown(*_: object) -> None:
            raise NotFound(404, "Not found", {"error": "Not found", "code": "not_found"})

        monkeypatch.setattr(Verbs, "take", unknown)
    return str(request.param)


async def no_connection(*_: object) -> None:
    raise NotFound(404, "Not found", {"error": "Not found", "code": "not_found"})


async def is_empty(queen: Queen, queue: str, group: str | None = None) -> bool:
    builder = queen.queue(queue).wait(False)
    return await (builder.group(group) if group else builder).pop() == []


async def test_one_by_one_in_order(queen: Queen) -> None:
    await queen.queue("q").push(list(range(20)))
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)

    stats = await queen.queue("q").limit(20).consume(handle)
    assert seen == list(range(20))
    assert (stats.handled, stats.failed, stats.refused) == (20, 0, 0)
    assert await is_empty(queen, "q")


async def test_batches_and_plain_functions(queen: Queen) -> None:
    await queen.queue("q").push(list(range(25)))
    seen: list[list[Any]] = []
    await queen.queue("q").batch(10).limit(25).consume(lambda messages: seen.append([m.data for m in messages]))
    assert seen == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert await is_empty(queen, "q")


async def test_a_limit_is_never_overstepped(queen: Queen) -> None:
    await queen.queue("q").push(list(range(10)))
    seen: list[Any] = []
    await queen.queue("q").batch(4).each().limit(6).consume(lambda message: seen.append(message.data))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert [message.data for message in await queen.queue("q").batch(10).pop()] == [6, 7, 8, 9]


async def test_workers_share_partitions_but_never_one(queen: Queen) -> None:
    names = [f"p{n}" for n in range(6)]
    for name in names:
        await queen.queue("q").partition(name).push(list(range(40)))
    seen: dict[str, list[Any]] = defaultdict(list)
    busy: list[str] = []
    together, most, done = [], 0, asyncio.Event()

    async def handle(messages: list[Message]) -> None:
        nonlocal most
        name = messages[0].partition
        together.extend(other for other in busy if other == name)
        busy.append(name)
        most = max(most, len(busy))
        await queen.queue("other").push("work")
        seen[name] += [message.data for message in messages]
        busy.remove(name)
        if sum(map(len, seen.values())) == 240:
            done.set()

    await queen.queue("q").concurrency(8).batch(7).consume(handle, signal=done)
    assert dict(seen) == {name: list(range(40)) for name in names}
    assert not together
    assert most > 1


async def test_an_idle_consumer_ends_by_itself(queen: Queen) -> None:
    await queen.queue("q").push([1, 2])
    seen: list[Any] = []
    async with asyncio.timeout(30):
        await queen.queue("q").batch(5).idle_millis(300).consume(lambda ms: seen.extend(m.data for m in ms))
    assert seen == [1, 2]


async def test_what_a_handler_raises_becomes_a_failed_ack(queen: Queen, caplog: pytest.LogCaptureFixture) -> None:
    await queen.queue("q").config(retry_limit=1, retry_delay=20).create()
    bad, _ = await queen.queue("q").push(["bad", "good"])
    attempts: list[tuple[Any, int]] = []

    async def handle(message: Message) -> None:
        attempts.append((message.data, message.retry_count))
        if message.data == "bad":
            raise RuntimeError("no \0good")

    stats = await queen.queue("q").group("g").limit(3).consume(handle)
    assert attempts == [("bad", 0), ("bad", 1), ("good", 0)]
    assert (stats.handled, stats.failed, stats.refused) == (1, 2, 0)
    found = await queen.queue("q").dlq("g").get()
    assert (found.total, [(dead.data, dead.error_message) for dead in found]) == (1, [("bad", "no good")])
    told = [record for record in caplog.records if record.levelno == logging.WARNING and record.exc_info]
    assert [record.getMessage() for record in told] == [
        f"consuming q: the handler failed with {bad.transaction_id} of Default (attempt {n})" for n in (1, 2)
    ]


async def test_after_a_failure_the_rest_of_its_partition_comes_again_in_order(queen: Queen) -> None:
    await queen.queue("q").config(retry_delay=20).create()
    for name in ("a", "b"):
        await queen.queue("q").partition(name).push([f"{name}{n}" for n in range(4)])
    handled: list[str] = []
    failed: list[str] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.data == "a1" and not failed:
            failed.append("a1")
            raise RuntimeError("not yet")
        handled.append(message.data)
        if len(handled) == 8:
            done.set()

    stats = await queen.queue("q").batch(8).partitions(2).each().consume(handle, signal=done)
    assert sorted(handled) == [f"{name}{n}" for name in "ab" for n in range(4)]
    assert [data for data in handled if data[0] == "a"] == ["a0", "a1", "a2", "a3"]
    assert stats.refused == 0
    assert await is_empty(queen, "q")


async def test_acknowledging_by_hand_and_in_a_transaction(queen: Queen) -> None:
    await queen.queue("q").push([1, 2, 3])

    async def handle(messages: list[Message]) -> None:
        doubled = [2 * message.data for message in messages]
        await queen.transaction().ack(messages).queue("sink").push(doubled).commit()

    await queen.queue("q").group("g").batch(2).auto_ack(False).limit(3).consume(handle)
    assert await is_empty(queen, "q", "g")
    assert [message.data for message in await queen.queue("sink").batch(5).pop()] == [2, 4, 6]


async def test_callbacks_take_over_acknowledging(queen: Queen) -> None:
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push(["good", "bad"])

    async def handle(message: Message) -> str:
        if message.data == "bad":
            raise RuntimeError("no good")
        return "fine"

    async def on_success(message: Message, result: str) -> None:
        assert result == "fine"
        assert (await queen.ack(message)).success

    async def on_error(message: Message, error: Exception) -> None:
        assert (await queen.ack(message, False, error=str(error))).dlq

    await queen.queue("q").limit(2).consume(handle).on_success(on_success).on_error(on_error)
    assert await is_empty(queen, "q")


async def test_commit_on_delivery_needs_no_acks(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.queue("q").push([1, 2])
    seen: list[Any] = []
    consumer = queen.queue("q").commit_on_delivery().batch(2).limit(2)
    await consumer.consume(lambda messages: seen.extend(m.lease_id for m in messages))
    assert seen == ["", ""]
    assert await leases(sql) == 0
    assert await is_empty(queen, "q")


async def test_leases_are_renewed_while_a_handler_works(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.queue("q").config(lease_time=30).create()
    await queen.queue("q").push([1, 2])
    left = "SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) FROM queen.partition_consumers"

    async def handle(message: Message) -> None:
        async def renewed() -> bool:
            return await sql.fetchval(left) > 40

        await until(renewed)

    stats = await queen.queue("q").renew_lease(True, 50).limit(1).consume(handle)
    assert (stats.handled, stats.refused) == (1, 0)
    assert [message.data for message in await queen.queue("q").pop()] == [2]


async def test_a_lost_lease_ends_the_batch(queen: Queen, sql: asyncpg.Connection, caplog: Any) -> None:
    await queen.queue("q").push([1, 2, 3])
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)
        if len(seen) == 1:
            await expire_leases(sql)
            await until(lambda: "is lost" in caplog.text)

    stats = await queen.queue("q").batch(3).each().renew_lease(True, 20).limit(6).consume(handle)
    assert seen == [1, 1, 2, 3]
    assert stats.refused == 1
    assert await is_empty(queen, "q")


async def test_stopping_finishes_what_is_in_hand(queen: Queen, server: Server, way: str) -> None:
    await queen.queue("q").push([1, 2, 3])
    begun, go_on = asyncio.Event(), asyncio.Event()
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()
        seen.append(message.data)

    async with queen.queue("q").concurrency(3).consume(handle) as consumer:
        await begun.wait()
        await parked(server, 1 if way == "connection" else 2)
        consumer.stop()
        # The two that were waiting for messages have gone, the one that has a message has not.
        await parked(server, 0)
        assert not seen
        go_on.set()
    assert seen == [1]
    assert [message.data for message in await queen.queue("q").batch(5).pop()] == [2, 3]


async def test_closing_the_client_stops_its_consumers(url: str, queen: Queen) -> None:
    await queen.queue("q").push([1, 2])
    begun, go_on = asyncio.Event(), asyncio.Event()
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()
        seen.append(message.data)

    other = Queen(url)
    running = asyncio.ensure_future(other.queue("q").consume(handle))
    await begun.wait()
    closing = asyncio.ensure_future(other.close())
    await asyncio.sleep(0)  # it has begun, and waits for the handler
    go_on.set()
    await closing
    await running
    assert seen == [1]
    assert [message.data for message in await queen.queue("q").batch(5).pop()] == [2]
    with pytest.raises(ClientClosed):
        await other.queue("q").pop()


async def test_a_handler_may_use_the_client_while_it_is_being_closed(url: str, queen: Queen) -> None:
    await queen.queue("q").push([1])
    begun, closing = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await closing.wait()
        await other.queue("sink").push("last words")
        await other.queue("sink").buffer(message_count=10, time_millis=60_000).push("and the very last")

    other = Queen(url)
    running = asyncio.ensure_future(other.queue("q").consume(handle))
    await begun.wait()
    ends = [asyncio.ensure_future(other.close()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ClientClosed):
        await other.queue("q").consume(handle)
    closing.set()
    await asyncio.gather(*ends)
    assert (await running).handled == 1
    assert [message.data for message in await queen.queue("sink").batch(5).pop()] == ["last words", "and the very last"]
    assert await is_empty(queen, "q")


async def test_a_handler_that_does_not_end_is_cancelled_at_the_end_of_patience(url: str, queen: Queen) -> None:
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push([1])
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Queen(url, close_timeout_millis=50) as other:
        running = asyncio.ensure_future(other.queue("q").consume(handle))
        await begun.wait()
    await running
    # It was given back, and that did not count as an attempt.
    [message] = await queen.queue("q").timeout_millis(5000).pop()
    assert (message.data, message.retry_count) == (1, 0)


async def test_a_cancelled_consumer_gives_back_what_it_has(queen: Queen) -> None:
    await queen.queue("q").push([1, 2])
    begun = asyncio.Event()

    async def handle(messages: list[Message]) -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(queen.queue("q").batch(2).consume(handle))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [message.data for message in await queen.queue("q").batch(2).timeout_millis(5000).pop()] == [1, 2]


async def test_a_consumer_that_is_cancelled_while_it_acknowledges_does_so_all_the_same(
    queen: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a namespace, of which no lease is finished with the next poll."""
    await queen.queue("shop.orders").push([1])
    acking = asyncio.Event()
    ack = Verbs.ack

    async def cut(self: Verbs, *said: Any) -> Any:
        if not acking.is_set():
            acking.set()
            await asyncio.Event().wait()
        return await ack(self, *said)

    monkeypatch.setattr(Verbs, "ack", cut)
    async with queen.queue().namespace("shop").consume(lambda _: None) as consumer:
        async with asyncio.timeout(30):
            await acking.wait()
        consumer.cancel()
    assert consumer.stats.handled == 1
    assert await leases(sql) == 0
    assert await is_empty(queen, "shop.orders")


class TestWithTokens:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": SECRET})

    async def test_a_refusal_ends_the_consumer(self, url: str, queen: Queen) -> None:
        token = jwt.encode({"sub": "eve", "role": "read-only"}, SECRET)
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with Queen(url, bearer_token=lambda: token) as reader:
            with pytest.raises(Forbidden) as caught:
                await reader.queue("q").concurrency(3).consume(lambda message: None)
        gc.collect()
        assert not complaints
        assert (caught.value.status, caught.value.code) == (403, "forbidden")

    @pytest.mark.parametrize(
        ("grants", "is_told"),
        [
            ([{"queues": ["orders.*"], "groups": ["billing"], "allow": ["pop", "ack"]}], False),
            ([{"queues": ["mails"]}, {"queues": ["orders.*"], "allow": ["pop", "ack"]}], False),
            ([{"queues": ["orders.*"], "groups": ["billing"], "allow": ["pop", "ack", "read"]}], True),
            ([{"queues": ["orders.*"], "groups": ["billing"]}], True),
            (None, True),
        ],
    )
    async def test_nothing_is_asked_that_the_token_may_not_read(
        self,
        url: str,
        server: Server,
        sql: asyncpg.Connection,
        caplog: pytest.LogCaptureFixture,
        grants: list[dict[str, list[str]]] | None,
        is_told: bool,
    ) -> None:
        """Each start of a consumer would be a refusal in the audit log."""
        claims = {"sub": "worker", "role": "read-write"} | ({} if grants is None else {"queen": grants})
        token = jwt.encode(claims, SECRET)
        async with Queen(url, bearer_token=token) as worker:
            await worker.queue("orders.new").group("billing").idle_millis(50).consume(print)
        assert bool(said(caplog)) == is_told
        await server._audit.flush()
        assert await sql.fetch("SELECT action, error FROM queen.audit_log WHERE status = 403") == []


async def test_what_was_handled_is_acknowledged_although_no_poll_follows(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.queue("q").push([1, 2, 3])
    await queen.queue("q").batch(2).limit(2).consume(lambda messages: None)
    assert await leases(sql) == 0
    assert await sql.fetchval("SELECT position FROM queen.partition_consumers") == 2


async def test_a_lease_is_finished_while_the_next_poll_waits(
    queen: Queen, server: Server, sql: asyncpg.Connection
) -> None:
    await queen.queue("q").push([1])
    async with queen.queue("q").consume(lambda message: None) as consumer:
        await until(lambda: consumer.stats.handled == 1)
        await parked(server)

        async def is_finished() -> bool:
            return await leases(sql) == 0

        await until(is_finished)
    assert consumer.stats.refused == 0


async def test_each_way_is_the_one_that_is_meant(queen: Queen, server: Server, way: str) -> None:
    """Or the tests of this file that may use a connection would test polls twice."""
    await queen.queue("q").push([1, 2, 3])
    connections: list[int] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        connections.append(len(server.broker.consumers))
        if len(connections) == 3:
            done.set()

    async with asyncio.timeout(30):
        await queen.queue("q").consume(handle, signal=done)
    assert connections == [1 if way == "connection" else 0] * 3


class TestOneByOne:
    """Acknowledgements are gathered behind the handler, and the last goes with the end of the lease."""

    @pytest.fixture
    def acked(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many messages each request acknowledged."""
        ack, requests = Verbs.ack, []

        async def counted(verbs: Verbs, acks: Any, group: str | None) -> Any:
            requests.append(len(acks))
            return await ack(verbs, acks, group)

        monkeypatch.setattr(Verbs, "ack", counted)
        return requests

    async def test_who_is_quick_sends_none_of_them_alone(self, queen: Queen, acked: list[int], way: str) -> None:
        await queen.queue("q").push(list(range(20)))
        seen: list[Any] = []
        done = asyncio.Event()

        def handle(message: Message) -> None:
            seen.append(message.data)
            if len(seen) == 20:
                done.set()

        stats = await queen.queue("q").batch(10).each().ack_millis(60_000).consume(handle, signal=done)
        assert seen == list(range(20))
        assert (stats.handled, stats.refused) == (20, 0)
        assert acked == ([] if way in ("connection", "take") else [10, 10])
        assert await is_empty(queen, "q")

    async def test_what_is_handled_is_acknowledged_while_the_next_takes_long(
        self, queen: Queen, sql: asyncpg.Connection, acked: list[int]
    ) -> None:
        await queen.queue("q").push([1, 2, 3, 4])

        async def handle(message: Message) -> None:
            if message.data == 4:
                return

            async def is_at() -> bool:
                return await sql.fetchval("SELECT position FROM queen.partition_consumers") == message.data - 1

            await until(is_at)

        stats = await queen.queue("q").batch(4).each().ack_millis(1).limit(4).consume(handle)
        assert (stats.handled, stats.failed, stats.refused) == (4, 0, 0)
        assert acked[:2] == [1, 1]

    async def test_each_before_the_next_if_that_is_wanted(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.queue("q").push([1, 2, 3, 4, 5])

        async def handle(message: Message) -> None:
            position = await sql.fetchval("SELECT position FROM queen.partition_consumers")
            assert position == message.data - 1

        stats = await queen.queue("q").batch(2).each().ack_millis(0).limit(5).consume(handle)
        assert (stats.handled, stats.failed, stats.refused) == (5, 0, 0)

    async def test_what_could_not_be_sent_is_said_at_the_end(
        self, queen: Queen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await queen.queue("q").push([1, 2, 3])
        ack, tried = Verbs.ack, asyncio.Event()

        async def broken(verbs: Verbs, acks: Any, group: str | None) -> Any:
            if tried.is_set():
                return await ack(verbs, acks, group)
            tried.set()
            raise NetworkError("cut", sent=True)

        async def handle(message: Message) -> None:
            if message.data == 2:
                await tried.wait()

        monkeypatch.setattr(Verbs, "ack", broken)
        stats = await queen.queue("q").batch(3).each().ack_millis(1).limit(3).consume(handle)
        assert (stats.handled, stats.refused) == (3, 0)
        assert await is_empty(queen, "q")

    async def test_stopping_acknowledges_what_was_gathered(self, queen: Queen) -> None:
        await queen.queue("q").push([1, 2, 3, 4])
        second, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            if message.data == 2:
                second.set()
                await go_on.wait()

        async with queen.queue("q").batch(4).each().ack_millis(60_000).consume(handle) as consumer:
            await second.wait()
            consumer.stop()
            go_on.set()
        left = await queen.queue("q").batch(5).pop()
        assert [(message.data, message.retry_count) for message in left] == [(3, 0), (4, 0)]

    async def test_cancelling_does_so_as_well(self, queen: Queen) -> None:
        await queen.queue("q").push([1, 2, 3, 4])
        second = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.data == 2:
                second.set()
                await asyncio.Event().wait()

        running = asyncio.ensure_future(queen.queue("q").batch(4).each().ack_millis(60_000).consume(handle))
        await second.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        left = await queen.queue("q").batch(5).timeout_millis(5000).pop()
        assert [(message.data, message.retry_count) for message in left] == [(2, 0), (3, 0), (4, 0)]

    async def test_cancelling_behind_the_last_handler_acknowledges_what_was_handled(
        self, queen: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It comes while what was gathered is still being acknowledged."""
        await queen.queue("q").push([1, 2])
        acking, go_on = asyncio.Event(), asyncio.Event()
        ack = Verbs.ack

        async def slow(self: Verbs, *said: Any) -> Any:
            acking.set()
            await go_on.wait()
            return await ack(self, *said)

        monkeypatch.setattr(Verbs, "ack", slow)

        async def handle(message: Message) -> None:
            if message.data == 2:
                await acking.wait()

        async with queen.queue("q").batch(2).each().ack_millis(1).consume(handle) as consumer:
            await until(lambda: consumer.stats.handled == 2)
            consumer.cancel()
            await asyncio.sleep(0)
            go_on.set()
        assert await leases(sql) == 0
        assert await is_empty(queen, "q")


class TestABatchOfAnySize:
    async def test_many_workers_and_partitions(self, queen: Queen) -> None:
        names = [f"p{number}" for number in range(30)]
        for name in names:
            await queen.queue("q").partition(name).push(list(range(10)))
        seen: dict[str, list[Any]] = defaultdict(list)
        partitions = 0
        done = asyncio.Event()

        async def handle(messages: list[Message]) -> None:
            nonlocal partitions
            partitions = max(partitions, len({message.partition for message in messages}))
            for message in messages:
                seen[message.partition].append(message.data)
            if sum(map(len, seen.values())) == 300:
                done.set()

        stats = await queen.queue("q").batch("auto").concurrency(3).consume(handle, signal=done)
        assert dict(seen) == {name: list(range(10)) for name in names}
        assert (stats.handled, stats.refused) == (300, 0)
        assert await is_empty(queen, "q")

    async def test_one_bad_message_is_found(self, queen: Queen) -> None:
        """A list fails as a whole; then they come one by one, until the bad one is a dead letter."""
        await queen.queue("q").config(retry_limit=3, retry_delay=1).create()
        await queen.queue("q").push([*range(40), "bad", *range(41, 80)])
        seen: list[Any] = []
        done = asyncio.Event()

        async def handle(messages: list[Message]) -> None:
            if any(message.data == "bad" for message in messages):
                raise RuntimeError("one of these is bad")
            seen.extend(message.data for message in messages)
            if len(seen) == 79:
                done.set()

        async with asyncio.timeout(60):
            await queen.queue("q").batch("auto").consume(handle, signal=done)
        assert seen == [*range(40), *range(41, 80)]
        assert [letter.data for letter in await queen.queue("q").dlq().get()] == ["bad"]

    async def test_one_by_one_and_no_more_than_the_limit(self, queen: Queen) -> None:
        await queen.queue("q").push(list(range(50)))
        seen: list[Any] = []
        await queen.queue("q").batch("auto").each().limit(40).consume(lambda message: seen.append(message.data))
        assert seen == list(range(40))

    async def test_of_a_pop_is_the_servers_choice(self, queen: Queen) -> None:
        await queen.queue("q").push(list(range(50)))
        assert len(await queen.queue("q").batch("auto").pop()) == 50


async def test_a_callback_that_raises_ends_the_consumer_and_leaves_nothing_behind(queen: Queen) -> None:
    await queen.queue("q").push([1, 2, 3])

    def on_success(message: Message, _: object) -> None:
        if message.data == 2:
            raise RuntimeError("no")

    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match="no"):
        await queen.queue("q").batch(3).each().auto_ack(True).consume(lambda _: None).on_success(on_success)
    await until(lambda: asyncio.all_tasks() <= before)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "there is no queue" in one.getMessage()]


@pytest.mark.parametrize("seconds", [0.05, 30.0], ids=["none came for long", "an empty answer"])
async def test_a_misspelt_queue_is_told(
    queen: Queen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """It may come, so consumers wait for it; but whoever looks at the log sees why nothing happens."""
    monkeypatch.setattr(missing, "LOOK_S", seconds)
    await queen.queue("orders").push([1])
    wait = {0.05: 30_000, 30.0: 50}[seconds]
    seen: list[Any] = []
    async with queen.queue("ordres").timeout_millis(wait).consume(lambda message: seen.append(message.data)):
        await until(lambda: bool(said(caplog)))
        await queen.queue("ordres").push(["late"])
        await until(lambda: bool(seen))
    told = "consuming ordres: there is no queue 'ordres' yet; did you mean 'orders'? The first push creates it."
    assert said(caplog) == [told]
    assert [one.levelname for one in caplog.records if one.getMessage() == told] == ["WARNING"]


async def test_an_idle_consumer_of_a_misspelt_queue_tells_it_before_it_ends(
    queen: Queen, caplog: pytest.LogCaptureFixture
) -> None:
    await queen.queue("orders").idle_millis(50).consume(print)
    assert said(caplog) == ["consuming orders: there is no queue 'orders' yet. The first push creates it."]


async def test_queues_that_exist_or_will_are_not_called_missing(
    queen: Queen, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queen.queue("empty").create()
    await queen.queue("later").schedule({}, key="k", delay=3600)
    for queue in (queen.queue("empty"), queen.queue("later"), queen.queue().namespace("nobody")):
        await queue.idle_millis(50).consume(print)
    assert said(caplog) == []
    asked: list[str] = []

    async def refused(_: Verbs, method: str, path: str, *__: object, **___: object) -> None:
        asked.append(path)
        raise Forbidden(403, "no", {"error": "no", "code": "forbidden"})

    monkeypatch.setattr(Verbs, "ask", refused)
    await queen.queue("hidden").idle_millis(50).consume(print)
    assert said(caplog) == []
    assert len(asked) == 1
