"""What requests do with which queues and groups, and whether their tokens allow it.

Every route declares its scope in its table. The functions here find the queues in paths, queries and the database;
those that need a body are beside their handlers. A token that is not restricted never gets here: its role has been
checked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from queenmq.access.caller import Caller
from queenmq.access.permissions import Permissions, Verb
from queenmq.core.names import QUEUE_MODE
from queenmq.errors import Forbidden, NotFound
from queenmq.http.decoding import query_name
from queenmq.http.route import Context, FoundNeed, Need, Route, Scope
from queenmq.http.shares import acknowledges, conflates
from queenmq.httpserver.messages import Request
from queenmq.ids import is_uuid

_DOING: Final = {
    Verb.READ: "read",
    Verb.PUSH: "push to",
    Verb.POP: "pop from",
    Verb.ACK: "acknowledge in",
    Verb.ADMINISTER: "administer",
}
# Of these, a request that names no group is about every group.
_BY_GROUP: Final = {
    Verb.ACK: "the token is restricted to some groups, and this request names none: name consumerGroup",
    Verb.ADMINISTER: "the token is restricted to some groups, and this request is about all of them",
}


async def require_permission(permissions: Permissions, request: Request, route: Route, context: Context) -> None:
    """Raises Forbidden unless the token of the request, which is restricted, allows everything that it does."""
    if route.scope is None:
        raise Forbidden("the token is restricted to some queues, and this request is about all of them")
    for need in await route.scope(request, context):
        if not permissions.allows_need(need):
            raise Forbidden(_refusal(need))
        if need.verb in _BY_GROUP and need.group is None and permissions.restricts_groups:
            raise Forbidden(_BY_GROUP[need.verb])


def _refusal(need: Need) -> str:
    if isinstance(need, FoundNeed):
        return f"the token may not {_DOING[need.verb]} the queue of what the request names"
    as_group = "" if need.group is None else f" as group {need.group!r}"
    if need.queue is None:
        return f"the token may not {_DOING[need.verb]} all queues{as_group}: name one that it is for"
    return f"the token may not {_DOING[need.verb]} queue {need.queue!r}{as_group}"


def refuse_restricted(request: Request) -> None:
    """For what would let a caller widen its own token, or see what all others do. Raises Forbidden if the token has
    grants or limits, whatever they are."""
    if request.caller is not None:
        raise Forbidden("the token has grants or limits, and this needs an admin token without any")


def permissions_of(request: Request) -> Permissions | None:
    """What the token of the request is restricted to; None if it is not."""
    caller: Caller | None = request.caller
    return None if caller is None else caller.permissions


def visible(request: Request) -> list[str] | None:
    """For listings: the queues that the caller may read, as patterns for LIKE; None if it is all of them."""
    permissions = permissions_of(request)
    return None if permissions is None else permissions.queues(Verb.READ)


# Scopes


async def nothing(_: Request, __: Context) -> Sequence[Need]:
    """The request touches no queue."""
    return ()


async def listing(_: Request, __: Context) -> Sequence[Need]:
    """The handler leaves out what the caller may not read (`visible`)."""
    return ()


def all_queues(verb: Verb, *, of_group: bool = False) -> Scope:
    """The request is about the server, or about queues that it does not name, or about the group in its path in all of
    them."""

    async def all_queues(request: Request, _: Context) -> Sequence[Need]:
        return (Need(verb, None, request.params[0] if of_group else None),)

    return all_queues


def queue_in_path(verb: Verb, position: int = 0) -> Scope:
    async def queue_in_path(request: Request, _: Context) -> Sequence[Need]:
        return (Need(verb, request.params[position]),)

    return queue_in_path


def queue_in_query(verb: Verb) -> Scope:
    """Of one queue if the query names it, else of all."""

    async def queue_in_query(request: Request, _: Context) -> Sequence[Need]:
        return (Need(verb, query_name(request.query, "queue")),)

    return queue_in_query


def listed_or_in_query(verb: Verb) -> Scope:
    """As `queue_in_query`, but without a queue the handler leaves out what the caller may not read."""

    async def listed_or_in_query(request: Request, _: Context) -> Sequence[Need]:
        queue = query_name(request.query, "queue")
        return () if queue is None else (Need(verb, queue),)

    return listed_or_in_query


def group_in_path(verb: Verb) -> Scope:
    """Of a group in a queue: /consumer-groups/{group}/queues/{queue}."""

    async def group_in_path(request: Request, _: Context) -> Sequence[Need]:
        group, queue, *_rest = request.params
        return (Need(verb, queue, group if verb in _BY_GROUP else None),)

    return group_in_path


async def popped_queue(request: Request, _: Context) -> Sequence[Need]:
    """The queue in the path, as the group in the query. What is finished at delivery is acknowledged, too, and so is
    in the end what a group passes over that conflates."""
    need = Need(Verb.POP, request.params[0], request.query.get("consumerGroup") or QUEUE_MODE)
    query = request.query
    if ("autoAck" in query and acknowledges(request)) or ("conflation" in query and conflates(request)):
        return need, need._replace(verb=Verb.ACK)
    return (need,)


def partition_in_path(verb: Verb) -> Scope:
    """The queue of the partition whose id the path has."""

    async def partition_in_path(request: Request, context: Context) -> Sequence[Need]:
        return await of_partitions(context, verb, (request.params[0],))

    return partition_in_path


async def of_partitions(context: Context, verb: Verb, partition_ids: Collection[str]) -> Sequence[Need]:
    """Raises NotFound if there is no such partition. Ids that are none are left to the handler."""
    wanted = [one for one in partition_ids if is_uuid(one)]
    queues = await context.owners.queues_of(wanted)
    if len(queues) < len({one.lower() for one in wanted}):
        raise NotFound("Partition not found")
    return [FoundNeed(verb, queue) for queue in set(queues.values())]


async def acked_partitions(context: Context, acks: Collection[tuple[str, str | None]]) -> Sequence[Need]:
    """Of acknowledgements, each with its partition and its group. Partitions that are gone, of which nothing is
    acknowledged, and ids that are none are left to the handler."""
    if len(acks) == 1:
        [(partition_id, group)] = acks
        queue = context.owners.remembered(partition_id)
        if queue is not None:
            return (FoundNeed(Verb.ACK, queue, group),)
    wanted = [(one.lower(), group) for one, group in acks if is_uuid(one)]
    queues = await context.owners.queues_of({one for one, _ in wanted})
    return list({FoundNeed(Verb.ACK, queues[one], group) for one, group in wanted if one in queues})


async def leased(request: Request, context: Context) -> Sequence[Need]:
    """The queue and the group of the lease whose id the path has; a lease that is gone is left to the handler."""
    lease_id = request.params[0]
    place = await context.owners.lease(lease_id.lower()) if is_uuid(lease_id) else None
    return () if place is None else (FoundNeed(Verb.ACK, place.queue, place.consumer_group),)
