"""POP_WAIT: parking, waking, sharing probes, and letting go. No database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import pytest
from passing_time import pass_time, settle

from queenmq.broker.long_polls import LongPolls
from queenmq.broker.waiters import ANY_QUEUE, LimitKind, WaitKey
from queenmq.clock import ManualClock
from queenmq.cluster.port import Alone
from queenmq.core.group_backoff import BackoffSettings
from queenmq.errors import DatabaseUnavailable, Overloaded

LONG_S = 600.0


@dataclass
class Found:
    messages: int = 0
    ready_in_s: float | None = None
    limit: LimitKind | None = None
    limit_key: str | None = None

    def __bool__(self) -> bool:
        return self.messages > 0


class Store:
    """Stands for the database: a number of claimable partitions."""

    def __init__(self) -> None:
        self.partitions = 0
        self.probes = 0
        self.ready_in_s: float | None = None
        self.limit: LimitKind | None = None
        self.limit_key: str | None = None
        self.failing = False
        self.gate: asyncio.Event | None = None
        self.unread: set[str] = set()  # partitions that a sweep finds
        self.sweeps: list[list[str]] = []

    async def ready(self, queue: str, group: object, partitions: list[str]) -> list[str]:
        self.sweeps.append(partitions)
        if self.failing:
            raise DatabaseUnavailable
        return [partition for partition in partitions if partition in self.unread]

    async def probe(self) -> Found:
        self.probes += 1
        if self.gate is not None:
            await self.gate.wait()
        else:
            await asyncio.sleep(0)
        if self.failing:
            raise DatabaseUnavailable
        if self.partitions:
            self.partitions -= 1
            return Found(1)
        return Found(ready_in_s=self.ready_in_s, limit=self.limit, limit_key=self.limit_key)


@dataclass
class Bench:
    store: Store
    waiting: LongPolls[Found]
    discarded: list[Found]
    clock: ManualClock

    def poll(
        self, queue: str = "q", partition: str | None = None, timeout_s: float = LONG_S
    ) -> asyncio.Task[Found | None]:
        probe: Callable[[], Awaitable[Found]] = self.store.probe
        return asyncio.create_task(
            self.waiting.wait(WaitKey(queue, partition, "g"), probe, timeout_s, self.discarded.append)
        )


@pytest.fixture
def bench() -> Bench:
    """With a safety net so slow that only wake-ups can explain an answer."""
    return make()


def make(base_s: float = LONG_S, max_waiters: int = 10_000) -> Bench:
    discarded: list[Found] = []
    store, clock = Store(), ManualClock()
    backoff = BackoffSettings(base_s=base_s, longest_s=LONG_S)
    waiting = LongPolls[Found](
        lambda queue: backoff, Alone(), clock, max_waiters=max_waiters, check_limit_s=30, ready=store.ready
    )
    return Bench(store, waiting, discarded, clock)


async def parked(bench: Bench, count: int, queue: str = "q") -> None:
    async with asyncio.timeout(30):
        while bench.waiting.registry.parked().get(queue, 0) < count or bench.store.probes < count:
            await asyncio.sleep(0)
    await settle()


async def test_what_is_there_is_returned_at_once(bench: Bench) -> None:
    bench.store.partitions = 1
    assert await bench.poll()
    assert bench.waiting.registry.parked() == {}


async def test_a_push_wakes_a_parked_poll(bench: Bench) -> None:
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.partitions = 1
    bench.waiting.wake("q")
    assert await poll


@pytest.mark.parametrize("limit", ["rate", "leases"])
async def test_a_push_does_not_wake_whom_a_limit_keeps_waiting(bench: Bench, limit: LimitKind) -> None:
    bench.store.limit, bench.store.ready_in_s = limit, 5.0
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.partitions = 1
    bench.waiting.wake("q", ["p"])
    await settle()
    assert bench.store.probes == 1
    await pass_time(bench.clock, 5.0)
    assert await poll


async def test_a_lease_that_ends_wakes_whom_a_limit_of_leases_keeps_waiting(bench: Bench) -> None:
    bench.store.limit, bench.store.ready_in_s = "rate", 5.0
    poll = bench.poll()
    await parked(bench, 1)
    bench.waiting.wake_freed([("q", "p", "g")])
    await settle()
    assert bench.store.probes == 1
    bench.store.limit = "leases"
    await pass_time(bench.clock, 5.0)
    assert bench.store.probes == 2
    bench.store.partitions = 1
    bench.waiting.wake_freed([("q", "p", "g")])
    assert await poll


async def test_limits_that_change_wake_everybody(bench: Bench) -> None:
    bench.store.limit, bench.store.ready_in_s = "rate", 5.0
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.partitions = 1
    bench.waiting.wake_unlimited("q")
    assert await poll


async def test_a_lease_that_ends_elsewhere_wakes_one_of_those_that_wait_by_name(bench: Bench) -> None:
    """The slot that it frees is of the queue or the group, not of its partition."""
    bench.store.limit, bench.store.ready_in_s = "leases", 500.0
    polls = [bench.poll(partition=f"p{number}") for number in range(5)]
    await parked(bench, 5)
    bench.waiting.wake_freed([("q", "another", "g")])
    await settle()
    assert bench.store.probes == 6
    bench.store.partitions = 2
    bench.waiting.wake_freed([("q", "another", "g"), ("q", "one more", "g")])
    await settle()
    assert [poll.done() for poll in polls] == [False, True, True, False, False]  # the first was probed last
    for poll in polls:
        poll.cancel()


async def test_limits_that_change_wake_those_that_wait_by_name(bench: Bench) -> None:
    bench.store.limit, bench.store.ready_in_s = "leases", 500.0
    poll = bench.poll(partition="p")
    await parked(bench, 1)
    bench.store.partitions, bench.store.unread = 1, {"p"}
    bench.waiting.wake_unlimited("q")
    assert await poll


async def test_of_those_that_a_limit_keeps_waiting_by_name_one_looks_for_all() -> None:
    bench = make(base_s=1.0)
    bench.store.limit, bench.store.ready_in_s = "leases", 500.0
    polls = [bench.poll(partition=f"p{number}") for number in range(5)]
    await parked(bench, 5)
    bench.store.unread = {f"p{number}" for number in range(5)}
    await pass_time(bench.clock, 20.0)
    assert all(len(asked) == 1 for asked in bench.store.sweeps)
    assert {asked[0] for asked in bench.store.sweeps} == bench.store.unread  # by turns
    assert len(bench.store.sweeps) < 15  # at growing intervals
    bench.store.partitions = 1  # a wake-up got lost
    await pass_time(bench.clock, 20.0)
    assert sum(poll.done() for poll in polls) == 1
    for poll in polls:
        poll.cancel()


async def test_whom_a_rate_keeps_waiting_by_name_nobody_looks_for() -> None:
    bench = make(base_s=1.0)
    bench.store.limit, bench.store.ready_in_s = "rate", 50.0
    poll = bench.poll(partition="p")
    await parked(bench, 1)
    bench.store.unread = {"p"}
    await pass_time(bench.clock, 40.0)
    assert bench.store.sweeps == []
    bench.store.partitions = 1
    await pass_time(bench.clock, 10.0)
    assert poll.result()


class Keys:
    """What a queue's keys are: the first letters of names."""

    def __init__(self) -> None:
        self.rules = {"q": None}
        self.full: set[str] = set()
        self.freed_keys: list[str] = []

    def key_of(self, queue: str, partition: str) -> str | None:
        return partition[0]

    def freed(self, queue: str, partition: str, group: str) -> None:
        self.freed_keys.append(partition[0])

    def holds(self, queue: str, group: object, partitions: Collection[str]) -> bool:
        return {partition[0] for partition in partitions} <= self.full


