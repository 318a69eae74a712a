"""Output of commands: tables for people, JSON for scripts, progress on stderr. Rich is imported only for tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from queenmq.cli import exits

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, Any]

_NOTHING: Final = "–"
_WIDE: Final = 10_000
_NARROW: Final = 100
_GAP: Final = 3
_LEAST_RATE: Final = 0.05
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True)
class Column:
    """A column of a table: the key in a row (dots go into nested ones), its heading, and how a value is written.

    A column that is `minor` is left out where a terminal has no room for it.
    """

    key: str
    heading: str = ""
    number: bool = False
    written: Callable[[Any], str] | None = None
    minor: bool = False

    def cell(self, row: Row) -> str:
        value: Any = row
        for part in self.key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None or value == "":
            return _NOTHING
        if self.written is not None:
            return exits.plain(self.written(value))
        return count(value) if self.number else exits.plain(text(value))


def count(value: float) -> str:
    """A number as people read it: 12,345."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def rate(value: float) -> str:
    """So many a second, of which little is more than nothing."""
    return "<0.1" if 0 < value < _LEAST_RATE else count(float(value))


def text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else compact(value)


def compact(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def seconds(value: float) -> str:
    """A duration as people say it: 45 s, 3 min, 2.5 h."""
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:.0f} s"


def moment(value: str) -> str:
    """A timestamp of the server in the time of this machine."""
    return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(value: str) -> str:
    """The same as people say it: 3 min ago, in 2 h."""
    passed = (now() - datetime.fromisoformat(value)).total_seconds()
    return f"{seconds(passed)} ago" if passed >= 0 else f"in {seconds(-passed)}"


def now() -> datetime:
    from queenmq.clock import utc_now

    return utc_now()


def plural(number: int, noun: str) -> str:
    """1 message, 2 messages."""
    ending = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number:,} {noun if number == 1 else ending}"


def consumer(one: Row | None) -> str:
    """Who consumes: billing on web-3 (process 4242); or where it comes from, if it does not say."""
    if one is None:
        return "unknown"
    said = one["name"] or one["address"] or "unknown"
    host = f" on {one['host']}" if one["host"] else ""
    return f"{said}{host}" + (f" (process {one['process']})" if one["process"] else "")


def attempt(one: Row) -> str:
    """How a delivery failed: what the consumer said, or that it said nothing."""
    if one["outcome"] == "expired":
        return "the lease ended without a word"
    return f"{one['outcome']}: {one['error']}" if one["error"] else str(one["outcome"])


def console() -> Console:
    """Where tables go. Into a pipe they are as wide as they need, so that nothing is cut off."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else _WIDE
    return Console(width=wide, highlight=False, soft_wrap=not sys.stdout.isatty())


def table(rows: Iterable[Row], *columns: Column) -> None:
    """A table. On a narrow terminal moments are relative, and minor columns are left out from the right as needed."""
    printed = console()
    rows = list(rows)
    shown = list(columns)
    if printed.width < _NARROW:
        shown = [replace(one, written=ago) if one.written is moment else one for one in columns]
        needed = {one: _GAP + max(map(len, (one.heading or one.key, *map(one.cell, rows)))) for one in shown}
        for one in [column for column in reversed(shown) if column.minor]:
            if sum(needed[column] for column in shown) > printed.width:
                shown.remove(one)
    printed.print(built(rows, *shown))
    if left_out := [one.heading or one.key for one in columns if one.key not in {column.key for column in shown}]:
        note(f"A wider terminal, or --json, also shows: {', '.join(left_out)}.")


def built(rows: Iterable[Row], *columns: Column) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        heading = column.heading or column.key
        made.add_column(heading, justify="right" if column.number else "left", overflow="fold")
    for row in rows:
        # Text, so that brackets in names and payloads are not read as markup.
        made.add_row(*(Text(column.cell(row)) for column in columns))
    return made


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values below each other."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(Text(name), Text(_NOTHING if value in (None, "") else exits.plain(text(value))))
    console().print(made)


def listing(rows: Sequence[Row], empty: str, *columns: Column, as_json: bool, whole: Any = None) -> None:
    """A table, a sentence if there is nothing in it, or the JSON of `whole` (the rows, if nothing is given)."""
    if as_json:
        print_json(rows if whole is None else whole)
    elif rows:
        table(rows, *columns)
    else:
        note(empty)


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def note(sentence: str) -> None:
    """Print a message for people to stderr, so that stdout has only the result."""
    print(exits.plain(sentence), file=sys.stderr, flush=True)


def confirm(question: str, yes: bool) -> None:
    """Ask before something is deleted. Ends the command if the answer is no, or there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise exits.Failed(f"{question} There is no terminal to ask at; confirm with --yes", exits.USAGE)
    if not click.confirm(question, err=True):
        raise exits.Failed("cancelled; nothing was changed")


@contextmanager
def working(what: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """A progress bar while the block runs, if stderr is a terminal; the function advances it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda steps: progress.advance(task, steps)


@contextmanager
def pushing(size: int | None) -> Iterator[Callable[[int, int], None]]:
    """Progress in messages and MB/s while a file of that size is pushed; the function adds messages and bytes."""
    if not sys.stderr.isatty():
        yield lambda _messages, _bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    told = TextColumn("{task.fields[messages]:,} messages pushed")
    columns = [SpinnerColumn(), told, BarColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=size, messages=0)

        def advance(messages: int, pushed: int) -> None:
            progress.update(task, advance=pushed, messages=progress.tasks[0].fields["messages"] + messages)

        yield advance
