"""What one open transaction costs everybody else: pushes to other queues while a plain INSERT holds a partition, to
which somebody pushes as well, and while nobody holds it, in turns on one server.

Any transaction that has written keeps PostgreSQL from removing old row versions, also one that has nothing to do with
Queen. So the third kind of turn has a transaction that is open and holds nothing: the difference is what waiting costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import asyncpg

from queen_bench.audit import Audit
from queen_bench.broker import Broker
from queen_bench.drain import drain, last_look
from queen_bench.errors import BenchError
from queen_bench.layout import Layout
from queen_bench.load import Load, Pushing
from queen_bench.meter import Meter, latency
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.scenarios.course import for_seconds
from queen_bench.subject import HttpSubject, Subject
from queenmq.storage.embedded import running_url

TURNS: Final = 4
FREE, IDLE, HELD = "free", "idle", "held"
QUEUES: Final = 20
HELD_LANE: Final = QUEUES  # the lane of the queue that is held
HELD_PER_S: Final = 30
INSERT: Final = """
    INSERT INTO queen.messages (partition_id, payload)
    SELECT p.id, 'null' FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1
"""


@dataclass
class Figures:
    """Of all turns of a kind."""

    seconds: float = 0.0
    messages: int = 0
    latencies: list[float] = field(default_factory=list)

    def add(self, meter: Meter) -> None:
        self.seconds += meter.elapsed_s
        self.messages += meter.messages["push"]
        self.latencies += meter.latencies["push"]

    @property
    def rate(self) -> float:
        return self.messages / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class OpenTransaction:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return f"push, batch 1, to {QUEUES} queues while a transaction holds another one, and while none does"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject) or subject.folder is None:
            raise BenchError(
                "a transaction can be opened only on the database of a server that the benchmark has started"
            )
        # A queue for each lane.
        layout = Layout(1, options.payload, cold=True)
        broker, audit = subject.broker(layout, options.connections), Audit("")
        load = Load(broker, audit, producers=QUEUES, lanes=QUEUES)
        stranger = await asyncpg.connect(running_url(subject.folder / "data"))
        try:
            others = Turns(subject, broker, load, stranger, layout.queue(HELD_LANE))
            figures = await others.run(options)
        finally:
            await stranger.close()
        await drain(broker, audit)
        await last_look(broker, audit)
        return _compared(figures, audit)


@dataclass(frozen=True)
class Turns:
    subject: HttpSubject
    broker: Broker
    load: Load
    stranger: asyncpg.Connection[asyncpg.Record]
    held_queue: str
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    async def run(self, options: Options) -> dict[str, Figures]:
        await self.load.touch()
        await self._push_held()
        await self.load.push(Meter(self.subject.watch), for_seconds(options.warm_up_s), Pushing(1))
        figures = {state: Figures() for state in (FREE, IDLE, HELD)}
        for turn in range(TURNS):
            for state in (FREE, IDLE, HELD) if turn % 2 else (HELD, IDLE, FREE):
                figures[state].add(await self._turn(state, options.seconds / TURNS))
        return figures

    async def _turn(self, state: str, seconds: float) -> Meter:
        meter = Meter(self.subject.watch)
        pushes: list[asyncio.Task[None]] = []
        async with self._transaction(state):
            meter.start()
            pushing = asyncio.create_task(self._keep_pushing(pushes))
            await self.load.push(meter, for_seconds(seconds), Pushing(1))
            meter.stop()
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)
        await asyncio.gather(*pushes)
        return meter

    @asynccontextmanager
    async def _transaction(self, state: str) -> AsyncIterator[None]:
        if state == FREE:
            yield
            return
        transaction = self.stranger.transaction()
        await transaction.start()
        try:
            if state == IDLE:
                await self.stranger.execute("SELECT pg_current_xact_id()")
            else:
                await self.stranger.execute(INSERT, self.held_queue)
            yield
        finally:
            await transaction.rollback()

    async def _keep_pushing(self, pushes: list[asyncio.Task[None]]) -> None:
        while True:
            pushes.append(asyncio.create_task(self._push_held()))
            await asyncio.sleep(1 / HELD_PER_S)

    async def _push_held(self) -> None:
        """Each on a connection of its own, because they wait while the transaction is open. Not audited: what is
        sent on several connections has no order."""
        producer = await self.broker.producer(HELD_LANE)
        try:
            await producer.push(HELD_LANE, next(self.numbers), 1)
        finally:
            await producer.close()


def _compared(figures: dict[str, Figures], audit: Audit) -> Result:
    held = figures[HELD]
    rates: dict[str, Extra] = {f"rate_{state}": each.rate for state, each in figures.items()}
    p99 = {state: latency(each.latencies).p99_ms or 0.0 for state, each in figures.items()}
    return Result(
        messages=held.messages,
        seconds=held.seconds,
        rate=held.rate,
        latency={"push": latency(held.latencies)},
        extra=rates
        | {f"p99_ms_{state}": value for state, value in p99.items()}
        | {f"rate_share_of_{state}": held.rate / max(figures[state].rate, 1e-9) for state in (FREE, IDLE)}
        | {f"p99_ratio_to_{state}": p99[HELD] / max(p99[state], 1e-9) for state in (FREE, IDLE)},
        problems=audit.finish(),
    )
