"""What type checkers say of programs that use the client: mistakes are found before they run, and only mistakes. mypy
and pyright, both as strict as they can be.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

from client import pyright
from queenmq.client.options import QueueOptions
from queenmq.core import options

BEGINNING = """\
from dataclasses import dataclass
from datetime import datetime

from queenmq.client import BlockingQueen, Content, Item, Message, Queen

@dataclass
class Order:
    number: int

async def one(message: Message) -> None: ...
async def many(messages: list[Message]) -> None: ...
def plain(message: Message) -> None: ...
def plain_many(messages: list[Message]) -> None: ...

async def program(queen: Queen, blocking: BlockingQueen, message: Message) -> None:
    queue, twin = queen.queue("orders"), blocking.queue("orders")
"""
RIGHT = """\
    await queue.consume(one)
    await queue.group("g").batch(5).concurrency(2).consume(many)
    await queue.batch(1).consume(one)
    await queue.batch(5).each().limit(3).consume(one)
    await queue.batch("auto").consume(many)
    await queue.batch("auto").each().ack_millis(0).consume(one)
    twin.batch("auto").consume(plain_many)
    twin.consume(plain)
    twin.batch(5).consume(plain_many)
    await queue.config({"retryLimit": 1}, lease_time=60, ttl=None).create()
    await queue.push([Order(1), {"order": 2}, Item("three", transaction_id="3"), None, datetime.now()])
    await queue.push(Order(1))
    await queue.push([Content(b"bytes", "image/png"), Item(Content(b"", "text/plain"), transaction_id="1")])
    print(message.content.content_type if message.content else None)
    await queen.ack(message, "failed", error="no such address")
    await queen.ack([message], False)
    queen.transaction().ack(message, "dlq").queue("other").push({"order": 1})
    order: Order = message.decode(Order)
    print(order.number, message.decode(list[int])[0] + 1)
    listed = await queen.admin.list_queues(limit=10)
    names: list[str] = [one["name"] for one in listed["queues"]]
    depth: int = blocking.admin.get_queue_depth("orders", "g")["pending"]
    lags = {group["name"]: group["totalLag"] for group in blocking.admin.list_consumer_groups(queue="orders")}
    print(names, depth, lags, (await queen.admin.get_consumer_group("g"))["orders"]["partitions"])
    seek = queen.admin.seek_consumer_group
    print(await seek("g", "orders", to_end=True), blocking.admin.metrics()["uptime"])
"""
WRONG = [
    "await queue.batch(5).consume(one)",
    "await queue.consume(many)",
    "await queue.batch(5).each().consume(many)",
    "twin.batch(5).consume(plain)",
    "await queue.batch('auto').consume(one)",
    "await queue.batch('all').consume(many)",
    "twin.consume(plain_many)",
    "await queue.config(retry_limt=3).create()",
    "await queue.config(retry_limit='3').create()",
    "await queen.ack(message, 'faild')",
    "blocking.ack(message, 'done')",
    "queen.transaction().ack(message, 'retry')",
    "await queue.push(object())",
    "twin.push({1, 2})",
    "twin.push(b'bytes')",
    "number: int = message.decode(Order)",
    "queue.subscription_mode('newest')",
    "print((await queen.admin.list_queues())['queue'])",
    "print(blocking.admin.get_overview()['queus'])",
    "print(queen.admin.list_queues()['queues'])",
    "print((await queen.admin.health())['status'] + 1)",
    "await queen.admin.clear_queue(partition='p')",
    "await blocking.admin.list_pauses()",
    "blocking.admin.get_lagging_consumers('60')",
]


def complaints_of_mypy(program: Path) -> dict[int, str]:
    out, errors, _ = api.run(
        ["--strict", "--config-file=", f"--cache-dir={program.parent}", "--no-pretty", str(program)]
    )
    assert not errors, errors
    found = [line.split(":", 3) for line in out.splitlines() if ": error: " in line]
    assert all(Path(name).name == program.name for name, *_ in found), out
    return {int(number): text for _, number, _, text in found}


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def complaints(request: pytest.FixtureRequest) -> dict[str, str]:
    """By line of a program; a line without a mistake is not in it."""
    # Always in the same place, which mypy remembers with the result.
    cache = Path(__file__).parents[2] / ".mypy_cache" / "programs"
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / "program.py"
    lines = [BEGINNING, RIGHT, *(f"    {line}\n" for line in WRONG)]
    program.write_text("".join(lines))
    source = program.read_text().splitlines()
    found = {"mypy": complaints_of_mypy, "pyright": pyright.complaints}[request.param](program)
    return {source[number - 1].strip(): text for number, text in found.items()}


@pytest.mark.parametrize("line", WRONG)
def test_mistakes_are_found(complaints: dict[str, str], line: str) -> None:
    assert line in complaints


def test_config_knows_the_options_of_the_server() -> None:
    assert list(QueueOptions.__annotations__) == list(options.QueueOptions.__struct_fields__)


def test_programs_without_mistakes_pass(complaints: dict[str, str]) -> None:
    assert complaints.keys() <= set(WRONG)
