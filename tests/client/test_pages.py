"""What the other pages show is true, too: their examples are run as far as one server can, and every command of every
page is one that `queen` takes. The guides are worked through by test_how_to.py."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import click
import httpx
import msgspec
import pytest
import yaml
from cli.conftest import serving
from server_settings import settings_with

from client.documents import Block, blocks
from client.test_how_to import GUIDES, KNOWN, NOT_RUN
from queenmq.access.permissions import Grant
from queenmq.cli.main import queen
from queenmq.http.answers.server import Balance
from queenmq.pipeline import window_spec

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "deploy" / "README.md"])
OF_THE_PAST = {"CHANGELOG.md", "proof.md"}  # their sentences name what was wrong, too
# What no test types, and why not.
NOT_TYPED: Final = {
    ("benchmark.md", "sh"): "measures for minutes; tests/bench runs the command",
    ("cli.md", "sh"): "an example of every command, each of which the guides and tests/cli run with its own data",
    ("cluster.md", "sh"): "starts servers on several machines; tests/cluster does",
    ("consumer-connection.md", "text"): "frames; tests/integration/test_asyncapi.py compares them with the description",
    ("overload.md", "sh"): "needs a journal with records that cannot be stored; tests/cli/test_journal.py has one",
    ("pipeline.md", "python"): "needs Spark; tests/pipeline writes and reads the same way",
    ("pipeline.md", "sh"): "installs packages, and runs on clusters; tests/pipeline runs docs/declarative",
    ("README.md", "sh"): "tests/acceptance/test_readme.py",
    ("README.md", "console"): "tests/acceptance/test_readme.py",
    ("README.md", "python"): "tests/acceptance/test_readme.py",
    ("README.md", "text"): "a picture",
}
# What is run here, or by the file that is named.
TYPED: Final = {
    ("cluster.md", "json"),
    ("http-api.md", "sh"),
    ("operations.md", "sh"),  # the backup: tests/migration/test_backup.py; variables; not what starts a server
    ("operations.md", "sql"),  # the lookup: tests/integration/test_lookup.py; roles: tests/migration/test_migrations.py
    ("operations.md", "json"),
    ("pipeline.md", "yaml"),
    ("pipeline.md", "sql"),  # not the join, which needs Spark
    ("queue-options.md", "yaml"),
}
_OPERATORS: Final = re.compile(r"[|&;<>()]+")
_ASSIGNMENT: Final = re.compile(r"\w+=.*", re.DOTALL)
_ELLIPSIS: Final = "…"
# A command, or an option of it, that a sentence names without all that it needs.
_SPOKEN_OF: Final = (click.MissingParameter, click.BadOptionUsage, click.exceptions.NoArgsIsHelpError)
_OF_A_FILE: Final = re.compile("(File|Path|Directory) '.*' does not exist")


def block(page: str, part: str) -> Block:
    """The one block of a page that has this in it."""
    [found] = [one for one in blocks(DOCS / page) if part in one.code]
    return found


def test_every_block_is_typed_or_there_is_a_reason() -> None:
    """Those of the guides are, but for what starts servers, installs something or is a file of somebody else."""
    left = {(page.name, one.language) for page in PAGES if page not in GUIDES for one in blocks(page)}
    assert left == NOT_TYPED.keys() | TYPED
    assert {"python", "sh", "sql"}.isdisjoint(NOT_RUN)


def shown(page: Path) -> Iterator[str]:
    """Every command that a page shows: in its blocks for a shell, and within its sentences."""
    for block in blocks(page):
        if block.language in ("console", "sh"):
            lines = block.code.replace("\\\n", " ").splitlines()
            prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
            yield from whole(prompted or lines)
    if page.name in OF_THE_PAST:
        return
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`((?:[A-Z_]+=\S+ )*queen [^`]+)`", re.sub(r"\s+", " ", prose))


def whole(lines: list[str]) -> Iterator[str]:
    """Lines, joined where a quotation goes on."""
    kept = ""
    for line in lines:
        kept = f"{kept}\n{line}" if kept else line
        try:
            shlex.split(kept, comments=True)
        except ValueError:
            continue
        yield kept
        kept = ""


def of_queen(line: str) -> Iterator[list[str]]:
    """The arguments of each `queen` that a line calls."""
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        yield from of_queen(inner)
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    words.whitespace_split = True
    found: list[str] | None = None
    begins = True
    for word in words:
        if _OPERATORS.fullmatch(word):
            if found is not None:
                yield found
            found, begins = None, True
        elif found is not None:
            found.append(word)
        elif begins and not _ASSIGNMENT.fullmatch(word):
            found, begins = ([] if Path(word).name == "queen" else None), False
    if found is not None:
        yield found


def parse(arguments: list[str]) -> None:
    """As far as the command line goes; nothing is run."""
    command: click.Command | None = queen
    context = queen.make_context("queen", [word for word in arguments if word != _ELLIPSIS])
    while isinstance(command, click.Group):
        if not (rest := [*context._protected_args, *context.args]):
            return  # a group that is spoken of
        name, command, rest = command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one(page: Path) -> None:
    wrong = []
    for line in shown(page):
        for arguments in of_queen(line):
            try:
                parse(arguments)
            except (click.exceptions.Exit, SystemExit, *_SPOKEN_OF):
                continue
            except click.ClickException as error:
                if not _OF_A_FILE.search(error.format_message()):
                    wrong.append(f"{line}: {error.format_message()}")
    assert wrong == []


@pytest.mark.parametrize("line", ["queen queues --serach x", "A=b queen que", "x | queen pop a b", "y=$(queen db rul)"])
def test_a_wrong_command_is_found(line: str) -> None:
    arguments = next(of_queen(line))
    with pytest.raises(click.UsageError):
        parse(arguments)


@pytest.fixture
def url(database_url: str, tmp_path: Path) -> Iterator[str]:
    with serving(settings_with(journal={"folder": tmp_path}, statistics={"interval_ms": 50}), database_url) as server:
        yield server.url


async def typed(code: str, url: str, *, status: int = 0, **variables: str) -> str:
    """What a shell prints that is given this."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euc", code.replace("http://localhost:6632", url).replace("localhost:6632", url)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}", "QUEEN_URL": url}
        | variables,
    )
    told, failure = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == status, failure.decode()
    return told.decode()


