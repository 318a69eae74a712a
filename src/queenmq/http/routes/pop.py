"""GET /api/v1/pop/queue/{queue}, …/partition/{partition}, and /api/v1/pop over namespace and task."""

from __future__ import annotations

import math

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.pop import Claim, Delivered, Filter
from queenmq.clock import SYSTEM
from queenmq.config import Settings
from queenmq.core.consumer import HEADER as CONSUMER_HEADER
from queenmq.core.consumer import Consumer, consumer_of
from queenmq.core.message import BETWEEN
from queenmq.core.names import QUEUE_MODE, START_MODES, check_name, parse_start
from queenmq.errors import HttpError, InvalidRequest, MethodNotAllowed
from queenmq.http.decoding import query_count, query_flag, query_group, query_integer, query_name
from queenmq.http.openapi import COUNT, FLAG, INTEGER, LABEL, MOMENT, Parameter, documented
from queenmq.http.plans import Plan, consumer_plan, lease_header
from queenmq.http.requests import TakeBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Popped
from queenmq.http.scopes import listing, permissions_of, popped_queue
from queenmq.http.shares import acknowledges, conflates
from queenmq.httpserver.messages import Request, Response

_AUTOPILOT_BATCH = 200
_CONSUMER = "consumer"  # what is remembered of a connection
_POP = (
    Parameter("batch", INTEGER, "Most messages, over all partitions together; cut to what the server allows."),
    Parameter("wait", FLAG, "Hold the request until there is a message.", False),
    Parameter("timeout", COUNT, "Longest wait in ms; cut to what the server allows."),
    Parameter("consumerGroup", LABEL, "Group to read as.", QUEUE_MODE),
    Parameter("autoAck", FLAG, "Finish the messages at delivery: no lease, at most once.", False),
    Parameter(
        "subscriptionMode",
        {"type": "string", "enum": sorted(START_MODES)},
        "Where a new group starts. Default: a setting of the server.",
    ),
    Parameter(
        "subscriptionFrom",
        {"anyOf": [{"const": "now"}, MOMENT]},
        "Where a new group starts; goes before subscriptionMode.",
    ),
    Parameter("autopilot", FLAG, "Let the server choose the batch if there is none.", False),
    Parameter(
        "conflation",
        FLAG,
        "Ask that the group gets only the newest message of each partition. A new group will; one that reads the queue "
        "already stays as it is, and the answer has `conflationConflict`. There is an answer with a body in any case.",
        False,
    ),
)
POP_MANY = (
    *_POP,
    Parameter("partitions", INTEGER, "Most partitions to take messages from; less than 1 counts as 1.", 1),
)
_MATCHING = (
    Parameter("namespace", LABEL, "Queues of this namespace. This or `task` is required."),
    Parameter("task", LABEL, "Queues of this task."),
    *POP_MANY,
)
_encode = msgspec.json.Encoder().encode
_ANSWERS = {200: Popped, 204: None}
_LEASE = "$response.body#/leaseId"
_MESSAGE = {
    "transactionId": "$response.body#/messages/0/transactionId",
    "partitionId": "$response.body#/messages/0/partitionId",
    "consumerGroup": "$response.body#/consumerGroup",
}
_LINKS: dict[str, dict[str, object]] = {
    "ack": {"requestBody": _MESSAGE | {"leaseId": _LEASE}},
    "extend_lease": {"parameters": {"leaseId": _LEASE}},
    "finish_lease": {"parameters": {"leaseId": _LEASE}, "requestBody": {"status": "completed"}},
    "add_trace": {"requestBody": _MESSAGE | {"data": {}}},
}


@documented(_ANSWERS, query=POP_MANY, links=_LINKS)
async def pop_queue(request: Request, context: Context) -> Response:
    """Pop messages from any partition of a queue; 204 if there are none."""
    claim, wait_ms = read_pop(request, context.settings, request.params[0], None)
    return await _answer(request, context, await context.broker.pop(claim, wait_ms))


@documented(_ANSWERS, query=_POP, links=_LINKS)
async def pop_partition(request: Request, context: Context) -> Response:
    """Pop messages from one partition; 204 if there are none."""
    claim, wait_ms = read_pop(request, context.settings, *request.params)
    return await _answer(request, context, await context.broker.pop(claim, wait_ms))