async def test_a_push_wakes_whom_limits_of_other_keys_keep_waiting(bench: Bench) -> None:
    bench.waiting.keys = keys = Keys()
    keys.full = {"a"}
    bench.store.limit, bench.store.limit_key, bench.store.ready_in_s = "keys", "a", 500.0
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.partitions = 1
    bench.waiting.wake("q", ["a1", "a2"])
    await settle()
    assert bench.store.probes == 1
    bench.waiting.wake("q", ["a1", "b1"])
    assert await poll


async def test_a_lease_that_ends_wakes_who_waits_for_its_key(bench: Bench) -> None:
    bench.waiting.keys = keys = Keys()
    bench.store.limit, bench.store.ready_in_s = "keys", 500.0
    polls = {}
    for partition in ("a1", "b1", "b2"):
        bench.store.limit_key = partition[0]
        polls[partition] = bench.poll(partition=partition)
        await parked(bench, len(polls))
    bench.store.partitions = 3
    bench.waiting.wake_freed([("q", "b3", "g")])
    await settle()
    assert {partition for partition, poll in polls.items() if poll.done()} == {"b1"}
    assert keys.freed_keys == ["b"]
    bench.waiting.wake("q", ["b2"])  # a push does not help
    await settle()
    assert not polls["b2"].done()
    for poll in polls.values():
        poll.cancel()


async def test_a_push_elsewhere_costs_nothing(bench: Bench) -> None:
    poll = bench.poll()
    await parked(bench, 1)
    bench.waiting.wake("another queue")
    await asyncio.sleep(0)
    assert bench.store.probes == 1
    poll.cancel()


