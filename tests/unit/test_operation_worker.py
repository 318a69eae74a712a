"""The worker of the operation queue: whose turn it is, on a clock that the test moves."""

from __future__ import annotations

from typing import cast

import pytest

from queenmq.broker.operation_runner import OperationRunner
from queenmq.clock import ManualClock
from queenmq.config import OperationSettings
from queenmq.errors import DatabaseUnavailable
from queenmq.operations.queue import OperationQueue
from queenmq.services.operation_worker import OperationWorker
from queenmq.storage.database import Database


class Scene:
    """A runner and a queue that note what they are asked for. A batch of pushes takes `batch_s`."""

    def __init__(self, batches: int = 0, batch_s: float = 0.0) -> None:
        self.clock = ManualClock()
        self.is_open = True
        self.may_have_steps = self.may_have_pushes = True
        self.failing: dict[str, Exception] = {}
        self.done: list[str] = []
        self._batches = batches
        self._batch_s = batch_s
        self.worker = OperationWorker(
            cast("Database", self),
            cast("OperationRunner", self),
            cast("OperationQueue", self),
            self.clock,
            OperationSettings(partitions=50, run=20, keep_s=60, keep_failed_s=600),
        )

    def _note(self, what: str) -> None:
        self.done.append(what)
        if what in self.failing:
            raise self.failing[what]

    async def take_up(self) -> None:
        self._note("steps")

    async def run_pushes(self, partitions: int, length: int) -> int:
        assert (partitions, length) == (50, 20)
        self._note("pushes")
        self.clock.advance(self._batch_s)
        self._batches -= 1
        return int(self._batches > 0)

    @property
    def steps_may_go(self) -> bool:
        return self._batches <= 0

    async def fold_size_changes(self) -> None:
        self._note("clean")

    async def forget(self, keep_s: int, keep_failed_s: int, most: int) -> int:
        assert (keep_s, keep_failed_s, most) == (60, 600, 1000)
        return 0


async def test_a_turn_does_everything_once_and_cleans_once_a_minute() -> None:
    scene = Scene()
    await scene.worker.work()
    await scene.worker.work()
    assert scene.done == ["pushes", "steps", "clean", "pushes", "steps"]
    scene.clock.advance(60)
    await scene.worker.work()
    assert scene.done[5:] == ["pushes", "steps", "clean"]


async def test_without_work_nothing_is_asked_for() -> None:
    scene = Scene()
    await scene.worker.work()
    scene.done.clear()
    scene.may_have_steps = scene.may_have_pushes = False
    await scene.worker.work()
    assert scene.done == []


async def test_without_a_database_nothing_is_asked_for() -> None:
    scene = Scene()
    scene.is_open = False
    await scene.worker.work()
    assert scene.done == []


async def test_stepped_operations_are_taken_up_when_no_push_waits() -> None:
    scene = Scene(batches=10, batch_s=0.15)
    await scene.worker.work()
    assert scene.done == ["pushes", "pushes", "clean", *["pushes"] * 8, "steps"]


@pytest.mark.parametrize("job", ["steps", "pushes", "clean"])
async def test_what_fails_does_not_keep_the_rest_from_being_done(job: str) -> None:
    scene = Scene()
    scene.failing = {job: DatabaseUnavailable("away")}
    await scene.worker.work()
    assert scene.done == ["pushes", "steps", "clean"]
    scene.clock.advance(60)
    scene.failing = {job: ValueError("defect")}
    with pytest.raises(ValueError, match="defect"):
        await scene.worker.work()
    assert scene.done[3:] == ["pushes", "steps", "clean"]
