"""`queen token`: a token is printed once, listed without its text, and revoked."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import asyncpg
import httpx
import pytest
from server_settings import settings_with

from cli.conftest import QUEEN, Run, Running, serving

DOCS = Path(__file__).parents[2] / "docs"


def test_a_token_is_made_listed_and_revoked(queen: Run, running: Running) -> None:
    made = queen("token", "create", "shop", "--role", "read-write", "--queues", "orders.*, mails", "--expires", "30d")
    assert made.status == 0
    text = made.out.strip()
    assert text.startswith("queen_")
    assert "it is not shown again" in made.err
    listed = queen("token", "list", "--json").json
    [one] = [token for token in listed if token["name"] == "shop"]
    assert one["grants"] == [{"queues": ["orders.*", "mails"]}]
    assert one["expiresAt"] is not None
    assert text not in str(listed)
    assert "queues orders.*, mails" in queen("token", "list").out
    assert queen("token", "revoke", one["id"]).status == 2, "nobody was asked"
    by_name = queen("token", "revoke", "shop", "--yes")
    assert (by_name.status, "'shop' is not the id of a token; `queen token list` shows the ids" in by_name.err) == (
        2,
        True,
    )
    assert queen("token", "revoke", one["id"], "--yes").out == "token shop is revoked\n"
    [after] = [token for token in queen("token", "list", "--json").json if token["id"] == one["id"]]
    assert after["valid"] is False


def test_the_audit_log(queen: Run, name: str) -> None:
    queen("queues", "create", name)
    assert queen("queues", "delete", name, "--yes").status == 0
    shown = queen("audit", "--action", "DELETE", "--json").json
    assert shown[0]["target"] == f"/api/v1/resources/queues/{name}"
    assert name in queen("audit", "--from", "2020-01-01").out
    assert queen("audit", "--subject", "nobody").err == "no entries\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--role", "owner"), "--role"),
        (("--role", "admin", "--queues", ""), "--queues is empty"),
        (("--role", "admin", "--queues", "q", "--allow", " , "), "--allow is empty"),
        (("--role", "admin", "--expires", "soon"), "is not a time such as 30d"),
        (("--role", "admin", "--allow", "push,everything"), "--allow does not know 'everything'"),
    ],
)
def test_bad_input(queen: Run, arguments: tuple[str, ...], complaint: str) -> None:
    refused = queen("token", "create", "x", *arguments)
    assert refused.status == 2
    assert complaint in refused.err


def test_the_first_token_as_the_guide_makes_it_beside_systemd(running: Running, tmp_path: Path) -> None:
    guide = (DOCS / "how-to" / "deploy.md").read_text().replace("\\\n", " ")
    [line] = re.findall(r"^\$ (\(.*--in-database.*\))", guide, re.MULTILINE)
    settings = tmp_path / "queen.env"
    example = (DOCS.parent / "deploy" / "systemd" / "queen.env").read_text()
    settings.write_text(f"{example}DATABASE_URL={running.database_url}\n")
    typed = line.replace("/etc/queen/queen.env", str(settings)).replace("/var/lib/queen", str(tmp_path))
    typed = typed.replace("create root", "create of-the-guide").replace(
        "/opt/queen/bin/queen", f"{sys.executable} -c {shlex.quote(QUEEN)}"
    )
    ended = subprocess.run(["/bin/sh", "-c", typed], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    assert ended.stdout.startswith(b"queen_"), ended.stderr
    assert b"has the role admin" in ended.stderr


def test_the_first_token_where_no_bundled_database_runs(queen: Run) -> None:
    refused = queen("token", "create", "root", "--role", "admin", "--in-database")
    assert (refused.status, "start it with 'queen serve'" in refused.err) == (1, True)
    assert "name its folder with --data-dir or QUEEN_DATA_DIR" in refused.err
    assert "another database with DATABASE_URL" in refused.err


def test_the_first_token_is_made_in_the_database(queen: Run, environment: pytest.MonkeyPatch, running: Running) -> None:
    environment.setenv("DATABASE_URL", running.database_url)
    environment.setenv("QUEEN_URL", "http://127.0.0.1:9")
    made = queen("token", "create", "root", "--role", "admin", "--in-database", "--expires", "1h")
    assert made.status == 0, made.err
    text = made.out.strip()

    async def digests() -> list[bytes]:
        connection = await asyncpg.connect(running.database_url)
        rows = await connection.fetch("SELECT digest FROM queen.tokens WHERE name = 'root'")
        await connection.close()
        return [row["digest"] for row in rows]

    assert asyncio.run(digests()) == [hashlib.sha256(text.encode()).digest()]
    with serving(settings_with(auth={"tokens_enabled": True}), running.database_url) as guarded:
        assert httpx.get(f"{guarded.url}/api/v1/resources/queues").status_code == 401
        environment.setenv("QUEEN_URL", guarded.url)
        stranger = queen("token", "create", "next", "--role", "read-only")
        assert (stranger.status, "make the first one with --in-database" in stranger.err) == (5, True)
        assert "root" in queen("token", "--token", text).out, "before or behind the command"
        assert "root" in queen("--token", text, "token", "list").out
        environment.setenv("QUEEN_TOKEN", text)
        assert queen("token", "create", "next", "--role", "read-only", "--expires", "30m").status == 0
        longer = queen("token", "create", "next", "--role", "read-only")
        assert "makes only tokens that expire no later" in longer.err
        environment.setenv(
            "QUEEN_TOKEN", queen("token", "create", "next", "--role", "read-only", "--expires", "30min").out.strip()
        )
        refused = queen("token", "list")
        assert refused.status != 0
        assert "the role of the token does not allow this" in refused.err
        environment.setenv("QUEEN_TOKEN", text)
        granted = queen("token", "create", "stall", "--role", "read-write", "--queues", "stall", "--expires", "30min")
        environment.setenv("QUEEN_TOKEN", granted.out.strip())
        refused = queen("push", "orders", "1")
        assert (refused.status, refused.err) == (5, "queen: the token may not push to queue 'orders'\n")


def test_a_quota_is_set_listed_and_removed(queen: Run, name: str) -> None:
    assert queen("quota", "set", name).status == 2
    assert queen("quota", "set", name, "--bytes", "much").status == 2
    assert queen("quota", "set", name, "--messages", "5", "--bytes", "2GB").status == 0
    [one] = [quota for quota in queen("quota", "list", "--json").json if quota["namespace"] == name]
    assert (one["maxMessages"], one["maxBytes"], one["messages"]) == (5, 2_000_000_000, 0)
    assert queen("push", name, *(["1"] * 6)).status != 0
    assert name in queen("quota", "list").out
    assert queen("quota", "remove", name, "--yes").out == f"quota of {name} is removed\n"
