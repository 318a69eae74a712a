"""`queen maintenance`: switch pushes or pops off and on again, on every server."""

from __future__ import annotations

import click

from queenmq.cli.arguments import as_json
from queenmq.cli.group import command as command_of
from queenmq.cli.remote import connected, server
from queenmq.cli.show import facts, print_json


@command_of("maintenance", "queen maintenance", "queen maintenance on", "queen maintenance off --pops")
@click.argument("switch", required=False, type=click.Choice(["on", "off"]))
@click.option("--pops", is_flag=True, help="Switch pops instead of pushes.")
@as_json
@server
def command(switch: str | None, pops: bool, as_json: bool, server: str) -> None:
    """Show whether maintenance is on, or switch it on or off, on every server.

    While it is on for pushes, servers keep them in their journals and store them afterwards. While it is on for pops,
    consumers get nothing; leases that are out can be acknowledged.
    """
    with connected(server) as queen:
        if switch is not None:
            change = queen.admin.set_pop_maintenance_mode if pops else queen.admin.set_maintenance_mode
            change(switch == "on")
        found = queen.admin.get_maintenance_mode()
    if as_json:
        print_json(found)
        return
    facts(
        [
            ("pushes", "switched off; kept in the journal" if found["maintenanceMode"] else "on"),
            ("pops", "switched off" if found["popMaintenanceMode"] else "on"),
            ("messages in the journal", f"{found['bufferedMessages']:,}"),
        ]
    )
