"""`queen mcp` as an assistant's host uses it: the SDK's own client starts the command and calls its tools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult

from cli.conftest import OTHERS, OURS, QUEEN, Run, Running
from queenmq.client import BlockingQueen, Item

READING = {"status", "explain", "lag", "search", "dead_letters"}


class Host:
    """What an assistant's host does: it starts the command, and asks its person when it is told to."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self.questions: list[str] = []
        self.consents = True

    async def _ask(self, _: object, params: Any) -> ElicitResult:
        self.questions.append(params.message)
        return ElicitResult(action="accept", content={"redrive": self.consents})

    @asynccontextmanager
    async def connected(self, *options: str, asks: bool = True) -> AsyncIterator[Client]:
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(OURS) and n not in OTHERS}
        command = StdioServerParameters(
            command=sys.executable,
            args=["-c", QUEEN, "mcp", *options],
            env=inherited | {"QUEEN_URL": self._url, "QUEEN_DATA_DIR": str(self._folder)},
        )
        async with Client(command, elicitation_callback=self._ask if asks else None) as client:
            yield client


async def called(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    return (text if result.is_error else json.loads(text)), bool(result.is_error)


@pytest.fixture
def host(running: Running, tmp_path: Path) -> Host:
    return Host(running.url, tmp_path)


@pytest.fixture
def letters(client: BlockingQueen, name: str) -> str:
    client.queue(name).push([Item("secret", transaction_id=f"order-of-{name}"), "also"])
    client.ack(client.queue(name).group(f"billing-{name}").batch(2).pop(), "dlq", error="no such customer")
    return name


async def test_the_tools_answer(host: Host, letters: str) -> None:
    async with host.connected() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == READING | {"redrive"}
        assert all(tools[name].annotations.read_only_hint for name in READING)
        assert set(tools["redrive"].input_schema["properties"]) == {"queue", "group", "partition"}
        told, failed = await called(client, "status")
        assert (failed, told["health"]["database"]) == (False, "connected")
        assert any("no such customer" in one["sentence"] for one in told["troubles"])
        told, _ = await called(client, "explain", queue=letters)
        assert (told["reason"], told["deadLetters"]) == ("end_reached", 2)
        told, _ = await called(client, "lag", queue=letters)
        assert [(one["queue"], one["unread"]) for one in told["groups"]] == [(letters, 0)]
        told, _ = await called(client, "search", text=letters[2:9])
        assert [one["name"] for one in told["queues"]] == [letters]
        assert [one["name"] for one in told["groups"]] == [f"billing-{letters}"]
        told, _ = await called(client, "search", text=f"order-of-{letters}")
        assert [one["queue"] for one in told["messages"]] == [letters]
        told, _ = await called(client, "dead_letters", queue=letters)
        assert [one["errorMessage"] for one in told["deadLetters"]] == ["no such customer"] * 2
        assert "secret" not in json.dumps(told)
        told, _ = await called(client, "dead_letters", queue=letters, payloads=True, limit=1)
        assert (told["total"], len(told["deadLetters"])) == (2, 1)
        told, failed = await called(client, "dead_letters", queue=letters, limit=1_000_000)
        assert failed


async def test_a_redrive_needs_a_person(host: Host, letters: str, client: BlockingQueen) -> None:
    def left() -> int:
        return int(client.admin.list_dead_letters(queue=letters)["total"])

    async with host.connected() as mcp:
        host.consents = False
        told, failed = await called(mcp, "redrive", queue=letters)
        assert (failed, "nothing was changed" in told, left()) == (True, True, 2)
        host.consents = True
        told, failed = await called(mcp, "redrive", queue=letters, group=f"billing-{letters}")
        assert (failed, left()) == (False, 0), told
        told, failed = await called(mcp, "redrive", queue=letters)
        assert (failed, "there are no such dead letters" in told) == (True, True)
    assert host.questions == [
        f"Deliver 2 dead letters of '{letters}' again?",
        f"Deliver 2 dead letters of '{letters}' of group 'billing-{letters}' again?",
    ]
    assert len(client.queue(letters).group(f"billing-{letters}").batch(5).pop()) == 2


async def test_a_host_that_asks_nobody_cannot_redrive(host: Host, letters: str) -> None:
    async with host.connected(asks=False) as client:
        told, failed = await called(client, "redrive", queue=letters)
        assert (failed, f"queen dlq redrive {letters}" in told) == (True, True)
        told, failed = await called(client, "redrive", queue="orders; rm x")
        assert (failed, "queen dlq redrive 'orders; rm x'" in told) == (True, True)


async def test_what_queen_refuses_is_told(host: Host, name: str, environment: pytest.MonkeyPatch) -> None:
    async with host.connected("--read-only") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING
        told, failed = await called(client, "explain", queue="")
        assert failed
        told, failed = await called(client, "explain", queue=name)
        assert (failed, told["reason"]) == (False, "queue_unknown")
    async with host.connected("--server", "http://127.0.0.1:1") as client:
        told, failed = await called(client, "lag")
        assert (failed, "Connection refused" in told) == (True, True)


def test_a_wrong_url_is_a_sentence(queen: Run) -> None:
    assert queen("mcp", "--server", "nonsense").status == 2
