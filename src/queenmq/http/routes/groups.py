"""Consumer groups: forgetting them, where they start, and seeking."""

from __future__ import annotations

import msgspec

from queenmq.core.names import check_name, iso_millis, parse_timestamp
from queenmq.engine.engine import Engine
from queenmq.errors import InvalidRequest
from queenmq.http.auth import Role
from queenmq.http.decoding import decode, query_flag
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import FLAG, Parameter, documented
from queenmq.http.router import Router
from queenmq.http.schemas import GroupDeleted, SeekBody, SeekRequest, Sought, SubscriptionBody, SubscriptionMoved

_SUBSCRIPTION_TEXTS = {"subscriptionTimestamp": "Missing subscriptionTimestamp in request body"}
_subscription_decoder = msgspec.json.Decoder(SubscriptionBody)
_seek_decoder = msgspec.json.Decoder(SeekBody)
_GROUPS = "/api/v1/consumer-groups/{group}"
_METADATA = Parameter("deleteMetadata", FLAG, "Forget also where the group was told to start.", True)


def add_routes(router: Router, engine: Engine) -> None:
    administration = engine.administration

    async def forget(request: Request, group: str, queue: str | None) -> GroupDeleted:
        metadata = query_flag(request, "deleteMetadata", True)
        deleted = await administration.delete_group(group, queue, metadata)
        return GroupDeleted(success=True, consumer_group=group, deleted_partitions=deleted, metadata_deleted=metadata)

    @documented({200: GroupDeleted}, query=[_METADATA])
    async def delete_group(request: Request) -> Response:
        """Forget a group everywhere; its next pop starts as a new group."""
        return json_response(200, await forget(request, _name(request, 0, "group"), None))

    @documented({200: GroupDeleted}, query=[_METADATA])
    async def delete_group_in_queue(request: Request) -> Response:
        """Forget a group in one queue."""
        group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
        forgotten = await forget(request, group, queue)
        forgotten.queue_name = queue
        return json_response(200, forgotten)

    @documented({200: SubscriptionMoved}, body=SubscriptionBody)
    async def resubscribe(request: Request) -> Response:
        """Change where a group starts in partitions that it has not read yet."""
        group = _name(request, 0, "group")
        body = decode(request.body, _subscription_decoder, _SUBSCRIPTION_TEXTS, empty=b"{}")
        since = parse_timestamp(body.subscription_timestamp, "subscriptionTimestamp")
        changed = await administration.resubscribe(group, since)
        moved = SubscriptionMoved(
            success=True, consumer_group=group, new_timestamp=iso_millis(since), rows_updated=changed
        )
        return json_response(200, moved)

    @documented({200: Sought}, body=SeekRequest)
    async def seek(request: Request) -> Response:
        """Move a group in a queue: to the end, or behind a moment."""
        group, queue = _name(request, 0, "group"), _name(request, 1, "queue")
        body = decode(request.body, _seek_decoder, empty=b"{}")
        if not body.to_end and body.timestamp is None:
            raise InvalidRequest("Must specify either 'toEnd': true or 'timestamp'", "timestamp")
        given = None if body.timestamp is None else parse_timestamp(body.timestamp, "timestamp")
        at = None if body.to_end else given
        sought = Sought(
            success=True,
            consumer_group=group,
            queue_name=queue,
            seek_to_end=at is None,
            target_timestamp=None if at is None else iso_millis(at),
            partitions_updated=await administration.seek(group, queue, None, at),
        )
        return json_response(200, sought)

    router.add("DELETE", _GROUPS, delete_group, Role.ADMIN)
    router.add("DELETE", _GROUPS + "/queues/{queue}", delete_group_in_queue, Role.ADMIN)
    router.add("POST", _GROUPS + "/subscription", resubscribe, Role.READ_WRITE)
    router.add("POST", _GROUPS + "/queues/{queue}/seek", seek, Role.READ_WRITE)


def _name(request: Request, position: int, field: str) -> str:
    name = request.params[position]
    check_name(name, field)
    return name
