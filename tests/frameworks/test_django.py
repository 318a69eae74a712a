"""Django's tasks on Queen: the guide's example, with a worker that is killed and a transaction that is rolled back."""

from __future__ import annotations

from cli.conftest import Running

from frameworks.conftest import Example
from queenmq.client import BlockingQueen

GUIDE = "django.md"
WORKER = ("-m", "django", "queen_worker", "--settings", "settings", "--pythonpath", ".", "--threads", "2")


def test_a_worker_is_killed_and_nothing_is_lost(example: Example, running: Running) -> None:
    follow(example, running)


def follow(example: Example, running: Running) -> None:
    example.run("place_orders.py")
    first = example.start(*WORKER)
    example.until(lambda done: len(done) >= 10)
    example.kill(first)
    second = example.start(*WORKER)
    done = example.until(lambda done: set(done) >= set(range(61)))
    assert set(done) == set(range(61)), "999 was rolled back"
    assert len(done) - 61 <= 2, "only what ran when the worker was killed may have run twice"
    with BlockingQueen(running.url) as queen:
        task = {"id": "1", "task": "jobs.bill", "args": [], "kwargs": {}}
        queen.queue("django.default").push([task])
        waiting = queen.queue("django.default").dlq()
        example.until(lambda _: bool(waiting.get().total))
        [letter] = waiting.get()
        assert letter.error_message.startswith("TypeError: bill() missing 1 required positional argument")
    example.end(second)
