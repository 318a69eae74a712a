"""Declared pipelines on the command line: `queen pipeline apply`, `list`, `show`, `status`, `start`, `stop`, `remove`
and `run`.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

import click

from queenmq.cli import exits
from queenmq.cli.arguments import AMOUNT, FOLDER, NAMES, Function, Kind, as_json, consent, data_dir
from queenmq.cli.group import command
from queenmq.cli.pipeline_jobs import in_sentences, url_of
from queenmq.cli.pipeline_streams import Given
from queenmq.cli.show import Column, confirm, facts, listing, plural, print_json, seconds, table

_SIGNS: Final = {"add": "+", "change": "~", "keep": "=", "remove": "-", "leave": "?"}
_MEANINGS: Final = {
    "add": "is new",
    "change": "changes",
    "keep": "stays as it is",
    "remove": "is removed",
    "leave": "is not in the file and stays; --prune removes it",
}


def _address(raw: str) -> tuple[str, int]:
    host, found, port = raw.rpartition(":")
    if not found or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{raw!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _database(function: Function) -> Function:
    url = click.option("--url", help="URL of the PostgreSQL (default: DATABASE_URL, or the bundled one that runs).")
    return url(data_dir(function))


_names = click.argument("names", metavar="NAME...", nargs=-1, required=True)


def _url(url: str | None, data_dir: Path | None) -> str:
    return url_of(Given(url=url, data_dir=data_dir))


@command("apply", "queen pipeline apply pipelines.yaml --dry-run", "queen pipeline apply pipelines.yaml")
@click.argument("file", type=FOLDER)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--prune", is_flag=True, help="Remove pipelines that the file does not declare.")
@click.option(
    "--reset-state",
    type=NAMES,
    default="",
    metavar="NAMES",
    help="Let these pipelines begin anew, with an empty checkpoint, if the change does not fit their state.",
)
@as_json
@_database
def apply(
    file: Path,
    dry_run: bool,
    prune: bool,
    reset_state: list[str],
    as_json: bool,
    url: str | None,
    data_dir: Path | None,
) -> None:
    """Declare the pipelines of FILE (YAML, see docs/how-to/pipelines-as-services.md): all of them, or none."""
    with in_sentences():
        from queenmq.pipeline.declaration import BadDeclaration, read
        from queenmq.pipeline.declared import apply as store
        from queenmq.pipeline.kinds import KINDS

        try:
            declared = read(_text(file), KINDS)
            where = _url(url, data_dir)
            changes = store(where, declared, reset=frozenset(reset_state), prune=prune, dry_run=dry_run)
        except BadDeclaration as error:
            for problem in error.problems:
                click.echo(exits.plain(f"{file}: {problem}"), err=True)
            raise exits.Failed(f"{plural(len(error.problems), 'problem')}: nothing was applied", exits.USAGE) from None
    if as_json:
        print_json([{"name": c.name, "change": c.verb, "fields": list(c.lines)} for c in changes])
        return
    for change in changes:
        reset = "; its state is given up" if change.broken or change.name in reset_state else ""
        click.echo(exits.plain(f"{_SIGNS[change.verb]} {change.name} {_MEANINGS[change.verb]}{reset}"))
        for line in change.lines if change.verb == "change" else ():
            click.echo(exits.plain(f"    {line}"))
    click.echo("nothing was applied (--dry-run)" if dry_run else "applied")


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise exits.Failed(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise exits.Failed(f"{file} is not UTF-8") from None


_NAME: Final = Column("name")
_STATE: Final = Column("state")


@command("list", "queen pipeline list")
@as_json
@_database
def list_(as_json: bool, url: str | None, data_dir: Path | None) -> None:
    """List the declared pipelines."""
    found = _listed(_url(url, data_dir), None)
    listing(
        found,
        "no pipelines are declared; queen pipeline apply declares them",
        _NAME,
        Column("kind"),
        Column("version", number=True),
        Column("wanted"),
        _STATE,
        Column("supervisor"),
        as_json=as_json,
    )


@command("status", "queen pipeline status", "queen pipeline status order-stats --json")
@click.argument("name", required=False)
@as_json
@_database
def status(name: str | None, as_json: bool, url: str | None, data_dir: Path | None) -> int:
    """Show state, lag and throughput of declared pipelines. The exit status is 1 if one does not run that should."""
    found = _listed(_url(url, data_dir), name)
    listing(
        found,
        "no pipelines are declared; queen pipeline apply declares them",
        _NAME,
        _STATE,
        Column("lag", number=True),
        Column("lag_seconds", "behind", written=seconds),
        Column("rate", "messages/s", number=True),
        Column("batch_seconds", "batch s", number=True),
        Column("starts", number=True),
        Column("error", "last error"),
        as_json=as_json,
    )
    troubled = [one for one in found if one["wanted"] == "running" and one["state"] not in ("running", "starting")]
    return exits.FAILED if troubled else exits.OK


@command("show", "queen pipeline show order-stats")
@click.argument("name")
@as_json
@_database
def show(name: str, as_json: bool, url: str | None, data_dir: Path | None) -> None:
    """Show one pipeline: what is declared, how it is, its newest batches and versions."""
    with in_sentences():
        from queenmq.pipeline.declared import details

        found = _texts(details(_url(url, data_dir), name))
    if as_json:
        print_json(found)
        return
    facts([(key.replace("_", " "), value) for key, value in found.items() if not isinstance(value, dict | list)])
    click.echo()
    click.echo(json.dumps(found["declaration"], indent=2, ensure_ascii=False))
    if found["newest_batches"]:
        click.echo()
        columns = [Column(key, number=key in ("rows", "seconds")) for key in found["newest_batches"][0]]
        table(found["newest_batches"], *columns)


@command("start", "queen pipeline start order-stats")
@_names
@_database
def start(names: tuple[str, ...], url: str | None, data_dir: Path | None) -> None:
    """Let pipelines run that were stopped or have failed. A supervisor starts them."""
    _want(names, "running", url, data_dir)
    click.echo("they run as soon as a supervisor has started them (queen pipeline status)")


@command("stop", "queen pipeline stop order-stats")
@_names
@_database
def stop(names: tuple[str, ...], url: str | None, data_dir: Path | None) -> None:
    """Let pipelines finish their batch and stop. They keep their state."""
    _want(names, "stopped", url, data_dir)
    click.echo("they stop when their batches have ended (queen pipeline status)")


@command("remove", "queen pipeline remove order-stats --yes")
@_names
@consent
@_database
def remove(names: tuple[str, ...], yes: bool, url: str | None, data_dir: Path | None) -> None:
    """Stop pipelines and forget them. Their checkpoints stay where they are."""
    confirm(f"Stop and remove {', '.join(names)}?", yes)
    _want(names, "removed", url, data_dir)
    click.echo("removed")


@command("run", "queen pipeline run", "queen pipeline run --only order-stats --listen 127.0.0.1:6641")
@click.option("--only", type=NAMES, default="", metavar="NAMES", help="Run only these pipelines (default: all).")
@click.option(
    "--listen",
    type=Kind("HOST:PORT", _address),
    default="127.0.0.1:6640",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the health checks /health and /live.",
)
@click.option(
    "--drain",
    type=AMOUNT,
    default=60,
    show_default=True,
    metavar="S",
    help="Seconds that a batch may take to end before its driver is killed.",
)
@click.option(
    "--lease",
    type=AMOUNT,
    default=10,
    show_default=True,
    metavar="S",
    help="Seconds after which another supervisor takes over the pipelines of one that has died.",
)
@_database
def run(
    only: list[str], listen: tuple[str, int], drain: float, lease: float, url: str | None, data_dir: Path | None
) -> int:
    """Keep declared pipelines running, until Ctrl-C or SIGTERM. The exit status is 1 if a driver was killed then."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with in_sentences():
        from queenmq.pipeline.supervise import supervise

        if lease < 3:
            raise exits.Failed("--lease must be 3 seconds or more: it is renewed every half second", exits.USAGE)
        try:
            return supervise(_url(url, data_dir), only=only or None, listen=listen, drain_s=drain, lease_s=lease)
        except OSError as error:
            host, port = listen
            raise exits.Failed(f"cannot listen on {host}:{port} ({error.strerror}): choose another --listen") from None


def _listed(url: str, name: str | None) -> list[dict[str, Any]]:
    with in_sentences():
        from queenmq.pipeline.declared import listed

        return [_texts(one) for one in listed(url, name)]


def _want(names: tuple[str, ...], wanted: str, url: str | None, data_dir: Path | None) -> None:
    with in_sentences():
        from queenmq.pipeline.declared import want

        want(_url(url, data_dir), list(names), wanted)


def _texts(found: Any) -> Any:
    """Times as texts."""
    return json.loads(json.dumps(found, default=str))


COMMANDS: Final = (apply, list_, status, show, start, stop, remove, run)
