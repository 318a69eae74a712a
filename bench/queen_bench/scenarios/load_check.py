"""What the load check costs an idle server: the same pushes with it and without, in turns, on one database."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

from queen_bench.errors import BenchError
from queen_bench.load import Pushing
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.scenarios.course import Course, for_seconds
from queen_bench.server import companion
from queen_bench.subject import HttpSubject, Subject

TURNS: Final = 4


@dataclass(frozen=True)
class LoadCheck:
    name: str
    batch: int = 1
    peers: bool = False

    @property
    def about(self) -> str:
        return f"push, batch {self.batch}, with the load check and without, {TURNS} turns each"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject) or subject.folder is None:
            raise BenchError("servers can be added only to a server that the benchmark has started")
        figures: dict[str, list[Result]] = {"on": [], "off": []}
        async with (
            companion(subject.folder, "check-on", QUEEN_LOAD_CHECK="true") as on,
            companion(subject.folder, "check-off", QUEEN_LOAD_CHECK="false") as off,
        ):
            servers = {"on": on, "off": off}
            for turn in range(TURNS):
                for state in ("on", "off") if turn % 2 else ("off", "on"):
                    figures[state].append(await self._turn(servers[state], options))
        problems = [problem for results in figures.values() for result in results for problem in result.problems]
        return Result(extra=_compared(figures), problems=problems)

    async def _turn(self, server: HttpSubject, options: Options) -> Result:
        course = Course(server, options, partitions=options.partitions)
        pushing = Pushing(self.batch, options.spread)
        await course.load.touch()
        await course.load.push(course.meter(), for_seconds(options.warm_up_s), pushing)
        meter = course.meter()
        meter.start()
        await course.load.push(meter, for_seconds(options.seconds / TURNS), pushing)
        meter.stop()
        return await course.close(meter.result("push"))


def _compared(figures: dict[str, list[Result]]) -> dict[str, Extra]:
    rates = {state: median(result.rate or 0.0 for result in results) for state, results in figures.items()}
    cpu = {state: median(result.server_cpu_s or 0.0 for result in results) for state, results in figures.items()}
    return {
        "rate_on": rates["on"],
        "rate_off": rates["off"],
        "rate_lost_share": 1 - rates["on"] / rates["off"],
        "server_cpu_s_on": cpu["on"],
        "server_cpu_s_off": cpu["off"],
        "server_cpu_share": cpu["on"] / cpu["off"] - 1,
    }
