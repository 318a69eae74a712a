"""The four shapes in which brokers are compared: paced events with a key, which several groups work on in order.

Every event goes to each of the groups, and a group works on the events of one key one after the other. The work is a
pause, so that only the broker costs CPU. What counts is what a message costs, whether the groups keep up, and how old
messages get.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import asyncpg

from queen_bench.ages import Ages
from queen_bench.broker import Want
from queen_bench.connected import SHARED_BY
from queen_bench.figures import per_core, percentile
from queen_bench.layout import JSON, RANDOM
from queen_bench.load import Pushing
from queen_bench.meter import Meter, ms
from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.scenarios.course import TAKE, Course, for_seconds
from queen_bench.subject import HttpSubject, Subject
from queen_bench.tasks import together
from queenmq.storage.embedded import running_url

GROUPS: Final = 6
WORK_S: Final = (0.01, 0.03)
PUSHED: Final = 10  # events in a request, each of another key
POPPED: Final = 10
PRODUCERS: Final = 16
# More consumers than there is work for at any moment, because batches of few messages come at irregular times.
SPARE: Final = 2.5
LEAST_CONSUMERS: Final = SHARED_BY
LONGEST_WAIT_S: Final = 5.0  # for the groups to finish, after the last event

COUNTERS: Final = """
    SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS commits,
           pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS wal_bytes
"""


@dataclass(frozen=True)
class Shape:
    """`rate` is the full one, in events a second; `hot` events of a request are of one and the same key."""

    name: str
    rate: float
    keys: int
    work: bool = True
    hot: int = 0
    payload: str = JSON
    peers: bool = False

    @property
    def about(self) -> str:
        work = f", {WORK_S[0] * 1000:.0f} to {WORK_S[1] * 1000:.0f} ms of work a message" if self.work else ""
        hot = f", {self.hot / PUSHED:.0%} of the events of one of them" if self.hot else ""
        kind = ", incompressible payloads" if self.payload == RANDOM else ""
        return (
            f"--share of {self.rate:,.0f} events a second to {GROUPS} groups, {self.keys:,} keys{hot}{work}{kind}, "
            "over consumer connections"
        )

    async def run(self, subject: Subject, options: Options) -> Result:
        course = Course(
            subject, options, partitions=self.keys, producers=PRODUCERS, groups=GROUPS, payload=self.payload
        )
        await course.load.touch()
        await course.drain()
        rate = self.rate * options.share
        pushing = Pushing(PUSHED, spread=True, rate=rate, hot=self.hot)
        await self._run(course, course.meter(), pushing, options.warm_up_s)
        async with _counted(subject) as counted:
            meter = course.meter()
            ages, pending = await self._run(course, meter, pushing, options.seconds)
        result = meter.result("pop")
        result.ack_mode = TAKE
        result.worst_age_ms = ms(max(ages.seen_s, default=None))
        result.extra = {
            "events_per_s": meter.rate("push"),
            "age_p99_ms": ms(percentile(ages.seen_s, 0.99)),
            "messages_per_used_core": per_core(result.server_cpu_s, result.postgres_cpu_s),
            "messages_per_postgres_core": per_core(result.postgres_cpu_s),
            "commits_per_message": counted[0] / result.messages if counted else None,
            "wal_bytes_per_message": counted[1] / result.messages if counted else None,
        }
        result = await course.close(result)
        result.pending = pending
        return result

    async def _run(self, course: Course, meter: Meter, pushing: Pushing, seconds: float) -> tuple[Ages, int]:
        """Push for some seconds; what the slowest group had still to do then, before it went on to the end."""
        ages = pushing.ages()
        over = for_seconds(seconds)
        given_up = for_seconds(seconds + LONGEST_WAIT_S)
        work_s = sum(WORK_S) / 2 if self.work else 0.001
        consumers = GROUPS * max(LEAST_CONSUMERS, int((pushing.rate or 0.0) * work_s * SPARE))
        want = Want(POPPED, connected=True, prefetch=SHARED_BY, work_s=_work if self.work else None)
        pending = 0

        async def push() -> None:
            nonlocal pending
            await course.load.push(meter, over, pushing, ages)
            pending = course.audit.pending

        meter.start()
        await together(
            (
                push(),
                course.load.pop(
                    meter, lambda: given_up() or (over() and course.audit.pending <= 0), want, consumers, ages
                ),
            )
        )
        meter.stop()
        return ages, pending


def _work() -> float:
    return random.uniform(*WORK_S)  # noqa: S311 - no secret


@asynccontextmanager
async def _counted(subject: Subject) -> AsyncIterator[list[int]]:
    """Commits and bytes of WAL while it runs; empty if the database is not ours to ask."""
    found: list[int] = []
    if not isinstance(subject, HttpSubject) or subject.folder is None:
        yield found
        return
    connection = await asyncpg.connect(running_url(subject.folder / "data", administrator=True))
    try:
        [before] = await connection.fetch(COUNTERS)
        yield found
        [after] = await connection.fetch(COUNTERS)
        found += [int(after[name]) - int(before[name]) for name in ("commits", "wal_bytes")]
    finally:
        await connection.close()


_SHAPES: Final = (
    Shape("shape-sparse", 2_000, 1_000),
    Shape("shape-dense", 12_000, 1_000),
    Shape("shape-keys", 2_000, 20_000),
    # Without work: that would bound the key, whatever the broker does.
    Shape("shape-hot", 2_000, 1_000, work=False, hot=2),
)
SHAPES: Final = (*_SHAPES, *(replace(shape, name=f"{shape.name}-random", payload=RANDOM) for shape in _SHAPES))
