"""How much a request takes of what its token and its namespaces may ask for."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext

from queenmq.access.caller import Caller
from queenmq.access.rates import namespace_of
from queenmq.core.message import Message
from queenmq.errors import HttpError
from queenmq.http.decoding import query_flag
from queenmq.http.route import Context, Route
from queenmq.httpserver.messages import Request

_POPS = "/api/v1/pop"


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
        if per_second:
            context.rates.take_namespaces(_by_namespace(pushed), per_second)
        context.quotas.take(pushed, len(request.body))


def charge_repeated(context: Context, pushed: Counter[str]) -> None:
    """Count what timers that repeat have pushed to queues: when they were set, they were counted once."""
    per_second = context.settings.limits.namespace_messages_per_second
    if per_second:
        context.rates.charge_namespaces(_by_namespace(pushed), per_second)


def why_not_repeat(context: Context, message: Message) -> str | None:
    """Why a timer that repeats may not push this now. What is pushed once was counted when it was set."""
    return context.quotas.why_not(message.queue, len(message.payload)) if context.quotas.any else None


def _by_namespace(pushed: Counter[str]) -> Counter[str]:
    namespaces: Counter[str] = Counter()
    for queue, messages in pushed.items():
        namespaces[namespace_of(queue)] += messages
    return namespaces


def is_long_poll(request: Request, route: Route) -> bool:
    return route.path.startswith(_POPS) and _is_set(request, "wait")


def acknowledges(request: Request) -> bool:
    """Of a pop: whether what it gets is finished with that."""
    return _is_set(request, "autoAck")


def _is_set(request: Request, name: str) -> bool:
    try:
        return query_flag(request.query, name)
    except HttpError:
        return False  # the handler says what is wrong with it


def polling(request: Request, context: Context) -> AbstractContextManager[None]:
    """While a long poll waits. Raises Overloaded when it is entered."""
    caller: Caller | None = request.caller
    if caller is None or caller.limits is None or request.forwarded:
        return nullcontext()
    return context.rates.polling(caller.rated_as, caller.limits)
