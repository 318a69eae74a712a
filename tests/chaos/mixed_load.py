"""Producers, consumers and movers that keep a ledger of what they were told, for the audit of the mixed chaos."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import httpx

from chaos.mixed_rates import Bucket, Rates

RETRY_LIMIT = 2
LEASE_S = 3
GROUPS = ("billing", "mail")
MOVER = "mover"
LATEST = "latest"
WORK, SECRET, SMALL, MOVED, LATER = "work", "secret", "small", "moved", "later"
# Queues that always have messages, each of one group: in one tenants share, the other gives so many a second.
SHARED, SHARER = "shared", "sharer"
METERED, METER = "metered", "meter"
CONSUMED = (WORK, SECRET, SMALL, MOVED, LATER)
WITH_BREAKER = (WORK, GROUPS[1])  # the queue and the group that has a breaker there
# Of a group, of a queue and of each key: so many messages a second, after so many at once.
BUCKETS = (
    Bucket("rate of a group", SECRET, GROUPS[0], False, 150, 15),
    Bucket("rate of a queue", METERED, None, False, 20, 4),
    Bucket("rate of a key", METERED, None, True, 8, 3),
)
PUSHED_TO = {WORK: 10, SECRET: 4, SMALL: 4}
OPTIONS: dict[str, dict[str, Any]] = {
    WORK: {},
    SECRET: {"encryptionEnabled": True},
    SMALL: {"maxSize": 30},
    MOVED: {},
    LATER: {},
    SHARED: {},
    METERED: {},
}
REQUEST_S = 30.0
ACCEPTED = ("queued", "duplicate", "buffered")
POISON_EVERY = 40  # in the first group, one of so many messages fails whenever it is delivered

Json = dict[str, Any]


class Name(NamedTuple):
    """A message."""

    queue: str
    partition: str
    transaction_id: str


class Mine(NamedTuple):
    """A message as one group sees it."""

    group: str
    message: Name


class Finished(NamedTuple):
    at: float
    lease: str


class Pause(NamedTuple):
    """Of all groups or partitions where there is none; `since` is when it was known to hold."""

    queue: str
    group: str | None
    partition: str | None
    since: float

    def holds(self, group: str, message: Name, asked: float) -> bool:
        return (
            asked >= self.since
            and message.queue == self.queue
            and self.group in (None, group)
            and self.partition in (None, message.partition)
        )


class Breaker(NamedTuple):
    """That of the group which has one was seen open at `since`, and lets nothing through before `until`."""

    since: float
    until: float


@dataclass
class Ledger:
    """What was asked for, and what the answers promised."""

    accepted: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    timers: dict[Name, datetime | None] = field(default_factory=dict)  # and when they are due, if that is certain
    cancelled: set[Name] = field(default_factory=set)
    uncertain: set[Name] = field(default_factory=set)  # cancelled or pushed
    paused: Pause | None = None
    breaker: Breaker | None = None
    resumes: int = 0  # begun and ended; odd: one that closes the breaker is on its way
    rates: Rates = field(default_factory=lambda: Rates(BUCKETS))
    left: Counter[tuple[str, str]] = field(default_factory=Counter)  # of those queues, what nobody has got yet
    sharing: Counter[str] | None = None  # what each key gets, while that is counted
    shares: list[Counter[str]] = field(default_factory=list)
    controlled: Counter[str] = field(default_factory=Counter)  # how often each control was seen to hold something back
    strangers: dict[Name, bool | None] = field(default_factory=dict)  # committed, or None if nobody knows
    delivered: dict[str, set[Name]] = field(default_factory=lambda: defaultdict(set))
    runs: list[list[Name]] = field(default_factory=list)  # of one partition in one answer
    finished: dict[Mine, Finished] = field(default_factory=dict)
    failures_sent: Counter[Mine] = field(default_factory=Counter)
    failures_told: Counter[Mine] = field(default_factory=Counter)
    dead: set[Mine] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    redelivered: int = 0
    told_twice: int = 0  # acks under different leases that were told to have finished the same message
    inserts_failed: bool = False  # at some time

    def note(self, verb: str, answer: httpx.Response, *usual: int) -> bool:
        """Count an answer; whether it is one of the usual ones."""
        self.answers[f"{verb} {answer.status_code}"] += 1
        if answer.status_code in usual:
            return True
        if answer.status_code == 500 and self.inserts_failed and verb in ("push", "transaction"):
            return False  # An error of the database that nobody listed: nothing was kept.
        if answer.status_code not in (429, 503) and "QUEEN_ENCRYPTION_KEY" not in answer.text:
            self.unexpected[f"{verb} {answer.status_code}: {answer.text[:200]}"] += 1
        return False

    def deliver(self, group: str, queue: str, messages: list[Json], asked: float, by: str = "pop") -> None:
        got = time.monotonic()
        self.rates.note(queue, group, [message["partition"] for message in messages], asked, got)
        if (queue, group) == WITH_BREAKER and self.breaker is not None and asked >= self.breaker.since:
            if messages and got < self.breaker.until:
                self.violations.append(f"{group} got {len(messages)} of {queue} by {by} while its breaker was open")
            self.controlled["breaker"] += not messages and asked < self.breaker.until
        if self.paused is not None and queue == self.paused.queue and asked > self.paused.since:
            self.controlled[f"pause, {by}"] += self.paused.group in (None, group)
        runs: dict[str, list[Name]] = defaultdict(list)
        for message in messages:
            name = name_of(message)
            runs[message["partitionId"]].append(name)
            done = self.finished.get(Mine(group, name))
            if done is not None and done.at < asked:
                self.violations.append(f"{group} got {name} {asked - done.at:.2f} s after it had finished it")
            if self.paused is not None and self.paused.holds(group, name, asked):
                self.violations.append(f"{group} got {name} by {by} while it was paused: {self.paused}")
            if group in (SHARER, METER):
                self.left[queue, name.partition] -= name not in self.delivered[group]
            if group == SHARER and self.sharing is not None:
                self.sharing[name.partition.partition(":")[0]] += 1
            self.redelivered += name in self.delivered[group]
            self.delivered[group].add(name)
        self.runs += runs.values()

    def finish(self, group: str, message: Json, lease: str, now: float) -> None:
        mine = Mine(group, name_of(message))
        done = self.finished.setdefault(mine, Finished(now, lease))
        # A server that has lost the database's answer to an ack asks whether the message is finished, and cannot tell
        # who has finished it: if the lease ran out meanwhile, it may have been the next consumer. So this is counted,
        # and what must not happen, a delivery after the end, is looked for where messages are delivered.
        self.told_twice += done.lease != lease

    def fail(self, group: str, message: Json, result: Json, now: float) -> None:
        mine = Mine(group, name_of(message))
        if result["dlq"]:
            self.dead.add(mine)
            self.finish(group, message, message["leaseId"], now)
            return
        self.failures_told[mine] += 1
        if self.failures_told[mine] > RETRY_LIMIT:
            self.violations.append(f"{mine} failed {self.failures_told[mine]} times and is no dead letter")


def partition_name(number: int) -> str:
    """With a key before it, of which there are three."""
    return f"{number % 3}:{number}"


def name_of(message: Json) -> Name:
    return Name(message["queue"], message["partition"], message["transactionId"])


class Load:
    def __init__(self, urls: list[str], seed: int) -> None:
        self.urls = urls
        self.seed = seed
        self.ledger = Ledger()
        self.pushing = True
        self.consuming = True
        self.calm = False  # nobody misbehaves any more
        self.still = False  # nothing else goes wrong for a moment

    def chance(self, who: str) -> random.Random:
        return random.Random(f"{self.seed}/{who}")

    def client(self, url: str = "") -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=url, timeout=REQUEST_S, verify=False)

    # Producers

    async def produce(self, number: int, producers: int) -> None:
        """Push to partitions that nobody else pushes to, at one server, one push after the other."""
        chance = self.chance(f"producer-{number}")
        own = [
            (queue, partition_name(p))
            for queue, most in PUSHED_TO.items()
            for p in range(most)
            if p % producers == number
        ]
        numbers: Counter[tuple[str, str]] = Counter()
        async with self.client(self.urls[number % len(self.urls)]) as client:
            while self.pushing:
                items: list[Json] = []
                for queue, partition in chance.sample(own, k=min(len(own), chance.choice((1, 1, 1, 2)))):
                    for _ in range(chance.randint(1, 3) if queue != SMALL else 1):
                        numbers[queue, partition] += 1
                        item = {"queue": queue, "partition": partition, "payload": numbers[queue, partition]}
                        items.append(item | {"transactionId": f"{number}:{numbers[queue, partition]}"})
                await self.push(client, chance, items)

    async def push(self, client: httpx.AsyncClient, chance: random.Random, items: list[Json]) -> None:
        """Until all of it is accepted: the same transactionIds make repeats harmless."""
        while items:
            # Each new connection may reach another worker.
            headers = {"connection": "close"} if chance.random() < 0.5 else {}
            refused = items
            try:
                answer = await client.post("/api/v1/push", json={"items": items}, headers=headers)
            except httpx.HTTPError as error:
                self.ledger.answers[f"push {type(error).__name__}"] += 1
            else:
                if self.ledger.note("push", answer, 201, 202):
                    refused = []
                    for item, result in zip(items, answer.json(), strict=True):
                        self.ledger.answers[f"item {result['status']}"] += 1
                        if result["status"] in ACCEPTED:
                            self.ledger.accepted[item["queue"], item["partition"]].append(item["transactionId"])
                        else:
                            refused.append(item)
            items = refused
            if items:
                await asyncio.sleep(chance.uniform(0.02, 0.2))

    # Consumers

    async def consume(self, number: int, group: str) -> None:
        chance = self.chance(f"consumer-{number}-{group}")
        async with self.client() as client:
            while self.consuming:
                queue = chance.choice(CONSUMED)
                url = chance.choice(self.urls)
                messages = await self.pop(client, url, queue, group, chance)
                if messages:
                    await self._handle(client, chance.choice(self.urls), group, messages, chance)

    async def pop(
        self, client: httpx.AsyncClient, url: str, queue: str, group: str, chance: random.Random, **more: str
    ) -> list[Json]:
        params = {
            "consumerGroup": group,
            "batch": 200 if self.calm else chance.randint(1, 30),
            "partitions": 20 if self.calm else chance.randint(1, 3),
            "wait": "true",
            "timeout": 20 if self.calm else chance.randint(100, 1000),
        } | more
        asked = time.monotonic()
        try:
            answer = await client.get(f"{url}/api/v1/pop/queue/{queue}", params=params)
        except httpx.HTTPError as error:
            self.ledger.answers[f"pop {type(error).__name__}"] += 1
            await asyncio.sleep(0.1)
            return []
        if not self.ledger.note("pop", answer, 200, 204):
            await asyncio.sleep(0.1)
            return []
        messages: list[Json] = answer.json()["messages"] if answer.status_code == 200 else []
        self.ledger.deliver(group, queue, messages, asked)
        return messages

    async def _handle(
        self, client: httpx.AsyncClient, url: str, group: str, messages: list[Json], chance: random.Random
    ) -> None:
        """Finish what was delivered, or be one of the many consumers that do not."""
        way = "all" if self.calm else chance.choices(WAYS, WEIGHTS)[0]
        if way == "forget":
            return
        if way == "late":
            await asyncio.sleep(chance.uniform(0, LEASE_S * 1.3))
        acks: list[tuple[Json, str]] = []
        for partition in {message["partitionId"]: None for message in messages}:
            run = [message for message in messages if message["partitionId"] == partition]
            acks += self._verdicts(group, run, way, chance)
        if way == "one by one":
            for ack in acks:
                await self.ack(client, url, group, [ack])
        elif acks:
            await self.ack(client, url, group, acks)

    def _verdicts(self, group: str, run: list[Json], way: str, chance: random.Random) -> list[tuple[Json, str]]:
        """What is said of the messages of one partition: some are finished, then one may fail, the rest is left."""
        if way == "backwards":
            return [(message, "completed") for message in reversed(run) if not is_poison(group, message)]
        upto = chance.randint(0, len(run) - 1) if way in ("some", "fail", "retry") else len(run)
        verdicts = []
        for message in run[:upto]:
            if is_poison(group, message):
                return [*verdicts, (message, "failed")]
            verdicts.append((message, "completed"))
        if way in ("fail", "retry"):
            verdicts.append((run[upto], "failed" if way == "fail" else "retry"))
        return verdicts

    async def ack(self, client: httpx.AsyncClient, url: str, group: str, acks: list[tuple[Json, str]]) -> None:
        for message, status in acks:
            self.ledger.failures_sent[Mine(group, name_of(message))] += status == "failed"
        items = [
            {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": status}
            for message, status in acks
        ]
        body = {"acknowledgments": items, "consumerGroup": group}
        try:
            answer = await client.post(f"{url}/api/v1/ack/batch", json=body)
        except httpx.HTTPError as error:
            self.ledger.answers[f"ack {type(error).__name__}"] += 1
            return
        if not self.ledger.note("ack", answer, 200):
            return
        now = time.monotonic()
        for (message, status), result in zip(acks, answer.json(), strict=True):
            self.ledger.answers[f"ack item {status} {result['success']}"] += 1
            if result["success"] and status == "completed":
                self.ledger.finish(group, message, message["leaseId"], now)
            elif result["success"] and status == "failed":
                self.ledger.fail(group, message, result, now)

    # Movers

    async def move(self, number: int) -> None:
        """Move messages to the same partition of another queue, each in a transaction with its ack."""
        chance = self.chance(f"mover-{number}")
        async with self.client() as client:
            while self.consuming:
                messages = await self.pop(client, chance.choice(self.urls), WORK, MOVER, chance)
                if not self.calm and chance.random() < 0.1:
                    await asyncio.sleep(chance.uniform(0, LEASE_S * 1.3))
                while messages:
                    count = chance.randint(1, len(messages))
                    some, messages = messages[:count], messages[count:]
                    if not await self._transact(client, chance.choice(self.urls), some):
                        break  # What comes next in the partition must not be moved first.

    async def _transact(self, client: httpx.AsyncClient, url: str, messages: list[Json]) -> bool:
        """Whether it is known to have succeeded."""
        acks = [
            {"type": "ack", "status": "completed", "consumerGroup": MOVER}
            | {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
            for message in messages
        ]
        items = [
            {
                "queue": MOVED,
                "partition": message["partition"],
                "transactionId": message["transactionId"],
                "payload": message["data"],
            }
            for message in messages
        ]
        body = {"operations": [*acks, {"type": "push", "items": items}]}
        try:
            answer = await client.post(f"{url}/api/v1/transaction", json=body)
        except httpx.HTTPError as error:
            self.ledger.answers[f"transaction {type(error).__name__}"] += 1
            return False
        if not self.ledger.note("transaction", answer, 200):
            return False
        result = answer.json()
        now = time.monotonic()
        if result["success"]:
            self.ledger.answers["transaction success"] += 1
            for message in messages:
                self.ledger.finish(MOVER, message, message["leaseId"], now)
        else:
            self.ledger.answers[f"transaction {result['error'][:80]}"] += 1
            # Of one that comes too late: pushes are looked at first, and the next mover may have made them already.
            if "lease" not in result["error"] and "duplicate key" not in result["error"]:
                self.ledger.violations.append(f"transaction: {result['error']}")
        return bool(result["success"])


WAYS, WEIGHTS = zip(
    ("all", 60),
    ("one by one", 6),
    ("backwards", 6),
    ("some", 8),
    ("fail", 6),
    ("retry", 4),
    ("late", 5),
    ("forget", 5),
    strict=True,
)


def is_poison(group: str, message: Json) -> bool:
    number = message["transactionId"].rpartition(":")[2]
    return group == GROUPS[0] and int(number) % POISON_EVERY == 0
