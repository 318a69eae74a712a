"""How much a request takes of what its token and its namespaces may ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from queenmq.access.caller import Caller
from queenmq.access.rates import Share, namespace_of
from queenmq.core.message import Message
from queenmq.errors import HttpError
from queenmq.http.decoding import query_flag
from queenmq.http.route import Context, Route
from queenmq.httpserver.messages import Request

_POPS: Final = "/api/v1/pop"
_NOTHING: Final = 0, 0


def take_request(request: Request, context: Context) -> None:
    """Count a request, also if it will be refused. Raises Overloaded."""
    caller: Caller | None = request.caller
    if caller is not None and caller.limits is not None:
        context.rates.take_request(caller.rated_as, caller.limits)


def take_messages(request: Request, route: Route, context: Context) -> None:
    """Count what a request pushes that is allowed to. Raises Overloaded, or what the handler would raise for a
    malformed one."""
    caller: Caller | None = request.caller
    limits = None if caller is None else caller.limits
    per_second = context.settings.limits.namespace_messages_per_second
    if route.pushes is None or (limits is None and not per_second and not context.quotas.any):
        return
    queues = route.pushes(request)
    if caller is not None and limits is not None:
        context.rates.take_messages(caller.rated_as, limits, len(queues))
    if per_second or context.quotas.any:
        pushed = Counter(queues)
        context.rates.take_namespaces(_by_namespace(context, pushed))
        context.quotas.take(pushed, len(request.body))


async def take_namespace_request(request: Request, route: Route, context: Context) -> None:
    """Count a request that is allowed for the namespaces of the queues that it names; one that names none for those of
    its token. Raises Overloaded."""
    if route.scope is None:
        return
    try:
        needs = await route.scope(request, context)
    except HttpError:
        return  # the handler says what is wrong with it
    queues = {need.queue for need in needs if need.queue is not None}
    _take_about(queues or _namespaces(request), context)


def take_about_queue(queue: str, context: Context) -> None:
    """Count what a consumer connection asks for as a request about its queue. Raises Overloaded."""
    if context.quotas.limits_requests:
        _take_about((queue,), context)


def _take_about(names: Iterable[str], context: Context) -> None:
    quotas = [quota for name in names for quota in context.quotas.of(name)]
    context.rates.take_namespace_requests(
        {quota.namespace: quota.requests_per_second for quota in quotas if quota.requests_per_second is not None}
    )


def _namespaces(request: Request) -> set[str]:
    """What a request is about that names no queue: the namespace that it names, and those that its token is for."""
    caller: Caller | None = request.caller
    permissions = None if caller is None else caller.permissions
    named = request.query.get("namespace")
    return {*(() if permissions is None else permissions.namespaces), *((named,) if named else ())}


def charge_repeated(context: Context, pushed: Counter[str]) -> None:
    """Count what timers that repeat have pushed to queues: when they were set, they were counted once."""
    if context.settings.limits.namespace_messages_per_second or context.quotas.any:
        context.rates.charge_namespaces(_by_namespace(context, pushed))


def why_not_repeat(context: Context, message: Message) -> str | None:
    """Why a timer that repeats may not push this now. What is pushed once was counted when it was set."""
    return context.quotas.why_not(message.queue, len(message.payload)) if context.quotas.any else None


def _by_namespace(context: Context, pushed: Counter[str]) -> dict[str, Share]:
    """What is pushed to namespaces that have a limit of messages: their own, or that of the settings for all."""
    for_all = context.settings.limits.namespace_messages_per_second
    shares: dict[str, Share] = {}
    for queue, messages in pushed.items():
        limits = {quota.namespace: quota.messages_per_second for quota in context.quotas.of(queue)}
        if for_all and limits.get(namespace_of(queue)) is None:
            limits[namespace_of(queue)] = for_all
        for namespace, per_second in limits.items():
            if per_second is not None:
                shares[namespace] = shares.get(namespace, _NOTHING)[0] + messages, per_second
    return shares


def is_long_poll(request: Request, route: Route) -> bool:
    return route.path.startswith(_POPS) and _is_set(request, "wait")


def popped_queue(request: Request) -> str | None:
    """Of a pop: its queue, if it names one."""
    return request.params[0] if request.params else None


def conflates(request: Request) -> bool:
    """Of a pop: whether it makes a new group one that passes messages over."""
    return _is_set(request, "conflation")


def acknowledges(request: Request) -> bool:
    """Of a pop: whether what it gets is finished with that."""
    return _is_set(request, "autoAck")


def _is_set(request: Request, name: str) -> bool:
    try:
        return query_flag(request.query, name)
    except HttpError:
        return False  # the handler says what is wrong with it


@contextmanager
def polling(request: Request, context: Context, queue: str | None) -> Iterator[None]:
    """While a long poll waits, for a queue or for queues that it does not name. Raises Overloaded when it is
    entered."""
    caller: Caller | None = request.caller
    with ExitStack() as counted:
        if caller is not None and caller.limits is not None and not request.forwarded:
            counted.enter_context(context.rates.polling(caller.rated_as, caller.limits))
        if context.quotas.any and not request.forwarded:
            names = _namespaces(request) if queue is None else {queue}
            quotas = [quota for name in names for quota in context.quotas.of(name)]
            most = {quota.namespace: quota.long_polls for quota in quotas if quota.long_polls is not None}
            counted.enter_context(context.rates.polling_namespaces(most))
        yield
