"""The application: every request finds its route, shows its token, and is handled.

Exact paths are found by one lookup, paths with parameters by a tree of segments. The raw path is split before anything
is unescaped, so an escaped slash can be part of a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from urllib.parse import unquote_to_bytes

import msgspec

from queenmq.access.audit import AuditLog
from queenmq.access.caller import Caller
from queenmq.access.quotas import Quotas
from queenmq.access.rates import Rates
from queenmq.access.tokens import Tokens
from queenmq.broker.broker import Broker
from queenmq.clock import Clock
from queenmq.errors import Forbidden, InvalidRequest, MethodNotAllowed, NotFound, NotSupported, Unauthenticated
from queenmq.http import asyncapi
from queenmq.http.auth import Authenticator
from queenmq.http.compression import compressed
from queenmq.http.openapi import document
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.routes import (
    ack,
    analytics,
    audit,
    cluster,
    consume,
    dashboard,
    docs,
    explain,
    fetch,
    filters,
    find,
    groups,
    health,
    keys,
    leases,
    live,
    maintenance,
    messages,
    metrics,
    observe,
    operations,
    partitions,
    pauses,
    pipeline,
    policies,
    pop,
    push,
    queues,
    quotas,
    resources,
    schemas,
    session,
    status,
    streams,
    timers,
    tokens,
    transaction,
    troubles,
)
from queenmq.http.scopes import require_permission
from queenmq.http.shares import (
    acknowledges,
    is_long_poll,
    polling,
    popped_queue,
    take_messages,
    take_namespace_request,
    take_request,
)
from queenmq.http.trail import Trail
from queenmq.http.while_valid import WhileValid
from queenmq.httpserver.memory import HttpMemory
from queenmq.httpserver.messages import Request, Response, StreamedResponse
from queenmq.httpserver.origins import BROWSER, FROM_A_PAGE, Origins
from queenmq.reports.owners import Owners
from queenmq.reports.reading import Reports

_MODULES = (
    push,
    pop,
    ack,
    transaction,
    leases,
    consume,
    queues,
    groups,
    pauses,
    policies,
    observe,
    messages,
    fetch,
    find,
    resources,
    status,
    troubles,
    analytics,
    explain,
    filters,
    streams,
    timers,
    metrics,
    cluster,
    maintenance,
    operations,
    partitions,
    pipeline,
    live,
    session,
    tokens,
    quotas,
    schemas,
    audit,
    health,
    keys,
    docs,
    dashboard,
)

ROUTES = tuple(route for module in _MODULES for route in module.ROUTES)


def make_context(broker: Broker, reports: Reports, memory: HttpMemory, clock: Clock) -> Context:
    settings = broker.settings
    openapi = cache(lambda: msgspec.json.encode(document(ROUTES, settings)))
    known = Tokens(broker.database)
    return Context(
        broker=broker,
        reports=reports,
        settings=settings,
        memory=memory,
        openapi=openapi,
        asyncapi=cache(lambda: msgspec.json.encode(asyncapi.document(consume.PATH, consume.PARAMETERS, settings))),
        tokens=known,
        audit=AuditLog(broker.database, settings.audit, broker.node.server_id),
        rates=Rates(clock),
        quotas=Quotas(broker.database, clock, settings.limits.max_queues),
        owners=Owners(reports),
        authenticator=Authenticator.from_settings(settings.auth, clock, known),
    )


class App:
    def __init__(self, context: Context, origins: Origins) -> None:
        self._context = context
        self._authenticator = context.authenticator
        self._origins = origins
        self._trail = Trail(context.audit)
        self._quotas = context.quotas
        self._polls = context.revocable
        self._per_namespace = context.settings.limits.namespace_messages_per_second > 0
        self.router = Router(ROUTES)

    async def handle(self, request: Request) -> Response:
        route = request.admitted
        if not isinstance(route, Route):
            route = await self.admit(request)
        elif self._authenticator.enabled:
            await self._identify(request, route)  # again: a large body takes its time, and tokens are revoked
        response = await self._answer(request, route)
        if route.method == "GET" and route.role is not Role.READ_WRITE:  # it only reads: pops are GET, too
            response = await compressed(request, response)
        if isinstance(response, StreamedResponse) and self._authenticator.enabled:
            response.source = WhileValid(response.source, partial(self._identify, request, route))
        return response

    async def _answer(self, request: Request, route: Route) -> Response:
        caller = request.caller
        if caller is not None or self._per_namespace or self._quotas.any or self._quotas.are_queues_full:
            await self._permit(request, route)
        # One that acknowledges what it gets ends by itself: what it has taken would be lost.
        if request.token_id is not None and is_long_poll(request, route) and not acknowledges(request):
            with self._polls.waiting(request.token_id), polling(request, self._context, popped_queue(request)):
                return await self._serve(request, route)
        is_limited = (caller is not None and caller.limits is not None) or self._quotas.any
        if is_limited and is_long_poll(request, route):
            with polling(request, self._context, popped_queue(request)):
                return await self._serve(request, route)
        return await self._serve(request, route)

    def revoked(self, token_id: str) -> None:
        """A token that Queen has made was revoked, here or on another server."""
        self._authenticator.revoked(token_id)
        self._polls.revoked(token_id)

    async def _serve(self, request: Request, route: Route) -> Response:
        if route.audited:
            return await self._trail.follow(request, route, self._context)
        return await route.handler(request, self._context)

    async def admit(self, request: Request) -> Route:
        """Find the route, and refuse a caller that may not use it; needs only the head of the request.

        Raises NotFound, MethodNotAllowed, Unauthenticated, Forbidden, or UnavailableError when keys cannot be had.
        """
        headers, origins = request.headers, self._origins
        if headers.get(b"host") not in origins.known_hosts or not FROM_A_PAGE.isdisjoint(headers):
            self._check_origin(origins.check, request, None)
        route = self.router.resolve(request)
        if self._authenticator.enabled:
            await self._identify(request, route)
        else:
            request.role = Role.ADMIN
            is_pop = route.method == "GET" and route.role is Role.READ_WRITE
            if is_pop and request.headers.get(b"user-agent", b"").startswith(BROWSER):
                self._check_origin(origins.check_change_by_get, request, route)
        request.admitted = route
        return route

    def _check_origin(self, check: Callable[[Request], None], request: Request, route: Route | None) -> None:
        try:
            check(request)
        except Forbidden as error:
            self._trail.refused(request, route, error)
            raise

    async def _identify(self, request: Request, route: Route) -> None:
        authorization = request.headers.get(b"authorization")
        try:
            caller = await self._authenticator.authenticate(request.path, authorization, route.role, request.connection)
        except (Unauthenticated, Forbidden) as error:
            self._trail.refused(request, route, error, self._authenticator.remembered(authorization))
            raise
        request.subject, request.role, request.token_id = caller.subject, caller.role, caller.token_id
        request.valid_until = caller.valid_until
        if caller.permissions is not None or caller.limits is not None:
            request.caller = caller

    async def _permit(self, request: Request, route: Route) -> None:
        """Raises Forbidden if the token does not allow it, and Overloaded if it asks for too much."""
        caller: Caller | None = request.caller
        is_counted = not request.forwarded
        if is_counted and caller is not None and caller.limits is not None:
            take_request(request, self._context)
        if caller is not None and caller.permissions is not None:
            try:
                await require_permission(caller.permissions, request, route, self._context)
            except Forbidden as error:
                self._trail.refused(request, route, error, caller)
                raise
        if is_counted and self._quotas.limits_requests:
            await take_namespace_request(request, route, self._context)
        if is_counted and self._quotas.are_queues_full and route.makes is not None:
            await self._quotas.require_queues(set(route.makes(request)))
        if is_counted and route.pushes is not None:
            take_messages(request, route, self._context)


class _Node:
    """One place in the tree: the routes that end here, and where the next segment leads."""

    __slots__ = ("capture", "literals", "routes", "takes_rest")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.capture: _Node | None = None
        self.routes: dict[str, Route] = {}
        self.takes_rest = False  # its segment is the rest of the path

    def child(self, segment: str) -> _Node:
        if not segment.startswith("{"):
            return self.literals.setdefault(segment, _Node())
        if self.capture is None:
            self.capture = _Node()
            self.capture.takes_rest = segment.endswith("...}")
        return self.capture


Match = tuple[dict[str, Route], tuple[str, ...]]


# What published clients know and this server does not have: 404, which they do not repeat, with the reason.
_LEFT_OUT = {
    "/api/v1/ephemeral/": "ephemeral queues are not supported: use a queue with ttl or retention",
    "/api/v1/partitions/changed": "changed partitions are not listed: use GET …/resources/queues/{queue}/partitions",
    "/api/v1/migration/": "copying a database to another one is not supported: use pg_dump and pg_restore",
}


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        """Raises ValueError if two routes have the same method and path."""
        self._exact: dict[str, dict[str, Route]] = {}
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        routes = self._place(route.path)
        if route.method in routes:
            raise ValueError(f"{route.method} {route.path} is already served by {routes[route.method].path}")
        routes[route.method] = route

    def _place(self, path: str) -> dict[str, Route]:
        if "{" not in path:
            return self._exact.setdefault(path, {})
        node = self._root
        for segment in path.split("/"):
            node = node.child(segment)
        return node.routes

    def resolve(self, request: Request) -> Route:
        """Find the route and fill `request.params`.

        Exact paths and literal segments win over captures. Raises NotFound, MethodNotAllowed, or
        InvalidRequest when a captured segment is not UTF-8.
        """
        exact = self._exact.get(request.path)
        if exact is not None:
            route = exact.get(request.method)
            if route is not None:
                return route
        return self._search(request)

    def _search(self, request: Request) -> Route:
        # A capture may serve a method that the literal path does not, so every match is considered.
        matches = self._matches(request.path)
        for method in ("HEAD", "GET") if request.method == "HEAD" else (request.method,):
            for routes, captured in matches:
                if method in routes:
                    request.params = tuple([_unescape(segment) for segment in captured])
                    return routes[method]
        if not matches:
            for path, why in _LEFT_OUT.items():
                if request.path.startswith(path):
                    raise NotSupported(f"{why} (docs/design/left-out.md)")
            raise NotFound("Not found")
        raise MethodNotAllowed(request.method, _allow(matches))

    def _matches(self, path: str) -> list[Match]:
        matches = _descend(self._root, path.split("/"), 0, ())
        exact = self._exact.get(path)
        if exact is not None:
            matches.insert(0, (exact, ()))
        return matches


def _descend(node: _Node, segments: list[str], depth: int, captured: tuple[str, ...]) -> list[Match]:
    """All matches below `node`, the more literal ones first. Branches only where both ways are open."""
    matches: list[Match] = []
    for position in range(depth, len(segments)):
        segment = segments[position]
        literal = node.literals.get(segment)
        if node.capture is None or not segment:
            if literal is None:
                return matches
            node = literal
            continue
        if literal is not None:
            matches += _descend(literal, segments, position + 1, captured)
        node = node.capture
        if node.takes_rest:
            captured = (*captured, "/".join(segments[position:]))
            break
        captured = (*captured, segment)
    if node.routes:
        matches.append((node.routes, captured))
    return matches


def _allow(matches: list[Match]) -> str:
    methods = {method for routes, _ in matches for method in routes} | {"OPTIONS"}
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


def _unescape(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"path segment {segment!r} is not valid UTF-8") from None
