"""Dramatiq on Queen: the guide's example, with a worker that is killed."""

from __future__ import annotations

from collections import Counter

import dramatiq
import pytest
from cli.conftest import Running
from dramatiq.errors import ConnectionClosed, QueueNotFound

from frameworks.conftest import Example
from queenmq.client import BlockingQueen
from queenmq.integrations.dramatiq import QueenBroker

GUIDE = "dramatiq.md"
WORKER = ("-m", "dramatiq", "jobs", "--processes", "1", "--threads", "2")


def test_a_worker_is_killed_and_nothing_is_lost(example: Example) -> None:
    example.run("place_orders.py")
    first = example.start(*WORKER)
    example.until(lambda done: len(done) >= 10)
    example.kill(first)
    second = example.start(*WORKER)
    done = example.until(lambda done: set(done) == set(range(102)) and Counter(done)[101] >= 2)
    assert len(done) - 103 <= 2, "only what ran when the worker was killed may have run twice"
    example.end(second)


def test_what_becomes_of_a_message(running: Running, name: str) -> None:
    broker = QueenBroker(running.url, namespace=name)
    broker.declare_queue("q")
    with pytest.raises(QueueNotFound):
        broker.consume("other")
    for number in range(3):
        message = dramatiq.Message(queue_name="q", actor_name="a", args=(number,), kwargs={}, options={})
        broker.enqueue(message)
    consumer = broker.consume("q", prefetch=3, timeout=20_000)
    first, second, third = (next(consumer) for _ in range(3))
    consumer.ack(first)
    consumer.nack(second)
    consumer.requeue([third])
    again = next(consumer)
    assert again.args == third.args
    consumer.ack(again)
    consumer.close()
    assert next(broker.consume("q", timeout=300)) is None
    with BlockingQueen(running.url) as queen:
        [letter] = queen.queue(f"{name}.q").dlq().get()
        assert letter.data["args"] == list(second.args)
    broker.close()


def test_a_message_that_is_sent_again_is_stored_again(running: Running, name: str) -> None:
    """As by a retry, which has the id of the message."""
    broker = QueenBroker(running.url, namespace=name, partitions=1)
    broker.declare_queue("q")
    message = dramatiq.Message(queue_name="q", actor_name="a", args=(), kwargs={}, options={})
    for _ in range(2):
        broker.enqueue(message)
    broker.close()
    with BlockingQueen(running.url) as queen:
        assert len(queen.queue(f"{name}.q").batch(10).pop()) == 2


def test_a_server_that_is_away(name: str) -> None:
    broker = QueenBroker("http://127.0.0.1:1", retry_attempts=1)
    broker.declare_queue("q")
    with pytest.raises(ConnectionClosed):
        broker.consume("q")
    broker.close()
