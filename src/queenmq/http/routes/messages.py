"""Single messages: GET /api/v1/messages, and what is done with one of them"""

from __future__ import annotations

from typing import get_args

import asyncpg
from msgspec import UNSET, Raw, UnsetType

from queenmq.core.names import check_name, iso_millis
from queenmq.engine.engine import Engine
from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.decoding import query_count, query_flag, query_name, query_time
from queenmq.http.figures import (
    BusStatus,
    ListingMode,
    ListingType,
    MessageConfig,
    MessageDescribed,
    MessageDone,
    MessageGroup,
    MessageListed,
    MessageMode,
    MessageShort,
    MessagesListed,
    Status,
)
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import COUNT, FLAG, LABEL, MOMENT, UUID, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.routes.observe import message_key
from queenmq.http.routes.resources import moment
from queenmq.http.schemas import Error
from queenmq.http.time_range import end_of_minute, query_range

_LIMIT = 200
_SHORT_LIMIT = 50
_MOST_LOOKED_AT = 2000
_STATUSES = get_args(Status)
_DEFAULT_TTL_S = 3600
_MESSAGE = "/api/v1/messages/{partitionId}/{transactionId}"
_FILTERS = (
    Parameter("queue", LABEL, "Only of this queue."),
    Parameter("partition", LABEL, "Only of partitions with this name."),
    Parameter("ns", LABEL, "Only of this namespace; `namespace` is the same."),
    Parameter("namespace", LABEL, "Only of this namespace."),
    Parameter("task", LABEL, "Only of this task."),
    Parameter("status", {"type": "string", "enum": [*_STATUSES, ""]}, "Only in this state."),
    Parameter("from", MOMENT, "Only pushed at or after this moment; an hour ago by default."),
    Parameter("to", MOMENT, "Only pushed before the end of the minute of this moment."),
    Parameter("limit", COUNT, "Most messages in the answer; cut to the server's limit.", _LIMIT),
    Parameter("payload", FLAG, "Tell the payloads, too; null if one cannot be decrypted here.", False),
    Parameter("offset", COUNT, f"How many to leave out; at most {_MOST_LOOKED_AT} messages are looked at.", 0),
)
_FROM_THE_SERVER = {"partitionId": UUID}


def add_routes(router: Router, engine: Engine) -> None:
    administration, reports = engine.administration, engine.reports

    def payload_of(row: asyncpg.Record) -> Raw:
        return Raw(administration.payload_of(row) or b"null")

    @documented({200: MessagesListed}, query=_FILTERS)
    async def list_messages(request: Request) -> Response:
        """The newest messages that match, newest first."""
        queue, partition, task = (query_name(request, name) for name in ("queue", "partition", "task"))
        namespace = query_name(request, "ns") or query_name(request, "namespace")
        status = request.query.get("status") or None
        if status is not None and status not in _STATUSES:
            raise InvalidRequest(f"status must be one of {', '.join(_STATUSES)}", "status")
        given = query_time(request, "to")
        span = query_range(request, 1, longest=None)
        limit = query_count(request, "limit", min(_LIMIT, engine.settings.max_items), engine.settings.max_items)
        offset = query_count(request, "offset", 0, _MOST_LOOKED_AT)
        wanted = query_flag(request, "payload")
        await engine.statistics.freshen()
        until = None if given is None else end_of_minute(span.until)
        where = queue, partition, namespace, task, span.since, until
        matching: list[asyncpg.Record] = []
        # Neighbours are mostly in the same state: with a filter, more are looked at only if these are not enough.
        for looked_at in (limit + offset, _MOST_LOOKED_AT) if status else (limit + offset,):
            most = max(1, min(looked_at, _MOST_LOOKED_AT))
            rows = await reports.rows("messages_listed", *where, most, wanted)
            matching = [row for row in rows if status in (None, row["status"])][offset : offset + limit]
            if len(matching) == limit or len(rows) < most:
                break
        mode = await reports.one("listing_mode", queue)
        listed = MessagesListed(
            messages=[_listed(row, payload_of(row) if wanted else UNSET) for row in matching],
            mode=ListingMode(
                has_queue_mode=mode["queue_mode"],
                bus_groups_count=mode["groups"],
                type=_type(mode["queue_mode"], mode["groups"]),
            ),
        )
        return json_response(200, listed)

    @documented(
        {200: list[MessageShort]}, query=[Parameter("limit", COUNT, "Most messages in the answer.", _SHORT_LIMIT)]
    )
    async def messages_of_queue(request: Request) -> Response:
        """The newest messages of a queue, newest first."""
        queue = request.params[0]
        check_name(queue, "queue")
        most = min(engine.settings.max_items, _MOST_LOOKED_AT)
        limit = query_count(request, "limit", min(_SHORT_LIMIT, most), most)
        rows = await reports.rows("messages_listed", queue, None, None, None, None, None, max(1, limit), False)
        return json_response(200, [_short(row) for row in rows[:limit]])

    @documented({200: MessageDescribed, 404: Error}, path=_FROM_THE_SERVER)
    async def describe_message(request: Request) -> Response:
        """A message with its payload, and how far each group has come with it."""
        partition_id, transaction_id = message_key(request)
        row = await reports.row("message_described", partition_id, transaction_id)
        if row is None:
            raise NotFound("Message not found")
        groups = await reports.rows("message_groups", partition_id, row["offset"], engine.settings.max_items)
        return json_response(200, _described(row, groups, administration.payload_of(row)))

    @documented({200: MessageDone, 404: Error}, path=_FROM_THE_SERVER)
    async def delete_message(request: Request) -> Response:
        """Delete a message, with its traces and dead letters."""
        key = message_key(request)
        if not await administration.delete_message(*key):
            raise NotFound("Message not found")
        return _done(key, "Message deleted")

    @documented({200: MessageDone, 404: Error, 409: Error}, path=_FROM_THE_SERVER)
    async def retry_message(request: Request) -> Response:
        """Take a message out of the dead letters and deliver it again to the groups that gave it up.
        409 if another message has taken its place: then the dead letter stays."""
        key = message_key(request)
        if not await administration.retry_message(*key):
            raise NotFound("Dead letter not found")
        return _done(key, "Message will be delivered again")

    @documented({200: MessageDone, 404: Error}, path=_FROM_THE_SERVER)
    async def bury_message(request: Request) -> Response:
        """Put a message to the dead letters of every group that has not finished it."""
        key = message_key(request)
        if not await administration.bury_message(*key):
            raise NotFound("Message not found")
        return _done(key, "Message moved to the dead letters")

    router.add("GET", "/api/v1/messages", list_messages, Role.READ_ONLY)
    router.add("GET", "/api/v1/status/queues/{queue}/messages", messages_of_queue, Role.READ_ONLY)
    router.add("GET", _MESSAGE, describe_message, Role.READ_ONLY)
    router.add("DELETE", _MESSAGE, delete_message, Role.READ_WRITE)
    router.add("POST", _MESSAGE + "/retry", retry_message, Role.READ_WRITE)
    router.add("POST", _MESSAGE + "/dlq", bury_message, Role.READ_WRITE)


