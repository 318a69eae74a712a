"""`queen operations`: deferred pushes and stepped operations that run after the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from queenmq.cli import operation
from queenmq.cli.arguments import COUNT, as_json
from queenmq.cli.group import group, under
from queenmq.cli.remote import connected, queue_option, server
from queenmq.cli.show import Column, facts, listing, moment, print_json, seconds, table

KINDS = ("push", "delete_queue", "clear", "seek", "redrive", "redrive_matching", "retention")
STATES = ("pending", "processing", "blocked", "completed", "failed", "cancelled")


@group("operations", "queen operations", "queen operations --status failed", "queen operations stats", default="list")
def command() -> None:
    """List, show, retry and cancel operations of the operation queue. Without a subcommand, list them."""


@under(command, "list", "queen operations --status failed --queue orders")
@queue_option
@click.option("-p", "--partition", metavar="NAME", help="List only operations on partitions with this name.")
@click.option("--status", type=click.Choice(STATES), help="List only operations with this status.")
@click.option("--type", "kind", type=click.Choice(KINDS), help="List only operations of this type.")
@click.option("--limit", type=COUNT, default=50, show_default=True, metavar="N", help="Maximum number of operations.")
@as_json
@server
def list_(
    queue: str | None,
    partition: str | None,
    status: str | None,
    kind: str | None,
    limit: int,
    as_json: bool,
    server: str,
) -> None:
    """List operations, newest first."""
    which = {"queue": queue, "partition": partition, "status": status, "type": kind, "limit": limit}
    with connected(server) as queen:
        rows = queen.admin.list_operations(**which)["operations"]
    listing(
        rows,
        "no operations",
        Column("id"),
        Column("operationType", "type"),
        Column("status"),
        Column("queue"),
        Column("partition", minor=True),
        Column("items", number=True, minor=True),
        Column("progress", written=_progress),
        Column("priority", number=True, minor=True),
        Column("queuePosition", "position", number=True, minor=True),
        Column("createdAt", "created", written=moment),
        Column("retryCount", "retries", number=True, minor=True),
        Column("nextAttemptAt", "next attempt", written=moment, minor=True),
        Column("errorMessage", "error"),
        as_json=as_json,
    )


def _progress(progress: dict[str, Any]) -> str:
    total = "" if progress["total"] is None else f" of {progress['total']:,}"
    return f"{progress['done']:,}{total} {progress['unit']}"


def _shown(found: Mapping[str, Any]) -> None:
    times = {"createdAt", "processingStartedAt", "processedAt", "nextAttemptAt"}
    written: dict[str, Callable[[Any], str]] = {**dict.fromkeys(times, moment), "progress": _progress}
    facts((name, written[name](value) if name in written and value else value) for name, value in found.items())


@under(command, "show", "queen operations show 01890a5d-ac96-774b-bcce-b302099a8057")
@click.argument("operation_id")
@as_json
@server
def show(operation_id: str, as_json: bool, server: str) -> None:
    """Show one operation, and its result once it has ended."""
    with connected(server) as queen:
        found = queen.admin.get_operation(operation_id)
    print_json(found) if as_json else _shown(found)


@under(command, "wait", "queen operations wait 01890a5d-ac96-774b-bcce-b302099a8057")
@click.argument("operation_id")
@as_json
@server
def wait(operation_id: str, as_json: bool, server: str) -> None:
    """Wait until an operation has ended. The exit status is 1 if it did not succeed."""
    with connected(server) as queen:
        found = operation.wait(queen, operation_id)
    print_json(found) if as_json else _shown(found)
    operation.outcome(found)


@under(command, "retry", "queen operations retry 01890a5d-ac96-774b-bcce-b302099a8057")
@click.argument("operation_id")
@as_json
@server
def retry(operation_id: str, as_json: bool, server: str) -> None:
    """Retry an operation now.

    An operation that is blocked, or waits for its next attempt, keeps its place in its partition. One that has failed
    runs after the operations that were accepted later for its partition."""
    with connected(server) as queen:
        answer = queen.admin.retry_operation(operation_id)
    told = f"; {answer['message']}" if answer.get("message") else ""
    print_json(answer) if as_json else print(f"operation {operation_id} is {answer['status']}{told}")


@under(command, "cancel", "queen operations cancel 01890a5d-ac96-774b-bcce-b302099a8057")
@click.argument("operation_id")
@as_json
@server
def cancel(operation_id: str, as_json: bool, server: str) -> None:
    """Cancel an operation that is pending, blocked or failed, or stop a stepped operation that is running.

    A queue that is being deleted stays deleted: a retry, or later the retention service, removes the rest of it."""
    with connected(server) as queen:
        answer = queen.admin.cancel_operation(operation_id)
    told = f"; {answer['message']}" if answer.get("message") else ""
    print_json(answer) if as_json else print(f"operation {operation_id} is {answer['status']}{told}")


@under(command, "stats", "queen operations stats")
@as_json
@server
def stats(as_json: bool, server: str) -> None:
    """Show the number of operations by status, the load of the server and the size of its journal."""
    with connected(server) as queen:
        found = queen.admin.get_operation_stats()
    if as_json:
        print_json(found)
        return
    if found["stats"]:
        table(
            found["stats"],
            Column("operationType", "type"),
            Column("status"),
            Column("priority", number=True),
            Column("count", number=True),
            Column("oldest", written=moment),
            Column("avgLatencySeconds", "latency", written=seconds),
        )
    load, journal = found["systemHealth"], found["journal"]
    facts(
        [
            ("database connections in use", f"{load['poolUtilization']:.0%}"),
            ("pushes executed, queued, rejected", f"{load['executed']:,}, {load['queued']:,}, {load['rejected']:,}"),
            ("operations that wait", load["queueDepth"]),
            ("messages in the journal", None if journal is None else journal["messages"]),
        ]
    )
