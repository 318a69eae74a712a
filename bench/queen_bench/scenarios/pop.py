"""Pop from a stock of messages as fast as it goes, with leases that are acknowledged or with autoAck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queen_bench.broker import Want
from queen_bench.connected import SHARED_BY
from queen_bench.load import now
from queen_bench.meter import Meter
from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.scenarios.course import AUTO_ACK, CLIENT, LEASES, TAKE, Course, for_seconds
from queen_bench.subject import Subject

# A trial on a small stock tells how much the measurement will need; about half a second's worth for ten seconds.
TRIAL_MESSAGES: Final = 300  # times the seconds of the measurement, for batch 1
STOCK_MARGIN: Final = 1.5
# Towards the end of the stock some consumers find nothing, so a trial ends before that, and so does a measurement.
TRIAL_REST: Final = 0.5
REST: Final = 0.1
LONGEST_FILL: Final = 6  # times the seconds of the measurement


@dataclass(frozen=True)
class Pop:
    name: str
    batch: int
    auto_ack: bool = False
    take: bool = False
    connected: bool = False
    client: bool = False
    partitions: int | None = None
    groups: int = 0
    most_consumers: int | None = None

    @property
    def peers(self) -> bool:
        return not (self.auto_ack or self.take or self.connected or self.groups or self.partitions)

    @property
    def about(self) -> str:
        how = "pop with autoAck" if self.auto_ack else "finish and pop in one request" if self.take else "pop + ack"
        how = "consumer connections" if self.connected else how
        how = "consume with the Python client" if self.client else how
        groups = f" by each of {self.groups} groups" if self.groups else ""
        few = f", at most {self.most_consumers} connections" if self.most_consumers else ""
        return f"{how}, batch {self.batch}, {self.partitions or 'all'} partitions{groups}{few}"

    async def run(self, subject: Subject, options: Options) -> Result:
        course = Course(subject, options, partitions=self.partitions or options.partitions, groups=self.groups)
        await course.load.touch()
        await course.drain()
        per_group = await self._trial(course, options) / max(self.groups, 1)
        await self._fill(course, options, int(per_group * options.seconds * STOCK_MARGIN))
        meter = course.meter()
        meter.start()
        await self._pop(course, meter, options, REST)
        meter.stop()
        result = await course.close(meter.result("pop"))
        result.ack_mode = AUTO_ACK if self.auto_ack else TAKE if self.take or self.connected else LEASES
        result.ack_mode = CLIENT if self.client else result.ack_mode
        return result

    async def _trial(self, course: Course, options: Options) -> float:
        """Messages a second, roughly."""
        count = TRIAL_MESSAGES * options.seconds * self.batch**0.5
        await self._fill(course, options, int(count / max(self.groups, 1)))
        meter = course.meter()
        meter.start()
        await self._pop(course, meter, options, TRIAL_REST)
        await course.drain()
        return meter.rate("pop")

    async def _fill(self, course: Course, options: Options, count: int) -> None:
        """Enough for every connection to have something to do, and evenly: whole batches in every partition."""
        least = options.connections * self.batch * 4
        until = now() + options.seconds * LONGEST_FILL
        await course.load.fill(max(count, least), self.batch, until)

    async def _pop(self, course: Course, meter: Meter, options: Options, rest: float) -> None:
        """Stop in time, or when only that share of the stock is left."""
        over = for_seconds(options.seconds)
        consumers = min(options.connections, self.most_consumers or options.connections)
        least = course.audit.pending * rest
        want = Want(
            self.batch,
            auto_ack=self.auto_ack,
            take=self.take,
            connected=self.connected,
            client=self.client,
            prefetch=SHARED_BY,
        )
        await course.load.pop(meter, lambda: over() or course.audit.pending <= least, want, consumers)
