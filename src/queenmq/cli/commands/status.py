"""`queen status`: how the server, its queues and groups are, in one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queenmq.cli.arguments import as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, console, count, facts, note, plural, print_json, seconds, table
from queenmq.cli.standing import MOST_GROUPS, behind_or_idle, counted

if TYPE_CHECKING:
    from queenmq.client.admin import Admin

_MOST_SHOWN: Final = 10
_MOST_TROUBLES: Final = 5


@command_of("status", "queen status", "queen --server https://queen.example status --json")
@as_json
@server
def command(as_json: bool, server: str) -> None:
    """Show in one screen how the server, its queues and groups are. `queen doctor` says how to repair things."""
    with connected(server) as queen:
        health, overview = queen.admin.health(), queen.admin.get_overview()
        groups = queen.admin.list_consumer_groups(limit=MOST_GROUPS)
        operations = queen.admin.get_operation_stats()
        found: dict[str, Any] = {
            "server": server,
            "version": health["version"],
            "database": health["database"],
            "overview": overview,
            "groups": len(groups),
            "groupsInTrouble": behind_or_idle(groups),
            "pauses": queen.admin.list_pauses()["pauses"],
            "troubles": _troubles(queen.admin),
            "maintenance": queen.admin.get_maintenance_mode(),
            "operations": operations["stats"],
            "journal": operations["journal"],
            "servers": queen.admin.get_cluster_balance()["servers"],
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
            note(f"{len(troubled) - _MOST_SHOWN:,} more; `queen groups` lists all.")
    if found["troubles"]:
        console().print()
        facts([(one["kind"].replace("_", " "), one["sentence"]) for one in found["troubles"][:_MOST_TROUBLES]])
        more = len(found["troubles"]) - _MOST_TROUBLES
        note(f"{f'{more:,} more; ' if more > 0 else ''}`queen doctor` says what to do about each.")


def _troubles(admin: Admin[Any]) -> list[dict[str, Any]]:
    """None from a server of an older version, or if the token is for some queues only."""
    from queenmq.client.errors import Forbidden, NotFound

    try:
        found: list[dict[str, Any]] = admin.list_troubles()["troubles"]
    except (NotFound, Forbidden):
        return []
    return found


def _facts(found: dict[str, Any]) -> list[tuple[str, Any]]:
    overview, journal, switches = found["overview"], found["journal"], found["maintenance"]
    messages, rates = overview["messages"], overview["throughput"]
    off = [word for key, word in (("maintenanceMode", "pushes"), ("popMaintenanceMode", "pops")) if switches.get(key)]
    waiting = sum(row["count"] for row in found["operations"] if row["status"] in ("pending", "processing"))
    failed = sum(row["count"] for row in found["operations"] if row["status"] == "failed")
    healthy = sum(1 for one in found["servers"] if one["healthy"])
    return [
        ("server", f"Queen {found['version']} at {found['server']}, database {found['database']}"),
        (
            "servers",
            plural(len(found["servers"]), "server")
            + ("" if healthy == len(found["servers"]) else f", {healthy} healthy"),
        ),
        ("queues", f"{plural(overview['queues'], 'queue')}, {plural(overview['partitions'], 'partition')}"),
        (
            "messages",
            f"{count(messages['total'])} stored, {count(messages['pending'])} pending, "
            f"{count(messages['processing'])} processing",
        ),
        ("rates", f"{count(rates['ingestedPerSecond'])} pushed/s, {count(rates['processedPerSecond'])} finished/s"),
        ("groups", ", ".join([plural(found["groups"], "group"), *counted(found["groupsInTrouble"])])),
        ("dead letters", count(messages["deadLetter"])),
        ("paused", ", ".join(_place(pause) for pause in found["pauses"][:_MOST_SHOWN]) or "nothing"),
        ("maintenance", f"on: {' and '.join(off)} are switched off" if off else "off"),
        ("operations", f"{waiting:,} waiting, {failed:,} failed"),
        ("journal", "none" if journal is None else f"{journal['messages']:,} messages on disk"),
    ]


def _place(pause: dict[str, Any]) -> str:
    where = "/".join(part for part in (pause["queue"], pause.get("partition")) if part)
    return f"{where} for {pause['consumerGroup']}" if pause.get("consumerGroup") else where
