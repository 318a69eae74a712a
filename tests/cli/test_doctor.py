"""`queen doctor` on set-ups that are well and on such that are not; tokens; `queen admin migrations`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import jwt
import pytest
from ports import free_port, free_udp_port
from server_settings import settings_with

import queenmq
from cli.conftest import Run, Running, serving, until
from queenmq.cli import server_checks
from queenmq.client import BlockingQueen
from queenmq.config import Settings
from queenmq.storage.steps import migrations

if TYPE_CHECKING:
    from conftest import Postgres

SECRET = "a secret of more than thirty-two bytes"


def findings(queen: Run, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    told = queen("doctor", "--json", *arguments)
    found = told.json
    assert found["healthy"] == (told.status == 0)
    return told.status, {finding["name"]: finding for finding in found["findings"]}


def states(queen: Run, *arguments: str) -> dict[str, str]:
    return {name: finding["state"] for name, finding in findings(queen, *arguments)[1].items()}


def execute(url: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


@pytest.fixture(scope="module", autouse=True)
def synced(postgres: Postgres) -> Iterator[None]:
    """Doctor finds fault with a database that does not wait for the disk, as that of the tests does otherwise."""
    _set_sync(postgres, "on")
    yield
    _set_sync(postgres, "off")


def _set_sync(postgres: Postgres, value: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(postgres.url)
        try:
            await connection.execute(f"ALTER SYSTEM SET fsync = {value}")
            await connection.execute("SELECT pg_reload_conf()")
            async with asyncio.timeout(30):
                while await connection.fetchval("SHOW fsync") != value:
                    await asyncio.sleep(0.01)
        finally:
            await connection.close()

    asyncio.run(run())


def test_all_is_well(queen: Run, running: Running, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("DATABASE_URL", running.database_url)
    status, found = findings(queen)
    assert (status, {finding["state"] for finding in found.values()} <= {"good", "doubtful"}) == (0, True), found
    for name in (
        "configuration",
        "server",
        "versions",
        "database",
        "clock of the server",
        "token",
        "schema",
        "lookup",
        "horizon",
    ):
        assert found[name]["state"] == "good", found[name]
    assert "✓ lookup: every row is correct" in queen("doctor").out


def test_who_has_kept_dead_rows_alive_for_long_is_named(
    queen: Run, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_checks, "_HELD_LONG_S", 0)

    async def held() -> None:
        holder = await asyncpg.connect(running.database_url, server_settings={"application_name": "nightly dump"})
        try:
            async with holder.transaction(isolation="repeatable_read"):
                await holder.execute("SELECT 1 FROM pg_class")
                _, found = await asyncio.to_thread(findings, queen)
                assert found["horizon"]["state"] == "doubtful"
                assert f"session {holder.get_server_pid()}" in str(found["horizon"])
                assert "nightly dump" in str(found["horizon"])
                assert f"pg_terminate_backend({holder.get_server_pid()})" in str(found["horizon"])
        finally:
            await holder.close()

    asyncio.run(held())


def test_without_the_database_its_tables_are_left_out(queen: Run) -> None:
    found = states(queen)
    assert (found["tables"], found["server"]) == ("skipped", "good")


def test_a_wrong_address(queen: Run) -> None:
    status, found = findings(queen, "--server", f"http://127.0.0.1:{free_port()}")
    assert (status, found["server"]["state"]) == (1, "bad")
    assert "queen serve" in found["server"]["advice"]
    assert states(queen, "--server", "nonsense")["server"] == "bad"


def test_a_wrong_variable(queen: Run, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PORT", "many")
    status, found = findings(queen)
    assert (status, found["configuration"]["state"]) == (1, "bad")
    assert "PORT" in found["configuration"]["sentence"]
    assert found["server"]["state"] == "good"
    environment.delenv("PORT")
    environment.setenv("QUEEN_UPD_PEERS", "h:1")
    status, found = findings(queen)
    assert (status, found["configuration"]["state"]) == (0, "doubtful")
    assert found["configuration"]["advice"] == "did you mean QUEEN_UDP_PEERS?"


def test_what_is_in_effect(queen: Run, environment: pytest.MonkeyPatch) -> None:
    found = findings(queen)[1]
    assert (found["authentication"]["state"], found["authentication"]["sentence"][:4]) == ("good", "off:")
    assert "authentication off" in found["effective"]["sentence"]
    assert "TLS" in found["database connection"]["sentence"]
    environment.setenv("JWT_ENABLED", "Yes")
    environment.setenv("PG_HOST", "127.0.0.1")
    environment.setenv("PG_PORT", str(free_port()))
    environment.setenv("PG_USE_SSL", "1")
    found = findings(queen)[1]
    assert "authentication on (HS256)" in found["effective"]["sentence"]
    assert "TLS to the database with a certificate verified" in found["effective"]["sentence"]
    # The server that runs was started without.
    assert (found["authentication"]["state"], "although" in found["authentication"]["sentence"]) == ("doubtful", True)
    environment.delenv("JWT_ENABLED")
    environment.setenv("QUEEN_TOKENS_ENABLED", "true")
    told = findings(queen)[1]["authentication"]
    assert (told["state"], "although QUEEN_TOKENS_ENABLED is set here" in told["sentence"]) == ("doubtful", True)
    assert "QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true" in told["advice"]
    environment.setenv("JWT_ENABLED", "ture")
    status, found = findings(queen)
    assert (status, "JWT_ENABLED" in found["configuration"]["sentence"]) == (1, True)


def test_a_token_that_nobody_demands_is_not_called_good(queen: Run, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("QUEEN_TOKEN", "anything")
    found = findings(queen)[1]
    assert found["token"]["sentence"] == "the server requires none"
    assert found["authentication"]["sentence"].startswith("off")


def test_a_database_that_is_not_there(queen: Run, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("DATABASE_URL", f"postgresql://me:hush@127.0.0.1:{free_port()}/app")
    status, found = findings(queen)
    assert (status, found["tables"]["state"]) == (1, "bad")
    assert "hush" not in json.dumps(found)


def test_a_stale_lookup_and_its_cure(queen: Run, running: Running, environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setenv("DATABASE_URL", running.database_url)
    queen("push", name, "1", "2")
    execute(
        running.database_url,
        "UPDATE queen.partition_lookup SET last_offset = 1 WHERE partition_id = "
        f"(SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = '{name}')",
    )
    status, found = findings(queen)
    assert (status, found["lookup"]["state"]) == (1, "bad")
    assert name in found["lookup"]["sentence"]
    assert "resync-lookup" in found["lookup"]["advice"]
    assert queen("admin", "check-lookup").status == 1
    assert queen("admin", "resync-lookup").out == "rows changed: 1\n"
    assert states(queen)["lookup"] == "good"


def test_migrations_applied_pending_and_unknown(
    queen: Run, postgres: Postgres, environment: pytest.MonkeyPatch
) -> None:
    url = asyncio.run(postgres.create())
    environment.setenv("DATABASE_URL", url)
    try:
        told = queen("admin", "migrations", "--json")
        assert told.status == 0
        assert [row["state"] for row in told.json["migrations"]] == ["applied"] * len(migrations())
        execute(url, "DELETE FROM queen.function_sets")
        assert "functions of this version are missing" in queen("admin", "migrations").out
        assert states(queen)["schema"] == "doubtful"
        newest = max(one.version for one in migrations() if one.phase == "expand")
        execute(url, f"DELETE FROM queen.schema_migrations WHERE version = {newest}")
        pending = queen("admin", "migrations")
        assert (pending.status, "pending" in pending.out) == (1, True)
        assert states(queen)["schema"] == "bad"
        execute(url, "INSERT INTO queen.schema_migrations (version, name) VALUES (9999, 'from the future')")
        assert queen("admin", "migrations", "--json").json["migrations"][-1]["state"] == "unknown"
        assert "newer" in findings(queen)[1]["schema"]["sentence"]
    finally:
        asyncio.run(postgres.drop(url))


def test_an_empty_database_has_everything_pending(
    queen: Run, postgres_url: str, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("DATABASE_URL", postgres_url)
    told = queen("admin", "migrations", "--json")
    assert {row["state"] for row in told.json["migrations"]} == {"pending"}
    refused = queen("admin", "check-lookup")
    assert (refused.status, "schema version" in refused.err) == (1, True)


# Tokens


@pytest.fixture(scope="module")
def guarded(postgres: Postgres) -> Iterator[Running]:
    """A server that demands tokens."""
    url = asyncio.run(postgres.create())
    with serving(settings_with(auth={"enabled": True, "secret": SECRET}), url) as server:
        yield server
    asyncio.run(postgres.drop(url))


def bearer(role: str, key: str = SECRET, **claims: Any) -> str:
    return jwt.encode({"sub": "alice", "role": role, "exp": time.time() + 86_400, **claims}, key, "HS256")


def test_tokens(queen: Run, guarded: Running, environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setenv("QUEEN_URL", guarded.url)
    without = queen("push", name, "1")
    assert (without.status, "QUEEN_TOKEN" in without.err, len(without.err.splitlines())) == (5, True, 1)
    assert findings(queen)[1]["token"]["advice"] == "set QUEEN_TOKEN"
    environment.setenv("QUEEN_TOKEN", wrong := bearer("admin", "another secret of more than thirty-two bytes"))
    refused = queen("queues")
    assert (refused.status, wrong in refused.err) == (5, False)
    assert states(queen)["token"] == "bad"
    environment.setenv("QUEEN_TOKEN", bearer("read-only"))
    assert queen("queues", "--json").json == []
    assert queen("push", name, "1").status == 5
    found = states(queen)
    assert (found["token"], found["peers"]) == ("good", "skipped")
    assert findings(queen)[1]["authentication"]["sentence"].startswith("on")
    environment.setenv("QUEEN_TOKEN", bearer("admin"))
    assert queen("push", name, "1").status == 0
    assert queen("tail", name, "--limit", "1").status == 0
    assert states(queen)["peers"] == "good"
    assert states(queen)["journal"] == "doubtful"


def test_a_token_that_is_limited_is_valid(
    queen: Run, guarded: Running, environment: pytest.MonkeyPatch, name: str
) -> None:
    environment.setenv("QUEEN_URL", guarded.url)
    for role in ("read-only", "admin"):
        environment.setenv("QUEEN_TOKEN", bearer(role, queen={"queues": [name]}))
        status, found = findings(queen)
        assert status == 0, found
        told = "the token is valid, and limited by grants: some checks are left out"
        assert (found["token"]["state"], found["token"]["sentence"]) == ("good", told)
        left_out = "clock of the database, durability, horizon, operations, journal, troubles, peers: "
        assert (found["not checked"]["state"], found["not checked"]["sentence"]) == (
            "skipped",
            f"{left_out}the token is not for them",
        )
        assert "without grants" in found["not checked"]["advice"]
        assert found["work"]["sentence"] == "no group that the token may read is behind"
        assert not found.keys() & {"durability", "horizon", "operations", "journal", "peers"}
    environment.setenv("QUEEN_TOKEN", bearer("read-only"))
    assert "not checked" not in states(queen)


def test_maintenance_and_peers_that_are_silent(queen: Run, postgres: Postgres, environment: pytest.MonkeyPatch) -> None:
    url = asyncio.run(postgres.create())
    settings = settings_with(
        cluster={"peers": (("127.0.0.1", free_udp_port()),), "udp_port": free_udp_port(), "secret": bytes(32)}
    )
    try:
        with serving(settings, url) as server:
            environment.setenv("QUEEN_URL", server.url)
            found = findings(queen)[1]["peers"]
            assert (found["state"], "none of them has ever answered" in found["sentence"]) == ("bad", True)
            with BlockingQueen(server.url) as client:
                client.admin.set_pop_maintenance_mode(True)
            found = findings(queen)[1]["maintenance"]
            assert (found["state"], found["sentence"]) == ("doubtful", "pops are switched off on every server")
    finally:
        asyncio.run(postgres.drop(url))


def test_peers_that_live_fall_silent_or_have_another_secret(
    queen: Run, postgres: Postgres, environment: pytest.MonkeyPatch
) -> None:
    url = asyncio.run(postgres.create())
    ports = [free_udp_port() for _ in range(2)]

    def member(index: int, secret: bytes = bytes(32)) -> Settings:
        return settings_with(
            cluster={
                "server_id": f"member-{index}",
                "udp_port": ports[index],
                "peers": (("127.0.0.1", ports[1 - index]),),
                "secret": secret,
                "heartbeat_ms": 50,
                "dead_threshold_ms": 2000,
            }
        )

    def peers() -> tuple[str, str]:
        found = findings(queen)[1]["peers"]
        return found["state"], found["sentence"]

    try:
        with serving(member(0), url) as server:
            environment.setenv("QUEEN_URL", server.url)
            with serving(member(1), url):
                until(peers, ("good", "1 other server alive"))
            until(peers, ("bad", "0 other servers alive, 1 silent: member-1"))
            with serving(member(1, b"x" * 32), url):
                until(lambda: states(queen).get("secrets"), "doubtful")
    finally:
        asyncio.run(postgres.drop(url))


# A server whose answers are made up


@contextmanager
def pretending(health: Any, overview: Any = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = {"/health": health, "/api/v1/resources/overview": overview}.get(self.path)
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write((answer if isinstance(answer, str) else json.dumps(answer)).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def health(ahead_s: float, **changes: Any) -> dict[str, Any]:
    at = datetime.now(UTC) + timedelta(seconds=ahead_s)
    told = {"server": "queen", "version": queenmq.__version__, "database": "connected", "timestamp": at.isoformat()}
    return told | changes


@pytest.mark.parametrize(
    ("ahead_s", "state", "word"), [(600, "bad", "ahead of"), (-600, "bad", "behind"), (-15, "doubtful", "behind")]
)
def test_clocks_that_disagree(queen: Run, ahead_s: float, state: str, word: str) -> None:
    at = (datetime.now(UTC) + timedelta(seconds=ahead_s)).isoformat()
    with pretending(health(ahead_s), {"timestamp": at}) as url:
        status, found = findings(queen, "--server", url)
    for whose in ("server", "database"):
        finding = found[f"clock of the {whose}"]
        assert (finding["state"], word in finding["sentence"], "NTP" in finding["advice"]) == (state, True, True)
    assert status == (1 if state == "bad" else 0)


def test_a_server_of_another_version_that_has_lost_its_database(queen: Run) -> None:
    with pretending(health(0, version="9.9.9", database="disconnected")) as url:
        status, found = findings(queen, "--server", url)
    assert (status, found["versions"]["state"], found["database"]["state"]) == (1, "doubtful", "bad")
    assert "9.9.9" in found["versions"]["sentence"]
    assert found["token"]["state"] == "bad"


@pytest.mark.parametrize("answer", ["<html>hello</html>", {"server": "other"}, [], "[" * 100_000])
def test_something_else_answers(queen: Run, answer: Any) -> None:
    with pretending(answer) as url:
        status, found = findings(queen, "--server", url)
        assert (status, found["server"]["sentence"]) == (1, f"{url} is not a Queen server")
        refused = queen("queues", "--server", url)
        assert (refused.status, len(refused.err.splitlines())) == (6, 1)


def test_a_server_that_never_had_its_database(queen: Run, tmp_path: Path) -> None:
    nowhere = f"postgresql://queen@127.0.0.1:{free_port()}/queen"
    with serving(settings_with(journal={"folder": tmp_path}), nowhere) as lost:
        status, found = findings(queen, "--server", lost.url)
    assert (status, found["database"]["state"], found["token"]["state"]) == (1, "bad", "skipped")
