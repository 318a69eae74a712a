"""What it costs that PostgreSQL may not remove old row versions, because somebody holds its horizon back.

Rounds with a free horizon alternate with rounds in which it is held, in each of the forms that occur, on one server. A
round is made of short turns: push for a second, then pop and acknowledge all of it. Only the last part of a held round
is compared with the free rounds beside it, because the cost grows with the time that the horizon is held.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import asyncpg

from queen_bench.broker import Want
from queen_bench.errors import BenchError
from queen_bench.load import Pushing, Stop, now
from queen_bench.meter import Meter, latency
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.scenarios.course import LEASES, Course, for_seconds
from queen_bench.server import with_settings
from queen_bench.subject import HttpSubject, Subject
from queenmq.storage.embedded import running_url

SESSION, DUMP, PREPARED = "session", "dump", "prepared"
FORMS: Final = (SESSION, DUMP, PREPARED)
TABLES: Final = ("partition_lookup", "partition_consumers", "messages")
PUSH_S: Final = 1.0
PREPARED_NAME: Final = "queen bench"
SETTINGS: Final = {"max_prepared_transactions": "2", "track_io_timing": "off"}

# A figure of a table: what a lookup had to read shows in the blocks, what has piled up in the others.
STATE: Final = """
    SELECT s.relname AS name, s.n_dead_tup AS dead, pg_table_size(s.relid) AS heap, pg_indexes_size(s.relid) AS indexes,
           io.heap_blks_hit + io.heap_blks_read + io.idx_blks_hit + io.idx_blks_read AS blocks,
           coalesce((to_jsonb(s) ->> 'total_vacuum_time')::float, 0)
           + coalesce((to_jsonb(s) ->> 'total_autovacuum_time')::float, 0) AS vacuum_ms
    FROM pg_stat_user_tables s JOIN pg_statio_user_tables io USING (relid)
    WHERE s.schemaname = 'queen' AND s.relname = ANY ($1)
"""
LOCK_ALL: Final = """
    DO $$
    DECLARE t regclass;
    BEGIN
        FOR t IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'queen'::regnamespace AND c.relkind = 'r' LOOP
            EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE', t);
        END LOOP;
    END $$
