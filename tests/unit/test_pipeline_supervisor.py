"""The supervisor in virtual time, with drivers and a store that do what the test says."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from queenmq.clock import ManualClock
from queenmq.pipeline import leases
from queenmq.pipeline.driver import DRAINED, FAILED, HOPELESS, SUPERSEDED
from queenmq.pipeline.errors import DatabaseAway
from queenmq.pipeline.supervise import Health
from queenmq.pipeline.supervisor import SILENT_S, Held, Supervisor
from queenmq.retry import Pauses


@dataclass
class Child:
    held: Held
    generation: int
    status: int | None = None
    drains: int = 0
    kills: int = 0

    def poll(self) -> int | None:
        return self.status

    def drain(self) -> None:
        self.drains += 1

    def kill(self) -> None:
        self.kills += 1
        self.status = -9


@dataclass
class Table:
    """What PostgreSQL would hold."""

    held: dict[str, Held] = field(default_factory=dict)
    away: bool = False
    busy: bool = False
    generation: int = 0
    said: list[tuple[Any, ...]] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def hold(self, *, take: bool) -> list[Held]:
        if self.away:
            raise DatabaseAway("gone")
        return list(self.held.values())

    def begin(self, name: str, version: int) -> int | None:
        if self.busy:
            return None
        self.generation += 1
        return self.generation

    def say(self, name: str, state: str, failures: int, pause_s: float | None, error: str | None) -> None:
        self.said.append((state, failures, error))

    def release(self, names: list[str]) -> None:
        for name in names:
            self.released.append(name)
            del self.held[name]


ONE = Held(name="one", version=1, declaration={}, state_number=1, wanted="running", asked=0, silent_s=0.0)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.table = Table({"one": ONE})
        self.children: list[Child] = []
        self.exhausted: set[str] = set()  # of whom no driver can be started
        pauses = Pauses(1.0, 60.0, spread=0.0)
        self.supervisor = Supervisor(self.table, self.launch, drain_s=30.0, clock=self.clock, pauses=pauses)

    def launch(self, held: Held, generation: int) -> Child:
        if held.name in self.exhausted:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        self.children.append(Child(held, generation))
        return self.children[-1]

    def change(self, **fields: Any) -> None:
        self.table.held["one"] = replace(self.table.held["one"], **fields)

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.supervisor.tick()


@pytest.fixture
def world() -> World:
    made = World()
    made.tick()
    return made


def test_a_driver_is_started_once(world: World) -> None:
    world.tick(1)
    assert [child.generation for child in world.children] == [1]


def test_one_that_fails_is_started_again_after_growing_pauses(world: World) -> None:
    starts = []
    for _ in range(8):
        world.children[-1].status = FAILED
        world.tick()
        before = world.clock.monotonic()
        count = len(world.children)
        while len(world.children) == count:
            world.tick(0.5)
        starts.append(world.clock.monotonic() - before)
    assert starts == [1, 2, 4, 8, 16, 32, 60, 60]
    assert world.table.said[-1] == ("waiting", 8, None)


def test_who_has_run_for_long_begins_with_the_shortest_pause(world: World) -> None:
    for _ in range(4):
        world.children[-1].status = -9
        world.tick()
        world.tick(60)
    assert world.table.said[-1] == ("waiting", 4, "the driver was ended by signal 9")
    world.tick(100)
    world.children[-1].status = FAILED
    world.tick()
    assert world.table.said[-1][1] == 1


def test_what_would_fail_again_waits_for_a_person(world: World) -> None:
    world.children[0].status = HOPELESS
    world.tick()
    world.tick(10_000)
    assert len(world.children) == 1
    assert world.table.said == [("failed", 1, None)]
    world.change(asked=1)
    world.tick()
    assert len(world.children) == 2


def test_another_version_drains_the_old_one_first(world: World) -> None:
    world.change(version=2, asked=1)
    world.tick(1)
    world.tick(1)
    assert (world.children[0].drains, len(world.children)) == (1, 1)
    world.children[0].status = DRAINED
    world.tick(1)
    assert [child.held.version for child in world.children] == [1, 2]
    assert world.table.said == []


def test_what_does_not_drain_is_killed(world: World) -> None:
    world.change(wanted="stopped")
    world.tick()
    world.tick(29)
    assert world.children[0].kills == 0
    world.tick(2)
    world.tick()
    assert world.children[0].kills == 1
    assert world.table.released == ["one"]
    assert world.table.said == [("stopped", 0, None)]


@pytest.mark.parametrize("status", [FAILED, HOPELESS])
def test_one_that_fails_while_it_drains_is_reported(world: World, status: int) -> None:
    world.change(wanted="stopped")
    world.tick()
    world.children[0].status = status
    world.tick()
    assert world.table.said[0][0] in ("waiting", "failed")
    assert world.table.released == ["one"]


def test_one_that_cannot_be_started_leaves_the_others_alone(world: World) -> None:
    world.tick(100)
    world.table.held["two"] = replace(ONE, name="two")
    world.exhausted.add("two")
    for _ in range(5):
        world.tick()
        world.tick(60)
    assert [child.held.name for child in world.children] == ["one"]
    assert (world.children[0].kills, world.supervisor.units["two"].state) == (0, "waiting")
    assert world.table.said[-1] == ("waiting", 6, "the driver cannot be started: Cannot allocate memory")
    begun = world.table.generation
    world.tick(30)
    assert world.table.generation == begun, "the pauses grow"
    world.exhausted.clear()
    world.tick(60)
    assert [child.held.name for child in world.children] == ["one", "two"]
    assert world.supervisor.units["two"].state == "running"


def test_a_connection_that_is_lost_at_once_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg")

    class Lost:
        closed = False

        def execute(self, *_: object) -> None:
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        def close(self) -> None:
            self.closed = True

    lost = Lost()
    monkeypatch.setattr(leases, "connect", lambda _: lost)
    with pytest.raises(DatabaseAway):
        leases.Leases("postgresql://nowhere/none").hold(take=True)
    assert lost.closed


def test_a_lease_that_is_lost_ends_the_driver(world: World) -> None:
    del world.table.held["one"]
    world.tick()
    assert world.children[0].kills == 1
    assert world.supervisor.units == {}


def test_an_outage_leaves_drivers_alone(world: World) -> None:
    world.table.away = True
    for _ in range(100):
        world.tick(10)
    assert (world.children[0].kills, world.children[0].drains) == (0, 0)
    world.table.away = False
    world.change(silent_s=1000.0)  # it could not report
    world.tick()
    world.change(silent_s=0.5)
    world.tick(SILENT_S + 1)
    assert world.children[0].kills == 0


def test_one_that_ends_in_an_outage_is_started_after_it(world: World) -> None:
    world.table.away = True
    world.children[0].status = FAILED
    world.tick()
    world.table.away = False
    world.tick(2)
    assert len(world.children) == 2


def test_a_driver_that_says_nothing_is_ended(world: World) -> None:
    world.change(silent_s=SILENT_S + 1)
    world.tick()
    world.tick(SILENT_S + 1)
    assert world.children[0].kills == 1


def test_a_driver_is_not_started_while_the_old_one_publishes(world: World) -> None:
    world.children[0].status = SUPERSEDED
    world.table.busy = True
    world.tick()
    assert len(world.children) == 1
    world.table.busy = False
    world.tick(1)
    assert len(world.children) == 2


def test_stopping_drains_and_gives_the_lease_back(world: World) -> None:
    world.supervisor.stopping = True
    world.tick()
    assert (world.children[0].drains, world.supervisor.is_done) == (1, False)
    world.children[0].status = DRAINED
    world.tick()
    assert world.supervisor.is_done
    assert (world.table.released, world.supervisor.killed) == (["one"], 0)


def test_stopping_in_an_outage_ends_too(world: World) -> None:
    world.table.away = True
    world.supervisor.stopping = True
    world.tick()
    world.tick(31)
    world.tick()
    assert (world.supervisor.is_done, world.supervisor.killed) == (True, 1)


def test_health(world: World) -> None:
    health = Health(world.supervisor, world.clock)
    assert health.answer("/health")[0] == 200
    assert health.answer("/nothing")[0] == 404
    world.children[0].status = FAILED
    world.tick()
    assert health.answer("/health") == (
        503,
        {"healthy": False, "database": True, "pipelines": {"one": "waiting"}, "troubled": ["one"]},
    )
    assert health.answer("/live")[0] == 200
    world.clock.advance(100)
    assert health.answer("/live")[0] == 503
