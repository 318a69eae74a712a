"""The order of a run: every scenario on every contender in turn, as often as asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from queen_bench.errors import BenchError
from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.scenarios.scenario import Scenario
from queen_bench.subject import Contender, Subject

Say = Callable[[Result], None]

# A server that does not answer must not hold up the run for ever.
PATIENCE_S: Final = 300.0
PATIENCE_PER_SECOND: Final = 30


class Runner:
    """Runs one scenario at a time. Within a repeat the contenders alternate, and every other repeat goes backwards."""

    def __init__(self, contenders: Sequence[Contender], options: Options, *, keep: bool = False) -> None:
        self._contenders = contenders
        self._options = options
        self._keep = keep
        self._kept: dict[str, Subject] = {}

    async def run(self, scenarios: Sequence[Scenario], repeats: int, say: Say) -> list[Result]:
        """A scenario that cannot be finished counts as failed; the next ones run all the same."""
        results: list[Result] = []
        async with AsyncExitStack() as stack:
            for repeat in range(repeats):
                for scenario, contender in self._turns(scenarios, repeat):
                    result = await self._one(scenario, contender, stack)
                    result.scenario, result.server, result.repeat = scenario.name, contender.name, repeat
                    results.append(result)
                    say(result)
        return results

    def _turns(self, scenarios: Sequence[Scenario], repeat: int) -> list[tuple[Scenario, Contender]]:
        order = self._contenders if repeat % 2 == 0 else self._contenders[::-1]
        return [(each, other) for each in scenarios for other in order if other.takes(each.name, each.peers)]

    async def _one(self, scenario: Scenario, contender: Contender, stack: AsyncExitStack) -> Result:
        longest_s = max(self._options.seconds, self._options.held_seconds)
        patience_s = PATIENCE_S + PATIENCE_PER_SECOND * longest_s
        try:
            async with asyncio.timeout(patience_s), self._subject(contender, stack) as subject:
                return await scenario.run(subject, self._options)
        except BenchError as error:
            return Result(problems=[str(error)])
        except TimeoutError:
            return Result(problems=[f"not finished after {patience_s:.0f} s"])

    @asynccontextmanager
    async def _subject(self, contender: Contender, stack: AsyncExitStack) -> AsyncIterator[Subject]:
        if not self._keep:
            async with contender.running() as subject:
                yield subject
            return
        if contender.name not in self._kept:
            self._kept[contender.name] = await stack.enter_async_context(contender.running())
        yield self._kept[contender.name]
