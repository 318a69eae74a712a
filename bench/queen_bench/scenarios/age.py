"""The worst age of a message at 70 % of the peak: first the peak is measured, then the load is paced below it.

Ages count from the moment a push was due, not from when it was sent: a server that holds up producers shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.scenarios.both import BothWays
from queen_bench.subject import Subject

SHARE: Final = 0.7
BATCH: Final = 10
PATIENCE_S: Final = 30.0


@dataclass(frozen=True)
class Age:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return f"worst age of a message at {SHARE:.0%} of the peak rate of both ways, batch {BATCH}"

    async def run(self, subject: Subject, options: Options) -> Result:
        both = BothWays(subject, options, options.age_partitions, BATCH)
        await both.prepare()
        meter, _ = await both.run(options.seconds)
        await both.course.drain()
        peak = min(meter.rate("push"), meter.rate("pop"))
        meter, ages = await both.run_dry(options.seconds, SHARE * peak, PATIENCE_S)
        result = both.result(meter, ages)
        result.extra |= {"peak_rate": peak, "partitions": options.age_partitions}
        return await both.course.close(result)
