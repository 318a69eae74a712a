"""What controls the flow in the mixed chaos: timers that are made and cancelled, pauses by hand, and a group that gets
only the newest messages. Each keeps its part of the ledger."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime

import asyncpg
import httpx

from chaos.mixed_load import (
    GROUPS,
    LATER,
    LATEST,
    LEASE_S,
    PUSHED_TO,
    SECRET,
    WITH_BREAKER,
    WORK,
    Breaker,
    Json,
    Load,
    Name,
    Pause,
    partition_name,
)

PARTITIONS = 3
# How long it lets nothing through, unless somebody closes it.
OPEN_FOR = """
    SELECT extract(epoch FROM b.probe_at - clock_timestamp())::float8
    FROM queen.breakers b JOIN queen.queues q ON q.id = b.queue_id
    WHERE q.name = $1 AND b.consumer_group = $2 AND b.opened_at IS NOT NULL AND b.probe_lease IS NULL
"""


async def schedule(load: Load, number: int) -> None:
    """Timers that become messages soon; some are cancelled."""
    chance = load.chance(f"timers-{number}")
    made = 0
    async with load.client() as client:
        while load.pushing:
            made += 1
            key, partition = f"t{number}-{made}", f"{chance.randrange(PARTITIONS)}"
            name = Name(LATER, partition, f"timer-{number}:{made}")
            operation = {
                "op": "schedule",
                "queue": LATER,
                "timerKey": key,
                "partition": partition,
                "txn": name.transaction_id,
                "data": made,
                "delayMs": chance.randint(20, 1500),
            }
            tries, results = await _until_answered(
                load, client, "timers", "POST", "/api/v1/timers", {"operations": [operation]}
            )
            # The first of several tries may have been stored with its own moment.
            at = datetime.fromisoformat(results["results"][0]["deliverAt"]) if tries == 1 else None
            load.ledger.timers[name] = at
            if chance.random() < 0.25:
                await asyncio.sleep(chance.uniform(0, 1))
                again, result = await _until_answered(load, client, "cancel", "DELETE", f"/api/v1/timers/{LATER}/{key}")
                if result["status"] == "cancelled" and tries == 1:
                    load.ledger.cancelled.add(name)
                elif result["status"] == "cancelled" or again > 1:
                    # It was pushed, or an earlier try has cancelled it; or what an earlier try has made was pushed
                    # before the last one made it again.
                    del load.ledger.timers[name]
                    load.ledger.uncertain.add(name)
            await asyncio.sleep(chance.uniform(0, 0.1))


async def pause(load: Load, number: int) -> None:
    """Pause something and resume it, and remember what must not be delivered meanwhile."""
    chance = load.chance(f"pauses-{number}")
    async with load.client() as client:
        while load.pushing:
            queue = chance.choice((WORK, SECRET))
            body = {"queue": queue, "consumerGroup": chance.choice((None, *GROUPS))}
            if body["consumerGroup"] is not None and chance.random() < 0.5:
                body["partition"] = partition_name(chance.randrange(PUSHED_TO[queue]))
            await _until_answered(load, client, "pause", "POST", "/api/v1/pause", body)
            load.ledger.paused = Pause(queue, body["consumerGroup"], body.get("partition"), time.monotonic())
            await asyncio.sleep(chance.uniform(0.1, 1))
            load.ledger.paused = None
            # It closes a breaker, too.
            load.ledger.breaker = None
            load.ledger.resumes += 1
            await _until_answered(load, client, "resume", "POST", "/api/v1/resume", body)
            load.ledger.resumes += 1
            await asyncio.sleep(chance.uniform(0.1, 1))


async def watch_breaker(sql: asyncpg.Connection, load: Load) -> None:
    """Note until when an open breaker lets nothing through: it has let no batch through that might close it."""
    ledger, resumes = load.ledger, load.ledger.resumes
    asked = time.monotonic()
    left = await sql.fetchval(OPEN_FOR, *WITH_BREAKER, timeout=20)
    if left is not None and left > 0 and resumes == ledger.resumes and resumes % 2 == 0:
        ledger.controlled["breaker opened"] += ledger.breaker is None
        ledger.breaker = Breaker(since=time.monotonic(), until=asked + left)
    elif left is None:
        ledger.breaker = None


async def follow(load: Load) -> None:
    """The only consumer of a group that conflates: what comes is never older than what came before."""
    chance = load.chance("follower")
    reached: dict[str, int] = {}
    async with load.client() as client:
        while load.consuming:
            messages = await load.pop(client, chance.choice(load.urls), WORK, LATEST, chance, conflation="true")
            for message in messages:
                partition, offset = message["partition"], message["offset"]
                if offset < reached.get(partition, 0):
                    load.ledger.violations.append(f"{LATEST} got {partition}/{offset} after {reached[partition]}")
                reached[partition] = offset
            if len({message["partition"] for message in messages}) < len(messages):
                load.ledger.violations.append(f"{LATEST} got several messages of a partition")
            if not load.calm and chance.random() < 0.05:
                await asyncio.sleep(chance.uniform(0, LEASE_S * 1.3))
            if messages and (load.calm or chance.random() < 0.9):
                acks = [(message, "completed" if load.calm else chance.choice(_SAID)) for message in messages]
                await load.ack(client, chance.choice(load.urls), LATEST, acks)


_SAID = ("completed", "completed", "completed", "retry")


async def _until_answered(
    load: Load, client: httpx.AsyncClient, verb: str, method: str, path: str, body: Json | None = None
) -> tuple[int, Json]:
    """How often it was tried, and the answer."""
    chance = load.chance(f"{verb}{path}")
    tries = 0
    while True:
        tries += 1
        try:
            answer = await client.request(method, f"{chance.choice(load.urls)}{path}", json=body)
        except httpx.HTTPError as error:
            load.ledger.answers[f"{verb} {type(error).__name__}"] += 1
        else:
            if load.ledger.note(verb, answer, 200):
                found: Json = answer.json()
                return tries, found
            if answer.status_code in (429, 503) and "outcome_unknown" not in answer.text:
                tries -= 1  # nothing was kept
        await asyncio.sleep(0.1)
