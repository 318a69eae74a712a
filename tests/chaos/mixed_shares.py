"""Queues of the mixed chaos that always have messages, whatever the machine can do: so tenants share, and rates are
reached. Whoever gets the messages finishes all of them.

In the one, a tenant with few partitions has three times the weight of one with many. When nothing goes wrong for a
moment, what is delivered is counted: by weight the few get 75 %, by turns without weights 50 %, and by age 25 %. In the
other, all that the keys may have is more than the queue may, and one key has a weight that its rate does not allow.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg

from chaos.mixed_load import LEASE_S, METER, METERED, SHARED, SHARER, Json, Load

FEW, MANY = "few", "many"
LEAST, MOST = 0.63, 0.87  # of what is counted, for the few
ENOUGH = 25
COUNTED = 120  # no more than the few could deliver of what they have
PATIENCE_S = 240.0


@dataclass(frozen=True)
class Stock:
    """`kept` messages that nobody has got yet are kept in each partition, of which each key has so many."""

    queue: str
    group: str
    partitions: Mapping[str, int]
    weights: Mapping[str, float]
    kept: int
    consumers: int
    batch: int
    is_slow: bool  # while there are faults

    @property
    def rule(self) -> dict[str, Any]:
        return {"separator": ":", "weights": dict(self.weights)}

    @property
    def names(self) -> list[str]:
        return [f"{key}:{number}" for key, count in self.partitions.items() for number in range(count)]


SHARES = Stock(SHARED, SHARER, {FEW: 6, MANY: 18}, {FEW: 3}, kept=40, consumers=3, batch=2, is_slow=True)
METERS = Stock(METERED, METER, dict.fromkeys("abcd", 2), {"a": 10}, kept=12, consumers=3, batch=5, is_slow=False)
STOCKS = (SHARES, METERS)

SCARCE = """
    SELECT count(*) FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
    LEFT JOIN queen.partition_lookup l ON l.partition_id = p.id
    LEFT JOIN queen.partition_consumers c ON c.partition_id = p.id AND c.consumer_group = $2
    WHERE q.name = $1 AND p.name LIKE '%:%' AND coalesce(l.last_offset, 0) - coalesce(c.position, 0) < $3
"""


# Under a lease, also of a consumer that has not got the answer, or in a pause after a lease that has expired: what
# nobody can get is no share of anybody.
HELD = """
    SELECT count(*) FROM queen.partition_consumers c JOIN queen.queues q ON q.id = c.queue_id
    WHERE q.name = $1 AND c.consumer_group = $2 AND c.ready_at > clock_timestamp()
"""


async def fill(load: Load, stock: Stock) -> None:
    """Push to each partition what was consumed."""
    chance = load.chance(f"stock-{stock.queue}")
    left = load.ledger.left
    pushed: Counter[str] = Counter()
    async with load.client(load.urls[0]) as client:
        while load.pushing:
            items: list[Json] = []
            for partition in stock.names:
                missing = stock.kept - left[stock.queue, partition]
                for _ in range(missing if missing >= stock.kept // 8 else 0):
                    pushed[partition] += 1
                    item = {"queue": stock.queue, "partition": partition, "payload": pushed[partition]}
                    items.append(item | {"transactionId": f"stock:{pushed[partition]}"})
                    left[stock.queue, partition] += 1
            await load.push(client, chance, items)
            await asyncio.sleep(0.05)


async def empty(load: Load, stock: Stock, number: int) -> None:
    """Get messages and finish them."""
    chance = load.chance(f"{stock.group}-{number}")
    async with load.client() as client:
        while load.consuming:
            more = {} if load.calm else {"batch": str(stock.batch), "partitions": "1"}
            messages = await load.pop(client, chance.choice(load.urls), stock.queue, stock.group, chance, **more)
            if messages:
                acks = [(message, "completed") for message in messages]
                await load.ack(client, chance.choice(load.urls), stock.group, acks)
            if stock.is_slow and not load.still and not load.calm:
                await asyncio.sleep(chance.uniform(0, 0.3))


async def measure(url: str, load: Load) -> None:
    """While nothing goes wrong: count what each key gets while both have messages in all of their partitions."""
    ledger = load.ledger
    load.still = True
    sql = await asyncpg.connect(url, timeout=30)
    try:
        async with asyncio.timeout(PATIENCE_S):
            # What nobody holds any more can be had again, and servers have asked which keys have something.
            await asyncio.sleep(LEASE_S)
            while True:
                while (
                    await sql.fetchval(SCARCE, SHARED, SHARER, ENOUGH)
                    or await sql.fetchval(HELD, SHARED, SHARER) > SHARES.consumers
                ):
                    await asyncio.sleep(0.1)
                ledger.sharing = Counter()
                while ledger.sharing.total() < COUNTED:
                    await asyncio.sleep(0.02)
                counted, ledger.sharing = ledger.sharing, None
                if not await sql.fetchval(SCARCE, SHARED, SHARER, SHARES.batch * SHARES.consumers):
                    ledger.shares.append(counted)
                    return
    except TimeoutError:
        scarce = await sql.fetchval(SCARCE, SHARED, SHARER, ENOUGH)
        told = f"{scarce} partitions have few messages, {ledger.sharing} were counted"
        raise AssertionError(f"shares were not counted in {PATIENCE_S:.0f} s: {told}; {ledger.answers}") from None
    finally:
        load.still = False
        ledger.sharing = None
        await sql.close()


def unfair(shares: list[Counter[str]]) -> list[str]:
    """Where a key had more or less than its share."""
    wrong = [f"shares: {dict(one)}" for one in shares if not LEAST <= one[FEW] / one.total() <= MOST]
    return wrong or ([] if shares else ["no shares were counted"])
