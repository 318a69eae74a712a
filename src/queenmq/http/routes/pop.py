"""GET /api/v1/pop/queue/{queue}, …/partition/{partition}, and /api/v1/pop over namespace and task."""

from __future__ import annotations

import msgspec

from queenmq.config import Settings
from queenmq.core.names import QUEUE_MODE, check_name, check_text, iso_micros, parse_start
from queenmq.engine.engine import Engine
from queenmq.engine.pop import Claim, Delivered, Delivery, Filter
from queenmq.errors import InvalidRequest
from queenmq.http.auth import Role
from queenmq.http.decoding import query_count, query_flag, query_integer
from queenmq.http.messages import Request, Response
from queenmq.http.router import Router

_AUTOPILOT_BATCH = 200


def add_routes(router: Router, engine: Engine) -> None:
    settings = engine.settings

    async def pop_queue(request: Request) -> Response:
        """Messages of any partition of a queue; 204 if there are none."""
        claim = read_claim(request, settings, request.params[0], None)
        return _answer(await engine.popper.pop(claim, _wait_ms(request, settings)))

    async def pop_partition(request: Request) -> Response:
        """Messages of one partition; 204 if there are none."""
        claim = read_claim(request, settings, request.params[0], request.params[1])
        return _answer(await engine.popper.pop(claim, _wait_ms(request, settings)))

    async def pop_matching(request: Request) -> Response:
        """Messages of a queue of a namespace and/or task, the highest priority first; 204 if there are none."""
        which = _read_filter(request)
        claim = read_claim(request, settings, "", None)
        return _answer(await engine.popper.pop_matching(which, claim, _wait_ms(request, settings)))

    router.add("GET", "/api/v1/pop/queue/{queue}", pop_queue, Role.READ_WRITE)
    router.add("GET", "/api/v1/pop/queue/{queue}/partition/{partition}", pop_partition, Role.READ_WRITE)
    router.add("GET", "/api/v1/pop", pop_matching, Role.READ_WRITE)


def read_claim(request: Request, settings: Settings, queue: str, partition: str | None) -> Claim:
    if queue:
        check_name(queue, "queue")
    if partition is not None:
        check_name(partition, "partition")
    group = request.query.get("consumerGroup") or QUEUE_MODE
    check_name(group, "consumerGroup")
    if query_flag(request, "conflation"):
        raise InvalidRequest("conflation is not supported", "conflation")
    autopilot = query_flag(request, "autopilot")
    default_batch = _AUTOPILOT_BATCH if autopilot else settings.default_batch_size
    query = request.query
    return Claim(
        queue=queue,
        partition=partition,
        group=group,
        batch=min(max(query_integer(request, "batch", default_batch), 1), settings.max_items),
        partitions=1 if partition else min(max(query_integer(request, "partitions", 1), 1), settings.max_items),
        auto_ack=query_flag(request, "autoAck"),
        start=parse_start(
            group, query.get("subscriptionMode"), query.get("subscriptionFrom"), settings.default_subscription_mode
        ),
    )


def _wait_ms(request: Request, settings: Settings) -> int:
    timeout = query_count(request, "timeout", settings.default_timeout_ms, settings.max_wait_ms)
    # From here on a client that closes its side counts as gone, so that no lease is taken for it.
    request.hold()
    return timeout if query_flag(request, "wait") else 0


def _read_filter(request: Request) -> Filter:
    namespace, task = request.query.get("namespace"), request.query.get("task")
    if not namespace and not task:
        raise InvalidRequest("namespace or task is required", "namespace")
    for name, value in (("namespace", namespace), ("task", task)):
        check_text(value or "", name)
    return Filter(namespace or None, task or None)


class _Message(msgspec.Struct, rename="camel"):
    id: str
    transaction_id: str
    trace_id: str | None
    data: msgspec.Raw
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str
    lease_id: str
    consumer_group: str
    queue: str
    retry_count: int


class _PopAnswer(msgspec.Struct, rename="camel"):
    queue: str
    partition: str
    partition_id: str
    lease_id: str
    consumer_group: str
    partitions_claimed: int
    messages: list[_Message]
    success: bool = True


_encode = msgspec.json.Encoder().encode


def _answer(delivered: Delivered) -> Response:
    messages = delivered.messages
    if not messages:
        return Response(204)
    claim = delivered.claim
    answer = _PopAnswer(
        queue=claim.queue,
        partition=messages[0].partition,
        partition_id=messages[0].partition_id,
        lease_id=delivered.lease_id,
        consumer_group=claim.group,
        partitions_claimed=len({message.partition_id for message in messages}),
        messages=[_shown(message, delivered) for message in messages],
    )
    return Response(200, _encode(answer))


def _shown(message: Delivery, delivered: Delivered) -> _Message:
    return _Message(
        id=message.id,
        transaction_id=message.transaction_id,
        trace_id=message.trace_id,
        data=msgspec.Raw(message.payload),
        producer_sub=message.producer,
        created_at=iso_micros(message.created_at),
        partition_id=message.partition_id,
        partition=message.partition,
        lease_id=delivered.lease_id,
        consumer_group=delivered.claim.group,
        queue=delivered.claim.queue,
        retry_count=message.retry_count,
    )
