"""How soon a consumer that waits has a message: from the moment the push is sent, or due, to the moment the pop has it.

On a server that has nothing else to do, and at half of what the server can do both ways.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from queen_bench.ages import Ages
from queen_bench.audit import Audit
from queen_bench.broker import Consumer, Producer, Want
from queen_bench.connected import SHARED_BY
from queen_bench.drain import last_look
from queen_bench.errors import BenchError
from queen_bench.layout import Layout
from queen_bench.load import Pushing, now
from queen_bench.meter import Meter, latency, ms
from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.scenarios.course import LEASES, TAKE, Course, for_seconds
from queen_bench.subject import Subject
from queen_bench.tasks import together

SHARE: Final = 0.5
POPPED: Final = 10
PATIENCE_S: Final = 10.0
# Long enough for the poll to be parked, and irregular, so that a server that only looks now and then cannot hide it.
PAUSE_S: Final = (0.05, 0.5)
WAIT_MS: Final = 30_000


@dataclass(frozen=True)
class Wakeup:
    name: str
    connected: bool = False

    @property
    def peers(self) -> bool:
        return not self.connected

    @property
    def about(self) -> str:
        what = "consumer connection" if self.connected else "long poll"
        return f"wake-up of an idle {what}: push sent to pop received, --rounds times"

    async def run(self, subject: Subject, options: Options) -> Result:
        broker = subject.broker(Layout(1, options.payload), options.connections)
        want = Want(1, connected=self.connected, wait_ms=WAIT_MS)
        rounds = Rounds(await broker.producer(0), await broker.consumer(0, want))
        await rounds.round(Meter(subject.watch))
        meter = Meter(subject.watch)
        meter.start()
        for _ in range(options.rounds):
            await rounds.round(meter)
        meter.stop()
        result = meter.result("wake-up")
        # Most of the time nothing happens, so what is counted per message says nothing.
        result.rate = result.server_cpu_s = result.postgres_cpu_s = result.generator_cpu_s = None
        result.ack_mode = LEASES
        await last_look(broker, rounds.audit)
        result.problems = rounds.audit.finish()
        return result


class Rounds:
    """One producer and one consumer who wait for each other."""

    def __init__(self, producer: Producer, consumer: Consumer) -> None:
        self.audit = Audit()
        self._producer = producer
        self._consumer = consumer
        self._sent_at = 0.0

    async def round(self, meter: Meter) -> None:
        await asyncio.gather(self._pop(meter), self._push())
        await self._consumer.ack()

    async def _pop(self, meter: Meter) -> None:
        began = now()
        ids = await self._consumer.pop()
        if not ids:
            raise BenchError(f"a long poll of {WAIT_MS // 1000} s ended without the message that was pushed meanwhile")
        at = meter.note("wake-up", self._sent_at, len(ids))
        self.audit.groups[""].received(ids, began, at)

    async def _push(self) -> None:
        await asyncio.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - no secret
        first = self.audit.send(0, 1)
        self._sent_at = now()
        await self._producer.push(0, first, 1)


@dataclass(frozen=True)
class HalfLoad:
    """As many producers as consumers, because some brokers have a queue for each of both."""

    name: str
    connected: bool = False

    @property
    def peers(self) -> bool:
        return not self.connected

    @property
    def about(self) -> str:
        what = "consumer connections" if self.connected else "long polls"
        return f"push due to pop received at {SHARE:.0%} of the peak rate of both ways, push batch 1, {what}"

    async def run(self, subject: Subject, options: Options) -> Result:
        course = Course(subject, options, partitions=options.partitions)
        await course.load.touch()
        await course.drain()
        await self._run(course, options, options.warm_up_s)
        await course.drain()
        meter, _ = await self._run(course, options, options.seconds)
        await course.drain()
        peak = min(meter.rate("push"), meter.rate("pop"))
        meter, ages = await self._run(course, options, options.seconds, SHARE * peak)
        result = meter.result("pop")
        result.latency = {"wake-up": latency(ages.seen_s)} | result.latency
        result.worst_age_ms = ms(max(ages.seen_s, default=None))
        result.ack_mode = TAKE if self.connected else LEASES
        result.extra = {"peak_rate": peak, "push_rate": meter.rate("push")}
        return await course.close(result)

    async def _run(
        self, course: Course, options: Options, seconds: float, rate: float | None = None
    ) -> tuple[Meter, Ages]:
        """Both ways for some seconds; if the rate is given, consumers go on until nothing is left."""
        over, given_up = for_seconds(seconds), for_seconds(seconds + PATIENCE_S)
        pushing = Pushing(1, rate=rate)
        ages = pushing.ages()
        want = Want(POPPED, connected=self.connected, prefetch=SHARED_BY)
        meter = course.meter()
        meter.start()
        await together(
            (
                course.load.push(meter, over, pushing, ages),
                course.load.pop(
                    meter,
                    lambda: over() and (rate is None or given_up() or course.audit.pending <= 0),
                    want,
                    options.connections,
                    ages,
                ),
            )
        )
        meter.stop()
        return meter, ages
