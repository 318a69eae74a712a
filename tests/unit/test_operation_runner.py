"""Stepped operations go behind pushes that wait, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from passing_time import pass_time, settle

from queenmq.broker.operation_runner import OperationRunner
from queenmq.clock import ManualClock
from queenmq.config import OperationSettings
from queenmq.errors import DatabaseUnavailable
from queenmq.operations.steps import Begun, Claimed, Step
from queenmq.storage.failures import AnswerLost


class Scene:
    """A runner whose statements the test answers: so many claims of pushes find some, and no step is the last."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.load: Any = SimpleNamespace(may_have_operations=True, note_queued=lambda depth: None)
        self.runner = OperationRunner(
            cast("Any", None),
            cast("Any", None),
            OperationSettings(max_concurrent=2, wait_ms=0),
            self.clock,
            load=self.load,
            activity=cast("Any", SimpleNamespace(touched=set())),
            readable=lambda queue, partitions=None: None,
            server_id="s",
        )
        self.runner.pushes = cast("Any", self)
        self.runner.steps = cast("Any", self)
        self.interrupted = False
        self.pushes = 0
        self.steps = 0
        self.claims: list[bool] = []
        self.begun = Begun(1)

    async def claim(self, _partitions: int, _length: int) -> Any:
        self.pushes -= 1
        return SimpleNamespace(rows=[1]) if self.pushes >= 0 else None

    async def run(self, _claimed: Any) -> AsyncIterator[list[tuple[str, str]]]:
        yield [("q", "p")]

    async def begin(self, _kind: str, _queue: str, _parameters: Any, *, claim: bool) -> Begun:
        self.claims.append(claim)
        return self.begun

    async def claim_next(self) -> None:
        return None

    async def step(self, _claimed: Claimed) -> Step:
        self.steps += 1
        await asyncio.sleep(0)
        return Step(kind="clear", queue="q", done=1, finished=False)

    async def push(self, waiting: int) -> None:
        """Run one batch of pushes, behind which so many wait."""
        self.pushes = waiting + 1
        await self.runner.run_pushes(1, 1)


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_they_are_taken_up_when_no_push_waits(scene: Scene) -> None:
    assert scene.runner.steps_may_go
    await scene.push(1)
    assert not scene.runner.steps_may_go
    await scene.runner.run_pushes(1, 1)
    await scene.runner.run_pushes(1, 1)
    assert scene.runner.steps_may_go


async def test_pushes_that_never_end_keep_them_waiting_for_five_seconds(scene: Scene) -> None:
    await scene.push(1)
    scene.clock.advance(4.9)
    assert not scene.runner.steps_may_go
    scene.clock.advance(0.1)
    assert scene.runner.steps_may_go
    await scene.runner.take_up()
    assert not scene.runner.steps_may_go


async def test_what_a_request_begins_goes_on_at_once_unless_pushes_wait(scene: Scene) -> None:
    await scene.runner.begin("clear", "q", cast("Any", None))
    await scene.push(1)
    await scene.runner.begin("clear", "q", cast("Any", None))
    assert scene.claims == [True, False]


async def test_the_answer_is_unknown_when_the_database_goes_away_behind_the_beginning(scene: Scene) -> None:
    """The operation will be done: the answer must not say that nothing was kept."""

    async def away(_: str) -> None:
        raise DatabaseUnavailable

    scene.begun = Begun(1, "o")
    scene.runner._queue = cast("Any", SimpleNamespace(find=away))
    with pytest.raises(AnswerLost):
        await scene.runner.begin("clear", "q", cast("Any", None))


async def test_one_that_runs_lets_pushes_go_first_between_its_steps(scene: Scene) -> None:
    await scene.push(1)
    running = asyncio.create_task(scene.runner._run(Claimed("o", "c")))
    await pass_time(scene.clock, 4.9)
    assert scene.steps == 0
    await pass_time(scene.clock, 5.2)
    assert scene.steps == 2
    scene.load.may_have_operations = False
    await pass_time(scene.clock, 0.1)
    assert scene.steps > 2
    running.cancel()
    await settle()
