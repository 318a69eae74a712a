"""Lanes: merging, fairness, isolation, and callers who go away. No database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
import uvloop
from passing_time import pass_time

from queenmq.broker.lane import Lane
from queenmq.broker.merging import Policy
from queenmq.clock import ManualClock
from queenmq.errors import DatabaseUnavailable, InternalError, InvalidRequest, Overloaded
from queenmq.storage.failures import AnswerLost, RowLocked, TryAgain

POLICY = Policy(preferred=3, max_hold_s=60.0, max_requests=100, max_weight=1000, max_concurrent=2, max_pending=10)


class Backend:
    """Stands for the database: notes every call and lets it go on when told."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails: Callable[[list[str]], Exception | None] = lambda requests: None

    async def run(self, requests: list[str], _lock_timeout: str) -> list[str]:
        self.calls.append(requests)
        await self.gate.wait()
        error = self.fails(requests)
        if error is not None:
            raise error
        return [request.upper() for request in requests]


async def turns(count: int = 5) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_idle_lane_answers_at_once() -> None:
    backend = Backend()
    lane = Lane("test", backend.run, POLICY)
    assert await lane.submit("a", "k") == "A"
    assert backend.calls == [["a"]]


async def test_what_waits_is_merged_when_the_call_returns() -> None:
    backend = Backend()
    backend.gate.clear()
    lane = Lane("test", backend.run, POLICY)
    first = asyncio.create_task(lane.submit("a", "k"))
    await turns()
    others = [asyncio.create_task(lane.submit(name, "k")) for name in "bc"]
    await turns()
    assert backend.calls == [["a"]], "two are not worth a second call while one runs"
    backend.gate.set()
    assert await asyncio.gather(first, *others) == ["A", "B", "C"]
    assert backend.calls == [["a"], ["b", "c"]]


async def test_enough_waiting_requests_start_a_second_call() -> None:
    backend = Backend()
    backend.gate.clear()
    lane = Lane("test", backend.run, POLICY)
    tasks = [asyncio.create_task(lane.submit("a", "k"))]
    await turns()
    tasks += [asyncio.create_task(lane.submit(name, "k")) for name in "bcd"]
    await turns()
    assert backend.calls == [["a"], ["b", "c", "d"]]
    backend.gate.set()
    await asyncio.gather(*tasks)


async def test_a_request_is_held_no_longer_than_allowed() -> None:
    backend, clock = Backend(), ManualClock()
    backend.gate.clear()
    lane = Lane("test", backend.run, POLICY, clock=clock)
    tasks = [asyncio.create_task(lane.submit("a", "k"))]
    await turns()
    tasks.append(asyncio.create_task(lane.submit("b", "k")))
    await pass_time(clock, POLICY.max_hold_s - 0.001)
    assert backend.calls == [["a"]]
    await pass_time(clock, 0.001)
    assert backend.calls == [["a"], ["b"]]
    backend.gate.set()
    assert await asyncio.gather(*tasks) == ["A", "B"]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_nobody_is_held_any_longer_when_the_call_returns_or_enough_have_come(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """On both event loops, because they have timers of different types."""

    async def check() -> None:
        backend = Backend()
        backend.gate.clear()
        lane = Lane("test", backend.run, POLICY)
        tasks = [asyncio.create_task(lane.submit("a", "k"))]
        await turns()
        tasks.append(asyncio.create_task(lane.submit("b", "k")))
        await turns()
        tasks += [asyncio.create_task(lane.submit(name, "k")) for name in "cd"]
        await turns()
        assert backend.calls == [["a"], ["b", "c", "d"]], "enough have come"
        backend.gate.set()
        await asyncio.gather(*tasks)
        backend.gate.clear()
        tasks = [asyncio.create_task(lane.submit("e", "k"))]
        await turns()
        tasks.append(asyncio.create_task(lane.submit("f", "k")))
        await turns()
        backend.gate.set()
        async with asyncio.timeout(30):
            assert await asyncio.gather(*tasks) == ["E", "F"], "the call has returned"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


async def test_a_flooded_queue_does_not_starve_another() -> None:
    backend = Backend()
    backend.gate.clear()
    policy = Policy(preferred=1, max_hold_s=0, max_requests=2, max_weight=1000, max_concurrent=1, max_pending=100)
    lane = Lane("test", backend.run, policy)
    tasks = [asyncio.create_task(lane.submit("x", "flood"))]
    await turns()
    tasks += [asyncio.create_task(lane.submit("x", "flood")) for _ in range(20)]
    tasks.append(asyncio.create_task(lane.submit("quiet", "quiet")))
    await turns()
    backend.gate.set()
    await asyncio.gather(*tasks)
    assert "quiet" in backend.calls[1]


async def test_only_the_guilty_request_fails() -> None:
    backend = Backend()
    backend.gate.clear()
    backend.fails = lambda requests: InvalidRequest("bad") if "bad" in requests else None
    policy = Policy(preferred=1, max_hold_s=0, max_requests=100, max_weight=1000, max_concurrent=1, max_pending=100)
    lane = Lane("test", backend.run, policy)
    names = ["x", "a", "b", "bad", "c", "d"]
    tasks = [asyncio.create_task(lane.submit(name, name)) for name in names]
    await turns()
    backend.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [r for r in results if isinstance(r, str)] == ["X", "A", "B", "C", "D"]
    assert isinstance(results[3], InvalidRequest)


async def test_an_unforeseen_error_becomes_an_internal_error() -> None:
    backend = Backend()
    backend.fails = lambda requests: RuntimeError("bug")
    with pytest.raises(InternalError):
        await Lane("test", backend.run, POLICY).submit("a", "k")


async def test_an_unavailable_database_fails_everyone_without_splitting() -> None:
    backend = Backend()
    backend.gate.clear()
    backend.fails = lambda requests: DatabaseUnavailable()
    lane = Lane("test", backend.run, POLICY)
    tasks = [asyncio.create_task(lane.submit(name, "k")) for name in "abc"]
    await turns()
    backend.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(r, DatabaseUnavailable) for r in results)
    assert backend.calls == [["a", "b", "c"]]


