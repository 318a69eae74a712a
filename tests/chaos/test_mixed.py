"""Everything at once: two servers, one of them with two workers, under load while whatever may go wrong does.

At the end all is mended, and an audit by id says what became of everything that was promised.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from cluster.processes import SECRET as SYNC_SECRET
from cluster.processes import ServeProcess
from integration.proxy import relayed
from ports import free_port, free_udp_port

from chaos.mixed_control import follow, pause, schedule, watch_breaker
from chaos.mixed_faults import BROKEN, FAILING, Faults
from chaos.mixed_finish import consume_connected, finish_and_take
from chaos.mixed_load import (
    BUCKETS,
    CONSUMED,
    GROUPS,
    LATER,
    LATEST,
    LEASE_S,
    MOVED,
    MOVER,
    OPTIONS,
    RETRY_LIMIT,
    SECRET,
    SMALL,
    WITH_BREAKER,
    WORK,
    Ledger,
    Load,
    Mine,
    Name,
)
from chaos.mixed_shares import METERS, SHARES, STOCKS, empty, fill, measure, unfair
from queenmq.journal.push_records import RecordCodec
from queenmq.journal.quarantine import set_aside_in
from queenmq.storage.embedded import EmbeddedPostgres
from queenmq.storage.statements import versioned

LONG = os.environ.get("QUEEN_LONG") == "1"
CHAOS_S = float(os.environ.get("QUEEN_CHAOS_S") or (600 if LONG else 10))
ENOUGH_S = 300.0  # for every control to hold something back, also where servers are mostly away
LONGEST_S = 4.0 if LONG else 1.5
SEEDS = 3 if LONG else 1
PRODUCERS = 4
CONSUMERS = 3  # of each group
FINISHERS = 1  # of each group and way of finishing leases as wholes
MOVERS = 2
HANDS = 3  # faults at once; restarts keep one of them busy for seconds
PATIENCE_S = 120.0 + CHAOS_S  # the longer it lasts, the more is left to be read
THE_KEY = "ab" * 32
MOST_LEASES = 3
MOST_LEASES_OF_KEY = 2
TURN_S = 30.0  # so long there are faults, then shares are measured

STORED = """
    SELECT q.name AS queue, p.name AS partition, m.transaction_id, m."offset", m.created_at
    FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id
    ORDER BY q.name, p.name, m."offset"
"""
# In one snapshot: what the mover has finished, and what is in the other queue.
HALVES = """
    WITH finished AS (
        SELECT p.name, m.transaction_id FROM queen.messages m
        JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id
        JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.consumer_group = $3
        WHERE q.name = $1 AND (m."offset" <= c.position OR c.done @> m."offset")
    ), moved AS (
        SELECT p.name, m.transaction_id FROM queen.messages m
        JOIN queen.partitions p ON p.id = m.partition_id JOIN queen.queues q ON q.id = p.queue_id
        WHERE q.name = $2
    )
    SELECT name, transaction_id FROM (TABLE finished EXCEPT TABLE moved) f
    UNION ALL SELECT name, transaction_id FROM (TABLE moved EXCEPT TABLE finished) m
"""
UNREAD = """
    SELECT q.name, p.name AS partition, g.name AS consumer_group, l.last_offset, c.position,
           c.lease_expires_at, c.ready_at
    FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
    JOIN queen.partition_lookup l ON l.partition_id = p.id
    JOIN unnest($1::text[], $2::text[]) AS g (name, queue) ON g.queue = q.name
    LEFT JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.consumer_group = g.name
    WHERE l.last_offset > coalesce(c.position, 0)
"""
LETTERS = """
    SELECT d.consumer_group, q.name, d.partition_name, d.transaction_id
    FROM queen.dead_letter_queue d JOIN queen.queues q ON q.id = d.queue_id
