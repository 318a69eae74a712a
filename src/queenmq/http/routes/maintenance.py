"""GET and POST /api/v1/system/maintenance and …/maintenance/pop"""

from __future__ import annotations

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.broker import Broker
from queenmq.core.maintenance import Switch
from queenmq.http.answers.server import BufferStats, FailedFiles, MaintenanceMoved, MaintenanceState, PopMaintenance
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.requests import SwitchBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import all_queues
from queenmq.httpserver.messages import Request, Response
from queenmq.journal.board import JournalFigures

_TEXTS = {"enabled": "enabled (boolean) is required"}
_decoder = msgspec.json.Decoder(SwitchBody)
_PUSHES = {
    True: "Maintenance mode enabled: pushes are kept in the journal",
    False: "Maintenance mode disabled: the journal is being replayed",
}
_POPS = {True: "Pop maintenance mode enabled: pops find nothing", False: "Pop maintenance mode disabled"}


@documented({200: MaintenanceState})
async def maintenance_state(_: Request, context: Context) -> Response:
    """State of both maintenance switches, and of the journal of the server that answers."""
    broker = context.broker
    healthy = await broker.database_answers()
    aside = _set_aside(broker)
    stats = BufferStats(
        pending_count=_buffered(broker), failed_count=aside.count, db_healthy=healthy, failed_files=aside
    )
    state = MaintenanceState(
        maintenance_mode=broker.maintenance.is_on(Switch.PUSH),
        pop_maintenance_mode=broker.maintenance.is_on(Switch.POP),
        buffered_messages=_buffered(broker),
        buffer_healthy=_is_healthy(broker),
        buffer_stats=stats,
    )
    return Response(200, state)


@documented({200: MaintenanceMoved}, body=SwitchBody)
async def set_maintenance(request: Request, context: Context) -> Response:
    """Switch push maintenance on or off, on every server: while it is on, pushes go to the journals."""
    broker = context.broker
    on = decode(request.body, _decoder, _TEXTS).enabled
    await broker.set_maintenance(Switch.PUSH, on)
    moved = MaintenanceMoved(
        maintenance_mode=on,
        buffered_messages=_buffered(broker),
        buffer_healthy=_is_healthy(broker),
        message=_PUSHES[on],
    )
    return Response(200, moved)


@documented({200: PopMaintenance})
async def pop_maintenance_state(_: Request, context: Context) -> Response:
    """State of pop maintenance."""
    on = context.broker.maintenance.is_on(Switch.POP)
    return Response(200, PopMaintenance(pop_maintenance_mode=on, message=_POPS[on]))


@documented({200: PopMaintenance}, body=SwitchBody)
async def set_pop_maintenance(request: Request, context: Context) -> Response:
    """Switch pop maintenance on or off, on every server: while it is on, pops get no messages and long polls wait."""
    on = decode(request.body, _decoder, _TEXTS).enabled
    await context.broker.set_maintenance(Switch.POP, on)
    return Response(200, PopMaintenance(pop_maintenance_mode=on, message=_POPS[on]))


def _buffered(broker: Broker) -> int:
    """Messages in the journal of this server."""
    return 0 if broker.journal is None else broker.journal.figures().messages


def _is_healthy(broker: Broker) -> bool:
    return broker.journal is not None and bool(broker.journal.figures().healthy)


def _set_aside(broker: Broker) -> FailedFiles:
    """Records that were damaged, or that the database refused."""
    figures = JournalFigures() if broker.journal is None else broker.journal.figures()
    return FailedFiles(
        count=figures.quarantined,
        total_bytes=figures.quarantined_bytes,
        total_mb=round(figures.quarantined_bytes / 1024**2, 3),
        failover_count=figures.quarantined,
    )


ROUTES = (
    Route("GET", "/api/v1/system/maintenance", maintenance_state, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route(
        "POST",
        "/api/v1/system/maintenance",
        set_maintenance,
        Role.ADMIN,
        scope=all_queues(Verb.ADMINISTER),
        audited=True,
    ),
    Route("GET", "/api/v1/system/maintenance/pop", pop_maintenance_state, Role.READ_ONLY, scope=all_queues(Verb.READ)),
    Route(
        "POST",
        "/api/v1/system/maintenance/pop",
        set_pop_maintenance,
        Role.ADMIN,
        scope=all_queues(Verb.ADMINISTER),
        audited=True,
    ),
)