async def test_a_push_during_the_first_look_is_not_missed(bench: Bench) -> None:
    bench.store.gate = asyncio.Event()
    poll = bench.poll()
    while bench.store.probes == 0:
        await asyncio.sleep(0)
    bench.waiting.wake("q")
    bench.store.gate.set()
    while bench.store.probes == 1:
        await asyncio.sleep(0)
    bench.store.partitions = 1
    bench.waiting.wake("q")
    assert await poll
    assert bench.store.probes >= 2


async def test_one_message_for_many_waiters_costs_few_looks(bench: Bench) -> None:
    polls = [bench.poll() for _ in range(500)]
    await parked(bench, 500)
    before = bench.store.probes
    bench.store.partitions = 1
    bench.waiting.wake("q")
    done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    await settle()
    assert len(done) == 1
    assert polls[0] in done, "the one that waited longest is served first"
    assert bench.store.probes - before <= 4
    for poll in polls:
        poll.cancel()


async def test_many_messages_serve_many_waiters_with_one_wake_up(bench: Bench) -> None:
    polls = [bench.poll() for _ in range(100)]
    await parked(bench, 100)
    bench.store.partitions = 100
    bench.waiting.wake("q", ["p"])
    assert all(await asyncio.gather(*polls))


async def test_the_deadline_ends_a_poll_with_nothing(bench: Bench) -> None:
    poll = bench.poll(timeout_s=10.0)
    await pass_time(bench.clock, 9.999)
    assert not poll.done()
    await pass_time(bench.clock, 0.001)
    assert poll.result() is None
    assert bench.waiting.registry.statistics()["waiters"] == 0


async def test_it_looks_again_at_the_moment_that_was_named(bench: Bench) -> None:
    bench.store.ready_in_s = 25.0
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.partitions = 1
    await pass_time(bench.clock, 24.999)
    assert bench.store.probes == 1
    await pass_time(bench.clock, 0.001)
    assert poll.result()
    assert bench.store.probes == 2


async def test_the_earliest_moment_that_was_named_counts(bench: Bench) -> None:
    bench.store.ready_in_s = 25.0
    polls = [bench.poll()]
    await parked(bench, 1)
    for ready_in_s in (50.0, 10.0):
        bench.store.ready_in_s = ready_in_s
        polls.append(bench.poll())
        await settle()
    probes = bench.store.probes
    bench.store.ready_in_s = None
    await pass_time(bench.clock, 9.999)
    assert bench.store.probes == probes
    await pass_time(bench.clock, 0.001)
    assert bench.store.probes == probes + 1
    for poll in polls:
        poll.cancel()


async def test_it_looks_again_by_itself() -> None:
    bench = make(base_s=1.0)
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.partitions = 1
    await pass_time(bench.clock, 0.999)
    assert bench.store.probes == 1
    await pass_time(bench.clock, 0.001)
    assert poll.result()


async def test_a_failing_look_keeps_the_poll_waiting() -> None:
    bench = make(base_s=1.0)
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.failing = True
    probes = bench.store.probes
    await pass_time(bench.clock, 2.0)
    assert bench.store.probes == probes + 2
    assert not poll.done()
    bench.store.failing = False
    bench.store.partitions = 1
    await pass_time(bench.clock, 1.0)
    assert poll.result()


async def test_a_look_that_hangs_is_given_up_and_repeated() -> None:
    bench = make(base_s=1.0)
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.gate = asyncio.Event()
    await pass_time(bench.clock, 1.0 + 29.999)
    assert bench.store.probes == 2
    await pass_time(bench.clock, 0.001)
    bench.store.gate, bench.store.partitions = None, 1
    await pass_time(bench.clock, 1.0)
    assert poll.result()
    assert bench.store.probes == 3


async def test_a_poll_whose_time_is_over_waits_a_little_for_the_look_that_is_under_way(bench: Bench) -> None:
    polls = [bench.poll(timeout_s=10.0)]
    await parked(bench, 1)
    bench.store.gate = asyncio.Event()
    await pass_time(bench.clock, 9.0)
    bench.waiting.wake("q")
    await pass_time(bench.clock, 1.0 + 2.999)
    assert not polls[0].done()
    await pass_time(bench.clock, 0.001)
    assert polls[0].result() is None
    bench.store.partitions = 1
    bench.store.gate.set()
    await settle()
    assert bench.discarded == [Found(1)], "what came too late is given back"


async def test_a_failure_at_the_first_look_is_told(bench: Bench) -> None:
    bench.store.failing = True
    with pytest.raises(DatabaseUnavailable):
        await bench.poll()


