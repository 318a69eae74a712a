"""Push as fast as it goes: to partitions that exist, or only to ones that do not (cold)."""

from __future__ import annotations

from dataclasses import dataclass

from queen_bench.load import Pushing
from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.scenarios.course import Course, for_seconds
from queen_bench.subject import Subject


@dataclass(frozen=True)
class Push:
    name: str
    batch: int
    partitions: int | None = None
    groups: int = 0
    cold: bool = False
    spread: bool = False  # each item of a request to another partition, all connections to all partitions
    client: bool = False  # through our own client

    @property
    def peers(self) -> bool:
        return not (self.cold or self.groups or self.partitions or self.spread)

    @property
    def about(self) -> str:
        where = "each request to a new partition" if self.cold else f"{self.partitions or 'all'} partitions"
        if self.spread:
            where = "each item to another partition, all connections to all partitions"
        groups = f", {self.groups} groups subscribed" if self.groups else ""
        how = "push through the Python client" if self.client else "push"
        return f"{how}, batch {self.batch}, {where}{groups}"

    async def run(self, subject: Subject, options: Options) -> Result:
        partitions = self.partitions or options.partitions
        course = Course(
            subject,
            options,
            partitions=partitions,
            groups=self.groups,
            cold=self.cold,
            shared=self.spread,
            client=self.client,
        )
        pushing = Pushing(self.batch, self.spread or options.spread)
        if not self.cold:
            await course.load.touch()
        if self.groups:
            await course.drain()
        await course.load.push(course.meter(), for_seconds(options.warm_up_s), pushing)
        meter = course.meter()
        meter.start()
        await course.load.push(meter, for_seconds(options.seconds), pushing)
        meter.stop()
        return await course.close(meter.result("push"))
