"""A held horizon on a machine that is never quiet for long: every form has a server and a PostgreSQL of its own.

The horizon of one database is free, that of the others is held for the whole run. A cycle gives each of them one short
turn, so that all have the same neighbours, and the rates of a cycle can be compared. Between cycles there is a pause as
long as --rate demands. What a turn costs is reported for each sixth of the time: what grows shows there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg

from queen_bench.errors import BenchError
from queen_bench.figures import median
from queen_bench.load import now
from queen_bench.meter import latency
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.scenarios.course import LEASES, Course
from queen_bench.scenarios.held_horizon import FORMS, SETTINGS, Database, Figures, Rounds, holding
from queen_bench.server import with_settings
from queen_bench.subject import HttpSubject, Subject
from queenmq.storage.embedded import running_url

FREE: Final = "free"
SIDES: Final = (FREE, *FORMS)
TURN: Final = 4000  # messages; what it takes to open the connections must not count
PARTS: Final = 6
VERBS: Final = ("push", "pop")
Rates = dict[str, list[float]]


@dataclass
class Side:
    """One server with its database, and what was measured there in each part of the time."""

    rounds: Rounds
    parts: list[Figures] = field(default_factory=lambda: [Figures() for _ in range(PARTS)])
    rates: list[Rates] = field(default_factory=lambda: [{"push": [], "pop": []} for _ in range(PARTS)])
    # Blocks and seconds of VACUUM at the beginning of each part and at the end. By part and not by turn, because
    # PostgreSQL adds up its figures a second late.
    so_far: list[tuple[int, float]] = field(default_factory=list)

    async def turn(self, part: int) -> None:
        while len(self.so_far) <= part:
            self.so_far.append(await self.rounds.so_far())
        audit = self.rounds.course.audit
        wanted = audit.sent + TURN
        own = Figures()
        await self.rounds.turn(lambda: audit.sent >= wanted, own, self.parts[part])
        for verb in VERBS:
            self.rates[part][verb].append(own.rate(verb))


@dataclass(frozen=True)
class HeldBeside:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return "the forms of held-horizon side by side, each with its own PostgreSQL, in turns paced by --rate"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject) or subject.folder is None:
            raise BenchError("the horizon can be held only in the database of a server that the benchmark has started")
        async with AsyncExitStack() as stack:
            sides = {form: await stack.enter_async_context(_side(subject.folder, form, options)) for form in SIDES}
            await _cycles(sides, options)
            for side in sides.values():
                side.so_far += [await side.rounds.so_far()] * (PARTS + 1 - len(side.so_far))
            extra: dict[str, Extra] = {}
            problems = []
            for form, side in sides.items():
                extra |= _figures(form, side, sides[FREE])
                extra |= {f"{form}_{name}": value for name, value in (await side.rounds.piled_up()).items()}
                closed = await side.rounds.course.close(Result())
                problems += [f"{form}: {problem}" for problem in closed.problems]
        worst = min((sides[form].parts[-1] for form in FORMS), key=lambda figures: figures.rate("pop"))
        return Result(
            messages=sum(part.messages["pop"] for side in sides.values() for part in side.parts),
            seconds=options.held_seconds,
            rate=worst.rate("pop"),
            latency={name: latency(worst.latencies[name]) for name in ("pop", "push", "ack")},
            ack_mode=LEASES,
            extra=extra,
            problems=problems,
        )


@asynccontextmanager
async def _side(folder: Path, form: str, options: Options) -> AsyncIterator[Side]:
    async with with_settings(folder, SETTINGS) as own, AsyncExitStack() as stack:
        assert own.folder is not None  # noqa: S101 - it has just been made
        url = running_url(own.folder / "data")
        database: Database = await asyncpg.connect(url)
        stack.push_async_callback(database.close)
        side = Side(Rounds(Course(own, options, partitions=options.partitions), database, options))
        await side.rounds.prepare()
        if form != FREE:
            await stack.enter_async_context(holding(url, form))
        yield side


async def _cycles(sides: dict[str, Side], options: Options) -> None:
    began = now()
    order = list(sides.values())
    cycles = 0
    while (passed_s := now() - began) < options.held_seconds:
        part = int(passed_s / options.held_seconds * PARTS)
        for side in order:
            await side.turn(part)
        order.append(order.pop(0))
        cycles += 1
        await asyncio.sleep(max(0.0, began + cycles * TURN / options.rate - now()))


def _figures(form: str, side: Side, free: Side) -> dict[str, Extra]:
    found: dict[str, Extra] = {}
    if side is not free:
        found |= {f"{form}_{verb}_rate_share": _share(side.rates, free.rates, verb) for verb in VERBS}
    for number, (part, base) in enumerate(zip(side.parts, free.parts, strict=True)):
        if not part.messages["pop"] or not base.messages["pop"]:
            continue  # a short run
        blocks, vacuum_s = (after - before for before, after in zip(*side.so_far[number : number + 2], strict=True))
        found |= {
            f"{form}_messages_{number}": part.messages["pop"],
            f"{form}_blocks_{number}": blocks / part.messages["pop"],
            f"{form}_vacuum_s_{number}": vacuum_s,
        }
        for verb in VERBS:
            found |= {
                f"{form}_{verb}_p99_ms_{number}": part.p99_ms(verb),
                f"{form}_{verb}_postgres_us_{number}": part.cpu_us(verb),
            }
            if side is not free:
                share = _share(side.rates[number : number + 1], free.rates[number : number + 1], verb)
                found |= {
                    f"{form}_{verb}_rate_share_{number}": share,
                    f"{form}_{verb}_p99_ratio_{number}": part.p99_ms(verb) / max(base.p99_ms(verb), 1e-9),
                }
    return found


def _share(own: Sequence[Rates], free: Sequence[Rates], verb: str) -> float | None:
    """The median of what turns have of the rate of the free turn in their cycle."""
    turns = (
        (mine, its)
        for part, base in zip(own, free, strict=True)
        for mine, its in zip(part[verb], base[verb], strict=False)
    )
    return median([mine / max(its, 1e-9) for mine, its in turns])
