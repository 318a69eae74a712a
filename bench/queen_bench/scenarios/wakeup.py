"""How soon a parked long poll has a message: from the moment the push is sent to the moment the pop has it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from queen_bench.audit import Audit
from queen_bench.broker import Consumer, Producer, Want
from queen_bench.drain import last_look
from queen_bench.errors import BenchError
from queen_bench.layout import Layout
from queen_bench.load import now
from queen_bench.meter import Meter
from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.scenarios.course import LEASES
from queen_bench.subject import Subject

# Long enough for the poll to be parked, and irregular, so that a server that only looks now and then cannot hide it.
PAUSE_S: Final = (0.05, 0.5)
WAIT_MS: Final = 30_000


@dataclass(frozen=True)
class Wakeup:
    name: str
    connected: bool = False
    peers: bool = False

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
