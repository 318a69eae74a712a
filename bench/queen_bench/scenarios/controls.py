"""What limits and fairness cost, in turns with a queue that has none, and the share of a small tenant.

What they cost where nobody uses them is the difference to a server of a revision that had none: `queen bench --against`
with the other scenarios.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass
from statistics import median
from typing import Final

from queen_bench.broker import Want
from queen_bench.connection import Connection
from queen_bench.errors import BenchError
from queen_bench.load import EMPTY_PAUSE_S, now
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.scenarios.both import BothWays
from queen_bench.scenarios.course import AUTO_ACK, LEASES, Course
from queen_bench.subject import HttpSubject, Subject
from queen_bench.tasks import together

Policy = dict[str, object]

TURNS: Final = 5
KEYS: Final = 20
# None of these is reached: it is the looking that costs.
MANY: Final[Policy] = {"leases": 100, "rate": 1_000_000}
FAIR: Final[Policy] = {"fairness": {"separator": ":"}}
POLICIES: Final[dict[str, Policy]] = {
    "plain": {},
    "plain_again": {},  # what two that are equal differ by
    "limits": {"limits": MANY},
    "key_limits": FAIR | {"limits": {"perKey": MANY}},
    "fairness": FAIR,
    "one_key": FAIR | {"limits": {"perKey": MANY}},  # all partitions share it
}
LARGE, SMALL, OF_EACH = 10_000, 10, 200
BATCH_OF_PUSH: Final = 1_000
DELIVERIES: Final = 1_800
SHARERS: Final = 6
POPS_PER_S: Final = 200  # that one turn measures for each second of the run
REST: Final = 0.1  # of the stock, where some consumers find nothing
STORED: Final = 201
OK: Final = 200
NOTHING: Final = 204


@dataclass(frozen=True)
class Controls:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return "push and pop + ack at once, batch 1: CPU for a message with limits and fairness, in turns with none"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject):
            raise BenchError("policies can be set only on a server that is reached over HTTP")
        ways = {state: BothWays(subject, options, options.partitions, 1, keys=_keys(state)) for state in POLICIES}
        spent: dict[str, list[float]] = {state: [] for state in POLICIES}
        for state, policy in POLICIES.items():
            await ways[state].prepare()
            if policy:
                await _post(subject, "/api/v1/policies", {"queue": ways[state].course.layout.queue()} | policy)
        for turn in range(TURNS):
            for state in POLICIES if turn % 2 else reversed(POLICIES):
                meter, _ = await ways[state].run(options.seconds / TURNS)
                measured = meter.result("pop")
                if measured.server_cpu_s is not None and measured.postgres_cpu_s is not None:
                    spent[state].append(measured.server_cpu_s + measured.postgres_cpu_s)
                await ways[state].course.drain()
        result = Result(ack_mode=LEASES)
        for way in ways.values():
            closed = await way.course.close(Result())
            result.problems += closed.problems
        result.extra = ratios(spent)
        return result


@dataclass(frozen=True)
class ControlsOfPops:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return "pops with autoAck of a stock, batch 1: their CPU with limits and fairness, in turns with none"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject):
            raise BenchError("policies can be set only on a server that is reached over HTTP")
        courses = {
            state: Course(subject, options, partitions=options.partitions, keys=_keys(state)) for state in POLICIES
        }
        spent: dict[str, list[float]] = {state: [] for state in POLICIES}
        for state, policy in POLICIES.items():
            await courses[state].load.touch()
            await courses[state].drain()
            if policy:
                await _post(subject, "/api/v1/policies", {"queue": courses[state].layout.queue()} | policy)
        for turn in range(TURNS + 1):
            for state in POLICIES if turn % 2 else reversed(POLICIES):
                measured = await _pops(courses[state], options)
                # The first turn warms up.
                if turn and measured.server_cpu_s is not None and measured.postgres_cpu_s is not None:
                    spent[state].append(measured.server_cpu_s + measured.postgres_cpu_s)
        result = Result(ack_mode=AUTO_ACK)
        for course in courses.values():
            result.problems += (await course.close(Result())).problems
        result.extra = ratios(spent)
        return result


async def _pops(course: Course, options: Options) -> Result:
    """Pop most of a stock. Pushing it is not measured."""
    await course.load.fill(int(options.seconds * POPS_PER_S), 1, now() + options.seconds * TURNS)
    left = course.audit.pending * REST
    meter = course.meter()
    meter.start()
    await course.load.pop(meter, lambda: course.audit.pending <= left, Want(1, auto_ack=True), options.connections)
    meter.stop()
    return meter.result("pop")


def _keys(state: str) -> int:
    return 1 if state == "one_key" else KEYS


def ratios(spent: dict[str, list[float]]) -> dict[str, Extra]:
    """CPU for 100,000 messages, and as a ratio to what the queue without policies needed in the same turn, because what
    else the machine does changes from turn to turn."""
    found: dict[str, Extra] = {f"cpu_{state}": median(values) for state, values in spent.items() if values}
    for state, values in spent.items():
        pairs = [value / plain for value, plain in zip(values, spent["plain"], strict=True)]
        if state != "plain" and pairs:
            found[f"ratio_{state}"] = median(pairs)
    return found


@dataclass(frozen=True)
class FairShare:
    name: str
    peers: bool = False

    @property
    def about(self) -> str:
        return f"two tenants with {LARGE} and {SMALL} partitions: the share of the small one, with fairness and without"

    async def run(self, subject: Subject, options: Options) -> Result:
        if not isinstance(subject, HttpSubject):
            raise BenchError("policies can be set only on a server that is reached over HTTP")
        figures: dict[str, Extra] = {}
        for state, consumers, batch in (
            ("plain", 1, 1),
            ("fairness", 1, 1),
            ("fairness", SHARERS, 1),
            ("fairness", SHARERS, 10),
        ):
            policy = POLICIES[state]
            queue = f"bench-{state}-{secrets.token_hex(4)}"
            await _post(subject, "/api/v1/configure", {"queue": queue, "options": {}})
            if policy:
                await _post(subject, "/api/v1/policies", {"queue": queue} | policy)
            kind = f"_{consumers}_consumers_batch_{batch}" if consumers > 1 else ""
            figures[f"share_of_small_{state}{kind}"] = await _share(subject, queue, consumers, batch)
        return Result(extra=figures)


async def _share(subject: HttpSubject, queue: str, consumers: int, batch: int) -> float:
    """Of the small tenant in what is delivered while both have some: to one consumer with autoAck, or to several that
    hold leases and acknowledge."""
    connections = [await subject.connect() for _ in range(consumers)]
    try:
        places = [f"large:{number}" for number in range(LARGE)]
        places += [f"small:{number}" for number in range(SMALL) for _ in range(OF_EACH)]
        for first in range(0, len(places), BATCH_OF_PUSH):
            some = places[first : first + BATCH_OF_PUSH]
            items = [{"queue": queue, "partition": place, "payload": 1} for place in some]
            await _ask(connections[0], "/api/v1/push", {"items": items})
        got: list[str] = []
        await together(_consume(connection, queue, batch, consumers > 1, got) for connection in connections)
        return sum(place.startswith("small:") for place in got) / len(got)
    finally:
        for connection in connections:
            connection.close()


async def _consume(connection: Connection, queue: str, batch: int, leases: bool, got: list[str]) -> None:
    """Add the partitions of what is delivered until there are enough."""
    auto_ack = "false" if leases else "true"
    while len(got) < DELIVERIES:
        status, answer = await connection.get(f"/api/v1/pop/queue/{queue}?batch={batch}&wait=false&autoAck={auto_ack}")
        if status == NOTHING:
            await asyncio.sleep(EMPTY_PAUSE_S)
            continue
        if status != OK:
            raise BenchError(f"a pop was answered with {status}: {answer[:200]!r}")
        messages = json.loads(answer)["messages"]
        got += [message["partition"] for message in messages]
        if leases:
            told = ("partitionId", "transactionId", "leaseId")
            acks = [{name: message[name] for name in told} | {"status": "completed"} for message in messages]
            await _ask(connection, "/api/v1/ack/batch", {"acknowledgments": acks})


async def _post(subject: HttpSubject, path: str, body: dict[str, object]) -> None:
    connection = await subject.connect()
    try:
        await _ask(connection, path, body)
    finally:
        connection.close()


async def _ask(connection: Connection, path: str, body: dict[str, object]) -> None:
    status, answer = await connection.post(path.encode(), json.dumps(body).encode())
    if status not in (OK, STORED):
        raise BenchError(f"{path} was answered with {status}: {answer[:200]!r}")
