"""The load itself: producers and consumers that run until they are told to stop.

Hot loops. They share two cores with what they measure, so they do little per request and next to nothing per message.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from queen_bench.ages import Ages
from queen_bench.audit import Audit
from queen_bench.broker import Broker, Consumer, Producer, Want
from queen_bench.meter import Meter
from queen_bench.tasks import together

Stop = Callable[[], bool]
Session = TypeVar("Session", bound=Producer | Consumer)

now = time.perf_counter

# Messages in one request where nothing is measured.
FILL_BATCH: Final = 100
# A server that answers a long poll at once with nothing must not be asked in a tight loop.
EMPTY_PAUSE_S: Final = 0.002


@dataclass(frozen=True)
class Pushing:
    """How producers push: a request's messages go to one lane, or with `spread` to one lane each."""

    batch: int
    spread: bool = False
    rate: float | None = None  # messages a second of all producers together; None is as fast as they can
    hot: int = 0  # so many messages of a request go to the producer's lane in the first partition

    def ages(self) -> Ages:
        return Ages(1 if self.spread else self.batch)


class Load:
    """Producers and consumers on one broker that share an audit.

    Producer `n` of N owns the lanes n, n + N, n + 2N and so on; nobody else writes to them. With `shared` every
    producer has a lane in every partition, so that requests of several producers meet there.
    """

    def __init__(
        self,
        broker: Broker,
        audit: Audit,
        *,
        producers: int,
        lanes: int,
        cold: bool = False,
        shared: bool = False,
        client: bool = False,
    ) -> None:
        self.audit = audit
        self.lanes = max(lanes, producers)
        self._broker = broker
        self._client = client
        if shared:
            self._own = [_lanes_everywhere(number, self.lanes) for number in range(producers)]
        else:
            self._own = [_own_lanes(number, producers, None if cold else self.lanes) for number in range(producers)]

    async def touch(self) -> None:
        """Put one message into every lane, so that every partition exists."""
        async with self._producers() as producers:
            await together(self._touch(number, producer) for number, producer in enumerate(producers))

    async def _touch(self, number: int, producer: Producer) -> None:
        own = range(number, self.lanes, len(self._own))
        for start in range(0, len(own), FILL_BATCH):
            await producer.push_each([(lane, self.audit.send(lane, 1)) for lane in own[start : start + FILL_BATCH]])

    async def fill(self, count: int, per_lane: int, until: float) -> None:
        """Push about `count` messages evenly, `per_lane` in a row to each lane, or as many as there is time for."""
        lanes_each = -(-count // (per_lane * len(self._own)))
        async with self._producers() as producers:
            pairs = zip(producers, self._own, strict=True)
            await together(self._fill(producer, own, lanes_each, per_lane, until) for producer, own in pairs)

    async def _fill(self, producer: Producer, own: Iterator[int], lanes: int, per_lane: int, until: float) -> None:
        send = self.audit.send
        at_once = max(1, FILL_BATCH // per_lane)
        for done in range(0, lanes, at_once):
            if now() >= until:
                break
            runs = [(lane, send(lane, per_lane)) for lane in itertools.islice(own, min(at_once, lanes - done))]
            await producer.push_each([(lane, first + n) for lane, first in runs for n in range(per_lane)])

    async def push(self, meter: Meter, stop: Stop, pushing: Pushing, ages: Ages | None = None) -> None:
        """Push from all producers until told to stop."""
        async with self._producers() as producers:
            work = enumerate(producers)
            await together(self._push(number, producer, meter, stop, pushing, ages) for number, producer in work)

    async def _push(
        self, number: int, producer: Producer, meter: Meter, stop: Stop, pushing: Pushing, ages: Ages | None
    ) -> None:
        own = self._own[number]
        if pushing.hot:
            own = _with_hot(own, (number + 1) * self.lanes, pushing)
        push = self._push_spread if pushing.spread else self._push_lane
        dues = _dues(number, len(self._own), pushing)
        while not stop():
            due = None if dues is None else await _wait_until(next(dues))
            began = now()
            await push(producer, own, pushing.batch, began if due is None else due, ages)
            meter.note("push", began, pushing.batch)

    async def _push_lane(
        self, producer: Producer, own: Iterator[int], count: int, due: float, ages: Ages | None
    ) -> None:
        lane = next(own)
        first = self.audit.send(lane, count)
        if ages is not None:
            ages.sent(lane, first, due)
        await producer.push(lane, first, count)

    async def _push_spread(
        self, producer: Producer, own: Iterator[int], count: int, due: float, ages: Ages | None
    ) -> None:
        messages = [(lane, self.audit.send(lane, 1)) for lane in itertools.islice(own, count)]
        if ages is not None:
            for lane, sequence in messages:
                ages.sent(lane, sequence, due)
        await producer.push_each(messages)

    async def pop(self, meter: Meter, stop: Stop, want: Want, consumers: int, ages: Ages | None = None) -> None:
        """Pop, and acknowledge unless autoAck does, until told to stop; the groups of the audit share the consumers."""
        groups = itertools.cycle(self.audit.groups)
        wants = [replace(want, group=group) for group in itertools.islice(groups, consumers)]
        opening = (self._broker.consumer(number, each) for number, each in enumerate(wants))
        async with _sessions([await each for each in opening]) as sessions:
            pairs = zip(sessions, wants, strict=True)
            await together(self._pop(consumer, each, meter, stop, ages) for consumer, each in pairs)

    async def _pop(self, consumer: Consumer, want: Want, meter: Meter, stop: Stop, ages: Ages | None) -> None:
        audit = self.audit.groups[want.group]
        leased = not want.auto_ack
        while not stop():
            began = now()
            ids = await consumer.pop()
            if not ids:
                await asyncio.sleep(EMPTY_PAUSE_S)
                continue
            at = meter.note("pop", began, len(ids))
            audit.received(ids, began, at, leased)
            if ages is not None:
                ages.received(ids, at)
            if want.work_s is not None:
                await asyncio.sleep(sum(want.work_s() for _ in ids))
            if leased:
                await consumer.ack()
                meter.note("ack", at, len(ids))

    @asynccontextmanager
    async def _producers(self) -> AsyncIterator[Sequence[Producer]]:
        opened = [await self._broker.producer(number, client=self._client) for number in range(len(self._own))]
        async with _sessions(opened) as sessions:
            yield sessions


@asynccontextmanager
async def _sessions(opened: Sequence[Session]) -> AsyncIterator[Sequence[Session]]:
    try:
        yield opened
    finally:
        for session in opened:
            await session.close()


def _own_lanes(number: int, producers: int, lanes: int | None) -> Iterator[int]:
    """The lanes of one producer in turn; without a number of lanes always a new one."""
    if lanes is None:
        return itertools.count(number, producers)
    return itertools.cycle(range(number, lanes, producers))


def _lanes_everywhere(number: int, partitions: int) -> Iterator[int]:
    """The lanes of one producer in turn, one in each partition, in an order that no other producer has."""
    lanes = list(range(number * partitions, (number + 1) * partitions))
    random.Random(number).shuffle(lanes)  # noqa: S311 - no secret
    return itertools.cycle(lanes)


def _with_hot(own: Iterator[int], hot: int, pushing: Pushing) -> Iterator[int]:
    """The lanes of a producer, with its lane in the first partition at the beginning of every request."""
    while True:
        yield from itertools.repeat(hot, pushing.hot)
        yield from itertools.islice(own, pushing.batch - pushing.hot)


def _dues(number: int, producers: int, pushing: Pushing) -> Iterator[float] | None:
    """When the requests of a paced producer are due, however long the ones before them took."""
    if pushing.rate is None:
        return None
    pause_s = pushing.batch / pushing.rate
    return itertools.count(now() + number * pause_s, producers * pause_s)


async def _wait_until(due: float) -> float:
    if (pause_s := due - now()) > 0:
        await asyncio.sleep(pause_s)
    return due