"""
# What each group reads to the end.
READERS = [(group, queue) for group in GROUPS for queue in CONSUMED]
READERS += [(MOVER, WORK), (LATEST, WORK), *((stock.group, stock.queue) for stock in STOCKS)]
OF_A_GROUP, OF_A_QUEUE, OF_A_KEY = BUCKETS
# The first group skips what fails, and the second one pauses itself for a moment now and then. Each kind of limit is
# somewhere, and in three queues keys take turns.
POLICIES: list[dict[str, Any]] = [
    {"queue": queue, "consumerGroup": GROUPS[0], "retry": {"strategy": "fixed", "delayMs": 50, "poison": "skip"}}
    for queue in (WORK, SECRET)
] + [
    {
        "queue": WITH_BREAKER[0],
        "consumerGroup": WITH_BREAKER[1],
        "breaker": {"failures": 1, "of": 50, "pauseSeconds": 1},
    }
]
POLICIES += [
    {"queue": SMALL, "limits": {"leases": MOST_LEASES}},
    {"queue": SECRET, "consumerGroup": OF_A_GROUP.group, "limits": OF_A_GROUP.limits},
    {
        "queue": WORK,
        "fairness": {"separator": ":", "weights": {"1": 3}},
        "limits": {"perKey": {"leases": MOST_LEASES_OF_KEY * (len(GROUPS) + 1)}},
    },
    {"queue": WORK, "consumerGroup": GROUPS[1], "limits": {"perKey": {"leases": MOST_LEASES_OF_KEY}}},
    {"queue": SHARES.queue, "fairness": SHARES.rule},
    {"queue": METERS.queue, "fairness": METERS.rule, "limits": OF_A_QUEUE.limits | OF_A_KEY.limits},
]
OPEN_LEASES = """
    SELECT count(*) FROM queen.partition_consumers c JOIN queen.queues q ON q.id = c.queue_id
    WHERE q.name = $1 AND c.lease_expires_at > clock_timestamp()
"""
LEASES_OF_KEYS = """
    SELECT split_part(p.name, ':', 1) AS key, c.consumer_group, count(*) AS leases
    FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
    JOIN queen.queues q ON q.id = c.queue_id
    WHERE q.name = $1 AND c.consumer_group = $2 AND c.lease_expires_at > clock_timestamp()
    GROUP BY 1, 2 HAVING count(*) > $3
"""
# Whether the bucket of a queue ('') or of a group of it is empty.
NO_TOKENS = """
    SELECT sum(queen.tokens_at(t.tokens, l.rate / l.shards, l.burst / l.shards, t.refilled_at, clock_timestamp())) < 1
    FROM queen.limits l JOIN queen.queues q ON q.id = l.queue_id
    CROSS JOIN generate_series(0, l.shards - 1) AS g (shard)
    CROSS JOIN LATERAL (
        SELECT x.tokens, x.refilled_at FROM queen.limit_tokens x
        WHERE x.queue_id = l.queue_id AND x.scope = l.consumer_group AND x.shard = g.shard
        ORDER BY x.generation DESC LIMIT 1
    ) t
    WHERE q.name = $1 AND l.consumer_group = $2
"""
# Whether that of a key is.
NO_TOKENS_OF_KEY = """
    SELECT bool_or(queen.tokens_at(t.tokens, l.key_rate, l.key_burst, t.refilled_at, clock_timestamp()) < 1)
    FROM queen.limits l JOIN queen.queues q ON q.id = l.queue_id
    CROSS JOIN LATERAL (
        SELECT DISTINCT ON (x.key) x.tokens, x.refilled_at FROM queen.limit_keys x
        WHERE x.queue_id = l.queue_id AND x.scope = l.consumer_group ORDER BY x.key, x.generation DESC
    ) t
    WHERE q.name = $1 AND l.consumer_group = $2