async def test_what_may_be_repeated_is_repeated_for_so_long() -> None:
    backend, clock = Backend(), ManualClock()
    backend.fails = lambda requests: DatabaseUnavailable() if clock.monotonic() < ends_at else None
    lane = Lane("test", backend.run, POLICY, repeat_for_s=30, clock=clock)
    ends_at = clock.monotonic() + 29.0
    answer = asyncio.create_task(lane.submit("a", "k"))
    await pass_time(clock, 29.5)
    assert answer.result() == "A"
    ends_at = clock.monotonic() + 60.0
    answer = asyncio.create_task(lane.submit("a", "k"))
    await pass_time(clock, 29.5)
    assert not answer.done()
    await pass_time(clock, 1.0)
    with pytest.raises(DatabaseUnavailable):
        await answer


LATER = [DatabaseUnavailable("it is away"), RowLocked("somebody has it"), Overloaded("too much")]


@pytest.mark.parametrize("later", LATER, ids=lambda error: error.code)
async def test_after_a_lost_answer_nobody_is_told_that_nothing_was_kept(later: Exception) -> None:
    backend, clock = Backend(), ManualClock()
    backend.fails = lambda requests: AnswerLost() if len(backend.calls) == 1 else later
    answer = asyncio.create_task(Lane("test", backend.run, POLICY, repeat_for_s=5, clock=clock).submit("a", "k"))
    await pass_time(clock, 6.0)
    assert len(backend.calls) > 1
    assert isinstance(answer.exception(), AnswerLost)


async def test_nor_by_a_result() -> None:
    """What the first call has stored may keep the second from storing it."""
    backend, clock = Backend(), ManualClock()
    backend.fails = lambda requests: AnswerLost() if len(backend.calls) == 1 else None
    lane = Lane("test", backend.run, POLICY, repeat_for_s=5, refuses=lambda result: result == "NO", clock=clock)
    answers = [asyncio.create_task(lane.submit(name, "k")) for name in ("yes", "no")]
    await pass_time(clock, 1.0)
    assert answers[0].result() == "YES"
    assert isinstance(answers[1].exception(), AnswerLost)
    assert await lane.submit("no", "k") == "NO"


@pytest.mark.parametrize(("deadlocks", "succeeds"), [(5, True), (6, False)])
async def test_a_deadlock_is_tried_again(deadlocks: int, succeeds: bool) -> None:
    backend, clock = Backend(), ManualClock()
    backend.fails = lambda requests: TryAgain("deadlock") if len(backend.calls) <= deadlocks else None
    answer = asyncio.create_task(Lane("test", backend.run, POLICY, clock=clock).submit("a", "k"))
    await pass_time(clock, 1.0)
    assert len(backend.calls) == 6
    assert (answer.exception() is None) is succeeds


async def test_the_result_of_a_caller_who_went_away_is_reported() -> None:
    backend = Backend()
    backend.gate.clear()
    orphans: list[str] = []
    lane = Lane("test", backend.run, POLICY, orphaned=orphans.append)
    task = asyncio.create_task(lane.submit("a", "k"))
    await turns()
    task.cancel()
    await turns()
    backend.gate.set()
    await lane.close()
    assert orphans == ["A"]


async def test_a_caller_who_goes_in_the_moment_of_the_result_is_reported_too() -> None:
    backend = Backend()
    orphans: list[str] = []
    lane = Lane("test", backend.run, POLICY, orphaned=orphans.append)
    task = asyncio.create_task(lane.submit("a", "k"))
    for _ in range(100):
        await asyncio.sleep(0)
        if lane.calls:
            break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert orphans == ["A"]


