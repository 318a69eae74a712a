"""The blocking twin: the same words, from plain threads, with a clean end."""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from client.faults import Proxy, Stall
from queenmq.client import (
    BlockingQueen,
    BlockingQueue,
    BlockingTransaction,
    ClientClosed,
    ConsumerStats,
    InvalidRequest,
    InvalidUse,
    Item,
    Message,
    Queen,
    Queue,
    Transaction,
    TransactionFailed,
)


async def in_thread(work: Any, *arguments: Any) -> Any:
    """Plain code must not run in the loop in which the server runs."""
    return await asyncio.wait_for(asyncio.to_thread(work, *arguments), 30)


async def test_the_whole_grammar(url: str, queen: Queen) -> None:
    def work() -> None:
        with BlockingQueen(url) as client:
            assert client.queue("q").config(retry_limit=0).create()["configured"]
            results = client.queue("q").partition("eu").push([{"n": 1}, Item({"n": 2**70}, "two")])
            assert results.stored
            messages = client.queue("q").group("g").batch(5).pop()
            assert [message.data for message in messages] == [{"n": 1}, {"n": 2**70}]
            assert client.renew(messages[0]).success
            assert [renewed.success for renewed in client.renew(messages)] == [True]
            assert client.trace(messages[0], "seen", names=["order-1"]).success
            assert client.ack(messages[0]).success
            assert [result.dlq for result in client.ack(messages[1:], False, error="bad")] == [True]
            assert client.queue("q").dlq("g").limit(5).get().total == 1
            client.transaction().queue("sink").push("a").commit()
            with client.transaction() as transaction:
                transaction.queue("sink").partition("p").push("b")
            with pytest.raises(ZeroDivisionError), client.transaction() as transaction:
                transaction.queue("sink").push(1 // 0)
            sink = client.queue("sink").batch(5).partitions(5).auto_ack().pop()
            assert sorted(message.data for message in sink) == ["a", "b"]
            with pytest.raises(TransactionFailed):
                client.transaction().queue("q").partition("eu").push(Item(1, "two")).commit()
            client.queue("q").buffer(message_count=10, time_millis=600_000).push([1, 2])
            assert client.get_buffer_stats().buffered_messages == 2
            client.queue("q").flush_buffer()
            client.flush_all_buffers()
            assert client.admin.health()["status"] == "healthy"
            assert client.admin.seek_consumer_group("g", "q", to_end=True)["success"]
            assert client.update_consumer_group_timestamp("g", "2024-01-01T00:00:00Z")["success"]
            assert client.delete_consumer_group("g")["success"]
            with pytest.raises(InvalidRequest) as caught:
                client.queue("x" * 256).push(1)
            assert caught.value.field == "items[0].queue"
            assert client.queue("q").delete()["deleted"]

    await in_thread(work)


async def test_consuming_in_threads(url: str, queen: Queen) -> None:
    for n in range(4):
        await queen.queue("q").partition(str(n)).push([1, 2, 3])
    threads: set[str] = set()
    most = 0
    busy = 0
    lock = threading.Lock()
    met = threading.Barrier(2, timeout=10)

    def handle(message: Message) -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
            threads.add(threading.current_thread().name)
        if message.data == 1:
            # Two workers are in their handlers at the same time.
            met.wait()
        client.queue("sink").push(message.data)
        with lock:
            busy -= 1

    def work() -> ConsumerStats:
        return client.queue("q").concurrency(2).limit(6).consume(handle)

    client = BlockingQueen(url)
    stats = await in_thread(work)
    assert (stats.handled, stats.failed) == (12, 0)
    assert most == 2
    assert all(name.startswith("queenmq-handler") for name in threads)
    await in_thread(client.close)
    assert len(await queen.queue("sink").batch(100).pop()) == 12


async def test_a_failing_handler_and_a_refused_consumer(url: str, queen: Queen) -> None:
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push([1])

    def fail(message: Message) -> None:
        raise RuntimeError("no good")

    def work() -> None:
        with BlockingQueen(url) as client:
            assert client.queue("q").limit(1).consume(fail).failed == 1
            with pytest.raises(InvalidRequest):
                client.queue("q").subscription_mode("nonsense").group("g").consume(fail)

    await in_thread(work)
    assert [dead.error_message for dead in await queen.queue("q").dlq().get()] == ["no good"]


async def test_an_async_handler_is_refused(url: str, queen: Queen) -> None:
    """Nobody would run what it returns, and the messages would be acknowledged."""
    await queen.queue("q").config(retry_limit=0).create()
    await queen.queue("q").push([1])

    async def handle(message: Message) -> None:
        raise AssertionError("it is never called")

    class Handler:
        async def __call__(self, message: Message) -> None:
            raise AssertionError("it is never called")

    def work() -> None:
        with BlockingQueen(url) as client:
            for handler in (handle, Handler(), functools.partial(handle)):
                with pytest.raises(InvalidUse, match="async function"):
                    client.queue("q").limit(1).consume(handler)
            assert client.queue("q").limit(1).consume(lambda message: handle(message)).failed == 1

    await in_thread(work)
    [dead] = await queen.queue("q").dlq().get()
    assert "returned a coroutine" in (dead.error_message or "")


async def test_a_signal_and_a_background_consumer(url: str, queen: Queen) -> None:
    seen: list[Any] = []
    done = threading.Event()

    def handle(messages: list[Message]) -> None:
        seen.extend(message.data for message in messages)
        done.set()

    def work() -> None:
        with BlockingQueen(url) as client:
            with client.queue("q").batch(5).start_consumer(handle) as consumer:
                client.queue("q").push([1])
                assert done.wait(10)
                assert consumer.running
            assert not consumer.running
            done.clear()
            client.queue("q").push([2])
            client.queue("q").batch(5).consume(handle, signal=done)

    await in_thread(work)
    assert seen == [1, 2]
    assert await queen.queue("q").wait(False).pop() == []


async def test_closing_ends_background_consumers_and_the_thread(url: str, queen: Queen) -> None:
    def work() -> None:
        before = threading.active_count()
        client = BlockingQueen(url)
        consumer = client.queue("q").start_consumer(print)
        client.queue("other").push(1)
        client.close()
        client.close()
        consumer.join(5)
        assert threading.active_count() == before
        with pytest.raises(ClientClosed):
            client.queue("q").pop()

    await in_thread(work)


async def test_many_threads_share_one_client(url: str, queen: Queen) -> None:
    def work() -> None:
        with BlockingQueen(url) as client:
            threads = [
                threading.Thread(target=lambda n=n: client.queue("q").partition(str(n)).push(list(range(20))))
                for n in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    await in_thread(work)
    messages = await queen.queue("q").batch(1000).partitions(8).pop()
    for n in range(8):
        assert [message.data for message in messages if message.partition == str(n)] == list(range(20))


async def test_it_refuses_to_wait_for_itself(url: str, queen: Queen) -> None:
    def work() -> None:
        with BlockingQueen(url) as client:

            async def inside() -> None:
                client.queue("q").pop()

            with pytest.raises(RuntimeError, match="own event loop"):
                client._portal.run(inside)

    await in_thread(work)


SCRIPT = """
    import sys, threading
    from queenmq.client import BlockingQueen

    def handle(message):
        print("begun", flush=True)
        threading.Event().wait(0.5)
        print("handled", message.data, flush=True)

    with BlockingQueen(sys.argv[1]) as queen:
        print("ended with", queen.queue("q").consume(handle).handled, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_finishes_what_is_in_hand(url: str, queen: Queen, number: signal.Signals) -> None:
    await queen.queue("q").push([1, 2])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"begun\n"
    process.send_signal(number)
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (output, errors, process.returncode) == (b"handled 1\nended with 1\n", b"", 0)
    assert [message.data for message in await queen.queue("q").batch(5).pop()] == [2]


async def test_an_interrupted_call_is_cancelled(proxy: Proxy, queen: Queen) -> None:
    proxy.script.append(Stall())

    def work() -> None:
        with BlockingQueen(proxy.url) as client:
            future = client._portal.start(client.queue("q")._queue.pop)
            while not proxy.seen:
                time.sleep(0.01)
            future.cancel()
            assert client.queue("q").push(1).stored

    await in_thread(work)


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [(Queen, BlockingQueen), (Queue, BlockingQueue), (Transaction, BlockingTransaction)],
)
def test_the_twins_have_the_same_words(asynchronous: type, blocking: type) -> None:
    def words(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for name, value in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    expected, found = words(asynchronous), words(blocking)
    found.pop("start_consumer", None)
    assert found == expected
    for name in expected:
        assert inspect.getdoc(getattr(blocking, name)), name
