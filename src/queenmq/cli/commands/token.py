"""`queen token`: make, list and revoke tokens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, NAMES, Kind, as_json, consent, data_dir
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, confirm, listing, moment, note, print_json
from queenmq.ids import is_uuid

if TYPE_CHECKING:
    from queenmq.access.tokens import NewToken, Token

ROLES: Final = ("read-only", "read-write", "admin")
VERBS: Final = ("read", "push", "pop", "ack", "administer")
_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "m": 60}


def _duration(raw: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9}) ?(s|min|m|h|d)", raw.strip())
    if found is None or int(found[1]) < 1:
        raise ValueError(f"{raw!r} is not a time such as 30d, 12h, 90min or 45s")
    return int(found[1]) * _UNITS[found[2]]


DURATION: Final = Kind("TIME", _duration)


@group(
    "token",
    "queen token create shop --role read-write --queues 'orders.*' --expires 30d",
    "queen token list",
    default="list",
)
def command() -> None:
    """Make, list and revoke tokens that the server accepts with QUEEN_TOKENS_ENABLED or JWT_ENABLED. Without a
    subcommand, list them.

    Only a digest of each token is stored: a token is shown once, when it is made. The first one is made in the
    database, because a server asks for a token: `queen token create root --role admin --in-database`."""


@under(
    command,
    "create",
    "queen token create shop --role read-write --queues 'orders.*' --groups 'shop-*' --expires 30d",
    "queen token create sensor --role read-write --queues readings --allow push",
    "queen token create root --role admin --in-database",
)
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role of the token.")
@click.option(
    "--queues", type=NAMES, help="Queues that it is for, as patterns such as 'orders.*', with commas between."
)
@click.option("--namespaces", type=NAMES, help="Namespaces that it is for: the queues whose names begin with them.")
@click.option("--groups", type=NAMES, help="Consumer groups as which it may pop and acknowledge, as patterns.")
@click.option("--allow", type=NAMES, help=f"What it may do, if not all that the role allows: {', '.join(VERBS)}.")
@click.option("--requests-per-second", type=COUNT, metavar="N", help="Requests that it may make in a second.")
@click.option("--messages-per-second", type=COUNT, metavar="N", help="Messages that it may push in a second.")
@click.option("--long-polls", type=COUNT, metavar="N", help="Long polls that it may have waiting at a time.")
@click.option("--expires", type=DURATION, help="Time after which it is not accepted any more, such as 30d.")
@click.option(
    "--in-database", is_flag=True, help="Write to the database instead of asking a server: for the first token."
)
@data_dir
@as_json
@server
def create(
    name: str,
    role: str,
    queues: list[str] | None,
    namespaces: list[str] | None,
    groups: list[str] | None,
    allow: list[str] | None,
    requests_per_second: int | None,
    messages_per_second: int | None,
    long_polls: int | None,
    expires: int | None,
    in_database: bool,
    data_dir: Path | None,
    as_json: bool,
    server: str,
) -> None:
    """Make a token and print it. This is the only time that it is shown.

    Without --queues, --namespaces, --groups and --allow the role alone decides what it may do. --in-database needs no
    token: DATABASE_URL names the database, unless it is the bundled one."""
    from queenmq.client import Unauthenticated

    unknown = [verb for verb in allow or () if verb not in VERBS]
    if unknown:
        raise exits.Failed(f"--allow does not know {unknown[0]!r}; it knows {', '.join(VERBS)}", exits.USAGE)
    given = {"queues": queues, "namespaces": namespaces, "groups": groups, "allow": allow}
    grant = {key: value for key, value in given.items() if value is not None}
    empty = [key for key, value in grant.items() if not value]
    if empty:
        raise exits.Failed(f"--{empty[0]} is empty: leave it out, or say what the token is for", exits.USAGE)
    grants = [grant] if grant else []
    bounds = {
        "requestsPerSecond": requests_per_second,
        "messagesPerSecond": messages_per_second,
        "longPolls": long_polls,
    }
    limits = {key: value for key, value in bounds.items() if value is not None}
    made: Mapping[str, Any]
    if in_database:
        text, made = _create_in_database(data_dir, name, role, {"grants": grants, "limits": limits}, expires)
    else:
        with connected(server) as queen:
            wanted = {"grants": grants} if grants else {}
            try:
                made = queen.admin.create_token(name, role, **wanted, limits=limits, expiresInSeconds=expires)
            except Unauthenticated as error:
                told = f"the server requires a token ({error.message}); make the first one with --in-database"
                raise exits.Failed(told, exits.NOT_ALLOWED) from None
        text = made["token"]
    if as_json:
        print_json(made)
        return
    print(text)
    until = f"; it expires at {moment(made['expiresAt'])}" if made["expiresAt"] else ""
    note(f"token {made['id']} has the role {role}{until}; keep it now, it is not shown again")


@under(command, "list", "queen token list")
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of tokens.")
@as_json
@server
def list_(limit: int, as_json: bool, server: str) -> None:
    """List tokens, newest first, without their texts."""
    with connected(server) as queen:
        rows = queen.admin.list_tokens(limit=limit)["tokens"]
    listing(
        rows,
        "no tokens",
        Column("id"),
        Column("name"),
        Column("role"),
        Column("grants", "restricted to", written=_grants),
        Column("valid"),
        Column("createdAt", "created", written=moment),
        Column("createdBy", "by"),
        Column("expiresAt", "expires", written=moment),
        Column("revokedAt", "revoked", written=moment),
        Column("lastUsedAt", "last used", written=moment),
        as_json=as_json,
    )


@under(command, "revoke", "queen token revoke 3f1c7e4a-9a52-4c55-8f0e-5d6a2b9d1c11 --yes")
@click.argument("token_id")
@consent
@as_json
@server
def revoke(token_id: str, yes: bool, as_json: bool, server: str) -> None:
    """Revoke a token, on every server. It cannot be made valid again."""
    if not is_uuid(token_id):
        raise exits.Failed(
            f"{token_id!r} is not the id of a token; `queen token list` shows the ids with the names", exits.USAGE
        )
    confirm(f"Revoke token {token_id}? Requests with it will get 401.", yes)
    with connected(server) as queen:
        answer = queen.admin.revoke_token(token_id)
    print_json(answer) if as_json else print(f"token {answer['name']} is revoked")


def _grants(grants: list[dict[str, list[str]]]) -> str:
    told = ["; ".join(f"{key} {', '.join(values)}" for key, values in grant.items()) for grant in grants]
    return " or ".join(told)


def _create_in_database(
    data_dir: Path | None, name: str, role: str, restricted: dict[str, Any], expires: int | None
) -> tuple[str, dict[str, Any]]:
    import msgspec

    from queenmq import config
    from queenmq.access.permissions import Grant, check_grants
    from queenmq.access.rates import Limits
    from queenmq.access.tokens import NewToken
    from queenmq.core.names import check_name
    from queenmq.errors import HttpError, RequestError, StartupError

    try:
        check_name(name, "NAME")
        wanted = msgspec.convert(restricted["grants"], tuple[Grant, ...])
        check_grants(wanted, "grants")
        limits = msgspec.convert(restricted["limits"], Limits)
        new = NewToken(name=name, role=role, grants=wanted, limits=limits, expires_in_s=expires)
        made, text = asyncio.run(_stored(config.load(flags={"QUEEN_DATA_DIR": data_dir}), new))
    except RequestError as error:
        raise exits.Failed(error.message, exits.USAGE) from error
    except HttpError as error:
        raise StartupError(error.message) from error
    expires_at = None if made.expires_at is None else made.expires_at.isoformat()
    return text, {"id": str(made.id), "name": name, "role": role, "token": text, "expiresAt": expires_at}


async def _stored(settings: Any, wanted: NewToken) -> tuple[Token, str]:
    from queenmq.access.tokens import Tokens
    from queenmq.cli.database import opened
    from queenmq.storage.migrations import require_newest

    async with opened(settings) as database:
        await require_newest(database)
        return await Tokens(database).create(wanted, "queen token create")
