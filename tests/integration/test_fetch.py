"""Reading by offset and by time without a group: everything that is stored, in order, and nothing changes by it."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import changed, settings_with

from integration.queen import Json, Queen, age_messages, another_server
from queenmq.config import Settings

LARGE = [f"{number}{'x' * 97}" for number in range(5)]  # 100 bytes each


@pytest.fixture
def settings() -> Settings:
    return settings_with(server={"encryption_key": bytes(32)}, limits={"max_items": 50})


async def fetch(http: httpx.AsyncClient, *entries: Json, **fields: Any) -> list[Json]:
    answer = await http.post("/api/v1/fetch", json={"entries": entries} | fields)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["entries"])


async def read(http: httpx.AsyncClient, partition: str = "p", queue: str = "q", **fields: Any) -> Json:
    [entry] = await fetch(http, {"queue": queue, "partition": partition} | fields)
    return entry


def offsets(entry: Json) -> list[int]:
    return [record["offset"] for record in entry["records"]]


async def picture(sql: asyncpg.Connection) -> list[tuple[Any, ...]]:
    rows = await sql.fetch("SELECT * FROM queen.partition_consumers UNION ALL SELECT * FROM queen.partition_consumers")
    return [tuple(row) for row in rows]


async def test_everything_from_an_offset_on(http: httpx.AsyncClient, queen: Queen) -> None:
    pushed = await queen.push("q", {"a": 2**70}, "ü", None, partition="p")
    entry = await read(http)
    assert (entry.get("error"), entry["logStartOffset"], entry["highWatermark"], entry["nextOffset"]) == (None, 1, 4, 4)
    assert offsets(entry) == [1, 2, 3]
    assert [record["payload"] for record in entry["records"]] == [{"a": 2**70}, "ü", None]
    assert [record["id"] for record in entry["records"]] == [one["messageId"] for one in pushed]
    assert offsets(await read(http, offset=2)) == [2, 3]
    assert offsets(await read(http, offset=4)) == []
    assert offsets(await read(http, offset=2, limit=1)) == [2]


async def test_groups_leases_and_positions_are_as_before(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    await queen.push("q", 1, 2, 3, partition="p")
    [message] = await queen.pop("q", "p", consumerGroup="g")
    before = await picture(sql)
    assert offsets(await read(http)) == [1, 2, 3]
    assert await picture(sql) == before
    assert (await queen.ack(message))["success"]


async def test_from_a_moment_on(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", 1, 2, partition="p")
    await age_messages(sql, "q", 3600)
    await queen.push("q", 3, partition="p")
    [third] = (await read(http, offset=3))["records"]
    assert offsets(await read(http, since=third["ts"])) == [3]
    assert offsets(await read(http, since="2001-01-01T00:00:00Z")) == [1, 2, 3]
    later = await read(http, since="2126-01-01T00:00:00Z")
    assert (offsets(later), later["nextOffset"]) == ([], 4)


async def test_what_is_delayed_or_finished_is_read_as_well(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.configure("q", delayedProcessing=3600)
    await queen.push("q", 1, partition="p")
    assert await queen.pop("q", "p") == []
    assert offsets(await read(http)) == [1]


async def test_where_there_is_nothing(http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", 1, partition="p")
    for queue, partition in (("q", "other"), ("other", "p")):
        entry = await read(http, partition, queue)
        assert (entry["error"], entry["records"]) == ("UNKNOWN_TOPIC_OR_PARTITION", [])
    assert await sql.fetchval("SELECT count(*) FROM queen.partitions WHERE name = 'other'") == 0
    assert (await read(http, offset=3))["error"] == "OFFSET_OUT_OF_RANGE"


async def test_what_was_deleted_is_noticed(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("q", 1, 2, partition="p")
    assert (await http.delete("/api/v1/queues/q/clear")).status_code == 200
    await queen.push("q", 3, partition="p")
    gone = await read(http, offset=1)
    assert (gone["error"], gone["logStartOffset"], gone["highWatermark"]) == ("OFFSET_OUT_OF_RANGE", 3, 4)
    assert offsets(await read(http, offset=gone["logStartOffset"])) == [3]
    assert offsets(await read(http)) == [3]


class TestBounds:
    async def test_bytes_of_an_entry(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", *LARGE[:5], partition="p")
        assert offsets(await read(http, maxBytes=250)) == [1, 2]
        assert offsets(await read(http, maxBytes=100)) == [1]
        assert offsets(await read(http, maxBytes=1)) == [1]
        assert offsets(await read(http, maxBytes=0)) == [1]

    async def test_bytes_of_all_entries(self, http: httpx.AsyncClient, queen: Queen) -> None:
        for partition in "abc":
            await queen.push("q", *LARGE[:3], partition=partition)
        entries = [{"queue": "q", "partition": partition} for partition in "abc"]
        assert [offsets(one) for one in await fetch(http, *entries, maxBytes=450)] == [[1, 2, 3], [1], []]
        assert [offsets(one) for one in await fetch(http, *entries, maxBytes=1)] == [[1], [], []]

    async def test_messages(self, http: httpx.AsyncClient, queen: Queen) -> None:
        for number in range(3):
            await queen.push("q", *range(30), partition=f"p{number}")
        entry = await read(http, "p0", limit=10_000)
        assert offsets(entry) == list(range(1, 31))
        entries = [{"queue": "q", "partition": f"p{number}"} for number in range(3)]
        assert [len(one["records"]) for one in await fetch(http, *entries)] == [16] * 3
        answer = await http.post("/api/v1/fetch", json={"entries": entries * 17})
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    async def test_going_on_reads_everything_once(self, http: httpx.AsyncClient, queen: Queen) -> None:
        await queen.push("q", *range(40), partition="p")
        read_so_far: list[int] = []
        at = 0
        while True:
            entry = await read(http, offset=at, limit=7, maxBytes=10)
            if not entry["records"]:
                break
            read_so_far += [record["payload"] for record in entry["records"]]
            at = entry["nextOffset"]
        assert read_so_far == list(range(40))


async def test_encrypted_payloads(http: httpx.AsyncClient, queen: Queen, settings: Settings, database_url: str) -> None:
    await queen.push("q", "clear", partition="p")
    await queen.configure("q", encryptionEnabled=True)
    await queen.push("q", "secret", partition="p")
    assert [record["payload"] for record in (await read(http))["records"]] == ["clear", "secret"]
    async with another_server(changed(settings, server={"encryption_key": None}), database_url) as keyless:
        assert offsets(await read(keyless.http)) == [1]
        entry = await read(keyless.http, offset=2)
        assert (entry["error"], entry["records"]) == ("CANNOT_DECRYPT", [])
        assert "QUEEN_ENCRYPTION_KEY" in entry["message"]


async def test_what_is_pushed_meanwhile_leaves_no_gap(http: httpx.AsyncClient, queen: Queen) -> None:
    async def push() -> None:
        for number in range(30):
            await queen.push("q", number, partition="p")

    pushing = asyncio.create_task(push())
    found: list[int] = []
    at = 0
    while len(found) < 30:
        entry = await read(http, offset=at)
        found += offsets(entry)
        at = entry["nextOffset"]
    await pushing
    assert found == list(range(1, 31))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"entries": [{}]},
        {"entries": [{"queue": ""}]},
        {"entries": [{"queue": "q", "partition": "\0"}]},
        {"entries": [{"queue": "q", "offset": -1}]},
        {"entries": [{"queue": "q", "since": "soon"}]},
        {"entries": [{"queue": "q", "offset": 1, "since": "2026-01-01T00:00:00Z"}]},
        {"entries": [{"queue": "q", "limit": "many"}]},
        {"entries": [], "maxBytes": -1},
    ],
)
async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient, body: Json) -> None:
    assert (await http.post("/api/v1/fetch", json=body)).status_code == 400


async def test_nothing_is_asked_for(http: httpx.AsyncClient) -> None:
    assert await fetch(http) == []
