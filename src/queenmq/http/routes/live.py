"""GET /api/v1/live: how it is now, once or every second"""

from __future__ import annotations

import heapq
from functools import partial

import msgspec

import queenmq
from queenmq.access.permissions import Verb
from queenmq.broker.broker import Broker
from queenmq.clock import utc_now
from queenmq.core.maintenance import Switch
from queenmq.core.names import iso_millis
from queenmq.errors import UnavailableError
from queenmq.http.answers.server import LiveBacklog, LiveCounts, LiveQueue, LiveServer, Snapshot
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.scopes import all_queues
from queenmq.httpserver.messages import Request, Response, StreamedResponse
from queenmq.reports.overview import overview_and_rates

EVENTS = b"text/event-stream"
_MOST_QUEUES = 10
_MOST_SILENT = 10
_NO_STORE = (b"Cache-Control", b"no-store")
_encode = msgspec.json.Encoder().encode


@documented({200: Snapshot})
async def live(request: Request, context: Context) -> Response:
    """Live state of this server and the backlog; with `Accept: text/event-stream` a snapshot every second."""
    broker = context.broker
    if EVENTS not in request.headers.get(b"accept", b""):
        return Response(200, await _snapshot(context))
    source = broker.live.watch(partial(_beat, context))
    return StreamedResponse(200, content_type=EVENTS, headers=(_NO_STORE,), source=source)


async def _beat(context: Context) -> bytes:
    return _encode(await _snapshot(context))


async def _snapshot(context: Context) -> Snapshot:
    broker = context.broker
    backlog, problem = None, None
    try:
        backlog = await _backlog(context)
    except UnavailableError as error:
        problem = str(error)
    known = broker.caches.switches.were_read
    members = broker.node.state.members.members() if known else []
    alive = sum(member.alive for member in members)
    parked = broker.long_polls.registry.parked()
    return Snapshot(
        at=iso_millis(utc_now()),
        server=_server(broker),
        counts=_counts(broker),
        waiters=broker.long_polls.registry.total,
        waited_for=[
            LiveQueue(queue=queue, waiters=parked[queue])
            for queue in heapq.nlargest(_MOST_QUEUES, parked, parked.__getitem__)
        ],
        operations_waiting=broker.load.load.queue_depth,
        journal=0 if broker.journal is None else broker.journal.figures().messages,
        servers_alive=alive + 1,
        servers_dead=len(members) - alive,
        silent_servers=sorted(member.id for member in members if not member.alive)[:_MOST_SILENT],
        push_maintenance=known and broker.maintenance.is_on(Switch.PUSH),
        pop_maintenance=known and broker.maintenance.is_on(Switch.POP),
        problem=problem,
        backlog=backlog,
    )


async def _backlog(context: Context) -> LiveBacklog:
    await context.broker.statistics.freshen()
    sums, rates = await overview_and_rates(context.reports)
    return LiveBacklog(
        queues=sums.queues,
        partitions=sums.partitions,
        total=sums.total,
        pending=sums.pending,
        processing=sums.processing,
        dead_letters=sums.dead_letters,
        leases=sums.leases,
        lag_seconds=sums.lag_max_s or 0.0,
        lag_messages=sums.lag_max or 0,
        pushed_per_second=rates.pushed,
        popped_per_second=rates.popped,
        acked_per_second=rates.acked,
        age_seconds=sums.age_s,
    )


def _counts(broker: Broker) -> LiveCounts:
    counts = broker.activity.now()
    return LiveCounts(
        pushed=counts.push_messages,
        popped=counts.pop_messages,
        acked=counts.ack_success,
        failed=counts.ack_failed,
        dead_lettered=counts.dead_lettered,
        pop_requests=counts.pop_requests,
        pop_empty=counts.pop_empty,
        database_errors=broker.database.errors,
    )


def _server(broker: Broker) -> LiveServer:
    vitals, load = broker.vitals, broker.load.measured()
    return LiveServer(
        id=broker.node.server_id,
        version=queenmq.__version__,
        uptime_seconds=vitals.uptime_s,
        processor_microseconds=sum(vitals.processor_us()),
        memory_bytes=vitals.memory().resident,
        event_loop_lag_ms=vitals.loop_lag_ms,
        pool_used=load.pool_used,
        pool_waiting=load.pool_waiting,
        requests_waiting=sum(lane.outstanding for lane in broker.lanes.values()),
    )


ROUTES = (Route("GET", "/api/v1/live", live, Role.READ_ONLY, scope=all_queues(Verb.READ)),)
