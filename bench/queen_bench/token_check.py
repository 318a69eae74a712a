"""What it costs a request to show a token that the server remembers, and to be allowed by its grants and limits.

The same requests go through the application without tokens, with one, and with one that has grants and limits, in this
process and without network or database. CPU time, alternating in rounds; the median of the rounds counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final
from uuid import UUID

from queen_bench.decision import KINDS, PARTITION, QUEUE, idle
from queenmq.access.permissions import Grant
from queenmq.access.rates import UNLIMITED, Limits
from queenmq.access.tokens import PREFIX, Token, digest_of
from queenmq.broker.broker import Broker
from queenmq.clock import SYSTEM, SystemClock, utc_now
from queenmq.cluster.node import Node
from queenmq.config import AuthSettings, HttpSettings, Settings
from queenmq.core.roles import Role
from queenmq.http.app import ROUTES, App, Router, make_context
from queenmq.http.auth import Authenticator
from queenmq.httpserver.limits import Limits as HttpLimits
from queenmq.httpserver.memory import HttpMemory
from queenmq.httpserver.messages import Request
from queenmq.httpserver.origins import Origins
from queenmq.reports.reading import Reports
from queenmq.storage.database import Database

ROUNDS: Final = 25
REQUESTS: Final = 1000
MEASURED: Final = ("push", "pop", "ack")
_GRANTS: Final = (Grant(queues=(f"{QUEUE}*",), groups=("g*",)),)
_LIMITS: Final = Limits(requests_per_second=10**9, messages_per_second=10**9)
# What each token has.
_WAYS: Final[dict[str, tuple[tuple[Grant, ...], Limits]]] = {
    "token": ((), UNLIMITED),
    "grants": (_GRANTS, UNLIMITED),
    "limits": (_GRANTS, _LIMITS),
}


class _Known:
    """Tokens as the database has them."""

    is_away = False

    async def find(self, digest: bytes) -> Token:
        number, (grants, limits) = next(
            (number, has) for number, (name, has) in enumerate(_WAYS.items()) if digest_of(_text(name)) == digest
        )
        return Token(
            id=UUID(int=number),
            name="bench",
            role=Role.READ_WRITE,
            grants=grants,
            limits=limits,
            created_at=utc_now(),
            created_by=None,
            expires_at=None,
            revoked_at=None,
            last_used_at=None,
            is_valid=True,
        )


async def token_costs(rounds: int = ROUNDS, requests: int = REQUESTS) -> dict[str, float]:
    """Microseconds of CPU for each kind of request: of a token, of one with grants, and of one with limits, too."""
    costs = {}
    for kind, spent in (await _measured(rounds, requests)).items():
        for way, name in enumerate(_WAYS, 1):
            costs[f"{name}_{kind}_us"] = median(one[way] - one[0] for one in spent) / requests * 1e6
    return costs


async def token_ratios(rounds: int, requests: int) -> dict[str, float]:
    """The same as parts of what such a request costs without tokens, by the best of the rounds: that hardly depends on
    the machine, nor on what else it does."""
    ratios = {}
    for kind, spent in (await _measured(rounds, requests)).items():
        free, *ways = (min(one) for one in zip(*spent, strict=True))
        for name, cost in zip(_WAYS, ways, strict=True):
            ratios[f"{name}_{kind}"] = (cost - free) / free
    return ratios


async def _measured(rounds: int, requests: int) -> dict[str, list[list[float]]]:
    """By kind of request, the seconds of each round without a token and with each."""
    free, guarded = _applications()
    measured = {}
    for kind in MEASURED:
        make = KINDS[kind]
        ways = [(free, None), *((guarded, _text(name)) for name in _WAYS)]
        for app, token in ways:
            await app.handle(_shown(make(0), token))
        measured[kind] = [[await _cpu_s(app, make, requests, token) for app, token in ways] for _ in range(rounds)]
    return measured


def _text(name: str) -> bytes:
    return PREFIX + name.encode()


async def _cpu_s(app: App, make: Callable[[int], Request], count: int, token: bytes | None) -> float:
    connection: dict[str, object] = {}  # kept, as clients do
    requests = [_shown(make(number), token) for number in range(count)]
    for request in requests:
        request.connection = connection
    began = time.process_time()
    for request in requests:
        await app.handle(request)
    return time.process_time() - began


def _shown(request: Request, token: bytes | None) -> Request:
    if token is not None:
        request.headers[b"authorization"] = b"Bearer " + token
    return request


def _applications() -> tuple[App, App]:
    """Without and with tokens."""
    settings = Settings(http=HttpSettings(port=0))
    clock = SystemClock()
    database = Database(settings.database, "postgresql://")
    broker = Broker(settings, database, Node(settings, clock), clock)
    limits = HttpLimits.of(settings.http, settings.server.workers)
    context = make_context(broker, Reports(database), HttpMemory.within(limits), SYSTEM)
    context.owners.remember(PARTITION, QUEUE)
    origins = Origins.from_settings(settings)
    guarded = Authenticator.from_settings(AuthSettings(tokens_enabled=True), clock, _Known())
    apps = (App(context, origins), App(replace(context, authenticator=guarded), origins))
    for app in apps:
        app.router = Router([idle(route) for route in ROUTES])
    return apps


if __name__ == "__main__":
    for _name, _cost in asyncio.run(token_costs()).items():
        print(f"{_name:20} {_cost:.2f}")