async def test_a_request_whose_caller_left_before_its_turn_is_not_run() -> None:
    backend = Backend()
    backend.gate.clear()
    lane = Lane("test", backend.run, POLICY)
    first = asyncio.create_task(lane.submit("a", "k"))
    await turns()
    second = asyncio.create_task(lane.submit("b", "k"))
    await turns()
    second.cancel()
    await turns()
    backend.gate.set()
    await first
    await lane.close()
    assert backend.calls == [["a"]]


async def test_who_may_not_share_a_call_with_one_that_has_left_gets_the_next() -> None:
    backend = Backend()
    backend.gate.clear()

    def one_of_each() -> Callable[[str], bool]:
        taken: set[str] = set()

        def admit(request: str) -> bool:
            is_first = request[0] not in taken
            taken.add(request[0])
            return is_first

        return admit

    lane = Lane("test", backend.run, POLICY, admission=one_of_each)
    first = asyncio.create_task(lane.submit("a", "k"))
    await turns()
    gone, other = (asyncio.create_task(lane.submit(name, "k")) for name in ("b1", "b2"))
    await turns()
    gone.cancel()
    backend.gate.set()
    await first
    await turns()
    assert backend.calls == [["a"], ["b2"]]
    assert await other == "B2"


async def test_a_full_lane_refuses() -> None:
    backend = Backend()
    backend.gate.clear()
    policy = Policy(preferred=99, max_hold_s=60, max_requests=1, max_weight=9, max_concurrent=1, max_pending=2)
    lane = Lane("test", backend.run, policy)
    tasks = [asyncio.create_task(lane.submit("a", "k"))]
    await turns()
    tasks += [asyncio.create_task(lane.submit("a", "k")) for _ in range(2)]
    await turns()
    with pytest.raises(Overloaded, match=r"connection \(ECONNREFUSED\)"):  # or published consumers would end
        await lane.submit("one too many", "k")
    backend.gate.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("fault", ["cancelled", "too few results"])
async def test_a_fault_that_nobody_has_foreseen_keeps_nobody_waiting(fault: str) -> None:
    async def run(requests: list[str], _lock_timeout: str) -> list[str]:
        if requests == ["again"]:
            return requests
        if fault == "cancelled":
            raise asyncio.CancelledError
        return requests[1:]

    lane = Lane("test", run, replace(POLICY, one_at_a_time={"k"}))
    for task in [asyncio.create_task(lane.submit(name, "k")) for name in "ab"]:
        with pytest.raises(AnswerLost):
            await asyncio.wait_for(task, 5)
    assert await lane.submit("again", "k") == "again"
    await lane.close()
    assert lane.outstanding == 0


async def test_requests_of_a_key_that_goes_alone_join_no_second_call() -> None:
    backend = Backend()
    backend.gate.clear()
    alone = {"k"}
    lane = Lane("test", backend.run, replace(POLICY, one_at_a_time=alone))
    first = [asyncio.create_task(lane.submit(name, "k")) for name in "ab"]
    await turns()
    later = [asyncio.create_task(lane.submit(name, "k")) for name in "cdef"]
    others = [asyncio.create_task(lane.submit(name, "other")) for name in "xyz"]
    await turns(50)
    assert [sorted(call) for call in backend.calls] == [["a", "b"], ["x", "y", "z"]]
    backend.gate.set()
    assert await asyncio.gather(*first, *later, *others) == list("ABCDEFXYZ")
    assert [sorted(call) for call in backend.calls[2:]] == [["c", "d", "e", "f"]]
    alone.clear()
    backend.gate.clear()
    rest = [asyncio.create_task(lane.submit(name, "k")) for name in "ab"]
    await turns()
    rest += [asyncio.create_task(lane.submit(name, "k")) for name in "cde"]
    await turns()
    assert len(backend.calls) == 5, "it goes alone no more"
    backend.gate.set()
    await asyncio.gather(*rest, lane.close())


async def test_what_has_to_wait_for_a_call_of_its_key_does_not_keep_the_loop_busy() -> None:
    backend = Backend()
    backend.gate.clear()
    lane = Lane("test", backend.run, replace(POLICY, one_at_a_time={"k"}))
    first = asyncio.create_task(lane.submit("a", "k"))
    await turns()
    later = [asyncio.create_task(lane.submit(name, "k")) for name in "bcdef"]
    await turns()
    tries = 0
    take = lane._take

    def counted() -> object:
        nonlocal tries
        tries += 1
        return take()

    lane._take = counted  # type: ignore[method-assign,assignment]
    await turns(100)
    assert tries == 0
    backend.gate.set()
    await asyncio.gather(first, *later)
