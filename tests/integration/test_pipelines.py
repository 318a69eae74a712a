"""Declared pipelines over HTTP and for Prometheus."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from integration.queen import Queen
from integration.test_tenants import SECRET, signed
from queenmq.server import Server

DECLARE = """
    WITH p AS (
        INSERT INTO queen.pipelines (name, kind, version, declaration, reads, writes, state_number, wanted)
        VALUES ('copy', 'copy', 3, '{"kind": "copy", "source": "orders"}', '{orders}', '{copies}', 1, 'running')
        RETURNING name
    ), v AS (
        INSERT INTO queen.pipeline_versions (name, version, declaration, state_number)
        SELECT name, n, '{"kind": "copy"}', 1 FROM p, generate_series(1, 3) n
    ), l AS (
        INSERT INTO queen.pipeline_leases (name, generation, holder, holder_name, held_until)
        SELECT name, 7, gen_random_uuid(), 'host:1', clock_timestamp() + interval '1 hour' FROM p
    ), b AS (
        INSERT INTO queen.pipeline_batches (name, ended_at, number, query, rows, seconds)
        SELECT name, clock_timestamp() - make_interval(secs => n), 100 - n, 'orders copy', n, 0.5
        FROM p, generate_series(0, 9) n
    )
    INSERT INTO queen.pipeline_states
        (name, state, version, started_at, seen_at, starts, positions, covered_until, rows, batches, rate, error,
         error_at)
    SELECT p.name, 'running', 3, clock_timestamp(), clock_timestamp(), 2, jsonb_build_object(q.id, 1),
           clock_timestamp() - interval '30 seconds', 1, 10, 12.5, 'the driver was ended by signal 9', clock_timestamp()
    FROM p, queen.queues q WHERE q.name = 'orders'
"""


@pytest.fixture
async def declared(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", 1, 2, 3)
    await sql.execute(DECLARE)


async def test_how_a_pipeline_is(declared: None, http: httpx.AsyncClient) -> None:
    answer = await http.get("/api/v1/pipelines")
    [found] = answer.json()["pipelines"]
    assert (found["name"], found["state"], found["supervisor"], found["version"]) == ("copy", "running", "host:1", 3)
    assert (found["lag"], found["rows"], found["messagesPerSecond"], found["starts"]) == (2, 1, 12.5, 2)
    assert 29 < found["lagSeconds"] < 120
    assert found["error"] == "the driver was ended by signal 9"
    assert (found["lastBatch"]["number"], found["lastBatch"]["seconds"]) == (100, 0.5)
    whole: dict[str, Any] = (await http.get("/api/v1/pipelines/copy")).json()
    assert whole["pipeline"]["name"] == "copy"
    assert whole["declaration"] == {"kind": "copy", "source": "orders"}
    assert [batch["number"] for batch in whole["batches"]] == list(range(100, 90, -1))
    assert [one["version"] for one in whole["versions"]] == [3, 2, 1]
    missing = await http.get("/api/v1/pipelines/nope")
    assert (missing.status_code, missing.json()["error"]) == (404, "there is no pipeline 'nope'")


async def test_a_pipeline_without_a_supervisor_says_so(
    declared: None, http: httpx.AsyncClient, sql: asyncpg.Connection
) -> None:
    await sql.execute("UPDATE queen.pipeline_leases SET held_until = clock_timestamp() - interval '1 second'")
    [found] = (await http.get("/api/v1/pipelines")).json()["pipelines"]
    assert (found["state"], found["supervisor"], found["messagesPerSecond"], found["lag"]) == (
        "unsupervised",
        None,
        None,
        2,
    )
    await sql.execute("UPDATE queen.pipelines SET wanted = 'stopped'")
    assert (await http.get("/api/v1/pipelines")).json()["pipelines"][0]["state"] == "stopped"
    await sql.execute("UPDATE queen.pipelines SET wanted = 'removed'")
    assert (await http.get("/api/v1/pipelines")).json()["pipelines"] == []


async def test_earlier_versions_are_for_those_who_may_read_all_queues(
    declared: None, sql: asyncpg.Connection, database_url: str
) -> None:
    await sql.execute('UPDATE queen.pipeline_versions SET declaration = \'{"source": "secrets"}\' WHERE version < 3')
    server = Server(settings_with(auth={"enabled": True, "secret": SECRET}), database_url)
    await server.start()
    try:
        host, port = server.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as there:
            for grants, expected in (
                ({}, [3, 2, 1]),
                ({"queen": {"queues": ["*"]}}, [3, 2, 1]),
                ({"queen": {"queues": ["orders", "copies"]}}, [3]),
            ):
                headers = {"Authorization": f"Bearer {signed('read-only', **grants)}"}
                answer = await there.get("/api/v1/pipelines/copy", headers=headers)
                assert [one["version"] for one in answer.json()["versions"]] == expected, grants
                assert ("secrets" in answer.text) is (len(expected) > 1)
            headers = {"Authorization": f"Bearer {signed('read-only', queen={'queues': ['orders']})}"}
            assert (await there.get("/api/v1/pipelines/copy", headers=headers)).status_code == 403
    finally:
        await server.stop()


async def test_metrics(declared: None, http: httpx.AsyncClient) -> None:
    text = (await http.get("/metrics/prometheus")).text
    for line in (
        'queen_pipeline_wanted{pipeline="copy"} 1',
        'queen_pipeline_running{pipeline="copy"} 1',
        'queen_pipeline_lag_messages{pipeline="copy"} 2',
        'queen_pipeline_rows_total{pipeline="copy"} 1',
        'queen_pipeline_batches_total{pipeline="copy"} 10',
        'queen_pipeline_starts_total{pipeline="copy"} 2',
    ):
        assert line in text.splitlines()
    assert 'queen_pipeline_lag_seconds{pipeline="copy"} 3' in text
