"""Which handler serves a path: exact paths by one lookup, patterns by a tree of segments.

The raw path is split before anything is unescaped, so an escaped slash can be part of a name. Who may
call a route is checked elsewhere; the router only keeps the role that the route demands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.messages import Request, Response
from queenmq.http.refusals import WrongMethod

if TYPE_CHECKING:
    from queenmq.http.roles import Role

Handler = Callable[[Request], Awaitable[Response]]


class Route(NamedTuple):
    method: str
    pattern: str
    handler: Handler
    role: Role


class _Node:
    """One place in the tree: the routes that end here, and where the next segment leads."""

    __slots__ = ("capture", "literals", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.capture: _Node | None = None
        self.routes: dict[str, Route] = {}

    def child(self, segment: str) -> _Node:
        if not segment.startswith("{"):
            return self.literals.setdefault(segment, _Node())
        if self.capture is None:
            self.capture = _Node()
        return self.capture


Match = tuple[dict[str, Route], tuple[str, ...]]


class Router:
    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._root = _Node()

    def add(self, method: str, pattern: str, handler: Handler, role: Role) -> None:
        """Serve `pattern`, where `{name}` stands for one non-empty segment. Raises ValueError if taken."""
        routes = self._place(pattern)
        if method in routes:
            raise ValueError(f"{method} {pattern} is already served by {routes[method].pattern}")
        routes[method] = Route(method, pattern, handler, role)

    def _place(self, pattern: str) -> dict[str, Route]:
        if "{" not in pattern:
            return self._exact.setdefault(pattern, {})
        node = self._root
        for segment in pattern.split("/"):
            node = node.child(segment)
        return node.routes

    def resolve(self, request: Request) -> Route:
        """Find the route and fill `request.params`.

        Exact paths and literal segments win over captures. Raises NotFound, WrongMethod, or
        InvalidRequest when a captured segment is not UTF-8.
        """
        exact = self._exact.get(request.path)
        if exact is not None:
            route = exact.get(request.method)
            if route is not None:
                return route
        return self._search(request)

    def _search(self, request: Request) -> Route:
        # A capture may serve a method that the literal path does not, so every match is looked at.
        matches = self._matches(request.path)
        for method in ("HEAD", "GET") if request.method == "HEAD" else (request.method,):
            for routes, captured in matches:
                if method in routes:
                    request.params = tuple([_unescape(segment) for segment in captured])
                    return routes[method]
        if not matches:
            raise NotFound("Not found")
        raise WrongMethod(request.method, _allow(matches))

    def _matches(self, path: str) -> list[Match]:
        matches = _descend(self._root, path.split("/"), 0, ())
        exact = self._exact.get(path)
        if exact is not None:
            matches.insert(0, (exact, ()))
        return matches

    def routes(self) -> list[Route]:
        """All routes, ordered by pattern and method."""
        found = [route for routes in self._exact.values() for route in routes.values()]
        found.extend(_below(self._root))
        return sorted(found, key=lambda route: (route.pattern, route.method))


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
        captured = (*captured, segment)
    if node.routes:
        matches.append((node.routes, captured))
    return matches


def _below(node: _Node) -> Iterator[Route]:
    yield from node.routes.values()
    for child in node.literals.values():
        yield from _below(child)
    if node.capture is not None:
        yield from _below(node.capture)


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