"""
MB: Final = 1024 * 1024

Database: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@dataclass
class Figures:
    """Of the turns of a round, or of several rounds."""

    seconds: dict[str, float] = field(default_factory=lambda: {"push": 0.0, "pop": 0.0})
    messages: dict[str, int] = field(default_factory=lambda: {"push": 0, "pop": 0})
    latencies: dict[str, list[float]] = field(default_factory=lambda: {"push": [], "pop": [], "ack": []})
    cpu_s: dict[str, float] = field(default_factory=lambda: {"push": 0.0, "pop": 0.0})
    blocks: dict[str, int] = field(default_factory=lambda: {"push": 0, "pop": 0})

    def add(self, verb: str, meter: Meter, blocks: int) -> None:
        result = meter.result(verb)
        self.seconds[verb] += result.seconds
        self.messages[verb] += result.messages
        self.cpu_s[verb] += (result.postgres_cpu_s or 0.0) * result.messages / 100_000
        self.blocks[verb] += blocks
        for name in self.latencies.keys() & meter.latencies.keys():
            self.latencies[name] += meter.latencies[name]

    def rate(self, verb: str) -> float:
        return self.messages[verb] / max(self.seconds[verb], 1e-9)

    def cpu_us(self, verb: str) -> float:
        return self.cpu_s[verb] / max(self.messages[verb], 1) * 1e6

    def blocks_each(self, verb: str) -> float:
        return self.blocks[verb] / max(self.messages[verb], 1)

    def p99_ms(self, verb: str) -> float:
        return latency(self.latencies[verb]).p99_ms or 0.0


@dataclass(frozen=True)
class HeldHorizon:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return "push and pop + ack, batch 1, while old row versions cannot be removed, and while they can"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject) or subject.folder is None:
            raise BenchError("the horizon can be held only in the database of a server that the benchmark has started")
        async with with_settings(subject.folder, SETTINGS) as own:
            return await self._run(own, options)

    async def _run(self, subject: HttpSubject, options: Options) -> Result:
        assert subject.folder is not None  # noqa: S101 - it has just been made
        url = running_url(subject.folder / "data")
        database: Database = await asyncpg.connect(url)
        try:
            rounds = Rounds(Course(subject, options, partitions=options.partitions), database, options)
            await rounds.prepare()
            free, extra = Figures(), dict[str, Extra]()
            await rounds.turns(options.seconds, free)
            held: dict[str, Figures] = {}
            for form in FORMS:
                async with holding(url, form):
                    held[form], figures = await rounds.held(options)
                extra |= {f"{form}_{name}": value for name, value in figures.items()}
                await rounds.recover()
                await rounds.turns(options.seconds, free)
        finally:
            await database.close()
        return await rounds.course.close(_compared(free, held, extra))


class Rounds:
    def __init__(self, course: Course, database: Database, options: Options) -> None:
        self.course = course
        self._database = database
        self._connections = options.connections
        self._warm_up_s = options.warm_up_s

    async def prepare(self) -> None:
        await self.course.load.touch()
        await self.course.drain()
        await self.turns(self._warm_up_s, Figures())

    async def turns(self, seconds: float, into: Figures) -> None:
        over = for_seconds(seconds)
        while not over():
            await self.turn(for_seconds(min(PUSH_S, seconds)), into)

    async def turn(self, pushed: Stop, *into: Figures) -> None:
        """Push until told to stop, then pop and acknowledge all of it."""
        before = await self._blocks()
        meter = self.course.meter()
        meter.start()
        await self.course.load.push(meter, pushed, Pushing(1))
        meter.stop()
        between = await self._blocks()
        for figures in into:
            figures.add("push", meter, between - before)

        meter = self.course.meter()
        meter.start()
        await self.course.load.pop(meter, lambda: self.course.audit.pending <= 0, Want(1), self._connections)
        meter.stop()
        after = await self._blocks()
        for figures in into:
            figures.add("pop", meter, after - between)

    async def held(self, options: Options) -> tuple[Figures, dict[str, Extra]]:
        """The figures of the last part, and what has piled up until then."""
        began = now()
        first, last = Figures(), Figures()
        await self.turns(min(options.seconds, options.held_seconds), first)
        if (rest := options.held_seconds - options.seconds - (now() - began)) > 0:
            await self.turns(rest, Figures())
        if now() - began < options.held_seconds:
            await self.turns(max(began + options.held_seconds - now(), PUSH_S), last)
        else:
            last = first
        return last, {"held_s": now() - began} | await self.piled_up()

    async def piled_up(self) -> dict[str, Extra]:
        found: dict[str, Extra] = {}
        for row in await self._state():
            found |= {
                f"{row['name']}_dead": row["dead"],
                f"{row['name']}_mb": row["heap"] / MB,
                f"{row['name']}_indexes_mb": row["indexes"] / MB,
            }
        return found

    async def so_far(self) -> tuple[int, float]:
        """Blocks that were read, and seconds that VACUUM has taken; 0 before PostgreSQL 18, which does not say."""
        rows = await self._state()
        return sum(row["blocks"] for row in rows), sum(row["vacuum_ms"] for row in rows) / 1000

    async def recover(self) -> None:
        """Nobody holds the horizon any more: what has piled up must not count for the next round."""
        for table in TABLES:
            await self._database.execute(f"VACUUM queen.{table}")

    async def _blocks(self) -> int:
        return sum(row["blocks"] for row in await self._state())

    async def _state(self) -> list[asyncpg.Record]:
        return await self._database.fetch(STATE, list(TABLES))


@asynccontextmanager
async def holding(url: str, form: str) -> AsyncIterator[None]:
    stranger: Database = await asyncpg.connect(url)
    try:
        await stranger.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await stranger.execute("SELECT count(*) FROM pg_class")
        if form == DUMP:
            await stranger.execute(LOCK_ALL)
        elif form == PREPARED:
            await stranger.execute("SELECT pg_current_xact_id()")
            await stranger.execute(f"PREPARE TRANSACTION '{PREPARED_NAME}'")
        try:
            yield
        finally:
            await stranger.execute(f"ROLLBACK PREPARED '{PREPARED_NAME}'" if form == PREPARED else "ROLLBACK")
    finally:
        await stranger.close()


def _compared(free: Figures, held: dict[str, Figures], piled_up: dict[str, Extra]) -> Result:
    extra: dict[str, Extra] = {}
    for verb in ("push", "pop"):
        extra |= {
            f"{verb}_rate_free": free.rate(verb),
            f"{verb}_postgres_us_free": free.cpu_us(verb),
            f"{verb}_blocks_free": free.blocks_each(verb),
            f"{verb}_p99_ms_free": free.p99_ms(verb),
        }
        for form, figures in held.items():
            extra |= {
                f"{form}_{verb}_rate": figures.rate(verb),
                f"{form}_{verb}_rate_share": figures.rate(verb) / max(free.rate(verb), 1e-9),
                f"{form}_{verb}_p99_ratio": figures.p99_ms(verb) / max(free.p99_ms(verb), 1e-9),
                f"{form}_{verb}_postgres_us": figures.cpu_us(verb),
                f"{form}_{verb}_blocks": figures.blocks_each(verb),
            }
    worst = min(held.values(), key=lambda figures: figures.rate("pop"))
    return Result(
        messages=worst.messages["pop"],
        seconds=worst.seconds["pop"],
        rate=worst.rate("pop"),
        latency={name: latency(worst.latencies[name]) for name in ("pop", "push", "ack")},
        ack_mode=LEASES,
        extra=extra | piled_up,
    )
