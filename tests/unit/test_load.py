"""The load of a server, by the injected clock: how long a decision holds, and when a wait is no burst any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from queenmq.broker.load import LoadWatch
from queenmq.broker.load_manager import Choice
from queenmq.clock import ManualClock
from queenmq.config import OverloadSettings

SETTINGS = OverloadSettings(wait_threshold_ms=1000, standing_wait_ms=20, standing_after_ms=100)


@dataclass
class Lane:
    """Stands for a lane of pushes."""

    pending: int = 0
    waited_s: float = 0.0

    def wait_s(self, now: float) -> float:
        return self.waited_s


@dataclass
class Database:
    waiting: int = 0
    in_use: int = 0


@dataclass
class Scene:
    clock: ManualClock = field(default_factory=ManualClock)
    database: Database = field(default_factory=Database)
    direct: Lane = field(default_factory=Lane)
    queued: Lane = field(default_factory=Lane)

    def __post_init__(self) -> None:
        self.load = LoadWatch(cast(Any, self.database), SETTINGS, 10, self.clock)
        self.load.watch(cast(Any, self.direct), cast(Any, self.queued))

    def decide(self, after_s: float = 0.0) -> Choice:
        self.clock.advance(after_s)
        return self.load.decide_push().choice


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_decision_holds_for_a_millisecond(scene: Scene) -> None:
    scene.direct.pending, scene.direct.waited_s = 1, 2.0
    assert scene.decide() is Choice.QUEUE
    scene.direct.waited_s = 0.0
    assert scene.decide(0.0009) is Choice.QUEUE
    assert scene.decide(0.0002) is Choice.EXECUTE


def test_while_nothing_waits_nothing_is_remembered(scene: Scene) -> None:
    scene.direct.pending, scene.direct.waited_s = 1, 2.0
    assert scene.decide() is Choice.QUEUE
    scene.direct.pending, scene.direct.waited_s = 0, 0.0
    assert scene.decide() is Choice.EXECUTE


def test_a_burst_is_executed_and_a_queue_that_stands_is_deferred(scene: Scene) -> None:
    scene.direct.pending, scene.direct.waited_s = 5, 0.05
    assert scene.decide() is Choice.EXECUTE
    assert scene.decide(0.099) is Choice.EXECUTE
    assert scene.decide(0.002) is Choice.QUEUE


def test_one_short_wait_ends_a_burst(scene: Scene) -> None:
    scene.direct.pending, scene.direct.waited_s = 5, 0.05
    scene.decide()
    scene.direct.waited_s = 0.01
    assert scene.decide(0.05) is Choice.EXECUTE
    scene.direct.waited_s = 0.05
    assert scene.decide(0.06) is Choice.EXECUTE
    assert scene.decide(0.101) is Choice.QUEUE


def test_when_queueing_waits_too_long_as_well_a_push_is_refused(scene: Scene) -> None:
    scene.direct.pending, scene.direct.waited_s = 5, 2.0
    scene.queued.waited_s = 0.05
    assert scene.decide() is Choice.QUEUE
    assert scene.decide(0.101) is Choice.REJECT


def test_calls_that_wait_for_a_connection_for_long(scene: Scene) -> None:
    scene.database.waiting, scene.database.in_use = 3, 10
    assert scene.decide() is Choice.EXECUTE
    assert scene.decide(0.101) is Choice.QUEUE


def test_the_operation_queue_stalls_when_nothing_was_done_for_as_long_as_it_is_measured(scene: Scene) -> None:
    scene.load.note(queue_depth=10, drain_rate=0.0)
    assert scene.load.retry_after_s() == 1
    scene.clock.advance(9.9)
    scene.load.note(queue_depth=10, drain_rate=0.0)
    assert scene.load.retry_after_s() == 1
    scene.clock.advance(0.2)
    scene.load.note(queue_depth=10, drain_rate=0.0)
    assert scene.load.retry_after_s() == 30
    scene.load.note(queue_depth=10, drain_rate=1.0)
    assert scene.load.retry_after_s() == 1
