"""Thousands of long polls that wait for nothing: what each takes of memory and all of CPU. Then all are served."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from queen_bench.broker import Consumer, Want
from queen_bench.errors import BenchError
from queen_bench.load import now
from queen_bench.meter import Meter
from queen_bench.options import Options
from queen_bench.processes import Usage
from queen_bench.result import Extra, Result
from queen_bench.scenarios.course import LEASES, Course
from queen_bench.subject import Subject
from queen_bench.tasks import cancelled

WAIT_MS: Final = 120_000
# The first look that each poll takes is no idling.
SETTLE_S: Final = 3.0


@dataclass(frozen=True)
class Parked:
    """All polls on any partition of one queue, or with `own_partition` each on its own."""

    name: str
    own_partition: bool = False
    peers: bool = False

    @property
    def about(self) -> str:
        where = "each on a partition of its own" if self.own_partition else "on any partition of one queue"
        return f"--parked long polls at once, {where}: memory of each, CPU of a core while idle"

    async def run(self, subject: Subject, options: Options) -> Result:
        course = Course(subject, options, partitions=options.parked)
        await course.load.touch()
        await course.drain()
        lot = ParkingLot(course, options, subject.watch.usage())
        polls = await self._park(course, lot, options.parked)
        try:
            extra = await lot.idle(subject)
            meter = course.meter()
            meter.start()
            lot.serve_with(meter)
            await asyncio.gather(course.load.touch(), *polls)
            meter.stop()
        finally:
            await cancelled(polls)
        result = meter.result("wake-up")
        result.ack_mode = LEASES
        result.extra = extra
        return await course.close(result)

    async def _park(self, course: Course, lot: ParkingLot, count: int) -> list[asyncio.Future[None]]:
        polls: list[asyncio.Future[None]] = []
        for number in range(count):
            want = Want(1, wait_ms=WAIT_MS, partition=f"p{number}" if self.own_partition else None)
            polls.append(asyncio.ensure_future(lot.poll(await course.broker.consumer(number, want))))
        return polls


class ParkingLot:
    def __init__(self, course: Course, options: Options, before: Usage) -> None:
        self._course = course
        self._options = options
        self._before = before
        self._meter: Meter | None = None

    async def poll(self, consumer: Consumer) -> None:
        """One long poll with its acknowledgement."""
        try:
            began = now()
            ids = await consumer.pop()
            if self._meter is None or not ids:
                raise BenchError(f"a parked long poll was answered with {ids or 'nothing'} although nothing was pushed")
            at = self._meter.note("wake-up", self._meter.started_at, len(ids))
            self._course.audit.groups[""].received(ids, began, at)
            await consumer.ack()
        finally:
            await consumer.close()

    def serve_with(self, meter: Meter) -> None:
        """From now on polls may be answered."""
        self._meter = meter

    async def idle(self, subject: Subject) -> dict[str, Extra]:
        """What the parked polls take while nothing happens."""
        await asyncio.sleep(min(SETTLE_S, self._options.idle_seconds))
        before = subject.watch.usage()
        began = now()
        await asyncio.sleep(self._options.idle_seconds)
        seconds = now() - began
        after = subject.watch.usage()
        return {
            "parked": self._options.parked,
            "kb_per_poll": _per_poll(self._before.server_rss_kb, after.server_rss_kb, self._options.parked),
            "idle_server_cores": _cores(before.server_cpu_s, after.server_cpu_s, seconds),
            "idle_postgres_cores": _cores(before.postgres_cpu_s, after.postgres_cpu_s, seconds),
        }


def _per_poll(before_kb: int | None, after_kb: int | None, polls: int) -> float | None:
    return None if before_kb is None or after_kb is None else (after_kb - before_kb) / polls


def _cores(before_s: float | None, after_s: float | None, seconds: float) -> float | None:
    return None if before_s is None or after_s is None else (after_s - before_s) / seconds
