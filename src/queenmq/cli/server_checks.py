"""What `queen doctor` finds out from a server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

import queenmq
from queenmq.cli.fetch import Answer, fetch
from queenmq.cli.finding import Finding, bad, clocks, doubtful, good, skipped
from queenmq.cli.remote import TOKEN_VARIABLE, URL_VARIABLE, token
from queenmq.cli.show import plural
from queenmq.clock import SystemClock

_TIMEOUT_S: Final = 10.0
_OK: Final = 200
_UNAUTHENTICATED: Final = 401
_FORBIDDEN: Final = 403
_UNAVAILABLE: Final = 503
# Reasons for dropping a packet that point to a wrong configuration.
_SECRETS: Final = ("bad_signature", "unknown_key")


@dataclass(frozen=True)
class _Reply:
    status: int
    body: Any
    at: float
    took_s: float


def _ask(server: str, path: str) -> _Reply:
    clock = SystemClock()
    before = clock.wall()
    answer: Answer = fetch(server, path, _TIMEOUT_S)
    after = clock.wall()
    try:
        body = msgspec.json.decode(answer.body)
    except (msgspec.MsgspecError, RecursionError):
        body = None
    return _Reply(answer.status, body, (before + after) / 2, after - before)


def check_server(server: str) -> Iterator[Finding]:
    """Everything that the server can tell; nothing more once it is clear that it is none."""
    try:
        health = _ask(server, "/health")
    except (OSError, ValueError) as error:
        yield bad(
            "server",
            f"nothing answers at {server}: {error}",
            f"start one with `queen serve`, or name the right one with {URL_VARIABLE}",
        )
        return
    if not isinstance(health.body, dict) or health.body.get("server") != "queen":
        yield bad("server", f"what answers at {server} is not Queen", f"name the right one with {URL_VARIABLE}")
        return
    yield good("server", f"Queen answers at {server}")
    yield _versions(str(health.body.get("version")))
    yield _database(str(health.body.get("database")))
    yield from _clock_of_server(health)
    try:
        yield from _with_token(server)
    except OSError as error:
        yield bad(
            "answers", f"the server stopped answering: {error}", "look at its log, and at the load of its machine"
        )


def _versions(version: str) -> Finding:
    if version == queenmq.__version__:
        return good("versions", f"server and command are {version}")
    return doubtful(
        "versions",
        f"the server is {version}, this command {queenmq.__version__}",
        "bring both to the same version; commands that the server does not know end with `not found`",
    )


def _database(state: str) -> Finding:
    if state == "connected":
        return good("database", "the server reaches it")
    return bad(
        "database",
        "the server does not reach it; pushes are kept in its journal meanwhile",
        "look at the log of the server and at PostgreSQL; DATABASE_URL (or PG_HOST …) of the server names it",
    )


def _clock_of_server(health: _Reply) -> Iterator[Finding]:
    stamp = health.body.get("timestamp")
    if isinstance(stamp, str):
        yield clocks("server", datetime.fromisoformat(stamp).timestamp() - health.at, health.took_s / 2)


def _with_token(server: str) -> Iterator[Finding]:
    overview = _ask(server, "/api/v1/resources/overview")
    yield _token(overview)
    if overview.status != _OK:
        return
    at = datetime.fromisoformat(overview.body["timestamp"]).timestamp()
    # The database's clock is read somewhere within the request.
    yield clocks("database", at - overview.at, overview.took_s / 2)
    yield from _postgres(_ask(server, "/api/v1/analytics/postgres-stats"))
    yield from _operations(_ask(server, "/api/v1/operations/stats"))
    yield from _cluster(_ask(server, "/api/v1/system/shared-state"))


def _token(overview: _Reply) -> Finding:
    error = overview.body.get("error") if isinstance(overview.body, dict) else None
    if overview.status == _OK:
        given = f"the token in {TOKEN_VARIABLE} is good" if token() else "the server demands none"
        return good("token", given)
    if overview.status == _UNAUTHENTICATED:
        if token():
            return bad(
                "token",
                f"the server does not take the one in {TOKEN_VARIABLE}: {error}",
                "get a new one; signature, issuer, audience and expiry must be what JWT_* of the server demand",
            )
        return bad("token", "the server demands one", f"put it into {TOKEN_VARIABLE}")
    if overview.status == _FORBIDDEN:
        return bad("token", f"its role is not enough: {error}", "looking around needs the role read-only")
    if overview.status == _UNAVAILABLE:
        return skipped("token", f"it is not refused, but the server cannot answer just now: {error}")
    return bad("token", f"the server answered {overview.status}: {error}", "look at the log of the server")


def _postgres(stats: _Reply) -> Iterator[Finding]:
    if stats.status != _OK:
        return
    settings, version = stats.body["bufferConfig"], stats.body["database"]["version"]
    if settings.get("fsync") != "on":
        yield bad(
            "durability", "fsync is off: a crash of the machine loses messages", "set fsync = on in postgresql.conf"
        )
    elif settings.get("synchronous_commit") == "off":
        yield doubtful(
            "durability",
            "synchronous_commit is off: a crash of the database loses the last moments",
            "set synchronous_commit = on in postgresql.conf",
        )
    else:
        yield good("durability", f"PostgreSQL {version} syncs what it commits")


def _operations(stats: _Reply) -> Iterator[Finding]:
    if stats.status != _OK:
        return
    failed = sum(row["count"] for row in stats.body["stats"] if row["status"] == "failed")
    journal = stats.body["journal"]
    if journal is None:
        yield doubtful(
            "journal",
            "there is none: pushes are refused while the database is away",
            "give the server a FILE_BUFFER_DIR that it can write",
        )
    elif journal["damaged"] or not journal["healthy"]:
        yield bad(
            "journal", "it is damaged or cannot be written", "look at FILE_BUFFER_DIR of the server; docs/overload.md"
        )
    else:
        yield good("journal", f"it holds {plural(journal['messages'], 'message')}")
    if failed:
        yield doubtful(
            "operations", f"{plural(failed, 'operation')} failed", "`queen operations --status failed` shows why"
        )
    else:
        yield good("operations", "none has failed")


def _cluster(state: _Reply) -> Iterator[Finding]:
    if state.status != _OK:
        yield skipped("peers", "the token may not look at the cluster", "a token with the role admin may")
        return
    body = state.body
    for switch, word, path in (
        ("maintenance_mode", "pushes", "maintenance"),
        ("pop_maintenance_mode", "pops", "maintenance/pop"),
    ):
        if body.get(switch):
            yield doubtful(
                "maintenance",
                f"{word} are switched off on every server",
                f"""switch them on again: POST /api/v1/system/{path} {{"enabled": false}}""",
            )
    yield from _peers(body)


def _peers(body: dict[str, Any]) -> Iterator[Finding]:
    health, dropped = body["server_health"], body["transport"]["dropped"]
    alive, dead = health["servers_alive"], health["servers_dead"]
    unsigned = sum(dropped.get(reason, 0) for reason in _SECRETS)
    if unsigned:
        yield doubtful(
            "secrets",
            f"{plural(unsigned, 'packet')} came that were not signed with the secret of this server",
            "give all servers the same QUEEN_SYNC_SECRET",
        )
    if dropped.get("wrong_version"):
        yield doubtful(
            "versions of peers",
            f"{plural(dropped['wrong_version'], 'packet')} came from servers of another version",
            "bring all servers of the cluster to the same version",
        )
    if dead:
        silent = ", ".join(sorted(health["last_heartbeat"]))
        yield bad(
            "peers",
            f"{plural(alive, 'other server')} alive, {dead} silent (known: {silent})",
            "start them again, take them out of QUEEN_UDP_PEERS, or open UDP port 6634 between the machines",
        )
    elif not body.get("enabled"):
        yield good("peers", "this server has none")
    elif alive:
        yield good("peers", f"{plural(alive, 'other server')} alive")
    else:
        yield bad(
            "peers",
            "QUEEN_UDP_PEERS names some, and none was ever heard of",
            "check the addresses, QUEEN_SYNC_SECRET, and that UDP port 6634 is open between the machines",
        )
