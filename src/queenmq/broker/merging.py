"""How a lane merges, and what waits in one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVar

from queenmq.broker.waiting_for_rows import Ticket

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Policy:
    """How a lane merges. Of a key that is `one_at_a_time`, no request joins a call while another one runs that has
    some: they would only meet there."""

    preferred: int  # waiting requests that are worth another call while one runs
    max_hold_s: float  # longest time that a request waits for company while a call runs; less if calls are quick
    max_requests: int
    max_weight: int  # most items (messages, acknowledgements) of one call; a single larger request goes alone
    max_concurrent: int
    max_pending: int
    _: KW_ONLY
    one_at_a_time: Collection[Hashable] = ()


@dataclass(slots=True, eq=False)
class Waiting(Generic[Request, Result]):
    request: Request
    weight: int
    answer: asyncio.Future[Result]
    since: float
    _: KW_ONLY
    key: Hashable = None
    ticket: Ticket | None = None  # once it had to wait for a locked row
    is_unknown: bool = False  # the answer of a try got lost, which may have been committed


Batch = list[Waiting[Request, Result]]