async def test_what_was_found_for_a_client_that_has_gone_is_given_back(bench: Bench) -> None:
    poll = bench.poll()
    await parked(bench, 1)
    bench.store.gate = asyncio.Event()
    probes = bench.store.probes
    bench.store.partitions = 1
    bench.waiting.wake("q")
    while bench.store.probes == probes:
        await asyncio.sleep(0)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    bench.store.gate.set()
    while not bench.discarded:
        await asyncio.sleep(0)
    assert bench.discarded == [Found(1)]


async def test_polls_over_several_queues_are_woken_by_any(bench: Bench) -> None:
    poll = bench.poll(ANY_QUEUE)
    while bench.store.probes < 1:
        await asyncio.sleep(0)
    await settle()
    bench.store.partitions = 1
    bench.waiting.wake("whatever")
    assert await poll


async def test_a_push_wakes_only_the_polls_of_its_partition(bench: Bench) -> None:
    polls = {name: bench.poll(partition=name) for name in ("a", "b", "c")}
    polls["any"] = bench.poll()
    await parked(bench, 4)
    probes = bench.store.probes
    bench.store.partitions = 1
    bench.waiting.wake("q", ["b"])
    await asyncio.wait(polls.values(), return_when=asyncio.FIRST_COMPLETED)
    await settle()
    assert bench.store.probes == probes + 2, "one probe for the partition, one for any"
    assert not polls["a"].done()
    assert not polls["c"].done()
    for poll in polls.values():
        poll.cancel()


@pytest.mark.parametrize("known", [None, [f"p{number}" for number in range(50)]])
async def test_polls_of_partitions_are_woken_by_a_change_of_many_or_unknown_ones(
    bench: Bench, known: list[str] | None
) -> None:
    polls = [bench.poll(partition=f"p{number}") for number in range(3)]
    await parked(bench, 3)
    bench.store.partitions, bench.store.unread = 3, {"p0", "p1", "p2"}
    bench.waiting.wake("q", known)
    assert all(await asyncio.gather(*polls))


async def test_a_thousand_polls_of_partitions_share_their_safety_net() -> None:
    bench = make(base_s=1.0)
    polls = [bench.poll(partition=f"p{number}") for number in range(1000)]
    await parked(bench, 1000)
    probes = bench.store.probes
    await pass_time(bench.clock, 3.0)
    assert bench.store.probes == probes
    assert [len(sweep) for sweep in bench.store.sweeps] == [1000] * 3
    bench.store.partitions, bench.store.unread = 1, {"p7"}
    await pass_time(bench.clock, 2.0)  # the intervals have begun to grow
    assert polls[7].result()
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    sweeps = len(bench.store.sweeps)
    await pass_time(bench.clock, LONG_S)
    assert len(bench.store.sweeps) == sweeps, "nobody waits any more"


async def test_a_change_of_unknown_partitions_costs_one_sweep_and_not_a_look_for_each(bench: Bench) -> None:
    polls = [bench.poll(partition=f"p{number}") for number in range(100)]
    await parked(bench, 100)
    probes = bench.store.probes
    bench.store.partitions, bench.store.unread = 1, {"p7"}
    bench.waiting.wake("q")
    assert await polls[7]
    assert len(bench.store.sweeps) == 1
    assert bench.store.probes == probes + 1
    for poll in polls:
        poll.cancel()


async def test_a_failing_sweep_is_repeated() -> None:
    bench = make(base_s=1.0)
    poll = bench.poll(partition="p")
    await parked(bench, 1)
    bench.store.failing = True
    await pass_time(bench.clock, 2.0)
    assert len(bench.store.sweeps) == 2
    bench.store.failing = False
    bench.store.partitions, bench.store.unread = 1, {"p"}
    await pass_time(bench.clock, 1.0)
    assert poll.result()


async def test_closing_answers_everyone(bench: Bench) -> None:
    polls = [bench.poll() for _ in range(3)]
    await parked(bench, 3)
    bench.waiting.close()
    assert await asyncio.gather(*polls) == [None, None, None]


async def test_too_many_waiters_are_refused() -> None:
    bench = make(max_waiters=1)
    poll = bench.poll()
    await parked(bench, 1)
    with pytest.raises(Overloaded):
        await bench.poll()
    poll.cancel()


async def test_statistics(bench: Bench) -> None:
    polls = [bench.poll(), bench.poll(), bench.poll("other")]
    await parked(bench, 2)
    assert bench.waiting.registry.parked() == {"q": 2, "other": 1}
    assert bench.waiting.registry.statistics()["groups_tracked"] == 2
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    assert bench.waiting.registry.statistics() == {
        "groups_tracked": 0,
        "groups_in_flight": 0,
        "groups_backed_off": 0,
        "waiters": 0,
    }
