"""Taskiq on Queen: the guide's example, with a worker that is killed."""

from __future__ import annotations

import asyncio

from cli.conftest import Running
from taskiq import BrokerMessage
from taskiq.serializers import PickleSerializer

from frameworks.conftest import Example
from queenmq.client import BlockingQueen
from queenmq.integrations.taskiq import QueenBroker

GUIDE = "taskiq.md"
WORKER = ("-m", "taskiq", "worker", "jobs:broker", "--workers", "1", "--max-async-tasks", "4")


def test_a_worker_is_killed_and_nothing_is_lost(example: Example) -> None:
    example.run("place_orders.py")
    first = example.start(*WORKER)
    example.until(lambda done: len(done) >= 10)
    example.kill(first)
    second = example.start(*WORKER)
    done = example.until(lambda done: set(done) == set(range(101)))
    assert len(done) - 101 <= 4, "only what ran when the worker was killed may have run twice"
    example.end(second)


def test_what_is_not_settled_is_given_back_and_any_serializer_works(running: Running, name: str) -> None:
    async def scenario() -> None:
        body = PickleSerializer().dumpb({"order": 1})
        first, second = QueenBroker(running.url, name), QueenBroker(running.url, name)
        await first.startup()
        await first.kick(BrokerMessage(task_id="1", task_name="bill", message=body, labels={}))
        listening = first.listen()
        assert (await anext(listening)).data == body
        await listening.aclose()
        await first.shutdown()
        await second.startup()
        listening = second.listen()
        again = await anext(listening)
        assert again.data == body
        again.ack()
        await listening.aclose()
        await second.shutdown()

    asyncio.run(scenario())


def test_a_task_that_is_sent_again_is_stored_again(running: Running, name: str) -> None:
    """As by a retry, which has the id of the task."""

    async def scenario() -> None:
        broker = QueenBroker(running.url, name, partitions=1)
        await broker.startup()
        for _ in range(2):
            await broker.kick(BrokerMessage(task_id="1", task_name="bill", message=b"{}", labels={}))
        await broker.shutdown()

    asyncio.run(scenario())
    with BlockingQueen(running.url) as queen:
        assert len(queen.queue(name).batch(10).pop()) == 2
