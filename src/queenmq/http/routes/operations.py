"""The operation queue: what waits, what became of it, and retry and cancel."""

from __future__ import annotations

from datetime import datetime

import asyncpg
from msgspec import Raw

from queenmq.core.names import iso_millis
from queenmq.engine.engine import Engine
from queenmq.engine.operations import OperationFilter
from queenmq.errors import Conflict, InvalidRequest, NotFound
from queenmq.http.decoding import query_count, query_name
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import COUNT, NAME, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.schemas import (
    Error,
    JournalState,
    LoadState,
    OperationMoved,
    OperationPage,
    OperationState,
    OperationStats,
    OperationTotals,
    Page,
    Progress,
)
from queenmq.ids import is_uuid
from queenmq.overload.load_manager import Choice
from queenmq.overload.push_buffer import Held

_ONE = "/api/v1/operations/{operationId}"
_PATH = {"operationId": {"type": "string", "format": "uuid"}}
_STATES = ("pending", "processing", "completed", "failed", "cancelled")
_KINDS = ("push", "delete_queue", "clear", "seek", "redrive", "retention")
_MOST = 1000
_QUERY = (
    Parameter("status", {"type": "string", "enum": list(_STATES)}, "Only operations in this state."),
    Parameter("type", {"type": "string", "enum": list(_KINDS)}, "Only operations of this kind."),
    Parameter("queue", NAME, "Only operations on this queue."),
    Parameter("limit", COUNT, f"Most operations in the answer, up to {_MOST}.", 100),
    Parameter("offset", COUNT, "Operations to skip.", 0),
)
_IN_JOURNAL = "it is in the journal of this server, from where it can only go into the database"
_MISSING = "there is no such operation; completed ones are forgotten after a while"


def add_routes(router: Router, engine: Engine) -> None:
    operations = engine.operations

    @documented({200: OperationStats})
    async def operation_stats(_: Request) -> Response:
        """What is in the operation queue, in the journal of this server, and how loaded this server is."""
        rows = await operations.statistics()
        return json_response(
            200,
            OperationStats(
                stats=[_totals(row) for row in rows], system_health=_health(engine), journal=_journal(engine)
            ),
        )

    @documented({200: OperationPage}, query=_QUERY)
    async def list_operations(request: Request) -> Response:
        """Operations, newest first."""
        status, kind = _chosen(request, "status", _STATES), _chosen(request, "type", _KINDS)
        limit = query_count(request, "limit", 100, _MOST)
        offset = query_count(request, "offset", 0, 2**31 - 1)
        rows = await operations.page(OperationFilter(status, query_name(request, "queue"), kind, limit, offset))
        page = OperationPage(operations=[_shown(row, engine) for row in rows], pagination=Page(limit, offset))
        return json_response(200, page)

    @documented({200: OperationState, 404: Error}, path=_PATH)
    async def get_operation(request: Request) -> Response:
        """One operation, with its result once there is one."""
        operation_id = _id(request)
        held = None if engine.buffer is None else engine.buffer.find(operation_id)
        if held is not None:
            return json_response(200, _journalled(held, engine))
        row = await operations.find(operation_id)
        if row is None:
            raise NotFound(_MISSING)
        return json_response(200, _shown(row, engine))

    async def refused(request: Request, refusal: str) -> Response:
        if engine.buffer is not None and engine.buffer.find(_id(request)) is not None:
            raise Conflict(_IN_JOURNAL)
        if await operations.find(_id(request)) is None:
            raise NotFound(_MISSING)
        raise Conflict(refusal)

    @documented({200: OperationMoved, 404: Error, 409: Error}, path=_PATH)
    async def retry_operation(request: Request) -> Response:
        """Do a failed operation again, behind what came after it; administration goes on where it was stopped."""
        if not await operations.retry(_id(request)):
            return await refused(request, "only a failed operation can be retried, or cancelled administration")
        engine.load.tell_queued(1)
        return json_response(200, OperationMoved(operation_id=_id(request), status="pending"))

    @documented({200: OperationMoved, 404: Error, 409: Error}, path=_PATH)
    async def cancel_operation(request: Request) -> Response:
        """Never do an operation that waits or has failed, and stop administration where it is."""
        cancelled = await operations.cancel(_id(request))
        if cancelled is None:
            return await refused(request, "only an operation that waits or has failed can be cancelled")
        message = None if cancelled["kind"] == "push" else cancelled["error"]
        return json_response(200, OperationMoved(operation_id=_id(request), status="cancelled", message=message))

    router.add("GET", "/api/v1/operations/stats", operation_stats, Role.READ_ONLY)
    router.add("GET", "/api/v1/operations", list_operations, Role.READ_ONLY)
    router.add("GET", _ONE, get_operation, Role.READ_ONLY)
    router.add("POST", _ONE + "/retry", retry_operation, Role.ADMIN)
    router.add("POST", _ONE + "/cancel", cancel_operation, Role.ADMIN)


