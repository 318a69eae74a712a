"""`queen top`: rates, lag and waiting consumers, refreshed live."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from queenmq.cli import exits
from queenmq.cli.arguments import AMOUNT, COUNT, as_json
from queenmq.cli.fetch import fetch
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server, servers
from queenmq.cli.show import Column, built, now, plural, print_json, rate, seconds
from queenmq.cli.standing import permitted, unlisted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from queenmq.client import BlockingQueen

_MINUTE_S: Final = 60
_MOST_GROUPS: Final = 1000  # the longest waiting
_LOOK_BACK: Final = timedelta(minutes=3)
_WORK: Final = {
    "push": "queen_worker_push_messages_total",
    "pop": "queen_worker_pop_messages_total",
    "ack": "queen_worker_ack_success_total",
}
# Lines that are neither queues nor groups.
_OTHER_LINES: Final = 10
_END: Final = (b"q", b"Q", b"\x1b", b"\x03")


@command_of("top", "queen top", "queen top --every 5", "queen top --once --json | jq .groups")
@click.option(
    "--every", type=AMOUNT, default=1.0, show_default=True, metavar="S", help="Seconds between two refreshes."
)
@click.option(
    "--rows",
    type=COUNT,
    default=15,
    show_default=True,
    metavar="N",
    help="Maximum number of queues and of groups to show.",
)
@click.option("--once", is_flag=True, help="Print once and exit; this is the default in a pipe.")
@as_json
@server
def command(every: float, rows: int, once: bool, as_json: bool, server: str) -> int:
    """Show rates, lag and waiting consumers live, until q or Ctrl-C.

    The first lines describe the server that answers. The tables describe all servers: queues with their rates over the
    last minute, and groups sorted by lag.
    """
    try:
        with connected(server) as queen:
            watch = _Watch(queen, servers(server)[0])
            if once or as_json or not sys.stdout.isatty():
                return _picture(watch, rows, every, as_json)
            return _live(watch, rows, every)
    except KeyboardInterrupt:
        return exits.OK
    except BrokenPipeError:
        raise
    except OSError as error:
        raise exits.Failed(f"no answer from {server}: {error}", exits.UNAVAILABLE) from error


def _picture(watch: _Watch, rows: int, every: float, as_json: bool) -> int:
    from queenmq.cli.remote import pause
    from queenmq.cli.show import console

    watch.look()
    pause(every)
    found = watch.look()
    if as_json:
        print_json(found.told())
    else:
        console().print(_drawn(found, rows))
    return exits.OK


def _live(watch: _Watch, rows: int, every: float) -> int:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from queenmq.client import QueenError, RequestError

    # Restore the terminal also when the process is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(exits.TERMINATED))
    screen = Console(highlight=False)

    def draw() -> RenderableType:
        return _drawn(watch.look(), min(rows, max(1, (screen.size.height - _OTHER_LINES) // 2)), every)

    drawn = draw()
    with _keys() as key, Live(console=screen, screen=True, auto_refresh=False) as live:
        while True:
            live.update(drawn, refresh=True)
            if key(every) in _END:
                return exits.OK
            try:
                drawn = draw()
            except RequestError:
                raise
            except (QueenError, OSError) as error:
                drawn = Group(Text(f"no answer: {error}; trying again. q ends", style="red"))


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for a key, up to a timeout. Keys are read without Enter; on Windows, Ctrl-C ends it."""
    from queenmq.cli.remote import pause

    try:
        import termios
        import tty
    except ImportError:
        yield pause
        return
    if not sys.stdin.isatty():
        yield pause
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(timeout_s: float) -> bytes:
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        return os.read(descriptor, 1) if ready else b""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@dataclass(kw_only=True)
class _Found:
    """The state of the server at one moment."""

    at: datetime
    version: str
    database: str
    servers: int | None
    rates: dict[str, float]
    waiters: int
    overview: Mapping[str, Any] | None
    queues: list[dict[str, Any]] = field(default_factory=list)
    groups: Sequence[Mapping[str, Any]] = field(default_factory=list)
    more_groups: int = 0  # which have waited less long

    def told(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "version": self.version,
            "database": self.database,
            "servers": self.servers,
            "ratesPerSecond": self.rates,
            "waiters": self.waiters,
            "overview": self.overview,
            "queues": self.queues,
            "groups": self.groups,
            "moreGroups": self.more_groups,
        }


