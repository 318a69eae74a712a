"""Single messages: GET /api/v1/messages, and what is done with one of them"""

from __future__ import annotations

from typing import TypedDict, get_args

from msgspec import UNSET, Raw, UnsetType

from queenmq.access.permissions import Verb
from queenmq.broker.broker import Broker
from queenmq.core.encryption import Place
from queenmq.core.headers import encode_headers
from queenmq.core.names import check_name, iso_millis, optional_iso_millis
from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.answers.attempts import attempts_shown
from queenmq.http.answers.messages import (
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
)
from queenmq.http.decoding import message_key, query_count, query_flag, query_name, query_time
from queenmq.http.openapi import COUNT, FLAG, LABEL, MOMENT, UUID, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Error, headers_shown
from queenmq.http.scopes import partition_in_path, queue_in_path, queue_in_query
from queenmq.http.time_range import end_of_minute, query_range
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import messages

_LIMIT = 200
_SHORT_LIMIT = 50
_STATUSES = get_args(messages.MessageStatus)
_DEFAULT_TTL_S = 3600
_MESSAGE = "/api/v1/messages/{partitionId}/{transactionId}"
_HEADER = {"type": "string", "pattern": "^([^:\\u0000]{1,255}:[^\\u0000]*)?$", "maxLength": 2000}
_FILTERS = (
    Parameter("queue", LABEL, "Only of this queue."),
    Parameter("partition", LABEL, "Only of partitions with this name."),
    Parameter("ns", LABEL, "Only of this namespace; `namespace` is the same."),
    Parameter("namespace", LABEL, "Only of this namespace."),
    Parameter("task", LABEL, "Only of this task."),
    Parameter("status", {"type": "string", "enum": [*_STATUSES, ""]}, "Only in this state."),
    Parameter("header", _HEADER, "Only with this header: `name:value`."),
    Parameter("from", MOMENT, "Only pushed at or after this moment; an hour ago by default."),
    Parameter("to", MOMENT, "Only pushed before the end of the minute of this moment."),
    Parameter("limit", COUNT, "Most messages in the answer; cut to the server's limit.", _LIMIT),
    Parameter("payload", FLAG, "Include the payloads; null if one cannot be decrypted here.", False),
    Parameter("offset", COUNT, f"How many to skip; at most {messages.MOST_EXAMINED} messages are examined.", 0),
)
_FROM_THE_SERVER = {"partitionId": UUID}


@documented({200: MessagesListed}, query=_FILTERS)
async def list_messages(request: Request, context: Context) -> Response:
    """The newest messages that match, newest first."""
    broker = context.broker
    queue, partition, task = (query_name(request.query, name) for name in ("queue", "partition", "task"))
    namespace = query_name(request.query, "ns") or query_name(request.query, "namespace")
    status = request.query.get("status") or None
    if status is not None and status not in _STATUSES:
        raise InvalidRequest(f"status must be one of {', '.join(_STATUSES)}", "status")
    given = query_time(request.query, "to")
    span = query_range(request, 1, longest=None)
    limit = query_count(
        request.query, "limit", min(_LIMIT, context.settings.limits.max_items), context.settings.limits.max_items
    )
    offset = query_count(request.query, "offset", 0, messages.MOST_EXAMINED)
    wanted = query_flag(request.query, "payload")
    await broker.statistics.freshen()
    until = None if given is None else end_of_minute(span.until)
    which = messages.MessageFilter(
        queue=queue,
        partition=partition,
        namespace=namespace,
        task=task,
        since=span.since,
        until=until,
        status=status,
        headers=_wanted_headers(request.query.get("header")),
    )
    found = await messages.page(
        context.reports,
        which,
        limit,
        offset,
        with_payloads=wanted,
        max_bytes=context.settings.limits.max_answer_bytes,
    )
    listed = MessagesListed(
        messages=[_listed(row, _payload(row, broker) if wanted else UNSET) for row in found.messages],
        mode=ListingMode(
            has_queue_mode=found.readers.queue_mode,
            bus_groups_count=found.readers.groups,
            type=_type(found.readers.queue_mode, found.readers.groups),
        ),
    )
    return Response(200, listed)


@documented({200: list[MessageShort]}, query=[Parameter("limit", COUNT, "Most messages in the answer.", _SHORT_LIMIT)])
async def messages_of_queue(request: Request, context: Context) -> Response:
    """The newest messages of a queue, newest first."""
    queue = request.params[0]
    check_name(queue, "queue")
    most = min(context.settings.limits.max_items, messages.MOST_EXAMINED)
    limit = query_count(request.query, "limit", min(_SHORT_LIMIT, most), most)
    return Response(200, [MessageShort(**_brief(row)) for row in await messages.newest(context.reports, queue, limit)])


@documented({200: MessageDescribed, 404: Error}, path=_FROM_THE_SERVER)
async def describe_message(request: Request, context: Context) -> Response:
    """A message with its payload and its state in each group."""
    partition_id, transaction_id = message_key(request)
    await context.broker.statistics.name_readers()
    found = await messages.detail(context.reports, partition_id, transaction_id, context.settings.limits.max_items)
    if found is None:
        raise NotFound("Message not found")
    message = found.message
    place = Place(message.queue, message.partition, message.transaction_id)
    payload = context.broker.encryption.open_or_none(message.payload, message.is_encrypted, place)
    return Response(200, _described(found, payload))


@documented({200: MessageDone, 404: Error}, path=_FROM_THE_SERVER)
async def delete_message(request: Request, context: Context) -> Response:
    """Delete a message, with its traces and dead letters."""
    key = message_key(request)
    if not await context.broker.delete_message(*key):
        raise NotFound("Message not found")
    return _done(key, "Message deleted")


