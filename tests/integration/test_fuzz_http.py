"""The fuzzers of HTTP requests and consumer connections against a real server: short runs, and with QUEEN_LONG=1 ten
minutes each."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import time
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cluster.processes import ServeProcess
from fuzz.consumer_frames import ConsumerFuzzer
from fuzz.http_requests import BODIES, HEADLESS, Fuzzer

from integration.queen import Queen
from queenmq.config import Settings
from queenmq.http.app import ROUTES
from queenmq.http.openapi import document

LONG = os.environ.get("QUEEN_LONG", "") not in ("", "0")
SECONDS = 600 if LONG else 8
MOST_GROWTH_MB = 48
KEY = "a secret of more than thirty-two bytes"


def resident_mb(process: ServeProcess) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def test_every_body_is_changed() -> None:
    """A route that takes one must be in the fuzzer."""
    taking = {
        path
        for path, operations in document(ROUTES, Settings())["paths"].items()
        if any("requestBody" in operation for operation in operations.values())
    }
    assert taking <= BODIES.keys() | HEADLESS


@pytest.mark.timeout(2 * SECONDS + 600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is in /proc on Linux only")
@pytest.mark.parametrize("kind", [Fuzzer, ConsumerFuzzer], ids=["requests", "consumer connections"])
async def test_changed_requests_do_no_harm(
    database_url: str, tmp_path: Path, kind: type[Fuzzer] | type[ConsumerFuzzer]
) -> None:
    server = ServeProcess(tmp_path, "fuzzed", DATABASE_URL=database_url, FILE_BUFFER_DIR=str(tmp_path / "journal"))
    seed = random.getrandbits(31)
    try:
        await server.start()
        fuzzer = kind(server.url, seed)
        # Caches, pools and statements take their memory in the beginning, so it is compared from then on.
        await fuzzer.run(SECONDS / 2)
        before = resident_mb(server)
        await fuzzer.run(SECONDS / 2)
        grown = resident_mb(server) - before
        ends = fuzzer.statuses if isinstance(fuzzer, Fuzzer) else fuzzer.closed
        said = f"{ends.total()} answers, {before:.0f} MB, {grown:+.0f} MB in the second half"
        logging.getLogger(__name__).info(said)
        assert grown < MOST_GROWTH_MB, said
        assert ({200, 400, 404} if isinstance(fuzzer, Fuzzer) else {None, 400, 1007}) <= ends.keys()
        assert server.process.poll() is None
        assert "Traceback" not in server.log
    except BaseExceptionGroup as failures:
        program = Path(inspect.getfile(kind)).name
        failures.add_note(f"to run it again: python tests/fuzz/{program} {server.url} 60 {seed}")
        raise
    finally:
        await asyncio.to_thread(server.make_sure_it_is_gone)


def signed(role: str, expires_s: float = 7200, **claims: Any) -> str:
    return jwt.encode({"sub": role, "role": role, "exp": time.time() + expires_s} | claims, KEY, "HS256")


async def something_of(http: httpx.AsyncClient, secret: str) -> None:
    """In the queue `q.other`, and one with an unknown name, wherever a tenant can have anything."""
    queen, group = Queen(http), f"g-{secret}"
    await queen.configure("q.other", namespace="n", task="t", retryLimit=0)
    await queen.push(f"q.hidden-{secret}", secret, partition=secret)
    item = {"queue": "q.other", "partition": "p", "headers": {"a": "b", "of": secret}}
    await queen.push_items(*({**item, "transactionId": f"{number}-{secret}", "payload": secret} for number in range(5)))
    dead, held = await queen.pop("q.other", "p", consumerGroup=group, subscriptionMode="all", batch=2)
    await queen.trace(held, {"a": secret}, traceNames=[secret, "n"])
    await queen.ack(dead, "failed", error=f"error of {secret}")
    timer = {"op": "schedule", "queue": "q.other", "timerKey": "k", "data": secret, "schedule": "@every 10h"}
    kept = {"op": "put", "ns": "q.other", "key": "k", "value": secret, "forever": True}
    held_for_long = {"op": "acquire", "name": "q.other", "owner": secret, "ttlSeconds": 3600}
    for path, body in (
        ("/api/v1/timers", {"operations": [timer]}),
        ("/api/v1/kv", {"operations": [kept]}),
        ("/api/v1/locks", {"operations": [held_for_long]}),
        ("/api/v1/pause", {"queue": "q.other", "consumerGroup": f"paused-{secret}", "reason": secret}),
        ("/streams/v1/queries", {"name": f"s-{secret}", "source_queue": "q.other", "config_hash": "h"}),
        (
            "/api/v1/tokens",
            {
                "name": f"t-{secret}",
                "role": "read-only",
                "grants": [{"queues": ["q.other"]}],
                "expiresInSeconds": 3600,
            },
        ),
    ):
        answer = await http.post(path, json=body)
        assert answer.is_success, answer.text
    assert secret in (await http.get("/api/v1/dlq?queue=q.other")).text


@pytest.mark.timeout(2 * SECONDS + 600)
async def test_changed_requests_of_tenants_get_nothing_of_others(database_url: str, tmp_path: Path) -> None:
    server = ServeProcess(
        tmp_path,
        "fuzzed",
        DATABASE_URL=database_url,
        FILE_BUFFER_DIR=str(tmp_path / "journal"),
        JWT_ENABLED="true",
        JWT_SECRET=KEY,
        JWT_SKIP_PATHS="/health",
        QUEEN_TOKENS_ENABLED="true",
    )
    seed = random.getrandbits(31)
    secret = random.SystemRandom().randbytes(8).hex()
    ours = {"queues": ["q", "q.a", "n"]}
    tokens = [
        *(signed(role, queen=ours) for role in ("read-only", "read-write", "admin")),
        signed("admin", queen={"namespaces": ["g"], "queues": ["q"], "groups": ["g"]}),
        signed("read-write", queen=ours | {"allow": ["push"]}),
        signed("admin", -60),
        signed("nobody"),
        "x",
    ]
    try:
        await server.start()
        async with httpx.AsyncClient(
            base_url=server.url, timeout=60, headers={"Authorization": f"Bearer {signed('admin')}"}
        ) as owner:
            await something_of(owner, secret)
            before = await seen_by(owner)
            fuzzer = Fuzzer(server.url, seed, tokens, [secret.encode()])
            await fuzzer.run(SECONDS)
            assert {200, 400, 401, 403} <= fuzzer.statuses.keys()
            assert await seen_by(owner) == before
        assert server.process.poll() is None
        assert "Traceback" not in server.log
    except BaseExceptionGroup as failures:
        failures.add_note(f"seed {seed}")
        raise
    finally:
        await asyncio.to_thread(server.make_sure_it_is_gone)


async def seen_by(owner: httpx.AsyncClient) -> list[Any]:
    """What the tenant has; the rest changes with time."""
    found: list[Any] = []
    for path, under, fields in (
        ("/api/v1/messages?queue=q.other", "messages", ("transactionId", "partition", "data")),
        ("/api/v1/dlq?queue=q.other", "messages", ("transactionId", "errorMessage", "data")),
        ("/api/v1/pauses?queue=q.other", "pauses", ("consumerGroup", "reason")),
        ("/api/v1/timers/q.other", "rows", ("timerKey", "schedule", "messageId")),
    ):
        answer = await owner.get(path)
        assert answer.status_code == 200, answer.text
        rows = [[row.get(field) for field in fields] for row in answer.json()[under]]
        found.append(rows)
        assert found[-1] != [], path
    lock = {"op": "get", "name": "q.other"}
    key = {"op": "get", "ns": "q.other", "key": "k"}
    [told] = (await owner.post("/api/v1/kv", json={"operations": [key]})).json()["results"]
    found.append(told["value"])
    [told] = (await owner.post("/api/v1/locks", json={"operations": [lock]})).json()["results"]
    found.append([holder["owner"] for holder in told["holders"]])
    found.append((await owner.get("/api/v1/status/queues/q.other")).json()["queue"]["options"])
    return found