@documented(_ANSWERS, query=_MATCHING, links=_LINKS)
async def pop_matching(request: Request, context: Context) -> Response:
    """Pop messages from a queue of a namespace and/or task, the highest priority first; 204 if there are none."""
    which = _read_filter(request)
    claim, wait_ms = read_pop(request, context.settings, "", None)
    return await _answer(request, context, await context.broker.pop_matching(which, claim, wait_ms))


# A pop with autoAck is never forwarded: what it takes would be lost with its answer.


def _queue_plan(request: Request, context: Context) -> Plan | None:
    asked = _forwardable(request, context.settings)
    if asked is None:
        return None
    group, wait_s = asked
    node = context.broker.node
    key = node.coordinator.consumers.queue_key(request.params[0], group, node.now)
    return consumer_plan(context.broker, key, wait_s)


def _partition_plan(request: Request, context: Context) -> Plan | None:
    asked = _forwardable(request, context.settings)
    if asked is None:
        return None
    group, wait_s = asked
    return consumer_plan(context.broker, (*request.params, group), wait_s)


def _matching_plan(request: Request, context: Context) -> Plan | None:
    asked = _forwardable(request, context.settings)
    if asked is None:
        return None
    group, wait_s = asked
    query = request.query
    return consumer_plan(context.broker, (None, query.get("namespace"), query.get("task"), group), wait_s)


def _forwardable(request: Request, settings: Settings) -> tuple[str, float] | None:
    """The group of a pop and how long it waits; None if it must be served here."""
    try:
        query = request.query
        if request.method == "HEAD" or query_flag(query, "autoAck"):
            return None
        group = query.get("consumerGroup") or QUEUE_MODE
        if not query_flag(query, "wait"):
            return group, 0.0
        return group, query_count(query, "timeout", settings.pop.default_timeout_ms, settings.pop.max_wait_ms) / 1000
    except HttpError:
        return None  # the handler says what is wrong with it


def read_pop(request: Request, settings: Settings, queue: str, partition: str | None) -> tuple[Claim, int]:
    """What a pop asks for, and for how many milliseconds it waits for that."""
    if request.method == "HEAD":
        # It would take messages and throw them away.
        raise MethodNotAllowed("HEAD", "GET, OPTIONS")
    query = request.query
    group = query_group(query) or QUEUE_MODE
    conflation = query_flag(query, "conflation")
    if conflation and group == QUEUE_MODE:
        raise InvalidRequest("conflation is for groups: name one as consumerGroup", "conflation")
    autopilot = query_flag(query, "autopilot")
    default_batch = _AUTOPILOT_BATCH if autopilot else settings.pop.default_batch_size
    batch = query_integer(query, "batch", default_batch)
    partitions = 1 if partition else query_integer(query, "partitions", 1)
    auto_ack = query_flag(query, "autoAck")
    if conflation and auto_ack:
        raise InvalidRequest("conflation and autoAck exclude each other: use a lease", "conflation")
    timeout = query_count(query, "timeout", settings.pop.default_timeout_ms, settings.pop.max_wait_ms)
    wait_ms = _while_valid(request, timeout) if query_flag(query, "wait") else 0
    if queue:
        check_name(queue, "queue")
    if partition is not None:
        check_name(partition, "partition")
    start = parse_start(
        group, query.get("subscriptionMode"), query.get("subscriptionFrom"), settings.pop.default_subscription_mode
    )
    # From here on a client that closes its side counts as gone, so that no lease is taken for it.
    request.hold()
    claim = Claim(
        queue=queue,
        partition=partition,
        group=group,
        batch=min(max(batch, 1), settings.limits.max_items),
        partitions=min(max(partitions, 1), settings.limits.max_items),
        auto_ack=auto_ack,
        start=start,
        consumer=_consumer(request),
        conflation=conflation,
    )
    return claim, wait_ms


def read_take(take: TakeBody, request: Request, settings: Settings) -> tuple[Claim, int]:
    """The same of the body of a request that finishes a lease."""
    check_name(take.queue, "take.queue")
    if take.partition is not None:
        check_name(take.partition, "take.partition")
    group = take.consumer_group or QUEUE_MODE
    check_name(group, "take.consumerGroup")
    pop = settings.pop
    batch = pop.default_batch_size if take.batch is None else take.batch
    partitions = 1 if take.partition or take.partitions is None else take.partitions
    timeout = pop.default_timeout_ms if take.timeout is None else take.timeout
    start = parse_start(group, take.subscription_mode, take.subscription_from, pop.default_subscription_mode)
    request.hold()
    claim = Claim(
        queue=take.queue,
        partition=take.partition,
        group=group,
        batch=min(max(batch, 1), settings.limits.max_items),
        partitions=min(max(partitions, 1), settings.limits.max_items),
        auto_ack=take.auto_ack,
        start=start,
        consumer=_consumer(request),
    )
    return claim, _while_valid(request, min(timeout, pop.max_wait_ms)) if take.wait else 0