class _Watch:
    """Polls the server, and computes rates from the difference of its counters."""

    def __init__(self, queen: BlockingQueen, server: str) -> None:
        self._queen = queen
        self._server = server
        self._before: tuple[float, dict[str, float]] | None = None

    def look(self) -> _Found:
        from queenmq.clock import SYSTEM

        admin = self._queen.admin
        health = admin.health()
        series = _parsed(fetch(self._server, "/metrics/prometheus").body.decode())
        since = (now() - _LOOK_BACK).isoformat()
        activity = (permitted(lambda: admin.get_queue_operations(from_=since)) or {"series": []})["series"]
        stored = admin.list_queues(sort="pending", limit=1000)["queues"]
        parked = {
            dict(labels)["queue"]: n for (name, labels), n in series.items() if name == "queen_queue_parked_consumers"
        }
        groups = sorted(
            due := admin.list_consumer_groups(sort="lag", limit=_MOST_GROUPS),
            key=lambda row: (-row["maxTimeLag"], -(row["totalLag"] or 0), row["name"]),
        )
        balance = permitted(admin.get_cluster_balance)
        return _Found(
            at=now(),
            version=health["version"],
            database=health["database"],
            servers=None if balance is None else len(balance["servers"]),
            rates=self._rates(SYSTEM.monotonic(), series),
            waiters=int(_sum(series, "queen_pop_wait_waiters")),
            overview=permitted(admin.get_overview),
            queues=_queues(stored, activity, parked),
            groups=groups,
            more_groups=unlisted(due),
        )

    def _rates(self, at: float, series: dict[_Series, float]) -> dict[str, float]:
        counters = {word: _sum(series, name) for word, name in _WORK.items()}
        before, self._before = self._before, (at, counters)
        if before is None or at <= before[0]:
            return dict.fromkeys(_WORK, 0.0)
        # A counter that is smaller than before is that of a server that was restarted.
        return {word: max(0.0, (n - before[1][word]) / (at - before[0])) for word, n in counters.items()}


_Series = tuple[str, tuple[tuple[str, str], ...]]


def _parsed(text: str) -> dict[_Series, float]:
    """The samples of Prometheus' text format, by name and labels."""
    import re

    found: dict[_Series, float] = {}
    for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)
        found[name, tuple((key, re.sub(r"\\(.)", _unescaped, said)) for key, said in pairs)] = float(value)
    return found


def _unescaped(match: Any) -> str:
    escaped: str = match[1]
    return "\n" if escaped == "n" else escaped


def _sum(series: dict[_Series, float], name: str) -> float:
    return sum(value for (found, _), value in series.items() if found == name)


def _queues(
    stored: Sequence[Mapping[str, Any]], activity: list[dict[str, Any]], parked: dict[str, float]
) -> list[dict[str, Any]]:
    """The queues, the busiest first; rates are over the last whole minute and what there is of the present one."""
    moment = now()
    span = _MINUTE_S + moment.second + moment.microsecond / 1e6
    begin = moment.replace(second=0, microsecond=0) - timedelta(minutes=1)
    rows = {
        queue["name"]: {
            "queue": queue["name"],
            "pushPerSecond": 0.0,
            "popPerSecond": 0.0,
            "ackPerSecond": 0.0,
            "pending": queue["messages"]["pending"],
            "processing": queue["messages"]["processing"],
            "waiters": int(parked.get(queue["name"], 0)),
            "lagMs": 0.0,
        }
        for queue in stored
    }
    for point in activity:
        row = rows.get(point["queueName"])
        if row is None:
            continue
        if datetime.fromisoformat(point["bucket"]) >= begin:
            row["pushPerSecond"] += point["pushMessages"] / span
            row["popPerSecond"] += point["popMessages"] / span
            row["ackPerSecond"] += point["ackSuccess"] / span
            row["lagMs"] = max(row["lagMs"], point["maxLagMs"] or 0)
            row["waiters"] = max(row["waiters"], point["parkedCount"] or 0)
    return sorted(
        rows.values(), key=lambda row: (-row["pushPerSecond"] - row["popPerSecond"], -row["pending"], row["queue"])
    )


def _drawn(found: _Found, rows: int, every: float | None = None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    overview = found.overview
    rates = "   ".join(f"{word} {rate:,.0f}/s" for word, rate in found.rates.items())
    stored = "nothing of all queues: the token is for some of them"
    if overview is not None:
        told = overview["messages"]
        stored = (
            f"{told['total']:,} messages   {told['pending']:,} pending   {told['processing']:,} processing   "
            f"{told['deadLetter']:,} dead letters   lag {seconds(overview['lag']['time']['max'])}"
        )
    head = Text.assemble(
        ("Queen ", "bold"),
        f"{found.version}   database {found.database}   {plural(found.servers or 1, 'server')}   "
        f"{found.at.astimezone():%H:%M:%S}",
        ("\n" if every is None else f"   every {every:g} s; q ends\n", "dim"),
        ("now      ", "bold"),
        f"{rates}   waiters {found.waiters:,}\n",
        ("stored   ", "bold"),
        f"{stored}\n",
    )
    queues = built(
        found.queues[:rows],
        Column("queue"),
        *(Column(f"{word}PerSecond", f"{word}/s", number=True, written=rate) for word in _WORK),
        Column("pending", number=True),
        Column("processing", number=True),
        Column("waiters", number=True),
        Column("lagMs", "delivery lag", number=True, written=_milliseconds),
    )
    groups = built(
        found.groups[:rows],
        Column("name", "group"),
        Column("queueName", "queue"),
        Column("standing", "state"),
        Column("unread", number=True),
        Column("maxTimeLag", "lag", number=True, written=seconds),
        Column("finishedPerSecond", "finished/s", number=True, written=rate),
        Column("members", "leases", number=True),
    )
    more = max(0, len(found.groups) - rows) + found.more_groups
    told_more = [Text(f"{plural(more, 'more group')}, which waited less long", "dim")] if more else []
    return Group(head, queues, Text(), groups, *told_more)


def _milliseconds(value: float) -> str:
    return f"{round(value):,} ms" if value < 10_000 else seconds(value / 1000)
