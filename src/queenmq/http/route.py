"""What a route is, and what its handler gets beside the request.

Every module of `routes` ends with a table of these. The router, the OpenAPI document and the coordinator are made from
the tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from queenmq.broker.broker import Broker
from queenmq.config import Settings
from queenmq.http.plans import Plan
from queenmq.http.roles import Role
from queenmq.httpserver.memory import HttpMemory
from queenmq.httpserver.messages import Request, Response
from queenmq.reports.horizon import FirstSeen
from queenmq.reports.reading import Reports


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What handlers work with: one for all requests of a server."""

    broker: Broker
    reports: Reports
    settings: Settings
    memory: HttpMemory
    openapi: Callable[[], bytes]
    """The OpenAPI document as JSON; it is made at the first call."""
    first_seen: FirstSeen = field(default_factory=FirstSeen)


Handler = Callable[[Request, Context], Awaitable[Response]]

Forwarding = Callable[[Request, Context], Plan | None]
"""Where a coordinator may forward the request to; None if this server must serve it. Raises nothing: of a malformed
request the handler says what is wrong with it."""


class Route(NamedTuple):
    """`path` has `{name}` for one non-empty segment, and `{name...}` at its end for all that are left.

    Without `forwarding` a request is served where it arrives.
    """

    method: str
    path: str
    handler: Handler
    role: Role
    forwarding: Forwarding | None = None
