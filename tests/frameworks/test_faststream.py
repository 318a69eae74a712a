"""FastStream on Queen: the guide's example, with a process that is killed, and what becomes of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import asyncpg
import pytest
from cli.conftest import Running
from faststream import AckPolicy, Context
from faststream.exceptions import FeatureNotSupportedException, IncorrectState, RejectMessage, StopConsume
from faststream.specification import AsyncAPI

from frameworks.conftest import PATIENCE_S, Example
from queenmq.client import BlockingQueen, NetworkError, Queen
from queenmq.integrations.faststream import QueenBroker, QueenMessage, QueenResponse, QueenRouter
from queenmq.integrations.faststream.testing import TestQueenBroker

GUIDE = "faststream.md"
Handled = Annotated[QueenMessage, Context("message")]


def test_processes_are_killed_and_nothing_is_lost(example: Example, running: Running) -> None:
    async def in_database(statement: str) -> list[Any]:
        database = await asyncpg.connect(running.database_url)
        try:
            return await database.fetch(statement)
        finally:
            await database.close()

    def booked() -> list[int]:
        return sorted(row["id"] for row in asyncio.run(in_database("SELECT id FROM books")))

    with BlockingQueen(running.url) as queen:
        asyncio.run(in_database("CREATE TABLE books (id integer)"))
        invoices = queen.queue("shop.invoices")
        invoices.config(lease_time=5).create()
        example.run("place_orders.py")
        workers = [example.start(program) for program in ("shop.py", "ledger.py")]
        example.until(lambda done: len(done) >= 10 and len(booked()) >= 5)
        for worker in workers:
            example.kill(worker)
        workers = [example.start(program) for program in ("shop.py", "ledger.py")]
        done = example.until(lambda done: set(done) == set(range(100)))
        assert len(done) - 100 <= 5, "only what ran when the process was killed may have run twice"
        firsts = list(dict.fromkeys(done))
        for customer in range(10):
            orders = [order for order in firsts if order % 10 == customer]
            assert orders == sorted(orders)
        stored = sorted(message.data["order"] for message in invoices.read().messages)
        example.until(lambda _: len(booked()) >= len(stored))
        assert booked() == stored, "an invoice takes effect once, whoever is killed"
        for worker in workers:
            example.end(worker)
        example.run("test_shop.py")


@pytest.fixture
def broker(running: Running) -> QueenBroker:
    return QueenBroker(running.url, logger=None)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


async def test_every_kind_of_body_comes_as_it_was_sent(broker: QueenBroker, name: str) -> None:
    bodies: list[Any] = [{"n": 1}, [1, 2], 17, "text", '{"looks": "like JSON"}', b"\x00\xff", "é", True]
    got: list[Any] = []

    @broker.subscriber(name)
    async def keep(body: Any) -> None:
        got.append(body)

    async with broker:
        await broker.start()
        for body in bodies:
            await broker.publish(body, name)
        await until(lambda: len(got) == len(bodies))
    assert got == bodies


async def test_a_failure_is_tried_again_and_becomes_a_dead_letter(
    running: Running, broker: QueenBroker, name: str
) -> None:
    attempts: list[int] = []
    async with Queen(running.url) as queen:
        await queen.queue(name).config(retry_limit=2, retry_delay=0, dlq_after_max_retries=True).create()

        @broker.subscriber(name)
        async def fail(body: int) -> None:
            attempts.append(body)
            raise ValueError("no such order")

        async with broker:
            await broker.start()
            await broker.publish(1, name)
            letters = queen.queue(name).dlq()
            while not (found := await letters.get()).total:
                await asyncio.sleep(0.02)
    assert len(attempts) == 3
    assert [letter.error_message for letter in found] == ["ValueError: no such order"]


@pytest.mark.parametrize(
    ("policy", "dead", "left"),
    [(AckPolicy.REJECT_ON_ERROR, 1, 0), (AckPolicy.ACK, 0, 0), (AckPolicy.ACK_FIRST, 0, 0)],
)
async def test_what_becomes_of_a_message_whose_handler_fails(
    running: Running, broker: QueenBroker, name: str, policy: AckPolicy, dead: int, left: int
) -> None:
    failed = asyncio.Event()

    @broker.subscriber(name, ack_policy=policy)
    async def fail(body: int) -> None:
        failed.set()
        raise ValueError(body)

    async with broker:
        await broker.start()
        await broker.publish(1, name)
        async with asyncio.timeout(PATIENCE_S):
            await failed.wait()
    async with Queen(running.url) as queen:
        assert (await queen.queue(name).dlq().get()).total == dead
        assert len(await queen.queue(name).wait(False).pop()) == left


async def test_replies_results_and_headers(broker: QueenBroker, name: str) -> None:
    got: dict[str, Any] = {}
    router = QueenRouter(f"{name}.")

    @router.subscriber("orders")
    @router.publisher("invoices", headers={"kind": "invoice"})
    async def bill(order: int) -> QueenResponse:
        return QueenResponse({"bill": order}, partition="customer-4", headers={"by": "me"})

    @router.subscriber("invoices")
    @router.subscriber("replies")
    async def keep(message: Handled) -> None:
        got[message.raw_message.queue.rsplit(".", 1)[1]] = message

    broker.include_router(router)
    async with broker:
        await broker.start()
        result = await broker.publish(1, f"{name}.orders", reply_to=f"{name}.replies", correlation_id="c-1")
        assert result.stored
        await until(lambda: len(got) == 2)
    invoice = got["invoices"]
    assert (invoice.raw_message.data, invoice.raw_message.partition) == ({"bill": 1}, "customer-4")
    assert {"kind": "invoice", "by": "me"}.items() <= invoice.headers.items()
    assert invoice.correlation_id == got["replies"].correlation_id == "c-1"


async def test_a_stop_gives_back_what_takes_too_long(running: Running, name: str) -> None:
    broker, begun = QueenBroker(running.url, logger=None, graceful_timeout=0.1), asyncio.Event()

    @broker.subscriber(name)
    async def wait(body: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with broker:
        await broker.start()
        await broker.publish(1, name)
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
    async with Queen(running.url) as queen:
        [message] = await queen.queue(name).wait(False).pop()
        assert (message.data, message.retry_count) == (1, 0)


async def test_a_handler_that_stops_its_subscriber(running: Running, broker: QueenBroker, name: str) -> None:
    got: list[int] = []

    @broker.subscriber(name)
    async def stop(body: int) -> None:
        got.append(body)
        raise StopConsume if body == 2 else RejectMessage

    async with broker:
        await broker.start()
        for body in (1, 2, 3):
            await broker.publish(body, name)
        await until(lambda: len(got) == 2)
        await until(lambda: not broker.subscribers[0].running)
    assert got == [1, 2]
    with BlockingQueen(running.url) as queen:
        assert [letter.data for letter in queen.queue(name).dlq().get()] == [1]


async def test_one_message_at_a_time_without_handlers(broker: QueenBroker, name: str) -> None:
    async with broker:
        subscriber = broker.subscriber(name)
        await subscriber.start()
        assert await subscriber.get_one(timeout=0.05) is None
        await broker.publish_batch("a", "b", queue=name)
        message = await subscriber.get_one()
        assert await message.decode() == "a"
        await message.nack()
        async for message in subscriber:
            assert await message.decode() == "a"
            await message.ack()
            break
        message = await subscriber.get_one()
        await message.ack()


async def test_what_is_refused(broker: QueenBroker, name: str) -> None:
    with pytest.raises(IncorrectState, match="not connected"):
        await broker.publish(1, name)
    async with broker:
        assert await broker.ping()
        with pytest.raises(FeatureNotSupportedException, match="reply_to"):
            await broker.request(1, name)
    assert not await broker.ping()
    with pytest.raises(NetworkError):
        await QueenBroker("http://127.0.0.1:1", client={"retry_attempts": 1}).connect()


def test_the_description_of_an_application(broker: QueenBroker) -> None:
    @broker.subscriber("orders", description="What customers ask for")
    @broker.publisher("invoices", title="Invoices")
    async def bill(order: int) -> str:
        return ""

    described = AsyncAPI(broker).to_specification().to_jsonable()
    assert {channel["address"] for channel in described["channels"].values()} == {"orders", "invoices"}


async def test_in_memory(broker: QueenBroker) -> None:
    @broker.subscriber("orders", group="a")
    @broker.subscriber("orders", group="b")
    @broker.publisher("invoices")
    async def bill(order: int) -> dict[str, int]:
        if order < 0:
            raise ValueError(order)
        return {"order": order}

    @broker.subscriber("invoices")
    async def keep(invoice: dict[str, int]) -> None: ...

    async with TestQueenBroker(broker):
        await broker.publish(17, "orders")
        assert bill.mock.call_count == keep.mock.call_count == 2
        with pytest.raises(ValueError, match="-1"):
            await broker.publish(-1, "orders")
