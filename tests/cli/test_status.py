"""What a person on call types first: status, cluster, maintenance, explain of all groups; options before commands."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import jwt
import pytest
from mcp import Client
from server_settings import settings_with

from cli.conftest import Run, Running, serving, until
from cli.terminal import Terminal
from queenmq.cli import show
from queenmq.client import BlockingQueen, Queen
from queenmq.integrations.mcp import mcp_server

if TYPE_CHECKING:
    from conftest import Postgres

SECRET = "a secret of more than thirty-two bytes"


@pytest.fixture
def behind(client: BlockingQueen, name: str) -> str:
    """A queue whose two groups have finished nothing."""
    client.queue(name).push([1, 2, 3])
    for group in ("billing", "shipping"):
        client.queue(name).group(f"{group}-{name}").pop()
    return name


def test_help_has_a_short_option_everywhere(queen: Run) -> None:
    for words in ((), ("queues",), ("queues", "set"), ("push",)):
        told = queen(*words, "-h")
        assert (told.status, told.out) == (0, queen(*words, "--help").out)


def test_server_and_token_before_the_command(
    queen: Run, running: Running, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("QUEEN_URL", "http://127.0.0.1:1")
    assert queen("queues").status == 6
    assert queen("--server", running.url, "queues", "--json").status == 0
    assert queen("--server", "http://127.0.0.1:1", "queues", "--server", running.url).status == 0, "the nearer counts"
    secret = tmp_path / "token"
    secret.write_text("not a token\n")
    assert queen("--server", running.url, "--token", f"@{secret}", "queues", "--json").status == 0
    missing = queen("--server", running.url, "--token", f"@{secret}-2", "queues")
    assert (missing.status, "cannot be read" in missing.err) == (2, True)
    assert queen("--server", running.url, "--cacert", str(secret), "queues").status == 2


def test_status_is_one_screen(queen: Run, behind: str, client: BlockingQueen) -> None:
    until(lambda: queen("status", "--json").json["overview"]["queues"] > 0, True)
    told = queen("status")
    assert told.status == 0
    words = {line.split("  ")[0]: line for line in told.out.splitlines()}
    assert "connected" in words["server"]
    assert words["maintenance"].split() == ["maintenance", "off"]
    assert len(told.out.splitlines()) < 30
    queen("queues", "pause", behind, "--group", "x")
    assert {"queue": behind, "consumerGroup": "x"}.items() <= queen("status", "--json").json["pauses"][-1].items()
    assert f"{behind} for x" in queen("status").out
    queen("queues", "resume", behind, "--group", "x")


def test_a_paused_group_is_listed_while_messages_are_due(queen: Run, behind: str) -> None:
    def paused() -> list[str]:
        found = queen("status", "--json").json["groupsInTrouble"]
        return [one["name"] for one in found if one["queueName"] == behind and one["standing"] == "Paused"]

    queen("queues", "pause", behind, "--group", f"billing-{behind}")
    until(paused, [f"billing-{behind}"])
    listed = {one["name"]: one["standing"] for one in queen("groups", "--queue", behind, "--json").json}
    assert listed[f"billing-{behind}"] == "Paused"


def test_maintenance_is_switched(queen: Run, name: str) -> None:
    assert queen("maintenance", "--json").json["popMaintenanceMode"] is False
    try:
        assert "switched off" in queen("maintenance", "on", "--pops").out
        shown = queen("maintenance", "--json").json
        assert (shown["maintenanceMode"], shown["popMaintenanceMode"]) == (False, True)
        assert "on: pops are switched off" in queen("status").out
        assert "`queen maintenance off --pops`" in queen("doctor").out
    finally:
        assert "switched off" not in queen("maintenance", "off", "--pops").out
    assert queen("maintenance", "perhaps").status == 2


def test_the_servers_are_listed(queen: Run) -> None:
    told = queen("cluster")
    assert (told.status, "healthy, answers this" in told.out) == (0, True)
    assert [one["local"] for one in queen("cluster", "--json").json["servers"]] == [True]


def test_without_a_group_each_is_explained_the_worst_first(queen: Run, name: str, client: BlockingQueen) -> None:
    client.queue(name).push([1, 2])
    first = client.queue(name).group("done").batch(2).pop()
    client.ack(first)
    client.queue(name).group("leased").pop()
    queen("queues", "pause", name, "--group", "paused")
    client.queue(name).group("paused").wait(False).pop()
    told = queen("explain", name)
    order = [line for line in told.out.splitlines() if line.startswith("Group ") and not line.endswith(".")]
    assert order == ["Group paused: paused", "Group leased: leased", "Group done: up to date"]
    found = queen("explain", name, "--json").json
    assert [one["consumerGroup"] for one in found] == ["paused", "leased", "done"]
    assert queen("explain", name, "--group", "done", "--json").json["reason"] == "end_reached"


def test_doctor_judges_the_work(queen: Run, name: str, client: BlockingQueen) -> None:
    client.queue(name).push([1])
    client.ack(client.queue(name).group("g").pop(), "dlq", error="no good")

    def work() -> bool:
        (found,) = [one for one in queen("doctor", "--json").json["findings"] if one["name"] == "work"]
        return found["state"] == "doubtful" and "dead letter" in found["sentence"]

    until(work, True)


def test_troubles_are_named_with_their_cause(queen: Run, name: str, client: BlockingQueen) -> None:
    client.queue(name).config(max_size=1).create()
    client.queue(name).push([1])
    cause = f"Queue {name} is full: 1 of 1 messages (maxSize). Pushes are refused. No group reads it."
    until(lambda: cause in [one["sentence"] for one in queen("status", "--json").json["troubles"]], True)
    found = [one for one in queen("doctor", "--json").json["findings"] if one["sentence"] == cause]
    assert [(one["name"], one["state"], "raise maxSize" in one["advice"]) for one in found] == [
        ("full", "doubtful", True)
    ]
    queen("queues", "set", name, "maxSize=0")


def test_a_narrow_terminal_shows_the_columns_that_matter(
    running: Running, name: str, client: BlockingQueen, tmp_path: Path
) -> None:
    client.queue(name).partition("eu").push([1])
    with Terminal("partitions", name, url=running.url, folder=tmp_path) as wide:
        assert wide.end() == 0
        assert "created" in wide.drawn and "ago" not in wide.drawn
    with Terminal("partitions", name, url=running.url, folder=tmp_path, columns=72) as narrow:
        assert narrow.end() == 0
        assert " s ago" in narrow.drawn
        assert "also shows: id." in narrow.drawn


def test_moments_as_people_say_them() -> None:
    now = show.now()
    said = [show.ago((now + timedelta(seconds=s)).isoformat()) for s in (-181, 7201)]
    assert said == ["3 min ago", "in 2 h"]


def test_a_push_shows_messages_and_bytes_a_second(running: Running, name: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.ndjson"
    lines.write_text("".join(f'{{"n": {n}}}\n' for n in range(200)))
    with Terminal("push", name, "--file", str(lines), "--batch", "10", url=running.url, folder=tmp_path) as terminal:
        terminal.until("messages pushed")
        assert terminal.end() == 0
        assert "200 messages pushed to" in terminal.drawn
        assert "B/s" in terminal.drawn


@pytest.fixture(scope="module")
def guarded(postgres: Postgres) -> Iterator[Running]:
    """A server with tokens."""
    url = asyncio.run(postgres.create())
    settings = settings_with(auth={"enabled": True, "secret": SECRET}, statistics={"interval_ms": 200})
    with serving(settings, url) as server:
        yield server
    asyncio.run(postgres.drop(url))


def signed(**claims: object) -> str:
    return jwt.encode({"sub": "on call", "role": "read-only", "exp": time.time() + 3600} | claims, SECRET, "HS256")


async def test_the_longest_waiting_group_is_judged_although_the_server_lists_only_one(
    database_url: str, queen: Run, environment: pytest.MonkeyPatch
) -> None:
    with serving(settings_with(limits={"max_items": 1}), database_url) as server:
        environment.setenv("QUEEN_URL", server.url)
        with BlockingQueen(server.url) as client:
            for queue, group in (("old", "z"), ("new", "a"), ("newer", "b")):
                client.queue(queue).push([1])
                client.ack(client.queue(queue).group(group).pop())
                client.queue(queue).push([2])

        async def age() -> None:
            """Each has waited longer than it did, one of them longest."""
            connection = await asyncpg.connect(database_url)
            await connection.execute(
                "UPDATE queen.messages SET created_at = created_at - CASE WHEN partition_id IN (SELECT p.id FROM "
                "queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'old') "
                "THEN interval '2 hours' ELSE interval '1 hour' END"
            )
            await connection.close()

        await age()
        with BlockingQueen(server.url) as client:
            client.admin.refresh_consumer_stats()
        told = queen("status", "--json").json
        assert [one["name"] for one in told["groupsInTrouble"]] == ["z"]
        assert (told["groups"], told["groupsNotJudged"]) == (3, 2)
        assert "2 more groups with messages due" in queen("status").err
        assert [one["name"] for one in queen("groups", "--sort", "lag", "--json").json] == ["z"]
        assert "2 more; --queue, --only and --sort choose" in queen("groups").err
        top = queen("top", "--every", "0.01", "--json").json
        assert ([one["name"] for one in top["groups"]], top["moreGroups"]) == (["z"], 2)
        assert "2 more groups, which waited less long" in queen("top", "--once", "--every", "0.01").out
        assert "and 2 with messages due that have waited less long" in queen("doctor").out.replace("\n", " ")
        async with Client(mcp_server(lambda: Queen(server.url))) as client:
            lag = json.loads((await client.call_tool("lag", {})).content[0].text)
            status = json.loads((await client.call_tool("status", {})).content[0].text)
        assert (lag["total"], [one["group"] for one in lag["groups"]]) == (3, ["z"])
        assert [one["group"] for one in status["groupsInTrouble"]] == ["z"]
        assert (status["groups"], status["moreGroupsWithMessagesDue"]) == (3, 2)


def test_status_shows_what_the_token_may_see(
    guarded: Running, queen: Run, environment: pytest.MonkeyPatch, name: str
) -> None:
    environment.setenv("QUEEN_URL", guarded.url)
    with BlockingQueen(guarded.url, bearer_token=signed(role="admin")) as client:
        client.queue(name).push([1])
        client.queue(name).group("mine").pop()
        client.queue("another").push([1])
        client.queue("another").group("theirs").pop()
    environment.setenv("QUEEN_TOKEN", signed())
    told = queen("status", "--json")
    assert told.status == 0, told.err
    assert (told.json["maintenance"]["maintenanceMode"], told.json["overview"] is None) == (False, False)
    assert "not shown" not in queen("status").out
    environment.setenv("QUEEN_TOKEN", signed(queen={"queues": [name]}))
    told = queen("status", "--json")
    assert told.status == 0, told.err
    assert (told.json["overview"], told.json["maintenance"], told.json["groups"]) == (None, None, 1)
    told = queen("status")
    assert (told.status, "theirs" in told.out) == (0, False)
    assert "not shown" in told.out
    told = queen("top", "--once")
    assert (told.status, name in told.out, "another" in told.out) == (0, True, False), told.err


async def test_the_tools_of_assistants_show_what_the_token_may_see(guarded: Running, name: str) -> None:
    for claims, is_whole in (({}, True), ({"queen": {"queues": [name]}}, False)):
        token = signed(**claims)
        async with Client(mcp_server(lambda token=token: Queen(guarded.url, bearer_token=token))) as client:
            result = await client.call_tool("status", {})
        assert not result.is_error, result.content
        told = json.loads(result.content[0].text)
        assert (told["overview"] is not None, told["maintenance"] is not None) == (is_whole, is_whole)
        assert told["health"]["database"] == "connected"
