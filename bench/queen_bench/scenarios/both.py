"""Push and pop + ack at once, half of the connections each: free-running, or with producers paced to a rate."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from queen_bench.ages import Ages
from queen_bench.broker import Want
from queen_bench.connected import SHARED_BY
from queen_bench.figures import grows, per_core, percentile, slope
from queen_bench.load import Pushing, Stop, now
from queen_bench.meter import Meter, ms
from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.scenarios.course import LEASES, TAKE, Course, for_seconds
from queen_bench.subject import Subject
from queen_bench.tasks import cancelled, together

SAMPLE_S: Final = 0.05


class BothWays:
    """A course on which producers and consumers run side by side."""

    def __init__(
        self, subject: Subject, options: Options, partitions: int, batch: int, *, connected: bool = False, keys: int = 0
    ) -> None:
        self._producers = max(options.connections // 2, 1)
        self._consumers = max(options.connections - self._producers, 1)
        self._options = options
        self._batch = batch
        self._want = Want(batch, connected=connected, prefetch=SHARED_BY)
        self.course = Course(subject, options, partitions=partitions, producers=self._producers, keys=keys)
        self.backlog: list[tuple[float, float]] = []

    async def prepare(self) -> None:
        await self.course.load.touch()
        await self.course.drain()
        await self.run(self._options.warm_up_s)
        await self.course.drain()

    async def run(self, seconds: float, rate: float | None = None) -> tuple[Meter, Ages]:
        """Both ways for some seconds; consumers stop with the producers."""
        over = for_seconds(seconds)
        return await self._run(over, over, rate)

    async def run_dry(self, seconds: float, rate: float, patience_s: float) -> tuple[Meter, Ages]:
        """The same, but consumers go on until nothing is left or their patience is over."""
        over = for_seconds(seconds)
        given_up = for_seconds(seconds + patience_s)
        return await self._run(over, lambda: given_up() or (over() and self.course.audit.pending <= 0), rate)

    async def _run(self, pushed: Stop, popped: Stop, rate: float | None) -> tuple[Meter, Ages]:
        pushing = Pushing(self._batch, self._options.spread, rate)
        ages = pushing.ages()
        meter = self.course.meter()
        meter.start()
        sampler = asyncio.ensure_future(self._sample(pushed))
        try:
            await together(
                (
                    self.course.load.push(meter, pushed, pushing, ages),
                    self.course.load.pop(meter, popped, self._want, self._consumers, ages),
                )
            )
        finally:
            await cancelled([sampler])
        meter.stop()
        return meter, ages

    async def _sample(self, stop: Stop) -> None:
        self.backlog = []
        while not stop():
            self.backlog.append((now(), self.course.audit.pending))
            await asyncio.sleep(SAMPLE_S)

    def result(self, meter: Meter, ages: Ages) -> Result:
        """Counted are the messages that went all the way."""
        backlog_per_s = slope(self.backlog[len(self.backlog) // 4 :])
        result = meter.result("pop")
        result.ack_mode = TAKE if self._want.connected else LEASES
        result.worst_age_ms = ms(max(ages.seen_s, default=None))
        result.extra = {
            "push_rate": meter.rate("push"),
            "messages_per_used_core": per_core(result.server_cpu_s, result.postgres_cpu_s),
            "age_p99_ms": ms(percentile(ages.seen_s, 0.99)),
            "backlog_per_s": backlog_per_s,
            "backlog_grows": grows(backlog_per_s, meter.rate("push")),
        }
        return result


@dataclass(frozen=True)
class Both:
    name: str
    batch: int
    paced: bool = False
    connected: bool = False
    peers: bool = False

    @property
    def about(self) -> str:
        pace = "producers paced by --rate" if self.paced else "both as fast as they can"
        how = "consumer connections" if self.connected else "pop + ack"
        return f"push and {how} at once, batch {self.batch}, {pace}"

    async def run(self, subject: Subject, options: Options) -> Result:
        both = BothWays(subject, options, options.partitions, self.batch, connected=self.connected)
        await both.prepare()
        meter, ages = await both.run(options.seconds, options.rate if self.paced else None)
        return await both.course.close(both.result(meter, ages))
