"""How large tables and indexes become in the long run: a paced load with retention on, and their sizes over time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from queen_bench.broker import Want
from queen_bench.errors import BenchError
from queen_bench.load import Pushing, now
from queen_bench.options import Options
from queen_bench.result import Extra, Result, Series
from queen_bench.scenarios.course import LEASES, Course, for_seconds
from queen_bench.subject import HttpSubject, Subject
from queen_bench.tasks import cancelled, together
from queenmq.storage.embedded import running_url

SAMPLES: Final = 240
# Messages are kept for so much of the run, and no less than a second.
KEPT: Final = 1 / 12
SHOWN: Final = 6
MB: Final = 1024 * 1024
SIZES: Final = """
    SELECT relname AS name, pg_table_size(relid) AS heap, pg_indexes_size(relid) AS indexes, n_dead_tup AS dead
    FROM pg_stat_user_tables WHERE schemaname = 'queen'
"""


@dataclass
class Sizes:
    """Of every table and of its indexes, in MB by seconds since the beginning."""

    database: asyncpg.Connection[asyncpg.Record]
    began: float = field(default_factory=now)
    series: Series = field(default_factory=dict)

    async def sample(self, pause_s: float) -> None:
        while True:
            at = now() - self.began
            for row in await self.database.fetch(SIZES):
                self.series.setdefault(row["name"], []).append((at, row["heap"] / MB))
                self.series.setdefault(f"{row['name']}, indexes", []).append((at, row["indexes"] / MB))
            await asyncio.sleep(pause_s)

    def largest(self) -> dict[str, Extra]:
        """Of those that became largest: the largest size in each quarter of the time. A bounded one stays as it is."""
        found: dict[str, Extra] = {}
        names = sorted(self.series, key=lambda name: max(size for _, size in self.series[name]), reverse=True)
        for name in names[:SHOWN]:
            values = [size for _, size in self.series[name]]
            for quarter in range(4):
                part = values[len(values) * quarter // 4 : len(values) * (quarter + 1) // 4]
                found[f"{name.replace(', ', '_')}_mb_{quarter + 1}"] = max(part, default=None)
        return found


@dataclass(frozen=True)
class SizesOverTime:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return "push and pop + ack at once, batch 1, paced by --rate, retention on: sizes of tables over time"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject) or subject.folder is None:
            raise BenchError("sizes can be read only in the database of a server that the benchmark has started")
        producers = max(options.connections // 2, 1)
        course = Course(subject, options, partitions=options.partitions, producers=producers)
        await _retain(subject, course, max(1, round(options.seconds * KEPT)))
        await course.load.touch()
        await course.drain()
        database: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(running_url(subject.folder / "data"))
        sizes = Sizes(database)
        sampling = asyncio.ensure_future(sizes.sample(options.seconds / SAMPLES))
        over = for_seconds(options.seconds)
        meter = course.meter()
        meter.start()
        try:
            pushing, consumers = Pushing(1, rate=options.rate), max(options.connections - producers, 1)
            await together((course.load.push(meter, over, pushing), course.load.pop(meter, over, Want(1), consumers)))
        finally:
            await cancelled([sampling])
            await database.close()
        meter.stop()
        result = meter.result("pop")
        result.ack_mode = LEASES
        result.extra = sizes.largest()
        result.series = sizes.series
        return await course.close(result)


async def _retain(subject: HttpSubject, course: Course, seconds: int) -> None:
    options = {"retentionEnabled": True, "retentionSeconds": seconds, "completedRetentionSeconds": seconds}
    connection = await subject.connect()
    try:
        body = json.dumps({"queue": course.layout.queue(), "options": options}).encode()
        status, answer = await connection.post(b"/api/v1/configure", body)
    finally:
        connection.close()
    if status >= 300:
        raise BenchError(f"the queue could not be configured: {status} {answer.decode(errors='replace')}")
