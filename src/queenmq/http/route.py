"""What a route is, and what its handler gets beside the request.

Every module of `routes` ends with a table of these. The router, the OpenAPI document and the coordinator are made from
the tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from queenmq.access.audit import AuditLog
from queenmq.access.permissions import Verb
from queenmq.access.quotas import Quotas
from queenmq.access.rates import Rates
from queenmq.access.tokens import Tokens
from queenmq.broker.broker import Broker
from queenmq.broker.single_flight import SingleFlight
from queenmq.config import Settings
from queenmq.http.auth import Authenticator
from queenmq.http.plans import Plan
from queenmq.http.revocable import RevocablePolls
from queenmq.http.roles import Role
from queenmq.httpserver.memory import HttpMemory
from queenmq.httpserver.messages import Request, Response
from queenmq.reports.horizon import FirstSeen
from queenmq.reports.owners import Owners
from queenmq.reports.reading import Reports


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Context:
    """What handlers work with: one for all requests of a server."""

    broker: Broker
    reports: Reports
    settings: Settings
    memory: HttpMemory
    openapi: Callable[[], bytes]
    """The OpenAPI document as JSON; it is made at the first call."""
    asyncapi: Callable[[], bytes]
    """The same for the AsyncAPI document."""
    tokens: Tokens
    audit: AuditLog
    rates: Rates
    quotas: Quotas
    owners: Owners
    authenticator: Authenticator
    first_seen: FirstSeen = field(default_factory=FirstSeen)
    scrapes: SingleFlight[bytes] = field(default_factory=SingleFlight)
    revocable: RevocablePolls = field(default_factory=RevocablePolls)


Handler = Callable[[Request, Context], Awaitable[Response]]

Forwarding = Callable[[Request, Context], Plan | None]
"""Where a coordinator may forward the request to; None if this server must serve it. Raises nothing: of a malformed
request the handler says what is wrong with it."""


class Need(NamedTuple):
    """What a request does: with a queue, or with all of them if it is None; as a group, if one is involved."""

    verb: Verb
    queue: str | None
    group: str | None = None


class FoundNeed(Need):
    """Of a queue that the request names only by the id of something in it: the caller may not know its name."""

    __slots__ = ()


Scope = Callable[[Request, Context], Awaitable[Sequence[Need]]]
"""Finds out what a request does. It is asked only if the token is restricted to queues or groups. Raises what the
handler would raise for a malformed request, and Forbidden."""


Pushes = Callable[[Request], Sequence[str]]
"""The queue of each message that a request pushes. Raises what the handler would raise for a malformed request."""


class Route(NamedTuple):
    """`path` has `{name}` for one non-empty segment, and `{name...}` at its end for all that are left.

    `scope` says what a request does with which queues; without it, tokens that are restricted may not use the route.
    `pushes` is for what pushes messages, `configures` for what makes a queue without one. Without `forwarding` a
    request is served where it arrives. What is `audited` is written to the audit log.
    """

    method: str
    path: str
    handler: Handler
    role: Role
    forwarding: Forwarding | None = None
    scope: Scope | None = None
    pushes: Pushes | None = None
    audited: bool = False
    configures: Pushes | None = None

    @property
    def makes(self) -> Pushes | None:
        """The queues that a request makes if they are not there."""
        return self.pushes or self.configures
