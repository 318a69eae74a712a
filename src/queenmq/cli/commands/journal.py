"""`queen journal`: quarantined records of a journal, on the machine where the journal is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from queenmq.cli import exits, lines
from queenmq.cli.arguments import FOLDER, as_json, consent
from queenmq.cli.group import group, under
from queenmq.cli.show import Column, confirm, facts, listing, moment, note, plural, print_json

if TYPE_CHECKING:
    from queenmq.core.message import Message
    from queenmq.journal.quarantine import SetAside

_folder = click.option(
    "--folder",
    type=FOLDER,
    metavar="FOLDER",
    help="Folder of the journals (FILE_BUFFER_DIR; default: all journals in the data folder).",
)
_DAMAGED = "damaged: it cannot be decoded"
_LOCKED = "encrypted with another key than QUEEN_ENCRYPTION_KEY"


@group("journal", "queen journal", "queen journal retry --all", "queen journal export --all", default="list")
def command() -> None:
    """List, show, retry and export quarantined records of a journal. Without a subcommand, list them.

    The command reads the folder of the journal, whether or not a server runs. Run it on the machine of the server, as
    the same user and with the same QUEEN_ENCRYPTION_KEY.
    """


@under(command, "list", "queen journal list --json")
@_folder
@as_json
def list_(folder: Path | None, as_json: bool) -> None:
    """List the quarantined records, oldest first."""
    rows = [_as_json(record) for record in _found(folder)]
    listing(
        rows,
        "no record is quarantined",
        Column("record"),
        Column("setAsideAt", "set aside", written=moment),
        Column("state"),
        Column("messages", number=True),
        Column("queues"),
        Column("why"),
        as_json=as_json,
    )


@under(command, "show", "queen journal show 000000000001-9f86d081884c7d659a2feaa0c55ad015.0")
@click.argument("record")
@_folder
@as_json
def show(record: str, folder: Path | None, as_json: bool) -> None:
    """Show one record with its messages."""
    [found] = _chosen(_found(folder), (record,), False)
    fields = _as_json(found) | {"path": str(found.path)}
    if as_json:
        print_json(fields | {"content": [json.loads(line) for line in _lines(found)]})
        return
    facts(fields.items())
    for line in _lines(found):
        print(line)


@under(command, "retry", "queen journal retry --all")
@click.argument("records", nargs=-1, metavar="[RECORD]...")
@click.option("--all", "all_", is_flag=True, help="Take every record that can be read.")
@_folder
@as_json
def retry(records: tuple[str, ...], all_: bool, folder: Path | None, as_json: bool) -> None:
    """Store quarantined records, after the messages that were pushed later to their partitions.

    A running server starts on them within a second, otherwise the next one that starts does. If the database refuses
    a record again, it is quarantined again.
    """
    from queenmq.journal import quarantine

    chosen = [one for one in _chosen(_found(folder), records, all_) if not one.is_retried]
    damaged = [one.name for one in chosen if one.content is None]
    if damaged and not all_:
        raise exits.Failed(f"{', '.join(damaged)} cannot be stored: {_DAMAGED}")
    taken = [one for one in chosen if one.content is not None]
    for one in taken:
        quarantine.retry(one)
    if as_json:
        print_json({"retried": [one.name for one in taken], "damaged": damaged})
        return
    print(f"{plural(len(taken), 'record')} will be stored by the server, in order")
    if damaged:
        note(f"{plural(len(damaged), 'record')} cannot be: {_DAMAGED}")


@under(command, "export", "queen journal export --all | queen push orders --file - --messages")
@click.argument("records", nargs=-1, metavar="[RECORD]...")
@click.option("--all", "all_", is_flag=True, help="Take every record that can be read.")
@_folder
def export(records: tuple[str, ...], all_: bool, folder: Path | None) -> None:
    """Print the messages of records, one a line, in the form that `queen push --messages` reads. The records stay."""
    chosen = _chosen(_found(folder), records, all_)
    unreadable = [one for one in chosen if _problem(one)]
    if unreadable and not all_:
        raise exits.Failed(f"{unreadable[0].path} cannot be read: {_problem(unreadable[0])}")
    for one in chosen:
        for line in _lines(one):
            print(line)
    if unreadable:
        note(f"{plural(len(unreadable), 'record')} could not be read; `queen journal list` says why")


@under(command, "give-up", "queen journal give-up 1f8a33b6e5c04d27 --yes")
@click.argument("what")
@_folder
@consent
def give_up(what: str, folder: Path | None, yes: bool) -> None:
    """Quarantine records that the journal cannot store, so that the records after them are stored.

    WHAT is the fingerprint of an encryption key that is lost, or the id of an operation that keeps failing; the log of
    the server names both. `queen journal retry` brings the records back.
    """
    from queenmq.journal import quarantine

    confirm(f"Quarantine the records that wait for key {what}, or belong to operation {what}?", yes)
    for parent in _folders(folder):
        quarantine.give_up(parent, what)
    print("the server quarantines the records within a second, or when it starts")


def _folders(folder: Path | None) -> list[Path]:
    """The folders with journals: the one that is named, or those of all databases in the data folder."""
    from queenmq import config
    from queenmq.storage.embedded import default_data_dir

    settings = config.load()
    named = folder or settings.journal.folder
    if named is not None:
        if not named.is_dir():
            raise exits.Failed(f"there is no folder {named}", exits.NOT_FOUND)
        return [named]
    parent = (settings.server.data_dir or default_data_dir()) / "journal"
    if not parent.is_dir():
        raise exits.Failed(f"there is no journal in {parent}; name its folder with --folder", exits.NOT_FOUND)
    return sorted(path for path in parent.iterdir() if path.is_dir())


def _found(folder: Path | None) -> list[SetAside]:
    from queenmq import config
    from queenmq.journal.push_records import RecordCodec
    from queenmq.journal.quarantine import set_aside_in

    codec = RecordCodec(config.load().server.encryption_keys)
    try:
        return [record for parent in _folders(folder) for record in set_aside_in(parent, codec)]
    except OSError as error:
        raise exits.Failed(f"{error.filename} cannot be read: {error.strerror}") from None


def _chosen(found: Sequence[SetAside], names: Sequence[str], all_: bool) -> list[SetAside]:
    if all_ == bool(names):
        raise click.UsageError("name records, or use --all")
    if all_:
        return list(found)
    by_name = {one.name: one for one in found}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise exits.Failed(
            f"record {missing[0]} is not quarantined; `queen journal` lists those that are", exits.NOT_FOUND
        )
    return [by_name[name] for name in names]


def _problem(record: SetAside) -> str | None:
    from queenmq.journal.push_records import Locked

    if record.content is None:
        return _DAMAGED
    return _LOCKED if isinstance(record.content, Locked) else None


def _as_json(record: SetAside) -> dict[str, Any]:
    messages = _messages(record)
    return {
        "record": record.name,
        "setAsideAt": record.at.isoformat(),
        "state": "to be stored again" if record.is_retried else _problem(record) or "set aside",
        "bytes": record.bytes,
        "messages": len(messages) or None,
        "queues": ", ".join(sorted({message.queue for message in messages})),
        "why": record.why,
    }


def _messages(record: SetAside) -> Sequence[Message]:
    from queenmq.journal.push_records import Opened

    return record.content.messages if isinstance(record.content, Opened) else ()


def _lines(record: SetAside) -> Iterator[str]:
    """The messages as pop and tail print them, each with the payload exactly as it was pushed."""
    for one in _messages(record):
        fields = {
            "queue": one.queue,
            "partition": one.partition,
            "transactionId": one.transaction_id,
            "id": one.id,
            "traceId": one.trace_id,
        }
        yield lines.for_scripts(fields, lines.one_line(one.payload.decode()))
