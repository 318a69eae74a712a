"""The checks of `queen doctor` on a server, over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

import queenmq
from queenmq.cli.fetch import Answer, fetch
from queenmq.cli.finding import Finding, bad, clocks, doubtful, good, skipped
from queenmq.cli.remote import BY_ROLE, TOKEN_VARIABLE, URL_VARIABLE, token
from queenmq.cli.show import plural, seconds
from queenmq.cli.standing import MOST_GROUPS, behind_idle_or_paused, counted, unlisted
from queenmq.clock import SYSTEM
from queenmq.config import is_here

_TIMEOUT_S: Final = 10.0
_OK: Final = 200
_UNAUTHENTICATED: Final = 401
_FORBIDDEN: Final = 403
_UNAVAILABLE: Final = 503
_DEMAND_TOKENS: Final = ("QUEEN_TOKENS_ENABLED", "JWT_ENABLED")
# From here on, who keeps dead rows from being removed is named.
_HELD_LONG_S: Final = 300
# Reasons for dropping a packet that point to a wrong configuration.
_SECRETS: Final = ("bad_signature", "unknown_key")


@dataclass(frozen=True)
class _Reply:
    status: int
    body: Any
    at: float
    took_s: float


def _ask(server: str, path: str, *, bearer: bool = True) -> _Reply:
    before = SYSTEM.wall()
    answer: Answer = fetch(server, path, _TIMEOUT_S, bearer=bearer)
    after = SYSTEM.wall()
    try:
        body = msgspec.json.decode(answer.body)
    except (msgspec.MsgspecError, RecursionError):
        body = None
    return _Reply(answer.status, body, (before + after) / 2, after - before)


def check_server(server: str) -> Iterator[Finding]:
    """All checks of a server; none after the first that shows that it is not Queen."""
    try:
        health = _ask(server, "/health")
    except (OSError, ValueError) as error:
        yield bad(
            "server",
            f"nothing answers at {server}: {error}",
            f"start one with `queen serve`, or set {URL_VARIABLE} to the right URL",
        )
        return
    if not isinstance(health.body, dict) or health.body.get("server") != "queen":
        yield bad("server", f"{server} is not a Queen server", f"set {URL_VARIABLE} to the right URL")
        return
    yield good("server", f"Queen answers at {server}")
    yield _versions(str(health.body.get("version")))
    yield _database(str(health.body.get("database")))
    yield from _clock_of_server(health)
    try:
        yield from _with_token(server)
    except OSError as error:
        yield bad("answers", f"the server stopped answering: {error}", "check its log and the load of its machine")


def _versions(version: str) -> Finding:
    if version == queenmq.__version__:
        return good("versions", f"server and command are {version}")
    return doubtful(
        "versions",
        f"the server is {version}, this command {queenmq.__version__}",
        "install the same version of both; commands that the server does not know end with `not found`",
    )


def _database(state: str) -> Finding:
    if state == "connected":
        return good("database", "the server can reach it")
    return bad(
        "database",
        "the server cannot reach it; it keeps pushes in its journal meanwhile",
        "check the log of the server, PostgreSQL, and DATABASE_URL (or PG_HOST …) of the server",
    )


def _clock_of_server(health: _Reply) -> Iterator[Finding]:
    stamp = health.body.get("timestamp")
    if isinstance(stamp, str):
        yield clocks("server", datetime.fromisoformat(stamp).timestamp() - health.at, health.took_s / 2)


def _with_token(server: str) -> Iterator[Finding]:
    overview = _ask(server, "/api/v1/resources/overview")
    anonymous = _ask(server, "/api/v1/resources/overview", bearer=False) if token() else overview
    yield _authentication(server, anonymous)
    yield _token(overview, anonymous)
    is_limited = _is_limited(overview, anonymous)
    if overview.status != _OK and not is_limited:
        return
    if not is_limited:
        at = datetime.fromisoformat(overview.body["timestamp"]).timestamp()
        # The database's clock is read somewhere within the request.
        yield clocks("database", at - overview.at, overview.took_s / 2)
    postgres = _ask(server, "/api/v1/analytics/postgres-stats")
    yield from _postgres(postgres)
    horizon = _ask(server, "/api/v1/analytics/horizon")
    yield from _horizon(horizon)
    operations = _ask(server, "/api/v1/operations/stats")
    yield from _operations(operations)
    groups = _ask(server, f"/api/v1/consumer-groups?only=due&sort=lag&limit={MOST_GROUPS}")
    yield _work(None if is_limited else overview.body, groups)
    troubles = _ask(server, "/api/v1/troubles")
    yield from _troubles(troubles)
    state = _ask(server, "/api/v1/system/shared-state")
    if not is_limited or state.status == _OK:
        yield from _cluster(state)
    if is_limited:
        parts = {
            "clock of the database": overview,
            "durability": postgres,
            "horizon": horizon,
            "operations, journal": operations,
            "work": groups,
            "troubles": troubles,
            "peers": state,
        }
        left_out = ", ".join(name for name, reply in parts.items() if reply.status == _FORBIDDEN)
        yield skipped(
            "not checked",
            f"{left_out}: the token is not for them",
            "use a token with the role admin and without grants",
        )


def _is_limited(overview: _Reply, anonymous: _Reply) -> bool:
    """Whether the token is valid, but not for everything that its role allows."""
    is_refused = (overview.status, anonymous.status) == (_FORBIDDEN, _UNAUTHENTICATED)
    return is_refused and _error_of(overview) != BY_ROLE


def _error_of(reply: _Reply) -> Any:
    return reply.body.get("error") if isinstance(reply.body, dict) else None


def _authentication(server: str, anonymous: _Reply) -> Finding:
    """How the server answers a request without a token, whatever its configuration says."""
    if anonymous.status == _UNAUTHENTICATED:
        return good("authentication", "on: the server requires tokens")
    if anonymous.status != _OK:
        return skipped("authentication", f"the server answered {anonymous.status} to a request without a token")
    sentence = "off: everyone who can reach the server can read, push and delete everything"
    advice = "set QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true and restart the server"
    if said := next((name for name in _DEMAND_TOKENS if os.environ.get(name)), None):
        return doubtful("authentication", f"{sentence}, although {said} is set here", advice)
    if not is_here(server):
        return doubtful("authentication", sentence, advice)
    return good("authentication", sentence)


def _token(overview: _Reply, anonymous: _Reply) -> Finding:
    error = _error_of(overview)
    if overview.status == _OK:
        if anonymous.status == _OK:
            return good("token", "the server requires none")
        return good("token", "the token is valid")
    if overview.status == _UNAUTHENTICATED:
        if token():
            return bad(
                "token",
                f"the server refuses the token: {error}",
                "get a new one with `queen token create`, or a JWT whose signature, issuer, audience and expiry match "
                "the JWT_ variables of the server",
            )
        return bad("token", "the server requires one", f"set {TOKEN_VARIABLE}")
    if _is_limited(overview, anonymous):
        return good("token", "the token is valid, and limited by grants: some checks are left out")
    if overview.status == _FORBIDDEN:
        return bad("token", f"its role does not allow this: {error}", "use a token with the role read-only")
    if overview.status == _UNAVAILABLE:
        return skipped("token", f"the token is accepted, but the server cannot answer now: {error}")
    return bad("token", f"the server answered {overview.status}: {error}", "check the log of the server")


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
            "synchronous_commit is off: a crash of the database loses the newest messages",
            "set synchronous_commit = on in postgresql.conf",
        )
    else:
        yield good("durability", f"PostgreSQL {version} syncs what it commits")
    encrypted = stats.body["database"].get("tls")
    if encrypted is not None:
        yield good(
            "database connection",
            "the server connects to PostgreSQL with TLS"
            if encrypted
            else "the server connects to PostgreSQL without TLS (set PG_USE_SSL, or sslmode in DATABASE_URL)",
        )


def _horizon(reply: _Reply) -> Iterator[Finding]:
    if reply.status != _OK:
        return
    long = [one for one in reply.body["holders"] if one["heldForSeconds"] >= _HELD_LONG_S]
    for one in long:
        yield doubtful(
            "horizon",
            f"{one['description']} has kept dead rows from being removed for {one['heldForSeconds'] / 60:,.0f} min "
            f"({one['transactions']:,} transactions); tables grow and requests get slower",
            one["advice"],
        )
    if not long:
        hidden = "" if reply.body["seesAllSessions"] else "; ages are estimates, without pg_read_all_stats"
        yield good("horizon", f"nothing keeps dead rows from being removed for long{hidden}")


def _operations(stats: _Reply) -> Iterator[Finding]:
    if stats.status != _OK:
        return
    failed = sum(row["count"] for row in stats.body["stats"] if row["status"] == "failed")
    journal = stats.body["journal"]
    if journal is None:
        yield doubtful(
            "journal",
            "there is none: the server refuses pushes while the database is away",
            "set FILE_BUFFER_DIR to a folder that the server can write",
        )
    elif problem := _journal_problem(journal):
        yield problem
    else:
        yield good("journal", f"it holds {plural(journal['messages'], 'message')}")
    if failed:
        yield doubtful(
            "operations", f"{plural(failed, 'operation')} failed", "`queen operations --status failed` shows why"
        )
    else:
        yield good("operations", "no operation has failed")


def _journal_problem(journal: dict[str, Any]) -> Finding | None:
    if not journal["healthy"]:
        return bad("journal", "the server cannot write it", "check the disk of FILE_BUFFER_DIR on the server")
    if waiting := journal.get("waitingForKey"):
        return bad(
            "journal",
            f"pushes that were accepted and wait for the key with which they were encrypted: {waiting:,}",
            "start the server with that QUEEN_ENCRYPTION_KEY; its log has the fingerprint of the key",
        )
    if stuck := journal.get("stuck"):
        return bad(
            "journal",
            f"pushes that were accepted and that the database refuses: {stuck:,}; the server keeps retrying them",
            "correct the cause in the database; the log of the server has the error",
        )
    if aside := journal.get("quarantined") or journal["damaged"]:
        return bad(
            "journal",
            f"records of accepted pushes in quarantine: {aside:,}",
            "run `queen journal` on the machine of the server to list and retry them",
        )
    return None


def _work(overview: dict[str, Any] | None, groups: _Reply) -> Finding:
    """Whether the messages are worked off, beside whether the server could do so. Without an overview, dead letters are
    not counted."""
    letters: int = (overview or {}).get("messages", {}).get("deadLetter", 0)
    due = groups.body if groups.status == _OK else []
    found = behind_idle_or_paused(due)
    if overview is None and not found:
        return good("work", "no group that the token may read is behind")
    if not letters and not found:
        return good("work", "no group is behind, and there are no dead letters")
    if not found:
        dead = plural(letters, "dead letter")
        return doubtful("work", dead, "`queen dlq` lists them, `queen dlq redrive` delivers them again")
    worst, lag = found[0], seconds(found[0]["maxTimeLag"])
    dead = "" if overview is None else f"{plural(letters, 'dead letter')}; "
    groups_of = f"groups: {', '.join(counted(found))}"
    if more := unlisted(due):
        groups_of += f", and {more:,} with messages due that have waited less long"
    return doubtful(
        "work",
        f"{groups_of}; {dead}{worst['name']} of {worst['queueName']} has waited longest, for {lag}",
        f"`queen explain {worst['queueName']} --group {worst['name']}` says why; `queen status` lists the others",
    )


def _troubles(reply: _Reply) -> Iterator[Finding]:
    """What needs a person, as the overview of the dashboard lists it. A server of an older version lists nothing."""
    if reply.status != _OK:
        return
    for one in reply.body["troubles"]:
        if one["kind"] != "horizon":  # which has a check of its own
            yield doubtful(one["kind"].replace("_", " "), one["sentence"], one["advice"])


def _cluster(state: _Reply) -> Iterator[Finding]:
    if state.status != _OK:
        yield skipped("peers", "the role of the token does not allow this check", "use a token with the role admin")
        return
    body = state.body
    for switch, word, option in (("maintenance_mode", "pushes", ""), ("pop_maintenance_mode", "pops", " --pops")):
        if body.get(switch):
            yield doubtful(
                "maintenance",
                f"{word} are switched off on every server",
                f"switch them on again: `queen maintenance off{option}`",
            )
    yield from _peers(body)


def _peers(body: dict[str, Any]) -> Iterator[Finding]:
    health, dropped = body["server_health"], body["transport"]["dropped"]
    alive, dead = health["servers_alive"], health["servers_dead"]
    unsigned = sum(dropped.get(reason, 0) for reason in _SECRETS)
    if unsigned:
        yield doubtful(
            "secrets",
            f"{plural(unsigned, 'packet')} received without a signature by the secret of this server",
            "give all servers the same QUEEN_SYNC_SECRET",
        )
    if dropped.get("wrong_version"):
        yield doubtful(
            "versions of peers",
            f"{plural(dropped['wrong_version'], 'packet')} received from servers of another version",
            "run the same version on all servers of the cluster",
        )
    if dead:
        silent = ", ".join(health.get("silent") or sorted(health["last_heartbeat"]))
        yield bad(
            "peers",
            f"{plural(alive, 'other server')} alive, {dead} silent: {silent}",
            "restart them, remove them from QUEEN_UDP_PEERS, or open UDP port 6634 between the machines",
        )
    elif not body.get("enabled"):
        yield good("peers", "this server has none")
    elif alive:
        yield good("peers", f"{plural(alive, 'other server')} alive")
    else:
        yield bad(
            "peers",
            "QUEEN_UDP_PEERS names servers, but none of them has ever answered",
            "check the addresses, QUEEN_SYNC_SECRET, and that UDP port 6634 is open between the machines",
        )