def named(shown: str) -> set[str]:
    """The fields that an example of an answer has, whatever it leaves out."""
    return set(re.findall(r'"(\w+)":', shown))


async def test_what_the_page_of_the_api_shows(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:

        async def post(path: str, **body: Any) -> Any:
            answer = await http.post(path, json=body)
            assert answer.status_code < 300, answer.text
            return answer.json()

        items = [{"queue": "orders", "partition": "eu", "payload": n, "transactionId": f"order-{n}"} for n in range(18)]
        await post("/api/v1/push", items=items)
        for part in ("resources/queues/orders", "explain/orders"):
            shown = block("http-api.md", part).code
            assert named(shown) <= named(await typed(shown, url)), part
        # A stream has no end.
        live = block("http-api.md", "/api/v1/live").code
        told = await typed(live.replace("curl -N", "curl -sN --max-time 3"), url, status=28)
        assert told.startswith("id: 1\n")
        assert named(live) <= named(told)

        query = await post("/streams/v1/queries", name="totals", source_queue="orders", config_hash="h")
        popped = (await http.get("/api/v1/pop/queue/orders?consumerGroup=streams.totals&batch=18")).json()["messages"]
        asked = block("http-api.md", "/streams/v1/cycle").code.replace('"count":12', '"count":18')
        ids = {
            "query_id": query["query_id"],
            "partition_id": popped[0]["partitionId"],
            "leaseId": popped[0]["leaseId"],
        }
        for name, value in ids.items():
            asked = asked.replace(f'"{name}":"…"', f'"{name}":"{value}"')
        assert json.loads(await typed(asked, url))["success"] is True
        [total] = (await http.get("/api/v1/pop/queue/totals?autoAck=true")).json()["messages"]
        assert total["data"] == {"sum": 7}


async def test_what_the_page_of_operations_shows(url: str, database_url: str) -> None:
    await typed("""for n in 1 2; do queen push huge $n; queen push orders "{\\"id\\": $n}"; done""", url)
    sql = await asyncpg.connect(database_url)
    rows = await sql.fetch(block("operations.md", "convert_from(m.payload").code)
    assert {row["name"] for row in rows} == {"Default"}
    assert len(rows) == 4
    operation = await sql.fetchval(
        "INSERT INTO queen.operation_queue (id, kind, queue_name, status) "
        "VALUES (gen_random_uuid(), 'clear', 'orders', 'failed') RETURNING id::text"
    )
    await sql.close()
    commands = block("operations.md", "resources/queues/huge").code.replace("curl", "curl --silent --write-out '\\n'")
    told = [json.loads(line) for line in (await typed(commands, url, ID=operation)).splitlines()]
    assert [one.get("error") for one in told] == [None] * 4
    deleted, one, running, cancelled = told
    assert (deleted["deleted"], one["id"], running["operations"]) == (True, operation, [])
    assert cancelled["status"] == "cancelled"


def test_variables_and_claims_of_the_page_of_operations() -> None:
    lines = block("operations.md", "QUEEN_OIDC_ISSUER").code.splitlines()
    assert {line.partition("=")[0] for line in lines} <= KNOWN
    claims = json.loads(block("operations.md", "tenant-7").code)
    assert msgspec.convert(claims["queen"], Grant) == Grant(queues=("orders.*",), groups=("mail-*",))


def test_the_balance_is_what_a_server_answers() -> None:
    shown = json.loads(block("cluster.md", "imbalance_score").code)
    assert msgspec.to_builtins(msgspec.convert(shown, Balance)) == shown


async def test_queues_of_a_file_are_applied(url: str, tmp_path: Path) -> None:
    shown = block("queue-options.md", "webhooks.out").code
    (tmp_path / "queues.yaml").write_text(shown)
    await typed(f"cd {tmp_path} && queen apply -f queues.yaml --yes", url)
    found = json.loads(await typed("queen queues show orders --json", url))["queue"]
    wanted = yaml.safe_load(shown)["queues"]["orders"]
    assert found["namespace"] == wanted["namespace"]
    assert wanted["options"].items() <= found["options"].items()


async def test_what_the_page_of_the_pipeline_shows(database_url: str) -> None:
    spec = window_spec.parse(block("pipeline.md", "aggregates:").code)
    assert (spec.source, spec.target) == ("orders", "order-stats")
    gives_up = block("pipeline.md", "UPDATE queen.pipeline_commits").code.replace("epoch = …", "epoch = 1")
    sql = await asyncpg.connect(database_url)
    await sql.execute(f"EXPLAIN {gives_up}")  # its columns exist
    await sql.close()