def _consumer(request: Request) -> Consumer:
    """Who asks; a connection remembers it, because most have only one consumer."""
    said = request.headers.get(CONSUMER_HEADER, b"")
    known: Consumer | None = request.connection.get(_CONSUMER)
    if known is None or known.said != said or known.subject != request.subject:
        address = None if request.forwarded else request.address
        known = request.connection[_CONSUMER] = consumer_of(said, address, request.subject)
    return known


def _while_valid(request: Request, timeout_ms: int) -> int:
    """What expires while a long poll waits gets nothing any more."""
    if request.valid_until == math.inf:
        return timeout_ms
    return min(timeout_ms, max(0, int((request.valid_until - SYSTEM.wall()) * 1000)))


def _read_filter(request: Request) -> Filter:
    query = request.query
    permissions = permissions_of(request)
    permitted = None
    if permissions is not None:
        verbs = (Verb.POP, Verb.ACK) if acknowledges(request) or conflates(request) else (Verb.POP,)
        permitted = permissions.queues(*verbs, group=query.get("consumerGroup") or QUEUE_MODE)
    which = Filter(
        query_name(query, "namespace"), query_name(query, "task"), None if permitted is None else tuple(permitted)
    )
    if which.namespace is None and which.task is None:
        raise InvalidRequest("namespace or task is required", "namespace")
    return which


async def _answer(request: Request, context: Context, delivered: Delivered) -> Response:
    claim = delivered.claim
    if not delivered.runs:
        if claim.conflation:
            return Response(200, await _nothing(context, claim))
        return Response(204)
    headers = (lease_header(claim.lease_id, claim.queue),) if request.forwarded and not claim.auto_ack else ()
    return Response(200, delivered, encoded(delivered), headers=headers)


async def _nothing(context: Context, claim: Claim) -> Popped:
    """A long poll that has waited in vain does not know whether its group reads otherwise."""
    queue = claim.queue or None
    conflates = queue is None or await context.broker.conflation.declare(queue, claim.group)
    return Popped(
        success=True,
        queue=queue,
        partition=claim.partition,
        partition_id=None,
        lease_id=None,
        consumer_group=claim.group,
        partitions_claimed=0,
        messages=[],
        conflation=True if conflates else msgspec.UNSET,
        conflation_conflict=msgspec.UNSET if conflates else True,
    )


def _conflation(delivered: Delivered) -> dict[str, bool]:
    if not delivered.claim.conflation:
        return {}
    return {"conflationConflict" if delivered.in_conflict else "conflation": True}


def encoded(delivered: Delivered) -> bytes:
    """What was popped as JSON, in the form of Popped."""
    runs, claim = delivered.runs, delivered.claim
    lease_id = "" if claim.auto_ack else claim.lease_id
    about = _encode(
        {
            "success": True,
            "queue": claim.queue,
            "partition": runs[0].partition,
            "partitionId": runs[0].partition_id,
            "leaseId": lease_id,
            "consumerGroup": claim.group,
            "partitionsClaimed": len(runs),
        }
        | _conflation(delivered)
    )
    parts = [about[:-1], b',"messages":[']
    for run in runs:
        # Each is a PoppedMessage: the fields that differ, which `queen.pop` has written, and those of the run.
        common = _encode(
            {
                "partitionId": run.partition_id,
                "partition": run.partition,
                "leaseId": lease_id,
                "consumerGroup": claim.group,
                "queue": claim.queue,
            }
        )
        ending = b",%b," % common[1:]
        parts += (run.glued.replace(BETWEEN, ending), ending)
    parts[-1] = parts[-1][:-1]
    parts.append(b"]}")
    return b"".join(parts)


ROUTES = (
    Route("GET", "/api/v1/pop/queue/{queue}", pop_queue, Role.READ_WRITE, _queue_plan, scope=popped_queue),
    Route(
        "GET",
        "/api/v1/pop/queue/{queue}/partition/{partition}",
        pop_partition,
        Role.READ_WRITE,
        _partition_plan,
        scope=popped_queue,
    ),
    Route("GET", "/api/v1/pop", pop_matching, Role.READ_WRITE, _matching_plan, scope=listing),
)
