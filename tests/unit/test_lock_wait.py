"""Requests that need locked rows: who waits, in which order they go on, and who does not notice. No database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from passing_time import pass_time

from queenmq.broker.lock_wait import LockWait
from queenmq.broker.locked_rows import Row, head
from queenmq.broker.locking_lane import LockingLane
from queenmq.broker.merging import Policy, Waiting
from queenmq.clock import ManualClock
from queenmq.errors import DatabaseUnavailable, Overloaded, ServerStopping
from queenmq.storage.failures import RowLocked
from queenmq.storage.statements import statement

POLICY = Policy(preferred=1, max_hold_s=0.0, max_requests=100, max_weight=1000, max_concurrent=4, max_pending=100)
NOTHING = {f"{kind}s": None for kind in ("head", "position", "lease", "queue")} | {
    f"{kind}_marks": None for kind in ("head", "position", "lease", "queue")
}


class Postgres:
    """Has partitions, of which some are locked; `unseen` ones are locked, too, but no probe finds them."""

    def __init__(self) -> None:
        self.locked: dict[str, str] = {}  # partition and mark of its holder
        self.unseen: set[str] = set()
        self.is_table_locked = False
        self.probes = 0
        self.calls: list[list[str]] = []
        self.timeouts: list[str] = []  # of the calls

    async def fetchrow(self, text: str, *arguments: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        if text == statement("lock_holder"):
            return {"pid": 7, "prepared": None, "application": "psql", "username": "u", "state": "idle", "open_s": 1.0}
        self.probes += 1
        found = [(index, self.locked[name]) for index, name in enumerate(arguments[1], 1) if name in self.locked]
        heads = {"heads": [index for index, _ in found], "head_marks": [mark for _, mark in found]}
        return NOTHING | heads | {"is_table": self.is_table_locked and not found}

    async def run(self, requests: list[str], lock_timeout: str) -> list[str]:
        """A request is the name of a partition, with a number behind a dot."""
        self.calls.append(requests)
        self.timeouts.append(lock_timeout)
        await asyncio.sleep(0)
        names = {request.partition(".")[0] for request in requests}
        if names & (self.locked.keys() | self.unseen):
            raise RowLocked("locked")
        return [request.upper() for request in requests]

    @property
    def stored(self) -> list[str]:
        """What the calls stored that found nothing locked, at the end of a test."""
        return [request for call in self.calls for request in call]


def rows(request: str) -> frozenset[Row]:
    return frozenset((head("q", request.partition(".")[0]),))


@pytest.fixture
def postgres() -> Postgres:
    return Postgres()


@pytest.fixture
def locks(postgres: Postgres) -> LockWait:
    return LockWait(postgres, longest_s=30.0, most=10)  # type: ignore[arg-type]


@pytest.fixture
def lane(postgres: Postgres, locks: LockWait) -> LockingLane[str, str]:
    return LockingLane("test", postgres.run, POLICY, locks=locks, rows=rows)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def submit(lane: LockingLane[str, str], *requests: str) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(lane.submit(request, "q")) for request in requests]


async def test_the_rest_of_a_call_goes_on_at_once(
    postgres: Postgres, locks: LockWait, lane: LockingLane[str, str]
) -> None:
    postgres.locked["a"] = "1"
    [waiting, other] = submit(lane, "a.1", "b.1")
    assert await other == "B.1"
    assert postgres.calls == [["a.1", "b.1"], ["b.1"]]
    assert postgres.timeouts == ["50", "10"], "the shorter the more likely it is that more is locked"
    assert (locks.waiting, lane.pending, lane.in_flight, lane.wait_s(1e9)) == (1, 0, 0, 0.0)
    postgres.locked.clear()
    assert await waiting == "A.1"
    assert postgres.timeouts[-1] == "500", "who has waited for a row may wait for it in the call"
    assert locks.known == {}


async def test_later_requests_go_behind_and_all_go_on_in_order(
    postgres: Postgres, locks: LockWait, lane: LockingLane[str, str]
) -> None:
    postgres.locked["a"] = "1"
    waiting = submit(lane, "a.1")
    await until(lambda: locks.waiting == 1)
    calls = len(postgres.calls)
    waiting += submit(lane, "a.2", "a.3")
    await until(lambda: locks.waiting == 3)
    assert len(postgres.calls) == calls, "they were not even tried"
    postgres.locked.clear()
    await until(lambda: not locks.known)
    waiting += submit(lane, "a.4")
    assert await asyncio.gather(*waiting) == ["A.1", "A.2", "A.3", "A.4"]
    assert postgres.stored[-4:] == ["a.1", "a.2", "a.3", "a.4"]


async def test_a_row_with_another_holder_each_time_is_tried(
    postgres: Postgres, locks: LockWait, lane: LockingLane[str, str]
) -> None:
    postgres.locked["a"] = "1"
    [waiting] = submit(lane, "a.1")
    await until(lambda: locks.waiting == 1)
    calls = len(postgres.calls)
    probes = postgres.probes
    await until(lambda: postgres.probes > probes)
    assert len(postgres.calls) == calls
    postgres.locked["a"] = "2"
    await until(lambda: len(postgres.calls) > calls)
    postgres.locked.clear()
    assert await waiting == "A.1"


async def test_what_no_probe_sees_is_found_by_halving_and_tried_alone(
    postgres: Postgres, locks: LockWait, lane: LockingLane[str, str]
) -> None:
    postgres.unseen.add("a")
    [one, two, *others] = submit(lane, "a.1", "a.2", "b.1", "c.1", "d.1")
    assert await asyncio.gather(*others) == ["B.1", "C.1", "D.1"]
    await until(lambda: locks.waiting == 2)
    calls = len(postgres.calls)
    await until(lambda: len(postgres.calls) > calls)
    assert all(call == ["a.1"] for call in postgres.calls[calls:]), "the first of them, alone"
    postgres.unseen.clear()
    assert await asyncio.gather(one, two) == ["A.1", "A.2"]
    assert locks.known == {}


async def test_a_locked_table_is_waited_for_in_the_call(postgres: Postgres, lane: LockingLane[str, str]) -> None:
    postgres.unseen.add("a")
    postgres.is_table_locked = True
    [one, two] = submit(lane, "a.1", "b.1")
    await until(lambda: len(postgres.calls) > 1)
    assert postgres.calls[:2] == [["a.1", "b.1"], ["a.1", "b.1"]]
    assert postgres.timeouts[:2] == ["50", "30000"]
    postgres.unseen.clear()
    assert await asyncio.gather(one, two) == ["A.1", "B.1"]


async def test_who_has_waited_too_long_is_told_who_holds_the_row(postgres: Postgres) -> None:
    clock = ManualClock()
    locks = LockWait(postgres, 30.0, 10, clock)  # type: ignore[arg-type]
    lane = LockingLane("test", postgres.run, POLICY, locks=locks, rows=rows)
    postgres.locked["a"] = "1"
    [waiting] = submit(lane, "a.1")
    await pass_time(clock, 29.999)
    assert not waiting.done()
    await pass_time(clock, 0.001)
    with pytest.raises(RowLocked, match=r"partition 'a' of queue 'q'.*'psql' \(pid 7"):
        await waiting
    assert (locks.waiting, locks.given_up) == (0, 1)
    await locks.close()


async def test_a_locked_row_is_probed_with_growing_pauses(postgres: Postgres) -> None:
    clock = ManualClock()
    locks = LockWait(postgres, 600.0, 10, clock)  # type: ignore[arg-type]
    lane = LockingLane("test", postgres.run, POLICY, locks=locks, rows=rows)
    postgres.locked["a"] = "1"
    [waiting] = submit(lane, "a.1")
    probes = []
    for _ in range(4):
        before = postgres.probes
        await pass_time(clock, 10.0)
        probes.append(postgres.probes - before)
    assert probes[0] > probes[1]
    assert probes[1:] == [50, 50, 50], "every 200 ms, and not more seldom"
    del postgres.locked["a"]
    await pass_time(clock, 0.2)
    assert waiting.result() == "A.1"
    await locks.close()


async def test_only_so_many_wait(postgres: Postgres, locks: LockWait, lane: LockingLane[str, str]) -> None:
    postgres.locked["a"] = "1"
    waiting = submit(lane, *(f"a.{number}" for number in range(locks.limit)))
    await until(lambda: locks.waiting == locks.limit)
    with pytest.raises(Overloaded, match="wait for rows"):
        await lane.submit("a.more", "q")
    locks.end()
    assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {ServerStopping}
    await locks.close()
    await lane.close()


async def test_who_goes_away_leaves_no_trace(postgres: Postgres, locks: LockWait, lane: LockingLane[str, str]) -> None:
    postgres.locked["a"] = "1"
    [gone, stays] = submit(lane, "a.1", "a.2")
    await until(lambda: locks.waiting == 2)
    gone.cancel()
    await until(lambda: locks.waiting == 1)
    postgres.locked.clear()
    assert await stays == "A.2"
    assert "a.1" not in postgres.calls[-1]


async def test_what_is_not_merged_waits_without_running(postgres: Postgres, locks: LockWait) -> None:
    running = 0

    async def attempt(name: str, lock_timeout: str) -> str:
        nonlocal running
        running += 1
        try:
            [result] = await postgres.run([name], lock_timeout)
        finally:
            running -= 1
        return result

    postgres.locked["a"] = "1"
    waiting = [asyncio.create_task(locks.through(rows(name), partial(attempt, name))) for name in ("a.1", "a.2")]
    await until(lambda: locks.waiting == 2)
    assert running == 0
    assert await locks.through(rows("b.1"), partial(attempt, "b.1")) == "B.1"
    assert postgres.timeouts[-1] == "10"
    postgres.locked.clear()
    assert await asyncio.gather(*waiting) == ["A.1", "A.2"]
    assert postgres.timeouts[-2:] == ["500", "500"]
    postgres.unseen.add("a")
    unseen = asyncio.create_task(locks.through(rows("a.3"), partial(attempt, "a.3")))
    await until(lambda: locks.waiting == 1)
    postgres.unseen.clear()
    assert await unseen == "A.3"
    assert locks.known == {}


def both(*names: str) -> frozenset[Row]:
    return frozenset(head("q", name) for name in names)


async def test_who_tries_what_no_probe_sees_and_finds_another_row_locked_waits_for_that(
    postgres: Postgres, locks: LockWait
) -> None:
    async def attempt(lock_timeout: str) -> list[str]:
        return await postgres.run(["a.1", "b.1"], lock_timeout)

    postgres.unseen.add("a")
    waiting = asyncio.create_task(locks.through(both("a", "b"), attempt))
    await until(lambda: locks.waiting == 1)
    postgres.locked["b"] = "1"
    await until(lambda: head("q", "b") in locks.known and locks.waiting == 1)
    calls, probes = len(postgres.calls), postgres.probes
    await until(lambda: postgres.probes > probes + 2)
    assert len(postgres.calls) == calls, "it repeats its call all the time, and without an end"
    postgres.unseen.clear()
    postgres.locked.clear()
    assert await waiting == ["A.1", "B.1"]
    assert locks.known == {}


@pytest.mark.parametrize("ends", ["cancelled", "no database", "a locked table"])
async def test_whoever_ends_while_he_tries_does_not_keep_others_from_trying(
    postgres: Postgres, locks: LockWait, ends: str
) -> None:
    probing = asyncio.Event()
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asked = postgres.fetchrow

    async def slow(text: str, *arguments: Any) -> dict[str, Any]:
        if text == statement("find_locked"):
            postgres.fetchrow = asked  # type: ignore[method-assign]
            probing.set()
            await asyncio.shield(answer)
        return await asked(text, *arguments)

    async def attempt(lock_timeout: str) -> list[str]:
        return await postgres.run(["a.1"], lock_timeout)

    postgres.unseen.add("a")
    first = asyncio.create_task(locks.through(rows("a.1"), attempt))
    await until(lambda: locks.waiting == 1)
    second = asyncio.create_task(locks.through(rows("a.1"), attempt))
    await until(lambda: locks.waiting == 2)
    postgres.fetchrow = slow  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await probing.wait()  # the first has tried, and asks why it failed
    if ends == "cancelled":
        first.cancel()
    elif ends == "no database":
        answer.set_exception(DatabaseUnavailable())
    else:
        postgres.is_table_locked = True
        answer.set_result(None)
    [ended] = await asyncio.gather(first, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError | DatabaseUnavailable)
    postgres.is_table_locked = False
    postgres.unseen.clear()
    async with asyncio.timeout(10):
        assert await second == ["A.1"]
    assert locks.known == {}


async def test_who_goes_on_in_the_moment_in_which_the_others_have_caught_up_is_not_forgotten(
    postgres: Postgres, locks: LockWait, lane: LockingLane[str, str]
) -> None:
    """Between the end of a task and its callbacks others may run."""
    postgres.locked["a"] = "1"
    [first] = submit(lane, "a.1")
    await until(lambda: locks.waiting == 1)
    postgres.locked.clear()
    await until(lambda: lane._catch_up is not None)
    task = lane._catch_up
    assert task is not None
    late: Waiting[str, str] = Waiting("b.1", 1, asyncio.get_running_loop().create_future(), 0.0)

    def follow(_task: asyncio.Task[None]) -> None:
        lane._follow(late, rows("b.1"))

    task.remove_done_callback(lane._caught_up)
    task.add_done_callback(follow)
    task.add_done_callback(lane._caught_up)
    assert await first == "A.1"
    async with asyncio.timeout(10):
        assert await late.answer == "B.1"
    await lane.close()
