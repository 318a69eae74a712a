"""When things go wrong on the wire: nothing is doubled, order holds, and errors say what they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from client.faults import REFUSED, Action, Answer, Cut, Die, Lose, Proxy, Scripted, Stall
from queenmq.client import (
    ClientClosed,
    InvalidRequest,
    InvalidResponse,
    Item,
    Message,
    NetworkError,
    Overloaded,
    Queen,
    RequestError,
    ServerFailed,
    TransactionFailed,
    keys,
)

FAULTS: list[Action] = [
    Cut(),
    Lose(),
    Lose(0),
    REFUSED,
    Answer(500, b"<html>oops"),
    Answer(502, b""),
    Answer(429, {"error": "busy", "code": "overloaded"}),
    Answer(429, {"error": "busy"}, (("Retry-After", "0.02"),)),
    Answer(201, b"{ this is not JSON"),
    Answer(201, {"neither": "a list nor an operation"}),
    Answer(201, []),
    Answer(302, b"", (("Location", "http://127.0.0.1:1/"),)),
    Answer(408, {"error": "the request did not arrive in time", "code": "request_timeout"}),
]


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Queen]:
    """A client that knows the server only through the proxy."""
    async with Queen(proxy.url, retry_delay_millis=5, timeout_millis=5000) as one:
        yield one


async def everything(queen: Queen, queue: str) -> list[Any]:
    return [message.data for message in await queen.queue(queue).batch(1000).wait(False).pop()]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_push_is_repeated_and_stored_once(client: Queen, proxy: Proxy, queen: Queen, fault: Action) -> None:
    proxy.script.extend([fault, fault])
    results = await client.queue("q").push([1, 2, 3])
    assert len(proxy.seen) == 3
    assert proxy.seen[0].body == proxy.seen[1].body == proxy.seen[2].body
    stored_before = isinstance(fault, Lose)
    assert {result.status for result in results} == {"duplicate" if stored_before else "queued"}
    assert results.stored
    messages = await queen.queue("q").batch(10).pop()
    assert [message.data for message in messages] == [1, 2, 3]
    assert [message.id for message in messages] == [result.message_id for result in results]


async def test_order_and_identity_through_a_storm(client: Queen, proxy: Proxy, queen: Queen) -> None:
    proxy.script.extend(fault for pair in zip(FAULTS[:8] * 2, FAULTS[1:9] * 2, strict=True) for fault in (*pair, None))
    for n in range(20):
        assert (await client.queue("q").push([2 * n, 2 * n + 1])).stored
    assert not proxy.script
    assert await everything(queen, "q") == list(range(40))


async def test_attempts_are_bounded(proxy: Proxy) -> None:
    proxy.script.extend([REFUSED] * 10)
    async with Queen(proxy.url, retry_attempts=3, retry_delay_millis=1) as client:
        with pytest.raises(ServerFailed) as caught:
            await client.queue("q").push(1)
    assert len(proxy.seen) == 3
    assert (caught.value.status, caught.value.code) == (503, "database_unavailable")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Cut(), NetworkError),
        (Answer(201, b"nonsense"), InvalidResponse),
        (Answer(204), InvalidResponse),
        (Stall(), NetworkError),
        (Answer(201, [{}], upto=1), NetworkError),
    ],
    ids=str,
)
async def test_the_last_failure_is_raised(proxy: Proxy, fault: Action, error: type[Exception]) -> None:
    proxy.script.extend([fault] * 2)
    async with Queen(proxy.url, retry_attempts=2, retry_delay_millis=1, timeout_millis=200) as client:
        with pytest.raises(error):
            await client.queue("q").push(1)
    assert len(proxy.seen) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 418, 431])
async def test_4xx_is_raised_at_once_and_typed(status: int) -> None:
    body = {"error": "not like this", "code": "some_code", "field": "items[0].queue"}
    async with Scripted(Answer(status, body)) as server, Queen(server.url) as client:
        with pytest.raises(RequestError, match="not like this") as caught:
            await client.queue("q").push(1)
        assert len(server.seen) == 1
    assert (caught.value.status, caught.value.code, caught.value.field) == (status, "some_code", "items[0].queue")
    assert caught.value.body == body


async def test_a_refusal_without_a_body_has_a_code_all_the_same() -> None:
    async with Scripted(Answer(400, b"")) as server, Queen(server.url) as client:
        with pytest.raises(InvalidRequest, match="answered 400") as caught:
            await client.queue("q").push(1)
    assert (caught.value.code, caught.value.field) == ("invalid_request", None)


async def test_nobody_listens() -> None:
    async with Scripted() as server:
        pass
    async with Queen(server.url, retry_attempts=2, retry_delay_millis=1) as client:
        with pytest.raises(NetworkError) as caught:
            await client.queue("q").pop()
    assert caught.value.sent is False


async def test_one_attempt_is_sent_once(proxy: Proxy) -> None:
    async with Queen(proxy.url, retry_attempts=1) as client:
        for call in (client.queue("q").pop, lambda: client.queue("q").cancel("k"), lambda: client.queue("q").push(1)):
            proxy.seen.clear()
            proxy.script.append(Cut())
            with pytest.raises(NetworkError, match="broke") as caught:
                await call()
            assert (caught.value.sent, len(proxy.seen)) == (True, 1)


async def test_a_server_that_dies_may_have_done_what_it_was_asked(proxy: Proxy, queen: Queen) -> None:
    """Found by the soak: a timer that was cancelled by a server that was killed then, and that came never."""
    await queen.queue("q").schedule("never", key="k", delay=3600)
    async with Queen(proxy.url, retry_attempts=1) as client:
        assert [timer.key for timer in await client.queue("q").timers()] == ["k"]
        proxy.script.append(Die())
        with pytest.raises(NetworkError) as caught:
            await client.queue("q").cancel("k")
    assert await queen.queue("q").timers() == []
    assert caught.value.sent is True


async def test_an_error_says_whether_any_attempt_was_sent(proxy: Proxy, queen: Queen) -> None:
    proxy.script.append(Die())
    async with Queen(proxy.url, retry_attempts=3, retry_delay_millis=1) as client:
        with pytest.raises(NetworkError, match="no connection") as caught:
            await client.queue("q").push(1)
    assert await everything(queen, "q") == [1]
    assert caught.value.sent is True


async def test_retry_after_is_honoured() -> None:
    busy = Answer(429, {"error": "busy", "code": "overloaded"}, (("Retry-After", "1"),))
    ok = Answer(201, [{"status": "queued", "messageId": "m"}])
    async with Scripted(busy, default=ok) as server, Queen(server.url, retry_delay_millis=1) as client:
        begin = asyncio.get_running_loop().time()
        [result] = await client.queue("q").push(1)
        assert asyncio.get_running_loop().time() - begin >= 1
    assert result.stored


@pytest.mark.parametrize("options", [{"honor_retry_after": False}, {"max_retry_delay": 20}], ids=str)
async def test_retry_after_has_a_bound_and_can_be_switched_off(options: Any) -> None:
    busy = Answer(429, {"error": "busy"}, (("Retry-After", "3600"),))
    ok = Answer(201, [{"status": "queued"}])
    async with Scripted(busy, busy, default=ok) as server, Queen(server.url, retry_delay_millis=1, **options) as client:
        async with asyncio.timeout(30):
            await client.queue("q").push(1)
        assert len(server.seen) == 3


async def test_429_is_raised_if_it_shall_not_be_retried() -> None:
    busy = Answer(429, {"error": "busy", "code": "overloaded"}, (("Retry-After", "7"),))
    async with Scripted(default=busy) as server:
        async with Queen(server.url, retry_on_429=False) as client:
            with pytest.raises(Overloaded, match="busy") as caught:
                await client.queue("q").push(1)
        assert len(server.seen) == 1
        assert (caught.value.retry_after_s, caught.value.code) == (7, "overloaded")
        async with Queen(server.url, max_retry_delay=1, retry_attempts_429=4) as client:
            with pytest.raises(Overloaded):
                await client.queue("q").push(1)
        assert len(server.seen) == 5


async def test_an_ack_whose_answer_was_lost_is_uncertain_not_wrong(client: Queen, proxy: Proxy, queen: Queen) -> None:
    await queen.queue("q").push([1, 2])
    messages = await queen.queue("q").batch(2).pop()
    proxy.script.append(Lose())
    results = await client.ack(messages)
    assert [(result.success, result.uncertain) for result in results] == [(False, True)] * 2
    assert await everything(queen, "q") == []
    # Without a lost answer a refusal is certain.
    again = await client.ack(messages[0])
    assert (again.success, again.uncertain, again.error) == (False, False, "Invalid or expired lease")


async def test_a_transaction_is_never_applied_twice(client: Queen, proxy: Proxy, queen: Queen) -> None:
    await queen.queue("q").push([1, 2])
    [first] = await queen.queue("q").pop()
    proxy.script.append(REFUSED)
    assert not (await client.transaction().ack(first).queue("sink").push("once").commit()).repeated
    # The answer is lost, and the repetition shows that it was applied.
    [second] = await queen.queue("q").pop()
    proxy.script.append(Lose())
    result = await client.transaction().ack(second).queue("sink").push("twice").commit()
    assert (result.success, result.repeated) == (True, True)
    assert await everything(queen, "sink") == ["once", "twice"]
    assert await everything(queen, "q") == []


@pytest.mark.parametrize("fault", [Cut(), Lose(), REFUSED], ids=str)
async def test_a_transaction_of_keys_is_not_repeated(client: Queen, proxy: Proxy, queen: Queen, fault: Action) -> None:
    await queen.queue("q").push([1, 2])
    first, _ = await queen.queue("q").batch(2).pop()
    count = keys.increment("n", "c", ttl=None)
    for counted, transaction in enumerate((client.transaction(), client.transaction().ack(first)), 1):
        proxy.seen.clear()
        proxy.script.append(fault)
        with pytest.raises(TransactionFailed) as caught:
            await transaction.keys(count).commit()
        assert (caught.value.uncertain, len(proxy.seen)) == (True, 1)
        if isinstance(fault, Lose):
            [found] = (await queen.keys.get("n", "c"))["results"]
            assert found["value"] == counted


async def test_a_transaction_of_keys_is_repeated_where_that_is_safe(client: Queen, proxy: Proxy) -> None:
    count = keys.increment("n", "c", ttl=None)
    proxy.script.append(Answer(429, {"error": "busy", "code": "overloaded"}))
    assert (await client.transaction().keys(count).commit()).kv[0]["value"] == 1
    # The pushed message tells a repetition, and a condition changes nothing.
    proxy.script.append(Lose())
    assert (await client.transaction().keys(count).queue("q").push(1).commit()).repeated
    proxy.script.append(Lose())
    assert (await client.transaction().keys(keys.check("n", "x", 0)).commit()).success


async def test_a_transaction_that_nobody_can_tell_of_is_uncertain(client: Queen, proxy: Proxy, queen: Queen) -> None:
    await queen.queue("q").push(1)
    [message] = await queen.queue("q").pop()
    for transaction in (client.transaction().ack(message), client.transaction().queue("sink").push(Item(1, "mine"))):
        proxy.script.append(Lose())
        with pytest.raises(TransactionFailed) as caught:
            await transaction.commit()
        assert caught.value.uncertain
        with pytest.raises(TransactionFailed) as caught:
            await transaction.commit()
        assert not caught.value.uncertain
    assert await everything(queen, "q") == []


async def test_a_trace_is_not_left_twice_and_never_raises(client: Queen, proxy: Proxy, queen: Queen, sql: Any) -> None:
    await queen.queue("q").push(1)
    [message] = await queen.queue("q").pop()
    proxy.script.append(Lose())
    lost = await client.trace(message, {"step": 1}, names="order-17")
    assert (lost.success, lost.trace_id) == (False, None)
    assert await sql.fetchval("SELECT count(*) FROM queen.message_traces") == 1
    proxy.script.append(Answer(429, {"error": "busy"}))
    assert (await client.trace(message, None, event_type="step")).success
    assert await sql.fetchval("SELECT count(*) FROM queen.message_traces") == 2


async def test_a_consumer_survives_an_outage(proxy: Proxy, queen: Queen, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, "queenmq.client")
    await queen.queue("q").push([1])
    seen: list[Any] = []
    second = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.data)
        if len(seen) == 1:
            await proxy.stop()
            asyncio.get_running_loop().call_later(0.3, restarted.set)
        else:
            second.set()

    restarted = asyncio.Event()
    client = Queen(proxy.url, retry_attempts=2, retry_delay_millis=10)
    # The ack of the first message goes with the next poll, which is made again when there is a server.
    async with client, client.queue("q").consume(handle) as consumer:
        await restarted.wait()
        await proxy.start()
        await queen.queue("q").partition("other").push([2])
        await second.wait()
    assert seen == [1, 2]
    assert consumer.stats.refused == 0
    assert await queen.queue("q").wait(False).pop() == []
    assert "going on" in caplog.text


async def test_the_last_acknowledgement_of_a_consumer_whose_answer_is_lost_was_none_refused(
    client: Queen, proxy: Proxy, queen: Queen, caplog: pytest.LogCaptureFixture
) -> None:
    """The repetition is told that the lease is over: by the first one, for all anybody knows."""
    await queen.queue("q").push(1)

    async def handle(_: Message) -> None:
        consumer.stop()
        proxy.script.append(Lose())

    consumer = client.queue("q").connection(False).consume(handle)
    stats = await consumer
    assert [seen.target.rpartition("/")[2] for seen in proxy.seen[-2:]] == ["finish", "finish"]
    assert (stats.handled, stats.refused) == (1, 0)
    assert "refused" not in caplog.text
    assert await everything(queen, "q") == []


async def test_connections_are_kept_and_used_again(client: Queen, proxy: Proxy) -> None:
    for n in range(10):
        await client.queue("q").push(n)
    assert proxy.connections == 1


async def test_a_slow_answer_does_not_hold_up_others(client: Queen, proxy: Proxy) -> None:
    proxy.script.append(Stall())
    slow = asyncio.ensure_future(client.queue("q").push(1))
    await proxy.arrived.wait()
    async with asyncio.timeout(20):
        assert (await client.queue("q").push(2)).stored
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_a_long_poll_outlasts_the_ordinary_timeout(proxy: Proxy, queen: Queen) -> None:
    async with Queen(proxy.url, timeout_millis=100) as client:
        poll = asyncio.ensure_future(client.queue("q").timeout_millis(20_000).pop())
        await proxy.arrived.wait()
        await asyncio.sleep(0.3)  # the time that must pass is the client's own, which nobody can move
        await queen.queue("q").push("later")
        assert [message.data for message in await poll] == ["later"]


async def test_the_token_is_sent_and_asked_for_every_time() -> None:
    tokens = iter(["first", "second"])
    async with Scripted(default=Answer(204)) as server:
        options: Any = {"bearer_token": lambda: next(tokens), "headers": {"X-Tenant": "17"}}
        async with Queen(server.url, **options) as client:
            await client.queue("q").wait(False).pop()
            await client.queue("q").wait(False).pop()
            assert "first" not in repr(client._session.options)
    assert [seen.headers["authorization"] for seen in server.seen] == ["Bearer first", "Bearer second"]
    assert server.seen[0].headers["x-tenant"] == "17"


async def test_a_redirect_is_not_followed() -> None:
    """The token is for the servers that were named, and for no others."""
    async with Scripted(default=Answer(200, [])) as elsewhere:
        away = Answer(307, b"", (("Location", elsewhere.url),))
        async with Scripted(default=away) as server, Queen(server.url, bearer_token="x", retry_attempts=1) as client:
            with pytest.raises(InvalidResponse, match="307"):
                await client.queue("q").push(1)
    assert not elsewhere.seen


async def test_a_consumer_does_not_spin_on_empty_answers() -> None:
    async with Scripted(default=Answer(204)) as server, Queen(server.url) as client:
        await client.queue("q").idle_millis(500).consume(print)
    polls = [seen.target for seen in server.seen if seen.target.startswith("/api/v1/pop/")]
    assert 2 <= len(polls) <= 6
    assert len(server.seen) - len(polls) == 2, "one asks for a connection, and one whether there is such a queue"


async def test_a_closed_client_says_so(url: str, queen: Queen) -> None:
    client = Queen(url)
    await client.queue("q").push(Item(1))
    await client.close()
    await client.close()
    for use in (lambda: client.queue("q").push(1), lambda: client.queue("q").consume(print)):
        with pytest.raises(ClientClosed):
            use()
    with pytest.raises(ClientClosed):
        await client.queue("q").pop()
    with pytest.raises(ClientClosed):
        await client.admin.health()


async def test_an_unclosed_client_warns(url: str, queen: Queen) -> None:
    client = Queen(url)
    await client.admin.health()
    session = client._session
    with pytest.warns(ResourceWarning, match="unclosed client"):
        del client
    await session.close()
