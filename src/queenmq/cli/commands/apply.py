"""`queen apply`: queues and their options as a file declares them; what would change is shown first."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from queenmq.cli import exits
from queenmq.cli.arguments import as_json, consent
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server
from queenmq.cli.show import compact, confirm, note, plural, print_json

if TYPE_CHECKING:
    from queenmq.client import BlockingQueen

_FILE: Final = click.Path(path_type=Path, allow_dash=True)
_LABELS: Final = ("namespace", "task")
_SIGNS: Final = {"create": "+", "change": "~", "keep": "="}
_MEANINGS: Final = {"create": "is new", "change": "changes", "keep": "stays as it is"}


@dataclass(frozen=True)
class Declared:
    """A queue of the file. A label that is None is not declared."""

    name: str
    namespace: str | None = None
    task: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """What becomes of a queue: by option or label, the value before (None for a new queue) and after."""

    queue: Declared
    verb: str
    fields: Mapping[str, tuple[Any, Any]]
    labels: Mapping[str, str]


@command_of("apply", "queen apply -f queues.yaml --dry-run", "queen apply -f queues.yaml --yes")
@click.argument("named", metavar="[FILE]", type=_FILE, required=False)
@click.option("-f", "--file", type=_FILE, help="File that declares queues, in YAML or JSON; - reads standard input.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@consent
@as_json
@server
def command(named: Path | None, file: Path | None, dry_run: bool, yes: bool, as_json: bool, server: str) -> None:
    """Create and change queues as a file declares them. Shows what would change, and asks, before it does so.

    An option that the file does not name has its default. Queues that it does not name are left alone. The form of the
    file is in docs/queue-options.md.
    """
    if (named is None) == (file is None):
        raise click.UsageError("name one file that declares queues: `queen apply -f queues.yaml`")
    file = file or named or Path("-")
    declared = read(_text(file), "standard input" if str(file) == "-" else str(file))
    with connected(server) as queen:
        changes = [_compared(queen, one) for one in declared]
        wanted = [change for change in changes if change.verb != "keep"]
        # What the question is about is shown in any case; the document that --json prints stays alone on stdout.
        asks = bool(wanted) and not dry_run and not yes
        if asks or not as_json:
            _show(changes, sys.stderr if as_json else sys.stdout)
        if wanted and not dry_run:
            confirm(f"Apply this to {plural(len(wanted), 'queue')}?", yes)
            _apply(queen, wanted)
    if as_json:
        print_json([_as_json(change) for change in changes])
    elif not wanted:
        print("nothing to change")
    else:
        print("nothing was applied (--dry-run)" if dry_run else f"{plural(len(wanted), 'queue')} configured")


def _text(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except OSError as error:
        raise exits.Failed(f"{file} cannot be read: {error.strerror}", exits.USAGE) from None
    except UnicodeDecodeError:
        raise exits.Failed(f"{file} is not UTF-8", exits.USAGE) from None


def read(text: str, name: str) -> list[Declared]:
    """The queues that a file declares. Ends the command with every problem that it has."""
    problems: list[str] = []
    declared = _declared(_parsed(text, name), problems)
    if problems:
        for problem in problems:
            note(f"{name}: {problem}")
        raise exits.Failed(f"{plural(len(problems), 'problem')} in {name}: nothing was applied", exits.USAGE)
    return declared


def _parsed(text: str, name: str) -> Any:
    from queenmq.core.yaml_text import parse_yaml

    try:
        return parse_yaml(text)
    except ValueError as error:
        raise exits.Failed(f"{name} is not YAML: {error}", exits.USAGE) from None


def _declared(found: Any, problems: list[str]) -> list[Declared]:
    queues = found.get("queues") if isinstance(found, dict) else None
    if not isinstance(queues, dict) or not queues:
        problems.append("it must have a mapping `queues` from names to what they have")
        return []
    _check_names(found, ("queues",), "the file", problems)
    return [one for name, about in queues.items() if (one := _queue(name, about, problems)) is not None]


def _check_names(given: Mapping[str, Any], known: tuple[str, ...], where: str, problems: list[str]) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            problems.append(f"{where}: there is no {name!r}; {meant}")


def _queue(name: str, about: Any, problems: list[str]) -> Declared | None:
    import msgspec

    from queenmq.core.names import check_name
    from queenmq.core.options import QueueOptions
    from queenmq.errors import InvalidRequest

    about = {} if about is None else about
    options = about.get("options") or {} if isinstance(about, dict) else None
    if not isinstance(about, dict) or not isinstance(options, dict):
        problems.append(f"{name}: it must be a mapping of namespace, task and options")
        return None
    before = len(problems)
    _check_names(about, (*_LABELS, "options"), name, problems)
    _check_names(options, QueueOptions.__struct_encode_fields__, f"{name}: options", problems)
    problems += [f"{name}: {one} must be text" for one in _LABELS if not isinstance(about.get(one), str | None)]
    try:
        check_name(name, "queue")
        msgspec.convert(options, QueueOptions)
    except (InvalidRequest, msgspec.ValidationError) as error:
        problems.append(f"{name}: {error}")
    if len(problems) > before:
        return None
    return Declared(name, about.get("namespace"), about.get("task"), options)


def _compared(queen: BlockingQueen, queue: Declared) -> Change:
    from queenmq.client import NotFound

    labels = {label: value for label in _LABELS if (value := getattr(queue, label)) is not None}
    try:
        about = queen.admin.get_queue_detail(queue.name, includePartitions=False)["queue"]
    except NotFound:
        given = {**labels, **queue.options}
        return Change(queue, "create", {name: (None, value) for name, value in given.items()}, labels)
    wanted = {**labels, **_defaults(), **queue.options}
    now = {**{label: about[label] for label in _LABELS}, **about["options"]}
    if strange := sorted(queue.options.keys() - now.keys()):
        raise exits.Failed(f"{queue.name}: the server is older than this command and has no {', '.join(strange)}")
    fields = {name: (now[name], wanted[name]) for name in wanted if name in now and now[name] != wanted[name]}
    # A label that the file does not declare stays as it is.
    return Change(queue, "change" if fields else "keep", fields, {label: about[label] for label in _LABELS} | labels)


def _defaults() -> dict[str, Any]:
    import msgspec

    from queenmq.core.options import QueueOptions

    return dict(msgspec.to_builtins(QueueOptions()))


def _show(changes: list[Change], file: TextIO) -> None:
    defaults = _defaults()
    for change in changes:
        print(exits.plain(f"{_SIGNS[change.verb]} {change.queue.name} {_MEANINGS[change.verb]}"), file=file)
        for name, (before, after) in change.fields.items():
            unsaid = name in defaults and name not in change.queue.options
            told = compact(after) if change.verb == "create" else f"{compact(before)} → {compact(after)}"
            print(exits.plain(f"    {name}: {told}{' (default)' if unsaid else ''}"), file=file)


def _apply(queen: BlockingQueen, wanted: list[Change]) -> None:
    from queenmq.client import QueenError

    for number, change in enumerate(wanted):
        labels = change.labels
        builder = queen.queue(change.queue.name).namespace(labels.get("namespace", "")).task(labels.get("task", ""))
        try:
            # Merged, so that options of a newer server, which this command does not know, stay as they are.
            builder.config({**_defaults(), **change.queue.options}).create(replace=False)
        except QueenError as error:
            done = f"{number} of {len(wanted)} queues are configured; repeat the command to go on"
            raise exits.Failed(f"{change.queue.name}: {error.message}; {done}") from error


def _as_json(change: Change) -> dict[str, Any]:
    fields = {name: {"before": before, "after": after} for name, (before, after) in change.fields.items()}
    return {"queue": change.queue.name, "change": change.verb, "fields": fields}
