"""`queen cluster`: the servers, how busy they are, and what they hear of each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queenmq.cli.arguments import as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server
from queenmq.cli.show import Column, listing, note


@command_of("cluster", "queen cluster", "queen cluster --json")
@as_json
@server
def command(as_json: bool, server: str) -> None:
    """List the servers of the cluster and how busy they are, as the server that answers knows them."""
    from queenmq.client import Forbidden

    with connected(server) as queen:
        found = queen.admin.get_cluster_balance()
        try:
            heard: dict[str, Any] | None = queen.admin.get_shared_state()["server_health"]
        except Forbidden:
            heard = None  # it needs the role admin
    rows = [{**one, "state": _state(one)} for one in found["servers"]]
    listing(
        rows,
        "no servers",
        Column("server_id", "server"),
        Column("url"),
        Column("state"),
        Column("load_score", "load", number=True),
        Column("cpu_percent", "CPU %", number=True),
        Column("parked_polls", "long polls", number=True, minor=True),
        Column("outstanding_requests", "requests", number=True, minor=True),
        Column("circuit", minor=True),
        as_json=as_json,
        whole=found if heard is None else found | {"server_health": heard},
    )
    if as_json:
        return
    if heard is not None and heard["servers_dead"]:
        note(f"{heard['servers_dead']} silent; `queen doctor` says what to do.")
    routes = "on" if found["coordinator_enabled"] else "off"
    note(
        f"coordinator {routes}; {found['forwarded']:,} requests forwarded, {found['fallbacks']:,} answered here instead"
    )


def _state(one: Mapping[str, Any]) -> str:
    state = "healthy" if one["healthy"] else "unhealthy"
    return f"{state}, answers this" if one["local"] else state
