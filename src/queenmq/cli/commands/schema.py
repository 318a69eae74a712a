"""`queen schema`: what the messages of a queue must have."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from queenmq.cli import exits
from queenmq.cli.arguments import as_json, consent
from queenmq.cli.commands.pipeline import common
from queenmq.cli.group import group, under
from queenmq.cli.pipeline_jobs import run
from queenmq.cli.pipeline_streams import Given
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, confirm, listing, print_json


@group("schema", "queen schema set orders orders.schema.json --check", "queen schema show orders", default="list")
def command() -> None:
    """Give queues a JSON Schema with versions, and let pushes be checked. Without a subcommand, list the queues that
    have one.

    Messages that were accepted before a schema stay as they are."""


@under(
    command,
    "set",
    "queen schema set orders orders.schema.json --check",
    "queen schema set orders orders.schema.json --compatibility full",
    "queen schema set orders --no-check",
)
@click.argument("queue")
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "--compatibility",
    type=click.Choice(("none", "backward", "forward", "full")),
    help="How a new version must fit the one before: what that allows is allowed (backward), the reverse (forward), "
    "both (full), or any way (none). At first: backward.",
)
@click.option("--check/--no-check", "check", default=None, help="Refuse pushes that do not fit. At first: not.")
@as_json
@server
def set_(
    queue: str, file: str | None, compatibility: str | None, check: bool | None, as_json: bool, server: str
) -> None:
    """Give a queue a new version of its schema from a file (- is the standard input), or change the rules."""
    if file is None and compatibility is None and check is None:
        raise exits.Failed("say what to set: a file, --compatibility, --check or --no-check", exits.USAGE)
    wanted: dict[str, Any] = {"compatibility": compatibility, "check": check}
    if file is not None:
        wanted["schema"] = _read(file)
    with connected(server) as queen:
        answer = queen.admin.set_schema(queue, **{key: value for key, value in wanted.items() if value is not None})
    if as_json:
        print_json(answer)
        return
    checked = "pushes are checked" if answer["check"] else "pushes are not checked"
    print(f"{queue} has schema version {answer['version']} ({answer['compatibility']}); {checked}")


@under(command, "list", "queen schema list")
@as_json
@server
def list_(as_json: bool, server: str) -> None:
    """List the queues that have a schema."""
    rows: list[Mapping[str, Any]] = []
    with connected(server) as queen:
        page: Mapping[str, Any] = {}
        while page.get("nextAfter") is not None or not page:
            page = queen.admin.list_schemas(limit=1000, after=page.get("nextAfter"))
            rows += page["schemas"]
    listing(
        rows,
        "no schemas",
        Column("queue"),
        Column("version", number=True),
        Column("compatibility"),
        Column("check", "checked"),
        Column("changedAt", "changed"),
        as_json=as_json,
    )


@under(command, "show", "queen schema show orders", "queen schema show orders --version 1 > before.json")
@click.argument("queue")
@click.option("--version", type=click.IntRange(min=1), help="Version to show (default: the newest).")
@click.option("--versions", is_flag=True, help="List the versions instead.")
@as_json
@server
def show(queue: str, version: int | None, versions: bool, as_json: bool, server: str) -> None:
    """Print the schema of a queue."""
    with connected(server) as queen:
        found = queen.admin.get_schema(queue, version)
    if versions:
        columns = (Column("version", number=True), Column("createdAt", "created"), Column("createdBy", "by"))
        listing(found["versions"], "no versions", *columns, as_json=as_json)
    elif as_json:
        print_json(found)
    else:
        print(json.dumps(found["schema"], indent=2, ensure_ascii=False))


@under(
    command,
    "check",
    """queen schema check orders '{"id": 1}'""",
    "queen schema check orders --schema next.json --lines recorded.jsonl",
)
@click.argument("queue")
@click.argument("payloads", metavar="[PAYLOAD]...", nargs=-1)
@click.option("--schema", "file", metavar="FILE", help="Schema to check instead of the newest, and to compare with it.")
@click.option("--lines", metavar="FILE", help="File with a payload in each line (- is the standard input).")
@as_json
@server
def check(
    queue: str, payloads: tuple[str, ...], file: str | None, lines: str | None, as_json: bool, server: str
) -> int:
    """Check payloads against the schema of a queue, and whether another schema may follow it. Nothing is changed.

    The exit status is 1 if something does not fit."""
    texts = [*payloads, *(line for line in (_text(lines).splitlines() if lines else ()) if line.strip())]
    if not texts and file is None:
        raise exits.Failed("say what to check: payloads, --lines or --schema", exits.USAGE)
    try:
        values = [json.loads(text) for text in texts]
    except ValueError as error:
        raise exits.Failed(f"a payload is not JSON: {error}", exits.USAGE) from None
    wanted = {} if file is None else {"schema": _read(file)}
    with connected(server) as queen:
        answer = queen.admin.check_schema(queue, payloads=values, **wanted)
    bad = [one for one in answer["results"] if not one["fits"]]
    if as_json:
        print_json(answer)
    else:
        if answer["incompatible"]:
            print(f"the schema may not follow version {answer['version']}: {answer['incompatible']}")
        elif file is not None:
            print("the schema may be set")
        for one in bad:
            print(f"payload {one['index'] + 1} does not fit: {one['error']}")
        if values:
            print(f"{len(values) - len(bad)} of {len(values)} payloads fit")
    return 1 if bad or answer["incompatible"] else 0


@under(command, "remove", "queen schema remove orders --yes")
@click.argument("queue")
@consent
@as_json
@server
def remove(queue: str, yes: bool, as_json: bool, server: str) -> None:
    """Remove the schema of a queue with all of its versions."""
    confirm(f"Remove the schema of {queue} with all versions? Pushes are not checked then.", yes)
    with connected(server) as queen:
        answer = queen.admin.remove_schema(queue)
    print_json(answer) if as_json else print(f"schema of {queue} is removed")


@under(command, "infer", "queen schema infer orders > orders.schema.json")
@click.argument("queue")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Read only the newest N of each partition.")
@common
def infer(**given: Any) -> int:
    """Print a schema that fits all stored messages of a queue, found by a Spark job."""
    return run(Given(job="infer", **given))


def _read(file: str) -> Any:
    try:
        return json.loads(_text(file))
    except ValueError as error:
        raise exits.Failed(f"{file} is not JSON: {error}") from None


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise exits.Failed(f"{file} cannot be read: {getattr(error, 'strerror', error)}") from None
