"""The course that all scenarios with producers and consumers take: prepare, measure, drain, audit."""

from __future__ import annotations

from typing import Final

from queen_bench.audit import Audit
from queen_bench.drain import drain, last_look
from queen_bench.layout import RANDOM, Layout
from queen_bench.load import Load, Stop, now
from queen_bench.meter import Meter
from queen_bench.options import Options
from queen_bench.result import Result
from queen_bench.subject import Subject

LEASES: Final = "ack/batch"
AUTO_ACK: Final = "autoAck"
TAKE: Final = "take"
CLIENT: Final = "our client"


class Course:
    """One run on one subject."""

    def __init__(
        self,
        subject: Subject,
        options: Options,
        *,
        partitions: int,
        producers: int | None = None,
        groups: int = 0,
        cold: bool = False,
        shared: bool = False,
        payload: str = RANDOM,
        keys: int = 0,
        client: bool = False,
    ) -> None:
        self.audit = Audit(*(f"g{number}" for number in range(groups)))
        self.layout = Layout(partitions, options.payload, cold, payload, keys)
        self.broker = subject.broker(self.layout, options.connections)
        self.load = Load(
            self.broker,
            self.audit,
            producers=producers or options.connections,
            lanes=partitions,
            cold=cold,
            shared=shared,
            client=client,
        )
        self._subject = subject

    def meter(self) -> Meter:
        return Meter(self._subject.watch)

    async def drain(self) -> None:
        await drain(self.broker, self.audit)

    async def close(self, result: Result) -> Result:
        """Pop the rest and write into the result what is wrong."""
        result.pending = self.audit.pending
        await self.drain()
        await last_look(self.broker, self.audit)
        result.problems = self.audit.finish()
        return result


def for_seconds(seconds: float) -> Stop:
    end = now() + seconds
    return lambda: now() >= end