def _done(key: tuple[str, str], message: str) -> Response:
    partition_id, transaction_id = key
    done = MessageDone(success=True, partition_id=partition_id, transaction_id=transaction_id, message=message)
    return json_response(200, done)


def _type(queue_mode: bool, groups: int) -> ListingType:
    if queue_mode:
        return "hybrid" if groups else "queue"
    return "bus" if groups else "none"


def _short(row: asyncpg.Record) -> MessageShort:
    return MessageShort(
        id=str(row["id"]),
        transaction_id=row["transaction_id"],
        partition_id=str(row["partition_id"]),
        queue_path=f"{row['queue']}/{row['partition']}",
        queue=row["queue"],
        partition=row["partition"],
        status=row["status"],
        created_at=iso_millis(row["created_at"]),
    )


def _listed(row: asyncpg.Record, payload: Raw | UnsetType) -> MessageListed:
    return MessageListed(
        id=str(row["id"]),
        transaction_id=row["transaction_id"],
        partition_id=str(row["partition_id"]),
        queue_path=f"{row['queue']}/{row['partition']}",
        queue=row["queue"],
        partition=row["partition"],
        namespace=row["namespace"],
        task=row["task"],
        status=row["status"],
        queue_status=row["queue_status"],
        bus_status=BusStatus(consumed_by=row["consumed_by"], total_groups=row["named_groups"]),
        trace_id=None if row["trace_id"] is None else str(row["trace_id"]),
        producer_sub=row["producer_sub"],
        queue_priority=row["priority"],
        created_at=iso_millis(row["created_at"]),
        lease_expires_at=moment(row["lease_expires_at"]),
        payload=payload,
    )


def _described(row: asyncpg.Record, groups: list[asyncpg.Record], payload: bytes | None) -> MessageDescribed:
    return MessageDescribed(
        id=str(row["id"]),
        transaction_id=row["transaction_id"],
        partition_id=str(row["partition_id"]),
        queue_path=f"{row['queue']}/{row['partition']}",
        queue=row["queue"],
        partition=row["partition"],
        namespace=row["namespace"],
        task=row["task"],
        status=row["status"],
        payload=Raw(b"null" if payload is None else payload),
        is_encrypted=row["is_encrypted"],
        undecryptable=payload is None,
        trace_id=None if row["trace_id"] is None else str(row["trace_id"]),
        producer_sub=row["producer_sub"],
        created_at=iso_millis(row["created_at"]),
        error_message=row["error_message"],
        retry_count=row["retry_count"],
        lease_expires_at=moment(row["lease_expires_at"]),
        queue_config=MessageConfig(
            lease_time=row["lease_time_s"],
            retry_limit=row["retry_limit"],
            retry_delay=row["retry_delay_ms"],
            ttl=_DEFAULT_TTL_S if row["ttl_s"] is None else row["ttl_s"],
            priority=row["priority"],
        ),
        mode=MessageMode(
            has_queue_mode=row["queue_mode"],
            bus_groups_count=row["named_groups"],
            consumed_by_groups=row["consumed_by"],
            type=_type(row["queue_mode"], row["named_groups"]),
        ),
        consumer_groups=[
            MessageGroup(
                name=group["name"], consumed=group["consumed"], lease_expires_at=moment(group["lease_expires_at"])
            )
            for group in groups
        ],
    )
