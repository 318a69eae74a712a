"""What limits and fairness cost, in turns with a queue that has none, and the share of a small tenant."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from statistics import median
from typing import Final

from queen_bench.connection import Connection
from queen_bench.errors import BenchError
from queen_bench.options import Options
from queen_bench.result import Extra, Result
from queen_bench.scenarios.both import BothWays
from queen_bench.scenarios.course import LEASES
from queen_bench.subject import HttpSubject, Subject

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
}
LARGE, SMALL, OF_EACH = 10_000, 10, 200
BATCH_OF_PUSH: Final = 1_000
DELIVERIES: Final = 1_800
STORED: Final = 201
OK: Final = 200


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
        ways = {state: BothWays(subject, options, options.partitions, 1, keys=KEYS) for state in POLICIES}
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
        result.extra = {f"cpu_{state}": median(values) for state, values in spent.items() if values}
        result.extra |= {
            f"ratio_{state}": median(values) / median(spent["plain"])
            for state, values in spent.items()
            if values and state != "plain"
        }
        return result


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
        for state in ("plain", "fairness"):
            policy = POLICIES[state]
            queue = f"bench-{state}-{secrets.token_hex(4)}"
            await _post(subject, "/api/v1/configure", {"queue": queue, "options": {}})
            if policy:
                await _post(subject, "/api/v1/policies", {"queue": queue} | policy)
            figures[f"share_of_small_{state}"] = await _share(subject, queue)
        return Result(extra=figures)


async def _share(subject: HttpSubject, queue: str) -> float:
    """Of the small tenant in what is delivered, one message at a time, while both have some."""
    connection = await subject.connect()
    try:
        places = [f"large:{number}" for number in range(LARGE)]
        places += [f"small:{number}" for number in range(SMALL) for _ in range(OF_EACH)]
        for first in range(0, len(places), BATCH_OF_PUSH):
            some = places[first : first + BATCH_OF_PUSH]
            items = [{"queue": queue, "partition": place, "payload": 1} for place in some]
            await _ask(connection, "/api/v1/push", {"items": items})
        small = 0
        for _ in range(DELIVERIES):
            status, answer = await connection.get(f"/api/v1/pop/queue/{queue}?batch=1&wait=false&autoAck=true")
            if status != OK:
                raise BenchError(f"a pop was answered with {status}: {answer[:200]!r}")
            [message] = json.loads(answer)["messages"]
            small += message["partition"].startswith("small:")
        return small / DELIVERIES
    finally:
        connection.close()


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
