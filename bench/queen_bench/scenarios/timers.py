"""Timers: how late they are pushed when many are due each second, and what an idle server pays for those that wait."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

import msgspec

from queen_bench.broker import Want
from queen_bench.connection import NO_CONTENT, Connection
from queen_bench.errors import BenchError
from queen_bench.load import now
from queen_bench.meter import Meter, latency, ms
from queen_bench.options import Options
from queen_bench.processes import Usage
from queen_bench.queen import pop_target, shown
from queen_bench.result import Result
from queen_bench.subject import HttpSubject, Subject

OF_EACH_REQUEST: Final = 1_000
MOST_PARTITIONS: Final = 100
# What is done while timers are scheduled must be over before the first is due, or an idle phase begins.
SETTLE_S: Final = 2.0
PATIENCE_S: Final = 60.0
OK: Final = 200


class _Message(msgspec.Struct, rename="camel", gc=False):
    transaction_id: str
    partition: str
    created_at: datetime


class _Popped(msgspec.Struct, gc=False):
    messages: list[_Message]


@dataclass(frozen=True)
class Timers:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return (
            "timers due at --rate for --seconds: how late they come; an idle server with --pending timers and without"
        )

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject):
            raise BenchError("timers can be set only on a server that is reached over HTTP")
        queue = f"bench-timers-{secrets.token_hex(4)}"
        connection = await subject.connect()
        try:
            await _post(connection, "/api/v1/configure", {"queue": queue, "options": {}})
            alone = await _idle(subject, options.idle_seconds)
            began = now()
            await _schedule(
                connection, queue, "later", _moments(datetime.now(UTC) + timedelta(days=1), options.pending, 1e6)
            )
            each_s = (now() - began) / max(options.pending, 1)
            beside = await _idle(subject, options.idle_seconds)
            result = await _due(subject, connection, queue, options, 2 * each_s)
            status, answer = await connection.send(
                b"DELETE /api/v1/resources/queues/%b HTTP/1.1\r\nHost: bench\r\n\r\n" % queue.encode()
            )
            if status >= 300:
                raise BenchError(f"the queue was not deleted: {status} {shown(answer)}")
        finally:
            connection.close()
        result.extra |= {
            "pending_timers": options.pending,
            "scheduled_per_s": 1 / each_s if options.pending else None,
            "idle_cores": alone,
            "idle_cores_with_pending": beside,
        }
        return result


async def _due(subject: HttpSubject, connection: Connection, queue: str, options: Options, each_s: float) -> Result:
    """`each_s`: how long it takes at most to schedule one; that is done before the first is due."""
    count = max(1, round(options.rate * options.seconds))
    first = datetime.now(UTC) + timedelta(seconds=count * each_s + SETTLE_S)
    moments = _moments(first, count, options.rate)
    await _schedule(connection, queue, "due", moments)
    ahead_s = (first - datetime.now(UTC)).total_seconds()
    await asyncio.sleep(ahead_s)
    meter = Meter(subject.watch)
    meter.start()
    # They are popped when all are due, so that only the pushes are measured.
    await asyncio.sleep((moments[-1] - datetime.now(UTC)).total_seconds() + SETTLE_S)
    meter.stop()
    messages = await _drain(connection, queue, count)
    late = [(each.created_at - moments[int(each.transaction_id)]).total_seconds() for each in messages]
    meter.messages["due"] = len(late)
    result = meter.result("due")
    result.latency = {"late": latency(late)}
    if late:
        result.seconds = max((max(each.created_at for each in messages) - first).total_seconds(), 1e-9)
        result.rate = len(late) / result.seconds
    result.extra = {"latest_ms": ms(max(late, default=None)), "scheduled_ahead_s": ahead_s}
    result.problems = _problems(messages, count)
    return result


def _moments(first: datetime, count: int, rate: float) -> list[datetime]:
    return [first + timedelta(seconds=number / rate) for number in range(count)]


async def _schedule(connection: Connection, queue: str, kind: str, moments: list[datetime]) -> None:
    for start in range(0, len(moments), OF_EACH_REQUEST):
        operations = [
            {
                "op": "schedule",
                "queue": queue,
                "partition": str(number % MOST_PARTITIONS),
                "timerKey": f"{kind}-{number}",
                "txn": str(number) if kind == "due" else f"{kind}-{number}",
                "data": {"number": number},
                "deliverAt": moment.isoformat(),
            }
            for number, moment in enumerate(moments[start : start + OF_EACH_REQUEST], start)
        ]
        await _post(connection, "/api/v1/timers", {"operations": operations})


async def _drain(connection: Connection, queue: str, count: int) -> list[_Message]:
    """All messages, or those that have come when none comes any more."""
    target = pop_target(queue, Want(OF_EACH_REQUEST, auto_ack=True, partitions=MOST_PARTITIONS, wait_ms=1_000))
    found: list[_Message] = []
    last = now()
    while len(found) < count and now() - last < PATIENCE_S:
        status, answer = await connection.get(target)
        if status == NO_CONTENT:
            continue
        if status != OK:
            raise BenchError(f"a pop was answered {status} {shown(answer)}")
        popped = msgspec.json.decode(answer, type=_Popped).messages
        if popped:
            last = now()
        found += popped
    return found


def _problems(messages: list[_Message], count: int) -> list[str]:
    """Each timer once, and those of a partition in the order of their moments."""
    times = Counter(int(each.transaction_id) for each in messages)
    missing = count - len(times)
    doubled = sum(1 for number in times.values() if number > 1)
    ordered: dict[str, list[int]] = {}
    for each in messages:
        ordered.setdefault(each.partition, []).append(int(each.transaction_id))
    early = sum(second < first for numbers in ordered.values() for first, second in pairwise(numbers))
    said = {"missing": missing, "pushed twice": doubled, "pushed before an earlier one": early}
    return [f"{number} timers were {what}" for what, number in said.items() if number]


async def _idle(subject: HttpSubject, seconds: float) -> float | None:
    """Cores that server and PostgreSQL use while nothing happens."""
    await asyncio.sleep(min(SETTLE_S, seconds))
    before, began = _cpu_s(subject.watch.usage()), time.perf_counter()
    await asyncio.sleep(seconds)
    after = _cpu_s(subject.watch.usage())
    return None if before is None or after is None else (after - before) / (time.perf_counter() - began)


def _cpu_s(usage: Usage) -> float | None:
    if usage.server_cpu_s is None:
        return None
    return usage.server_cpu_s + (usage.postgres_cpu_s or 0.0)


async def _post(connection: Connection, path: str, body: dict[str, object]) -> None:
    status, answer = await connection.post(path.encode(), json.dumps(body).encode())
    if status >= 300:
        raise BenchError(f"{path} was answered {status} {shown(answer)}")
