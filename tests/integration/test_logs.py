"""The log: structured if wanted, with the id of the request in each line that it causes, and never with a payload."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest
from ports import free_port
from server_settings import settings_with

from integration.proxy import relayed
from integration.queen import Queen, until
from queen_bench.server import QUEEN
from queenmq.clock import ManualClock
from queenmq.logs import JsonFormatter, RepeatFilter, TextFormatter
from queenmq.server import Server

SECRET = "a payload that nobody may read"
BREAK = """
    CREATE FUNCTION queen.break() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'broken on purpose' USING DETAIL = convert_from(NEW.payload, 'UTF8');
    END $$;
    CREATE TRIGGER broken BEFORE INSERT ON queen.messages FOR EACH ROW EXECUTE FUNCTION queen.break()
"""


@pytest.fixture(params=[TextFormatter, JsonFormatter])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(request.param())
    logging.getLogger("queenmq").addHandler(handler)
    yield written
    logging.getLogger("queenmq").removeHandler(handler)


async def push(http: httpx.AsyncClient, **headers: str) -> httpx.Response:
    return await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": SECRET}]}, headers=headers)


async def test_a_line_names_its_request_and_shows_no_payload(
    http: httpx.AsyncClient, sql: asyncpg.Connection, log: io.StringIO
) -> None:
    await sql.execute(BREAK)
    given = await push(http, **{"X-Request-Id": "mine-17"})
    assert (given.status_code, given.headers["X-Request-Id"]) == (503, "mine-17")
    made = await push(http)
    assert (made.status_code, len(made.headers["X-Request-Id"])) == (503, 36)
    first, second = [line for line in log.getvalue().splitlines() if "broken on purpose" in line]
    assert "mine-17" in first
    assert made.headers["X-Request-Id"] in second
    assert SECRET not in log.getvalue()


async def test_an_id_that_was_given_comes_back_and_none_is_made_for_nothing(queen: Queen) -> None:
    given = await queen.http.get("/health", headers={"X-Request-Id": "a/b.c:1"})
    assert given.headers["X-Request-Id"] == "a/b.c:1"
    empty = await queen.http.get("/api/v1/pop/queue/none", headers={"X-Request-Id": "x"})
    assert (empty.status_code, empty.headers["X-Request-Id"]) == (204, "x")
    refused = await queen.http.post("/api/v1/push", content=b"{", headers={"X-Request-Id": "y"})
    assert (refused.status_code, refused.headers["X-Request-Id"]) == (400, "y")
    for header in ({}, {"X-Request-Id": "no spaces"}, {"X-Request-Id": "x" * 129}):
        assert "X-Request-Id" not in (await queen.http.get("/health", headers=header)).headers


async def test_requests_on_one_connection_keep_their_ids_apart(server: Server) -> None:
    host, port = server.address
    reader, writer = await asyncio.open_connection(host, port)
    requests = [b"GET /health HTTP/1.1\r\nHost: x\r\nX-Request-Id: %d\r\n\r\n" % n for n in range(3)]
    writer.write(b"".join(requests) + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(20):
        answers = await reader.read()
    writer.close()
    await writer.wait_closed()
    ids = [line for line in answers.split(b"\r\n") if line.lower().startswith(b"x-request-id")]
    assert ids == [b"X-Request-Id: 0", b"X-Request-Id: 1", b"X-Request-Id: 2"]


def test_a_line_of_json_has_everything() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("queenmq.x", logging.ERROR, "", 0, "%s failed", ("push",), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["logger"], line["message"]) == ("error", "queenmq.x", "push failed")
    assert "ValueError: why" in line["exception"]
    assert line["time"].endswith("+00:00")
    assert "request_id" not in line


def test_nobody_forges_a_line() -> None:
    forged = "q\n2026-01-01 00:00:00,000 ERROR queenmq.server: \x1b[31mall is lost\u2028\x85"
    try:
        raise ValueError(forged)
    except ValueError:
        record = logging.LogRecord("queenmq.x", logging.ERROR, "", 0, "%s failed", (forged,), sys.exc_info())
    first, *others = TextFormatter().format(record).splitlines()
    assert first.endswith("q\\n2026-01-01 00:00:00,000 ERROR queenmq.server: \\x1b[31mall is lost\\u2028\\x85 failed")
    assert [line for line in others if line.strip() and not line.startswith("  ")] == []


def test_what_every_request_causes_does_not_fill_the_log() -> None:
    clock = ManualClock()
    filters = RepeatFilter(clock)

    def line(text: str, number: int, level: int = logging.WARNING) -> logging.LogRecord:
        return logging.LogRecord("queenmq.x", level, "", 0, text, (number,), None)

    assert sum(filters.filter(line("request %d failed", n)) for n in range(500)) == 20
    assert filters.filter(line("something else: %d", 1))
    assert all(filters.filter(line("details %d", n, logging.DEBUG)) for n in range(500))
    clock.advance(60)
    first = line("request %d failed", 7)
    assert filters.filter(first)
    assert first.getMessage() == "request 7 failed (and 480 more like this before)"
    assert filters.filter(line("request %d failed", 8))


async def test_pops_in_an_outage_make_one_line(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with relayed(database_url) as proxy:
        server = Server(settings_with(database={"ping_ms": 20}), proxy.url)
        await server.start()
        host, port = server.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
            for outage in (1, 2):
                await proxy.close()
                await until(lambda: not server.database.is_open)
                for _ in range(30):
                    assert (await http.get("/api/v1/pop/queue/q")).status_code == 503
                await server.broker._leases.close()
                told = [record for record in caplog.records if "given back" in record.message]
                assert len([record for record in told if record.levelno >= logging.WARNING]) == outage
                await proxy.open()
                await until(lambda: server.database.is_open)
        await server.stop()


async def test_the_server_logs_json_if_it_is_told_to(database_url: str, tmp_path: Path) -> None:
    environment = os.environ | {
        "DATABASE_URL": database_url,
        "PORT": str(free_port()),
        "LOG_FORMAT": "json",
        "QUEEN_DATA_DIR": str(tmp_path),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", QUEEN, "serve", env=environment, stdout=-1, stderr=-1
    )
    assert process.stdout is not None
    async with asyncio.timeout(120):
        await process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert "stopped" in [line["message"] for line in lines]