@documented({200: MessageDone, 404: Error, 409: Error}, path=_FROM_THE_SERVER)
async def retry_message(request: Request, context: Context) -> Response:
    """Remove a message from the dead letters and deliver it again to the groups in which it failed.
    409 if another message has taken its place: then the dead letter stays."""
    key = message_key(request)
    if not await context.broker.retry_message(*key):
        raise NotFound("Dead letter not found")
    return _done(key, "Message will be delivered again")


@documented({200: MessageDone, 404: Error}, path=_FROM_THE_SERVER)
async def bury_message(request: Request, context: Context) -> Response:
    """Make a message a dead letter of every group that has not finished it."""
    key = message_key(request)
    if not await context.broker.bury_message(*key):
        raise NotFound("Message not found")
    return _done(key, "Message moved to the dead letters")


def _wanted_headers(given: str | None) -> str | None:
    """Raises InvalidRequest unless it is a name and a value with a colon between them."""
    if not given:
        return None
    name, colon, value = given.partition(":")
    if not colon:
        raise InvalidRequest("header must be name:value", "header")
    return encode_headers({name: value}, "header")


def _payload(row: messages.ListedMessage, broker: Broker) -> Raw:
    """The payload as it was pushed; null if it is left out, or cannot be decrypted here."""
    place = Place(row.queue, row.partition, row.transaction_id)
    return Raw(broker.encryption.open_or_none(row.payload, row.is_encrypted, place) or b"null")


def _done(key: tuple[str, str], message: str) -> Response:
    partition_id, transaction_id = key
    done = MessageDone(success=True, partition_id=partition_id, transaction_id=transaction_id, message=message)
    return Response(200, done)


def _type(queue_mode: bool, groups: int) -> ListingType:
    if queue_mode:
        return "hybrid" if groups else "queue"
    return "bus" if groups else "none"


class _Brief(TypedDict):
    id: str
    transaction_id: str
    partition_id: str
    queue_path: str
    queue: str
    partition: str
    status: messages.MessageStatus
    created_at: str


class _Full(_Brief):
    namespace: str
    task: str
    trace_id: str | None
    producer_sub: str | None
    headers: Raw | UnsetType
    lease_expires_at: str | None


def _brief(row: messages.ListedMessage | messages.Message) -> _Brief:
    return {
        "id": str(row.id),
        "transaction_id": row.transaction_id,
        "partition_id": str(row.partition_id),
        "queue_path": f"{row.queue}/{row.partition}",
        "queue": row.queue,
        "partition": row.partition,
        "status": row.status,
        "created_at": iso_millis(row.created_at),
    }


def _full(row: messages.ListedMessage | messages.Message) -> _Full:
    return {
        **_brief(row),
        "namespace": row.namespace,
        "task": row.task,
        "trace_id": None if row.trace_id is None else str(row.trace_id),
        "producer_sub": row.producer_sub,
        "headers": headers_shown(row.headers),
        "lease_expires_at": optional_iso_millis(row.lease_expires_at),
    }


def _listed(row: messages.ListedMessage, payload: Raw | UnsetType) -> MessageListed:
    return MessageListed(
        **_full(row),
        queue_status=row.queue_status,
        bus_status=BusStatus(consumed_by=row.consumed_by, total_groups=row.named_groups),
        queue_priority=row.priority,
        payload=payload,
        omitted=row.omitted or UNSET,
    )


def _described(found: messages.MessageDetail, payload: bytes | None) -> MessageDescribed:
    row = found.message
    return MessageDescribed(
        **_full(row),
        payload=Raw(b"null" if payload is None else payload),
        is_encrypted=row.is_encrypted,
        undecryptable=payload is None,
        error_message=row.error_message,
        retry_count=row.retry_count,
        queue_config=MessageConfig(
            lease_time=row.lease_time_s,
            retry_limit=row.retry_limit,
            retry_delay=row.retry_delay_ms,
            ttl=_DEFAULT_TTL_S if row.ttl_s is None else row.ttl_s,
            priority=row.priority,
        ),
        mode=MessageMode(
            has_queue_mode=row.queue_mode,
            bus_groups_count=row.named_groups,
            consumed_by_groups=row.consumed_by,
            type=_type(row.queue_mode, row.named_groups),
        ),
        consumer_groups=[
            MessageGroup(
                name=group.name,
                consumed=group.consumed,
                status=group.status,
                attempts=group.attempts,
                lease_expires_at=optional_iso_millis(group.lease_expires_at),
            )
            for group in found.groups
        ],
        attempts=attempts_shown(found.attempts),
    )


ROUTES = (
    Route("GET", "/api/v1/messages", list_messages, Role.READ_ONLY, scope=queue_in_query(Verb.READ)),
    Route(
        "GET",
        "/api/v1/status/queues/{queue}/messages",
        messages_of_queue,
        Role.READ_ONLY,
        scope=queue_in_path(Verb.READ),
    ),
    Route("GET", _MESSAGE, describe_message, Role.READ_ONLY, scope=partition_in_path(Verb.READ)),
    Route("DELETE", _MESSAGE, delete_message, Role.ADMIN, scope=partition_in_path(Verb.ADMINISTER), audited=True),
    Route("POST", _MESSAGE + "/retry", retry_message, Role.READ_WRITE, scope=partition_in_path(Verb.ACK), audited=True),
    Route("POST", _MESSAGE + "/dlq", bury_message, Role.READ_WRITE, scope=partition_in_path(Verb.ACK), audited=True),
)
