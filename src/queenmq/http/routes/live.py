"""GET /api/v1/live: how it is now, once or every second"""

from __future__ import annotations

import heapq
from datetime import UTC, datetime

import msgspec

import queenmq
from queenmq.clock import SystemClock
from queenmq.cluster.maintenance import Switch
from queenmq.core.names import iso_millis
from queenmq.engine.engine import Engine
from queenmq.errors import UnavailableError
from queenmq.http.figures import LiveBacklog, LiveCounts, LiveQueue, LiveServer, Snapshot
from queenmq.http.messages import Request, Response, StreamedResponse
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.router import Router

EVENTS = b"text/event-stream"
_MOST_QUEUES = 10
_NO_STORE = (b"Cache-Control", b"no-store")
_encode = msgspec.json.Encoder().encode


def add_routes(router: Router, engine: Engine) -> None:
    async def beat() -> bytes:
        return _encode(await _snapshot(engine))

    @documented({200: Snapshot})
    async def live(request: Request) -> Response:
        """How it is now; with `Accept: text/event-stream` once a second, until the client goes away."""
        if EVENTS not in request.headers.get(b"accept", b""):
            return Response(200, await beat(), headers=(_NO_STORE,))
        return StreamedResponse(200, content_type=EVENTS, headers=(_NO_STORE,), source=engine.live.watch(beat))

    router.add("GET", "/api/v1/live", live, Role.READ_ONLY)


async def _snapshot(engine: Engine) -> Snapshot:
    backlog, problem = None, None
    try:
        backlog = await _backlog(engine)
    except UnavailableError as error:
        problem = str(error)
    known = engine.maintenance.is_known
    members = engine.node.state.members.members() if known else []
    alive = sum(member.alive for member in members)
    parked = engine.popper.waiting.registry.parked()
    return Snapshot(
        at=iso_millis(datetime.fromtimestamp(SystemClock().wall(), UTC)),
        server=_server(engine),
        counts=_counts(engine),
        waiters=engine.popper.waiting.registry.total,
        waited_for=[
            LiveQueue(queue=queue, waiters=parked[queue])
            for queue in heapq.nlargest(_MOST_QUEUES, parked, parked.__getitem__)
        ],
        operations_waiting=engine.load.load.queue_depth,
        journal=0 if engine.buffer is None else engine.buffer.messages,
        servers_alive=alive + 1,
        servers_dead=len(members) - alive,
        push_maintenance=known and engine.maintenance.is_on(Switch.PUSH),
        pop_maintenance=known and engine.maintenance.is_on(Switch.POP),
        problem=problem,
        backlog=backlog,
    )


async def _backlog(engine: Engine) -> LiveBacklog:
    await engine.statistics.freshen()
    sums = await engine.reports.one("overview", None, None, None)
    rates = await engine.reports.one("recent_rates")
    return LiveBacklog(
        queues=sums["queues"],
        partitions=sums["partitions"],
        total=sums["total"],
        pending=sums["pending"],
        processing=sums["processing"],
        dead_letters=sums["dead_letters"],
        leases=sums["leases"],
        lag_seconds=sums["lag_max_s"] or 0.0,
        lag_messages=sums["lag_max"] or 0,
        pushed_per_second=rates["pushed"],
        popped_per_second=rates["popped"],
        acked_per_second=rates["acked"],
        age_seconds=sums["age_s"],
    )


def _counts(engine: Engine) -> LiveCounts:
    counts = engine.activity.now()
    return LiveCounts(
        pushed=counts.push_messages,
        popped=counts.pop_messages,
        acked=counts.ack_success,
        failed=counts.ack_failed,
        dead_lettered=counts.dead_lettered,
        pop_requests=counts.pop_requests,
        pop_empty=counts.pop_empty,
        database_errors=engine.database.errors,
    )


def _server(engine: Engine) -> LiveServer:
    vitals, load = engine.vitals, engine.load.measured()
    return LiveServer(
        id=engine.node.server_id,
        version=queenmq.__version__,
        uptime_seconds=vitals.uptime_s,
        processor_microseconds=sum(vitals.processor_us()),
        memory_bytes=vitals.memory().resident,
        event_loop_lag_ms=vitals.loop_lag_ms,
        pool_used=load.pool_used,
        pool_waiting=load.pool_waiting,
        requests_waiting=sum(lane.outstanding for lane in engine.sidecar.lanes),
    )
