"""Workers that get SIGTERM or SIGINT, as real processes: what is in hand is finished, the rest is free at once."""

from __future__ import annotations

import asyncio
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from integration.queen import expire_leases

from queenmq.client import Queen

PATIENCE_S = 60
START = """
    import asyncio, sys
    from queenmq.client import Queen

    go_on = asyncio.Event()

    async def handle(given):
        messages = given if isinstance(given, list) else [given]
        print("begun", *[message.data for message in messages], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print("handled", flush=True)

    async def main():
        async with Queen(sys.argv[1]) as queen:
            orders = queen.queue("orders").partition("p").batch(3)
"""
AWAITED = """
            stats = await orders.each().consume(handle)
            print("ended with", stats.handled, flush=True)
"""
GATHERED = AWAITED.replace(".each()", ".each().ack_millis(3_600_000)")
WHOLE = AWAITED.replace(".each()", "")
BACKGROUND = """
            async with orders.each().consume(handle):
                await asyncio.Event().wait()
"""
OWN_HANDLER = """
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(15, lambda: (print("own", flush=True), stop.set()))
            await orders.each().consume(handle, signal=stop)
            print("ended", flush=True)
"""
LEFT_ALONE = AWAITED.replace("consume(handle)", "consume(handle, handle_signals=False)")
MAIN = """
    asyncio.run(main())
"""


class Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)).decode().strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def let_handle(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def end(self) -> tuple[list[str], str, int | None]:
        """The rest of what it prints, its errors, and its status."""
        output, errors = await asyncio.wait_for(self._process.communicate(), PATIENCE_S)
        return output.decode().splitlines(), errors.decode(), self._process.returncode


@asynccontextmanager
async def worker(url: str, body: str) -> AsyncIterator[Worker]:
    """A process that has begun to handle the first messages."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", textwrap.dedent(START + body + MAIN), url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Worker(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def left(queen: Queen) -> list[int]:
    """What another consumer gets at once, without waiting for a lease to end."""
    return [message.data for message in await queen.queue("orders").partition("p").batch(10).wait(False).pop()]


@pytest.fixture(autouse=True)
async def pushed(queen: Queen) -> None:
    await queen.queue("orders").config(lease_time=3600).create()
    await queen.queue("orders").partition("p").push([1, 2, 3, 4])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_message_in_hand_is_finished_and_the_rest_given_back(
    url: str, queen: Queen, number: signal.Signals
) -> None:
    async with worker(url, AWAITED) as running:
        assert await running.line() == "begun 1"
        running.signal(number)
        running.let_handle()
        assert await running.end() == (["handled", "ended with 1"], "", 0)
    messages = await queen.queue("orders").partition("p").batch(10).wait(False).pop()
    assert [(message.data, message.retry_count) for message in messages] == [(2, 0), (3, 0), (4, 0)]


async def test_acknowledgements_that_were_gathered_are_sent(url: str, queen: Queen) -> None:
    async with worker(url, GATHERED) as running:
        assert await running.line() == "begun 1"
        running.let_handle()
        assert [await running.line(), await running.line()] == ["handled", "begun 2"]
        assert await left(queen) == [], "nothing is acknowledged or given back yet"
        running.signal(signal.SIGTERM)
        running.let_handle()
        assert await running.end() == (["handled", "ended with 2"], "", 0)
    assert await left(queen) == [3, 4]


async def test_what_was_gathered_comes_again_if_the_process_is_killed(
    url: str, queen: Queen, sql: asyncpg.Connection
) -> None:
    async with worker(url, GATHERED) as running:
        assert await running.line() == "begun 1"
        running.let_handle()
        assert [await running.line(), await running.line()] == ["handled", "begun 2"]
        running.signal(signal.SIGKILL)
        await running.end()
    await expire_leases(sql)
    assert await left(queen) == [1, 2, 3, 4]


async def test_a_batch_in_hand_is_finished_as_a_whole(url: str, queen: Queen) -> None:
    async with worker(url, WHOLE) as running:
        assert await running.line() == "begun 1 2 3"
        running.signal(signal.SIGTERM)
        running.let_handle()
        assert await running.end() == (["handled", "ended with 3"], "", 0)
    assert await left(queen) == [4]


async def test_a_second_signal_gives_back_what_is_in_hand(url: str, queen: Queen) -> None:
    async with worker(url, AWAITED) as running:
        assert await running.line() == "begun 1"
        running.signal(signal.SIGTERM)
        running.signal(signal.SIGINT)
        # Signals of different kinds may arrive together; the handler's thread must end for the process to.
        while await left(queen) == []:
            await asyncio.sleep(0.05)
        running.let_handle()
        output, errors, status = await running.end()
        assert (output[-1:], errors, status) == (["ended with 0"], "", 0)


async def test_a_consumer_in_the_background_is_drained_before_the_signal_takes_effect(url: str, queen: Queen) -> None:
    async with worker(url, BACKGROUND) as running:
        assert await running.line() == "begun 1"
        running.signal(signal.SIGTERM)
        running.let_handle()
        assert await running.end() == (["handled"], "", -signal.SIGTERM)
    assert await left(queen) == [2, 3, 4]


async def test_a_handler_of_the_program_is_left_alone(url: str, queen: Queen) -> None:
    async with worker(url, OWN_HANDLER) as running:
        assert await running.line() == "begun 1"
        running.signal(signal.SIGTERM)
        assert await running.line() == "own"
        running.let_handle()
        assert await running.end() == (["handled", "ended"], "", 0)
    assert await left(queen) == [2, 3, 4]


async def test_signals_are_left_alone_if_that_is_asked_for(url: str) -> None:
    async with worker(url, LEFT_ALONE) as running:
        assert await running.line() == "begun 1"
        running.signal(signal.SIGTERM)
        assert (await running.end())[2] == -signal.SIGTERM
