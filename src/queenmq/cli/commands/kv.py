"""`queen kv`: values under keys."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from queenmq.cli import exits, lines
from queenmq.cli.arguments import COUNT, as_json
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, compact, listing, moment, print_json


@group("kv", "queen kv list shop", "queen kv get shop order-17", default="list")
def command() -> None:
    """List, get, put, count and delete values under keys of a namespace, and list locks. Without a subcommand, list the
    namespaces."""


@under(command, "list", "queen kv list", "queen kv list shop --prefix order-")
@click.argument("namespace", required=False)
@click.option("--prefix", default="", help="Only keys, or namespaces, that begin with this.")
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of them.")
@as_json
@server
def list_(namespace: str | None, prefix: str, limit: int, as_json: bool, server: str) -> None:
    """List the keys of NAMESPACE with their values; without one, list the namespaces that have keys."""
    if namespace is None:
        with connected(server) as queen:
            page = queen.admin.list_key_namespaces(prefix=prefix or None, limit=limit)
        told = [one | {"keys": f"{one['keys']}+" if one["more"] else one["keys"]} for one in page["namespaces"]]
        rows = page["namespaces"] if as_json else told
        listing(rows, "no namespace has keys", Column("namespace"), Column("keys", number=True), as_json=as_json)
        return
    with connected(server) as queen:
        [found] = queen.keys.list(namespace, prefix, limit=limit)["results"]
    listing(
        found["rows"],
        f"{namespace} has no such keys",
        Column("key"),
        Column("version", number=True),
        Column("expiresAt", "ends", written=moment),
        Column("updatedAt", "changed", written=moment),
        Column("value", written=compact),
        as_json=as_json,
    )


@under(command, "locks", "queen kv locks", "queen kv locks --prefix nightly-")
@click.option("--prefix", default="", help="Only locks whose names begin with this.")
@click.option("--limit", type=COUNT, default=100, show_default=True, metavar="N", help="Maximum number of locks.")
@as_json
@server
def locks(prefix: str, limit: int, as_json: bool, server: str) -> None:
    """List the locks that somebody holds, one line for each permit."""
    with connected(server) as queen:
        found = queen.admin.list_locks(prefix=prefix or None, limit=limit)["locks"]
    listing(
        [{"name": lock["name"]} | holder for lock in found for holder in lock["holders"]],
        "nobody holds a lock",
        Column("name", "lock"),
        Column("owner", "holder"),
        Column("slot", "permit", number=True),
        Column("since", "held since", written=moment),
        Column("renewedAt", "renewed", written=moment),
        Column("expiresAt", "ends", written=moment),
        as_json=as_json,
    )


@under(command, "get", "queen kv get shop order-17")
@click.argument("namespace")
@click.argument("key")
@as_json
@server
def get(namespace: str, key: str, as_json: bool, server: str) -> None:
    """Print the value of KEY."""
    with connected(server) as queen:
        [found] = queen.keys.get(namespace, key)["results"]
    if as_json:
        print_json(found)
    if not found["found"]:
        raise exits.Failed(f"{namespace} has no key {key}", exits.NOT_FOUND)
    if not as_json:
        print(compact(found["value"]))


@under(command, "put", """queen kv put shop order-17 '{"state": "held"}' --ttl 3600""")
@click.argument("namespace")
@click.argument("key")
@click.argument("value", metavar="JSON")
@click.option("--ttl", type=COUNT, metavar="S", help="Seconds after which the value is gone; for ever if not given.")
@click.option("--expect", type=click.IntRange(0), metavar="VERSION", help="Version the key must have; 0: it is new.")
@as_json
@server
def put(namespace: str, key: str, value: str, ttl: int | None, expect: int | None, as_json: bool, server: str) -> None:
    """Store the JSON under KEY."""
    lines.check_json(value, "the value")
    with connected(server) as queen:
        [done] = queen.keys.put(namespace, key, msgspec.Raw(value.encode()), ttl=ttl, expect=expect)["results"]
    _told(done, f"{key} has version {done.get('version')}", as_json)


@under(
    command,
    "incr",
    "queen kv incr shop orders-today --ttl 86400",
    "queen kv incr shop seats -2 --least 0",
    context_settings={"ignore_unknown_options": True},  # BY may begin with a minus
)
@click.argument("namespace", metavar="QUEUE-OR-NAMESPACE")
@click.argument("key")
@click.argument("by", type=int, default=1)
@click.option("--ttl", type=COUNT, metavar="S", help="Seconds that a new counter lives; for ever if not given.")
@click.option("--least", type=int, metavar="N", help="Nothing is changed if the counter would be below this.")
@click.option("--most", type=int, metavar="N", help="Nothing is changed if the counter would be above this.")
@as_json
@server
def incr(
    namespace: str, key: str, by: int, ttl: int | None, least: int | None, most: int | None, as_json: bool, server: str
) -> None:
    """Add BY, 1 if not given, to the whole number under KEY, and print what it is then; a new one begins at 0.

    If the answer gets lost, it is unknown whether it was added: `queen kv get` tells what is there."""
    with connected(server) as queen:
        [done] = queen.keys.increment(namespace, key, by, ttl=ttl, least=least, most=most)["results"]
    _told(done, compact(done["value"]) if "value" in done else f"{key} was changed", as_json)


@under(command, "delete", "queen kv delete shop order-17")
@click.argument("namespace")
@click.argument("key")
@click.option("--expect", type=click.IntRange(0), metavar="VERSION", help="Version the key must have.")
@as_json
@server
def delete(namespace: str, key: str, expect: int | None, as_json: bool, server: str) -> None:
    """Delete KEY."""
    with connected(server) as queen:
        [done] = queen.keys.delete(namespace, key, expect=expect)["results"]
    _told(done, f"{key} is deleted", as_json)


def _told(done: dict[str, Any], success: str, as_json: bool) -> None:
    if as_json:
        print_json(done)
    if not done["applied"]:
        raise exits.Failed(f"nothing was changed: {done['reason']}", exits.NOT_FOUND)
    if not as_json:
        print(success)