def _id(request: Request) -> str:
    if not is_uuid(request.params[0]):
        raise InvalidRequest("operationId must be a UUID", "operationId")
    return request.params[0].lower()


def _chosen(request: Request, name: str, allowed: tuple[str, ...]) -> str | None:
    value = request.query.get(name) or None
    if value is not None and value not in allowed:
        raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}", name)
    return value


def _shown(row: asyncpg.Record, engine: Engine) -> OperationState:
    before = row["before"] if row["status"] in ("pending", "processing") else None
    is_push = row["kind"] == "push"
    return OperationState(
        id=str(row["id"]),
        operation_type=row["kind"],
        status=row["status"],
        queue=row["queue_name"],
        partition=row["partition_name"],
        priority=row["priority"],
        items=row["items"] or 0,
        created_at=iso_millis(row["created_at"]),
        processing_started_at=_moment(row["claimed_at"]),
        processed_at=_moment(row["finished_at"]),
        retry_count=max(0, row["attempts"] - 1),
        error_message=row["error"],
        queue_position=before,
        estimated_wait=None if before is None or not is_push else engine.load.estimated_wait_s(before + 1),
        progress=None if is_push else Progress(done=row["done"], total=row["total"], unit=row["unit"]),
        result=None if row["result"] is None else Raw(row["result"].encode()),
    )


def _journalled(held: Held, engine: Engine) -> OperationState:
    """An operation that is still in the journal."""
    queue, partition = held.partitions[0]
    return OperationState(
        id=held.operation_id,
        operation_type="push",
        status="pending",
        queue=queue,
        partition=partition,
        priority=5,
        items=held.count,
        created_at=None,
        processing_started_at=None,
        processed_at=None,
        retry_count=0,
        error_message=None,
        queue_position=None,
        estimated_wait=None,
        progress=None,
        result=None,
    )


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else iso_millis(moment)


def _totals(row: asyncpg.Record) -> OperationTotals:
    return OperationTotals(
        operation_type=row["kind"],
        priority=row["priority"],
        status=row["status"],
        count=row["count"],
        oldest=iso_millis(row["oldest"]),
        newest=iso_millis(row["newest"]),
        avg_latency_seconds=row["latency_s"],
    )


def _health(engine: Engine) -> LoadState:
    load = engine.load.measured()
    return LoadState(
        pool_utilization=load.pool_used,
        pool_waiting=load.pool_waiting,
        push_wait_seconds=load.wait_s,
        event_loop_delay_seconds=load.loop_delay_s,
        queue_depth=load.queue_depth,
        drain_rate=load.drain_rate,
        executed=engine.load.decisions[Choice.EXECUTE],
        queued=engine.load.decisions[Choice.QUEUE],
        rejected=engine.load.decisions[Choice.REJECT],
    )


def _journal(engine: Engine) -> JournalState | None:
    buffer = engine.buffer
    if buffer is None:
        return None
    journal = buffer.journal
    return JournalState(
        operations=buffer.pending,
        messages=buffer.messages,
        bytes=journal.size,
        replayed_messages=buffer.replayed,
        syncs=journal.syncs,
        damaged=journal.damaged,
        torn_bytes=journal.torn_bytes,
        healthy=journal.healthy,
    )
