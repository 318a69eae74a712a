"""The published `queen-mq` clients, as they come from PyPI, against a server of ours.

What they do is in `scenarios/`; each scenario runs in the environment of each version.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import jwt
import pytest
from server_settings import settings_with

from queenmq.config import Settings

Play = Callable[..., Awaitable[dict[str, Any]]]

_HERE = Path(__file__).parent
_SECRET = "a secret of more than thirty-two bytes"
_TRACE = """
SELECT t.transaction_id, t.consumer_group, t.event_type, convert_from(t.data, 'UTF8')::json #>> '{}' AS data,
       array(SELECT n.name FROM queen.message_trace_names n WHERE n.trace_id = t.id ORDER BY n.name) AS names
FROM queen.message_traces t WHERE t.id = $1
"""
# Every file of the installed client is the one that its archive listed.
_INSTALLED = """
import base64, hashlib, json
from importlib import metadata
client = metadata.distribution("queen-mq")
for path in client.files:
    if path.hash:
        digest = hashlib.new(path.hash.mode, path.read_binary()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == path.hash.value, path
tools = {"pip", "setuptools"}
print(json.dumps({d.name: d.version for d in metadata.distributions() if d.name not in tools}))
"""

versions = pytest.mark.parametrize("version", ["0.12.0", "0.15.0", "2.6.0"])


@versions
def test_the_client_is_the_published_one(environments: Any, version: str) -> None:
    done = subprocess.run([environments.python(version), "-c", _INSTALLED], capture_output=True, check=True, text=True)
    lines = (_HERE / "clients" / f"{version}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert json.loads(done.stdout) == pinned
    assert pinned["queen-mq"] == version


@versions
@pytest.mark.parametrize(
    "scenario",
    [
        "queues",
        "pushes",
        "buffers",
        "pops",
        "consumers",
        "dead_letters",
        "groups",
        "transactions",
        "leases",
        "delays",
        "namespaces",
        "administration",
    ],
)
async def test_scenario(play: Play, version: str, scenario: str) -> None:
    await play(version, scenario)


@pytest.mark.parametrize("scenario", ["reads", "keys", "newest"])
async def test_what_only_newer_clients_do(play: Play, scenario: str) -> None:
    await play("2.6.0", scenario)


async def test_the_stream_engine_runs(play: Play) -> None:
    await play("0.15.0", "streams")


@versions
async def test_traces_are_stored(play: Play, sql: asyncpg.Connection, version: str) -> None:
    told = await play(version, "traces")

    async def stored(trace_id: str) -> asyncpg.Record:
        row = await sql.fetchrow(_TRACE, trace_id)
        assert row is not None
        return row

    full = await stored(told["a_trace_with_everything"])
    assert (full["consumer_group"], full["event_type"]) == ("billing", "step")
    assert json.loads(full["data"]) == {"text": "ünïcödé", "n": [1, None]}
    assert full["names"] == ["customer-4", "order-17"]

    first, second = [await stored(trace_id) for trace_id in told["a_trace_with_only_data"]]
    assert (first["consumer_group"], first["event_type"]) == ("__QUEUE_MODE__", "info")
    assert (first["data"], first["names"]) == (None, [])
    assert (second["data"], second["names"]) == ("second", ["alone"])

    # A fault of all clients: whatever message a trace of a batch is left at, it goes to the last one.
    batch = [await stored(trace_id) for trace_id in told["traces_of_a_batch"]]
    assert [(trace["transaction_id"], trace["data"]) for trace in batch] == [
        ("tx-2", "0"),
        ("tx-2", "1"),
        ("tx-2", "2"),
    ]


class TestWithTokens:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": _SECRET})

    @versions
    async def test_scenario(self, play: Play, version: str) -> None:
        claims = {"sub": "alice", "role": "admin", "exp": time.time() + 300}
        await play(version, "tokens", jwt.encode(claims, _SECRET, algorithm="HS256"))
