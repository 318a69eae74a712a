"""GET and POST /api/v1/system/maintenance and …/maintenance/pop"""

from __future__ import annotations

import msgspec

from queenmq.cluster.maintenance import Switch
from queenmq.engine.engine import Engine
from queenmq.http.decoding import decode
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.schemas import (
    BufferStats,
    FailedFiles,
    MaintenanceMoved,
    MaintenanceState,
    PopMaintenance,
    SwitchBody,
)

_TEXTS = {"enabled": "enabled (boolean) is required"}
_decoder = msgspec.json.Decoder(SwitchBody)
_PUSHES = {
    True: "Maintenance mode enabled: pushes are kept in the journal",
    False: "Maintenance mode disabled: the journal is being replayed",
}
_POPS = {True: "Pop maintenance mode enabled: pops find nothing", False: "Pop maintenance mode disabled"}


def add_routes(router: Router, engine: Engine) -> None:
    maintenance = engine.maintenance

    @documented({200: MaintenanceState})
    async def maintenance_state(_: Request) -> Response:
        """Both switches, and the journal of the server that answers."""
        healthy = await engine.administration.database_answers()
        aside = _set_aside(engine)
        stats = BufferStats(
            pending_count=_buffered(engine), failed_count=aside.count, db_healthy=healthy, failed_files=aside
        )
        state = MaintenanceState(
            maintenance_mode=maintenance.is_on(Switch.PUSH),
            pop_maintenance_mode=maintenance.is_on(Switch.POP),
            buffered_messages=_buffered(engine),
            buffer_healthy=_is_healthy(engine),
            buffer_stats=stats,
        )
        return json_response(200, state)

    @documented({200: MaintenanceMoved}, body=SwitchBody)
    async def set_maintenance(request: Request) -> Response:
        """Send pushes to the journals, or to the database again, on every server and for good."""
        on = decode(request.body, _decoder, _TEXTS).enabled
        await maintenance.move(Switch.PUSH, on)
        moved = MaintenanceMoved(
            maintenance_mode=on,
            buffered_messages=_buffered(engine),
            buffer_healthy=_is_healthy(engine),
            message=_PUSHES[on],
        )
        return json_response(200, moved)

    @documented({200: PopMaintenance})
    async def pop_maintenance_state(_: Request) -> Response:
        """The switch for pops."""
        on = maintenance.is_on(Switch.POP)
        return json_response(200, PopMaintenance(pop_maintenance_mode=on, message=_POPS[on]))

    @documented({200: PopMaintenance}, body=SwitchBody)
    async def set_pop_maintenance(request: Request) -> Response:
        """Switch pops off or on again, on every server and for good. Long polls are held meanwhile."""
        on = decode(request.body, _decoder, _TEXTS).enabled
        await maintenance.move(Switch.POP, on)
        return json_response(200, PopMaintenance(pop_maintenance_mode=on, message=_POPS[on]))

    router.add("GET", "/api/v1/system/maintenance", maintenance_state, Role.ADMIN)
    router.add("POST", "/api/v1/system/maintenance", set_maintenance, Role.ADMIN)
    router.add("GET", "/api/v1/system/maintenance/pop", pop_maintenance_state, Role.ADMIN)
    router.add("POST", "/api/v1/system/maintenance/pop", set_pop_maintenance, Role.ADMIN)


def _buffered(engine: Engine) -> int:
    """Messages in the journal of this server."""
    return 0 if engine.buffer is None else engine.buffer.messages


def _is_healthy(engine: Engine) -> bool:
    return engine.buffer is not None and engine.buffer.journal.healthy


def _set_aside(engine: Engine) -> FailedFiles:
    """Records that were damaged, or that the database refused."""
    sizes = [] if engine.buffer is None else engine.buffer.journal.set_aside_sizes()
    return FailedFiles(
        count=len(sizes),
        total_bytes=sum(sizes),
        total_mb=round(sum(sizes) / 1024**2, 3),
        failover_count=len(sizes),
    )
