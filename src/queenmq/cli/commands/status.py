"""`queen status`: how the server, its queues and groups are, in one screen."""

from __future__ import annotations

from typing import Any, Final

from queenmq.cli.arguments import as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, console, count, facts, note, plural, print_json, seconds, table
from queenmq.cli.standing import MOST_GROUPS, behind_idle_or_paused, counted, permitted, unlisted

_MOST_SHOWN: Final = 10
_MOST_TROUBLES: Final = 5


@command_of("status", "queen status", "queen --server https://queen.example status --json")
@as_json
@server
def command(as_json: bool, server: str) -> None:
    """Show in one screen how the server, its queues and groups are. `queen doctor` says how to repair things."""
    with connected(server) as queen:
        health, overview = queen.admin.health(), permitted(queen.admin.get_overview)
        some = queen.admin.list_consumer_groups(limit=1)
        due = queen.admin.list_consumer_groups(only="due", sort="lag", limit=MOST_GROUPS)
        operations = permitted(queen.admin.get_operation_stats)
        troubles = permitted(queen.admin.list_troubles)
        balance = permitted(queen.admin.get_cluster_balance)
        found: dict[str, Any] = {
            "server": server,
            "version": health["version"],
            "database": health["database"],
            "overview": overview,
            "groups": len(some) + unlisted(some),
            "groupsInTrouble": behind_idle_or_paused(due),
            "groupsNotJudged": unlisted(due),
            "pauses": queen.admin.list_pauses()["pauses"],
            "troubles": [] if troubles is None else troubles["troubles"],
            "maintenance": permitted(queen.admin.get_maintenance_mode),
            "operations": None if operations is None else operations["stats"],
            "journal": None if operations is None else operations["journal"],
            "servers": None if balance is None else balance["servers"],
        }
    if as_json:
        print_json(found)
        return
    facts(_facts(found))
    troubled = found["groupsInTrouble"]
    if troubled:
        console().print()
        table(
            troubled[:_MOST_SHOWN],
            Column("name", "group"),
            Column("queueName", "queue"),
            Column("standing", "state"),
            Column("unread", number=True),
            Column("totalLag", "due", number=True),
            Column("maxTimeLag", "lag", number=True, written=seconds),
        )
        if len(troubled) > _MOST_SHOWN:
            note(f"{len(troubled) - _MOST_SHOWN:,} more; `queen groups --only due --sort lag` lists them.")
        if found["groupsNotJudged"]:
            note(f"{plural(found['groupsNotJudged'], 'more group')} with messages due, which have waited less long.")
    if found["troubles"]:
        console().print()
        facts([(one["kind"].replace("_", " "), one["sentence"]) for one in found["troubles"][:_MOST_TROUBLES]])
        more = len(found["troubles"]) - _MOST_TROUBLES
        note(f"{f'{more:,} more; ' if more > 0 else ''}`queen doctor` says what to do about each.")


def _facts(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """What the token does not show is left out, and said at the end."""
    shown = [
        ("server", f"Queen {found['version']} at {found['server']}, database {found['database']}"),
        *_servers(found["servers"]),
        *_overview(found["overview"]),
        ("groups", ", ".join([plural(found["groups"], "group"), *counted(found["groupsInTrouble"])])),
        ("paused", ", ".join(_place(pause) for pause in found["pauses"][:_MOST_SHOWN]) or "nothing"),
        *_maintenance(found["maintenance"]),
        *_operations(found["operations"], found["journal"]),
    ]
    left_out = [word for word in ("servers", "overview", "maintenance", "operations") if found[word] is None]
    return [*shown, ("not shown", f"{', '.join(left_out)}: the token is not for them")] if left_out else shown


_Facts = list[tuple[str, Any]]


def _servers(servers: list[dict[str, Any]] | None) -> _Facts:
    if servers is None:
        return []
    healthy = sum(1 for one in servers if one["healthy"])
    return [("servers", plural(len(servers), "server") + ("" if healthy == len(servers) else f", {healthy} healthy"))]


def _overview(overview: dict[str, Any] | None) -> _Facts:
    if overview is None:
        return []
    messages, rates = overview["messages"], overview["throughput"]
    return [
        ("queues", f"{plural(overview['queues'], 'queue')}, {plural(overview['partitions'], 'partition')}"),
        (
            "messages",
            f"{count(messages['total'])} stored, {count(messages['pending'])} pending, "
            f"{count(messages['processing'])} processing",
        ),
        ("rates", f"{count(rates['ingestedPerSecond'])} pushed/s, {count(rates['processedPerSecond'])} finished/s"),
        ("dead letters", count(messages["deadLetter"])),
    ]


def _maintenance(switches: dict[str, Any] | None) -> _Facts:
    if switches is None:
        return []
    off = [word for key, word in (("maintenanceMode", "pushes"), ("popMaintenanceMode", "pops")) if switches.get(key)]
    return [("maintenance", f"on: {' and '.join(off)} are switched off" if off else "off")]


def _operations(operations: list[dict[str, Any]] | None, journal: dict[str, Any] | None) -> _Facts:
    if operations is None:
        return []
    waiting = sum(row["count"] for row in operations if row["status"] in ("pending", "processing"))
    failed = sum(row["count"] for row in operations if row["status"] == "failed")
    return [
        ("operations", f"{waiting:,} waiting, {failed:,} failed"),
        ("journal", "none" if journal is None else f"{journal['messages']:,} messages on disk"),
    ]


def _place(pause: dict[str, Any]) -> str:
    where = "/".join(part for part in (pause["queue"], pause.get("partition")) if part)
    return f"{where} for {pause['consumerGroup']}" if pause.get("consumerGroup") else where
