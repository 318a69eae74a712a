"""Consumer groups: forgetting them, where they start, and seeking."""

from __future__ import annotations

import msgspec

from queenmq.core.names import check_name, iso_millis, parse_timestamp
from queenmq.engine.engine import Engine
from queenmq.errors import InvalidRequest
from queenmq.http.auth import Role
from queenmq.http.decoding import decode, query_flag
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.router import Router
from queenmq.http.schemas import SeekBody, SubscriptionBody

_SUBSCRIPTION_TEXTS = {"subscriptionTimestamp": "Missing subscriptionTimestamp in request body"}
_subscription_decoder = msgspec.json.Decoder(SubscriptionBody)
_seek_decoder = msgspec.json.Decoder(SeekBody)
_GROUPS = "/api/v1/consumer-groups/{group}"


def add_routes(router: Router, engine: Engine) -> None:
    administration = engine.administration

    async def delete(request: Request) -> Response:
        """Forget a group everywhere; its next pop starts as a new group."""
        group = _name(request, 0, "group")
        metadata = query_flag(request, "deleteMetadata", True)
        deleted = await administration.delete_group(group, None, metadata)
        forgotten = {"deletedPartitions": deleted, "metadataDeleted": metadata}
        return json_response(200, {"success": True, "consumerGroup": group} | forgotten)

    async def delete_in_queue(request: Request) -> Response:
        """Forget a group in one queue."""
        group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
        metadata = query_flag(request, "deleteMetadata", True)
        deleted = await administration.delete_group(group, queue, metadata)
        forgotten = {"deletedPartitions": deleted, "metadataDeleted": metadata}
        return json_response(200, {"success": True, "consumerGroup": group, "queueName": queue} | forgotten)

    async def subscription(request: Request) -> Response:
        """Change where a group starts in partitions that it has not read yet."""
        group = _name(request, 0, "group")
        body = decode(request.body, _subscription_decoder, _SUBSCRIPTION_TEXTS, empty=b"{}")
        since = parse_timestamp(body.subscription_timestamp, "subscriptionTimestamp")
        changed = await administration.resubscribe(group, since)
        answer = {"newTimestamp": iso_millis(since), "rowsUpdated": changed}
        return json_response(200, {"success": True, "consumerGroup": group} | answer)

    async def seek(request: Request) -> Response:
        """Move a group in a queue: to the end, or behind a moment."""
        group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
        body = decode(request.body, _seek_decoder, empty=b"{}")
        if not body.to_end and body.timestamp is None:
            raise InvalidRequest("Must specify either 'toEnd': true or 'timestamp'", "timestamp")
        at = None if body.to_end else parse_timestamp(body.timestamp or "", "timestamp")
        moved = await administration.seek(group, queue, None, at)
        target = {"seekToEnd": at is None, "targetTimestamp": None if at is None else iso_millis(at)}
        answer = {"success": True, "consumerGroup": group, "queueName": queue, "partitionsUpdated": moved}
        return json_response(200, answer | target)

    router.add("DELETE", _GROUPS, delete, Role.ADMIN)
    router.add("DELETE", _GROUPS + "/queues/{queue}", delete_in_queue, Role.ADMIN)
    router.add("POST", _GROUPS + "/subscription", subscription, Role.READ_WRITE)
    router.add("POST", _GROUPS + "/queues/{queue}/seek", seek, Role.READ_WRITE)


def _name(request: Request, position: int, field: str) -> str:
    name = request.params[position]
    check_name(name, field)
    return name
