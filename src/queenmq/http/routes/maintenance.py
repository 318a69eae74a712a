"""GET and POST /api/v1/system/maintenance and …/maintenance/pop"""

from __future__ import annotations

import msgspec

from queenmq.cluster.maintenance import Switch
from queenmq.engine.engine import Engine
from queenmq.http.auth import Role
from queenmq.http.decoding import decode
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import documented
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
_PUSHES = {True: "Maintenance mode enabled: pushes are refused with 503", False: "Maintenance mode disabled"}
_POPS = {True: "Pop maintenance mode enabled: pops find nothing", False: "Pop maintenance mode disabled"}


def add_routes(router: Router, engine: Engine) -> None:
    maintenance = engine.maintenance

    @documented({200: MaintenanceState})
    async def maintenance_state(_: Request) -> Response:
        """Both switches."""
        healthy = await engine.administration.database_answers()
        stats = BufferStats(pending_count=0, failed_count=0, db_healthy=healthy, failed_files=FailedFiles())
        state = MaintenanceState(
            maintenance_mode=maintenance.is_on(Switch.PUSH),
            pop_maintenance_mode=maintenance.is_on(Switch.POP),
            buffered_messages=0,
            buffer_healthy=True,
            buffer_stats=stats,
        )
        return json_response(200, state)

    @documented({200: MaintenanceMoved}, body=SwitchBody)
    async def set_maintenance(request: Request) -> Response:
        """Switch pushes off or on again, on every server and for good."""
        on = decode(request.body, _decoder, _TEXTS).enabled
        await maintenance.move(Switch.PUSH, on)
        moved = MaintenanceMoved(maintenance_mode=on, buffered_messages=0, buffer_healthy=True, message=_PUSHES[on])
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