"""
# What has to be seen to hold something back in each run: a check of what never happens would show nothing.
CONTROLS: tuple[str, ...] = ("pause, pop", "pause, connection", "breaker opened", "leases", "leases of a key")
CONTROLS += tuple(bucket.name for bucket in BUCKETS)
OPERATIONS = "SELECT status, count(*) FROM queen.operation_queue WHERE status <> 'completed' GROUP BY status"


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Faults]:
    """PostgreSQL, a relay before it for each server, and the servers, which know each other."""
    postgres = EmbeddedPostgres(folder / "postgres")
    url = await postgres.start()
    try:
        async with relayed(url) as one, relayed(url) as two:
            ports = [free_udp_port(), free_udp_port()]
            servers = [
                ServeProcess(
                    folder,
                    name,
                    *("--workers", str(workers), "--log-level", "info"),
                    PORT=str(free_port()),
                    DATABASE_URL=relay.url,
                    DB_POOL_SIZE="10",
                    DB_LOCK_TIMEOUT="2000",
                    FILE_BUFFER_DIR=str(folder / f"journal-{name}"),
                    QUEEN_ENCRYPTION_KEY=THE_KEY,
                    QUEEN_UDP_PORT=str(ports[number]),
                    QUEEN_UDP_PEERS=f"127.0.0.1:{ports[1 - number]}",
                    QUEEN_SYNC_SECRET=SYNC_SECRET,
                    QUEEN_COORDINATOR_ENABLED="true",
                    QUEEN_OUTAGE_AFTER_MS="700",
                    QUEEN_DB_SILENCE_MS="700",
                    QUEEN_JOURNAL_WAIT_MS="1000",
                    QUEEN_PUSH_WAIT_THRESHOLD_MS="300",
                    QUEEN_SHUTDOWN_GRACE_S="2",
                )
                for number, (name, workers, relay) in enumerate((("pair", 2, one), ("single", 1, two)))
            ]
            try:
                # One after the other: the first makes the schema.
                for server in servers:
                    await server.start()
                yield Faults(postgres, url, servers, [one, two])
            finally:
                for server in servers:
                    await asyncio.to_thread(server.make_sure_it_is_gone)
    finally:
        await postgres.stop()


async def configure(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=30, verify=False) as client:
        for queue, options in OPTIONS.items():
            given = {"leaseTime": LEASE_S, "retryLimit": RETRY_LIMIT, "retryDelay": 50} | options
            await post(client, "/api/v1/configure", {"queue": queue, "options": given})
        for policy in POLICIES:
            await post(client, "/api/v1/policies", policy)


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    """Again while the server takes a busy machine for an outage."""
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await client.post(path, json=body)).status_code == 503:
            await asyncio.sleep(0.2)
    assert answer.status_code == 200, answer.text


class Hand:
    """One fault after the other, each kind once before any comes again."""

    def __init__(self, faults: Faults, load: Load, number: int) -> None:
        self._faults = faults
        self._chance = load.chance(f"hand-{number}")
        self._deck: list[Any] = []

    async def harm(self, until: float) -> None:
        chance = self._chance
        while time.monotonic() < until:
            if not self._deck:
                self._deck = chance.sample(self._faults.all, k=len(self._faults.all))
            await self._faults.run(self._deck.pop(), chance, chance.uniform(0.2, LONGEST_S))
            await asyncio.sleep(chance.uniform(0, 0.5))


async def harm(faults: Faults, load: Load) -> None:
    """By turns there are faults, and for a moment there are none."""
    hands = [Hand(faults, load, number) for number in range(HANDS)]
    left_s = CHAOS_S
    while left_s > 0:
        until = time.monotonic() + min(left_s, TURN_S)
        async with asyncio.TaskGroup() as tasks:
            for hand in hands:
                tasks.create_task(hand.harm(until))
        left_s -= TURN_S
        print(f"{asyncio.get_running_loop().time():.2f} nothing", flush=True)  # noqa: T201
        await measure(faults.url, load)
        print(f"{asyncio.get_running_loop().time():.2f} shared: {dict(load.ledger.shares[-1])}", flush=True)  # noqa: T201


async def watch(url: str, load: Load) -> None:
    """Transactions are all or nothing, and no limit is exceeded, whenever one looks; and limits and breakers work."""
    ledger = load.ledger
    while load.consuming:
        with contextlib.suppress(*BROKEN):
            connection = await asyncpg.connect(url, timeout=5)
            try:
                halves = await connection.fetch(HALVES, WORK, MOVED, MOVER, timeout=20)
                ledger.violations += [f"half of a transaction: {tuple(row)}" for row in halves[:3]]
                for _ in range(10):
                    await watch_limits(connection, ledger)
                    await watch_breaker(connection, load)
                    await asyncio.sleep(0.1)
            finally:
                connection.terminate()
        await asyncio.sleep(0.1)


async def watch_limits(connection: asyncpg.Connection, ledger: Ledger) -> None:
    leases = await connection.fetchval(OPEN_LEASES, SMALL, timeout=20)
    if leases > MOST_LEASES:
        ledger.violations.append(f"{leases} leases at once")
    ledger.controlled["leases"] += leases == MOST_LEASES
    of_keys = await connection.fetch(LEASES_OF_KEYS, WORK, GROUPS[1], MOST_LEASES_OF_KEY - 1, timeout=20)
    ledger.violations += [f"leases of a key at once: {tuple(row)}" for row in of_keys if row[2] > MOST_LEASES_OF_KEY]
    ledger.controlled["leases of a key"] += bool(of_keys)
    for bucket in BUCKETS:
        query = versioned(NO_TOKENS_OF_KEY if bucket.per_key else NO_TOKENS)
        ledger.controlled[bucket.name] += bool(
            await connection.fetchval(query, bucket.queue, bucket.group or "", timeout=20)
        )


async def settled(faults: Faults, sql: asyncpg.Connection, load: Load) -> None:
    """Return when the journals and the operation queue are empty and every group has finished everything."""
    shown: object = None
    try:
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(timeout=30, verify=False) as client:
            for server in faults.servers:
                while True:
                    shown = None
                    with contextlib.suppress(httpx.HTTPError):
                        answer = await client.get(f"{server.url}/api/v1/operations/stats")
                        shown = (server.name, answer.text)
                        if answer.status_code == 200 and answer.json()["journal"]["operations"] == 0:
                            break
                    await asyncio.sleep(0.1)
            while shown := [tuple(row) for row in await sql.fetch(OPERATIONS)]:
                await asyncio.sleep(0.1)
            while shown := await sql.fetchval("SELECT count(*) FROM queen.timers"):
                await asyncio.sleep(0.1)
            groups, queues = zip(*READERS, strict=True)
            while shown := [tuple(row) for row in await sql.fetch(UNREAD, groups, queues)]:
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not settled after {PATIENCE_S:.0f} s: {shown}; {load.ledger.answers}") from None


async def audit(faults: Faults, sql: asyncpg.Connection, load: Load, besides: Sequence[str] = ()) -> None:
    """`besides` is what else is wrong."""
    ledger = load.ledger
    wrong = [*besides, *ledger.violations] + [f"unexpected answer: {answer}" for answer in ledger.unexpected]
    stored: dict[tuple[str, str], list[str]] = {}
    places: dict[Name, int] = {}
    pushed_at: dict[Name, datetime] = {}
    for row in await sql.fetch(STORED):
        found = stored.setdefault((row["queue"], row["partition"]), [])
        found.append(row["transaction_id"])
        name = Name(row["queue"], row["partition"], row["transaction_id"])
        places[name], pushed_at[name] = row["offset"], row["created_at"]
        if row["offset"] != len(found):
            wrong.append(f"{row['queue']}/{row['partition']}: offset {row['offset']} is the {len(found)}th")
    for place, accepted in ledger.accepted.items():
        ours = [one for one in stored.get(place, []) if not one.startswith("stranger")]
        if missing := set(accepted) - set(ours):
            wrong.append(f"lost: {place} {sorted(missing)[:5]} ({len(missing)})")
        if unknown := set(ours) - set(accepted):
            wrong.append(f"not accepted, but stored: {place} {sorted(unknown)[:5]} ({len(unknown)})")
        if not missing and not unknown and ours != accepted:
            first = next(number for number, pair in enumerate(zip(ours, accepted, strict=False)) if pair[0] != pair[1])
            wrong.append(
                f"reordered: {place} {ours[first - 1 : first + 3]} instead of {accepted[first - 1 : first + 3]}"
            )
    wrong += of_timers(ledger, pushed_at)
    wrong += ledger.rates.exceeded()
    if CHAOS_S >= ENOUGH_S:
        wrong += [f"nothing was held back: {control}" for control in CONTROLS if not ledger.controlled[control]]
    newest = {Name(*place, names[-1]) for place, names in stored.items() if place[0] == WORK}
    wrong += [f"{LATEST} never got the newest: {name}" for name in newest - ledger.delivered[LATEST]]
    for name, committed in ledger.strangers.items():
        if committed is not None and (name in places) != committed:
            wrong.append(f"{name} was {'committed' if committed else 'rolled back'}, stored: {name in places}")
    for place, names in stored.items():
        if place[0] == WORK and stored.get((MOVED, place[1])) != names:
            wrong.append(f"moved otherwise than stored: {place}")
    for group in (*GROUPS, MOVER, *(stock.group for stock in STOCKS)):
        expected = {name for name in places if (group, name.queue) in READERS}
        if unseen := expected - ledger.delivered[group]:
            wrong.append(f"{group} never got {sorted(unseen)[:3]} ({len(unseen)})")
        if strange := ledger.delivered[group] - expected:
            wrong.append(f"{group} got what is not stored: {sorted(strange)[:3]} ({len(strange)})")
    for run in ledger.runs:
        offsets = [places.get(name, 0) for name in run]
        if offsets != sorted(offsets):
            wrong.append(f"delivered out of order: {run[:10]}")
    letters = [Mine(row[0], Name(*row[1:])) for row in map(tuple, await sql.fetch(LETTERS))]
    sent = ledger.failures_sent
    wrong += [f"dead after {sent[mine]} failures: {mine}" for mine in letters if sent[mine] <= RETRY_LIMIT]
    if told := ledger.dead - set(letters):
        wrong.append(f"told to be dead letters, and are not: {sorted(told)[:3]}")
    wrong += [f"lookup: {tuple(row)}" for row in await sql.fetch("SELECT * FROM queen.stale_lookup()")]
    wrong += [f"half of a transaction: {tuple(row)}" for row in await sql.fetch(HALVES, WORK, MOVED, MOVER)]
    for server in faults.servers:
        folder = Path(server.variables["FILE_BUFFER_DIR"])
        wrong += [f"set aside: {one}" for one in set_aside_in(folder, RecordCodec([bytes.fromhex(THE_KEY)]))]
    report(faults, load, len(places), len(letters))
    assert not wrong, f"QUEEN_SEED={load.seed}: {len(wrong)} faults\n" + "\n".join(wrong[:40])


def of_timers(ledger: Ledger, pushed_at: dict[Name, datetime]) -> list[str]:
    """What is wrong with them: each is pushed once, not before its moment, unless it was cancelled."""
    stored = {name for name in pushed_at if name.queue == LATER and name.transaction_id.startswith("timer")}
    due = ledger.timers.keys() - ledger.cancelled
    wrong = [f"timer lost: {name}" for name in due - stored]
    wrong += [f"timer cancelled and pushed: {name}" for name in stored & ledger.cancelled]
    wrong += [f"timer of nobody: {name}" for name in stored - ledger.timers.keys() - ledger.uncertain]
    for name in due & stored:
        moment = ledger.timers[name]
        if moment is not None and pushed_at[name] < moment - timedelta(milliseconds=1):
            wrong.append(f"timer too early: {name}, {pushed_at[name]} before {moment}")
    return wrong


def report(faults: Faults, load: Load, stored: int, letters: int) -> None:
    ledger = load.ledger
    accepted = sum(map(len, ledger.accepted.values()))
    print(  # noqa: T201
        f"QUEEN_SEED={load.seed}: {accepted} accepted, {stored} stored, {letters} dead letters, "
        f"{len(ledger.timers)} timers, {len(ledger.cancelled)} cancelled, "
        f"{ledger.redelivered} redelivered, {ledger.told_twice} told twice to be finished, "
        f"{faults.injected.total()} faults\n"
        f"  {dict(faults.injected)}\n  {dict(sorted(ledger.answers.items()))}\n"
        f"  held back: {dict(sorted(ledger.controlled.items()))}\n"
        f"  shares: {[dict(sorted(one.items())) for one in ledger.shares]}"
    )


@pytest.mark.timeout(PATIENCE_S * 4)
@pytest.mark.parametrize("turn", range(SEEDS))
async def test_whatever_is_promised_holds_whatever_happens(tmp_path: Path, turn: int) -> None:
    # The plugin that shuffles the tests seeds this one, so that its seed repeats it, too.
    seed = int(os.environ.get("QUEEN_SEED") or random.randrange(2**32)) + turn
    print(f"QUEEN_SEED={seed}")  # noqa: T201
    async with cluster(tmp_path) as faults:
        sql = await asyncpg.connect(faults.url)
        await sql.execute(FAILING)
        await sql.close()
        load = Load([server.url for server in faults.servers], seed)
        faults.ledger = load.ledger
        await configure(faults.servers[0].url)
        async with asyncio.TaskGroup() as consumers:
            for number in range(CONSUMERS):
                for group in GROUPS:
                    consumers.create_task(load.consume(number, group))
            for number in range(FINISHERS):
                for group in GROUPS:
                    consumers.create_task(finish_and_take(load, number, group))
                    consumers.create_task(consume_connected(load, number, group))
            for number in range(MOVERS):
                consumers.create_task(load.move(number))
            for stock in STOCKS:
                for number in range(stock.consumers):
                    consumers.create_task(empty(load, stock, number))
            consumers.create_task(follow(load))
            consumers.create_task(watch(faults.url, load))
            async with asyncio.TaskGroup() as producers:
                for number in range(PRODUCERS):
                    producers.create_task(load.produce(number, PRODUCERS))
                producers.create_task(schedule(load, 0))
                producers.create_task(pause(load, 0))
                for stock in STOCKS:
                    producers.create_task(fill(load, stock))
                await harm(faults, load)
                load.calm = True
                load.pushing = False
            sql = await asyncpg.connect(faults.url)
            try:
                await settled(faults, sql, load)
                load.consuming = False
                await audit(faults, sql, load, unfair(load.ledger.shares))
            finally:
                load.consuming = False
                await sql.close()
        for server in faults.servers:
            assert await asyncio.to_thread(server.stop) == 0, server.log[-2000:]
            assert "Traceback" not in server.log, server.log
        assert not faults.left_over()
