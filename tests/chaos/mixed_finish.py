"""The consumers of the mixed chaos that finish leases as wholes: by a request, with the next messages (take), and over
consumer connections, which they leave in every way."""

from __future__ import annotations

import asyncio
import random
import time

import aiohttp
import httpx
from integration.consuming import Connection

from chaos.mixed_load import CONSUMED, LEASE_S, Json, Ledger, Load, Mine, is_poison, name_of

FORGET, LATE = 0.05, 0.05


def said_of(ledger: Ledger, group: str, messages: list[Json]) -> Json:
    """Everything is completed but for the messages that fail whenever they are delivered."""
    poison = [message for message in messages if is_poison(group, message)]
    for message in poison:
        ledger.failures_sent[Mine(group, name_of(message))] += 1
    names = ("transactionId", "partitionId")
    return {"except": [{name: message[name] for name in names} | {"status": "failed"} for message in poison]}


def note_finish(ledger: Ledger, group: str, messages: list[Json], result: Json) -> None:
    ledger.answers[f"finish {result['success']}"] += 1
    if not result["success"]:
        return
    now = time.monotonic()
    for message in messages:
        if not is_poison(group, message):
            ledger.finish(group, message, message["leaseId"], now)
    poison = [message for message in messages if is_poison(group, message)]
    for message, one in zip(poison, result["except"], strict=True):
        if one["success"]:
            ledger.fail(group, message, one, now)


async def finish_and_take(load: Load, number: int, group: str) -> None:
    """Like `Load.consume`: pops, and from then on takes the next messages while it finishes the last."""
    chance = load.chance(f"finisher-{number}-{group}")
    async with load.client() as client:
        while load.consuming:
            queue = chance.choice(CONSUMED)
            messages = await load.pop(client, chance.choice(load.urls), queue, group, chance)
            while messages and load.consuming:
                if not load.calm and chance.random() < FORGET:
                    break
                if not load.calm and chance.random() < LATE:
                    await asyncio.sleep(chance.uniform(0, LEASE_S * 1.3))
                messages = await _finish(load, client, group, messages, chance)


async def _finish(
    load: Load, client: httpx.AsyncClient, group: str, messages: list[Json], chance: random.Random
) -> list[Json]:
    """What was taken."""
    ledger, lease = load.ledger, messages[0]["leaseId"]
    body = said_of(ledger, group, messages)
    if chance.random() < 0.7 and not load.calm:
        body["take"] = {
            "queue": messages[0]["queue"],
            "consumerGroup": group,
            "batch": chance.randint(1, 30),
            "partitions": chance.randint(1, 3),
            "wait": chance.random() < 0.5,
            "timeout": chance.randint(1, 300),
        }
    asked = time.monotonic()
    try:
        answer = await client.post(f"{chance.choice(load.urls)}/api/v1/lease/{lease}/finish", json=body)
    except httpx.HTTPError as error:
        ledger.answers[f"finish {type(error).__name__}"] += 1
        return []
    if not ledger.note("finish", answer, 200, 404):
        return []
    result: Json = answer.json()
    note_finish(ledger, group, messages, result)
    taken: list[Json] = (result.get("taken") or {"messages": []})["messages"]
    if result.get("taken"):
        ledger.deliver(group, messages[0]["queue"], taken, asked, "take")
    return taken


async def consume_connected(load: Load, number: int, group: str) -> None:
    chance = load.chance(f"connected-{number}-{group}")
    async with aiohttp.ClientSession() as session:
        while load.consuming:
            queue = chance.choice(CONSUMED)
            url = f"{chance.choice(load.urls)}/api/v1/consume/queue/{queue}"
            params = {"consumerGroup": group, "batch": chance.randint(1, 30), "partitions": chance.randint(1, 3)}
            params["inFlight"] = chance.choice((1, 1, 1, 4))
            opened = time.monotonic()
            try:
                async with session.ws_connect(url, params=params, ssl=False, max_msg_size=0) as socket:
                    known = params["inFlight"] == 1
                    await _converse(load, Connection(socket), queue, group, chance, opened, known)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                load.ledger.answers[f"connection {type(error).__name__}"] += 1
                await asyncio.sleep(0.1)


async def _converse(
    load: Load, connection: Connection, queue: str, group: str, chance: random.Random, opened: float, known: bool
) -> None:
    """Handle some batches, and leave with a close, or without a word and with what is in hand.

    If it is `known` that each batch makes room for the next, the server asks for that one no sooner than it hears that
    the last one is finished, unless the lease of that has ended before.
    """
    asked = opened
    for _ in range(chance.randint(1, 20)):
        try:
            async with asyncio.timeout(chance.uniform(0.1, 1)):
                batch = await connection.next_batch()
        except TimeoutError:
            load.ledger.deliver(group, queue, [], asked, "connection")
            return
        messages: list[Json] = batch["messages"]
        load.ledger.deliver(group, queue, messages, asked, "connection")
        if not load.calm and chance.random() < FORGET:
            connection.cut()
            return
        if not load.calm and chance.random() < LATE:
            await asyncio.sleep(chance.uniform(0, LEASE_S * 1.3))
        finishing = time.monotonic()
        result = await connection.finish(batch, **said_of(load.ledger, group, messages))
        note_finish(load.ledger, group, messages, result)
        known = known and bool(result["success"])
        asked = finishing if known else opened
