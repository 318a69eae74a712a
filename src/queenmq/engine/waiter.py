"""Long polls that wait: what one waits for, those that wait for the same, and the families that share a safety net."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from queenmq.core.group_backoff import GroupBackoff

ANY_QUEUE = ""  # cannot be a queue's name: waiters that look at several queues


class Place(NamedTuple):
    """What a long poll waits for. Polls with equal places can be served by each other's looks."""

    queue: str
    partition: str | None  # None: any
    group: Hashable


class Found(Protocol):
    """What a look brings: truthy with messages; else perhaps when to look again."""

    @property
    def ready_in_s(self) -> float | None: ...

    def __bool__(self) -> bool: ...


Result = TypeVar("Result", bound=Found)


@dataclass(slots=True, eq=False)
class Waiter(Generic[Result]):
    look: Callable[[], Awaitable[Result]]
    answer: asyncio.Future[Result | None]
    looking: bool = False
    overdue: bool = False


@dataclass(slots=True, eq=False)
class Group(Generic[Result]):
    """The waiters of one place."""

    place: Place
    backoff: GroupBackoff
    family: Family[Result] | None
    waiters: OrderedDict[int, Waiter[Result]] = field(default_factory=OrderedDict)
    members: int = 0  # parked and looking
    activity: int = 0
    hint: int = 0  # partitions that became readable since the last look
    woken_at: float | None = None  # by the first wake-up that was not followed by a look yet
    check: asyncio.Task[None] | None = None
    check_ends_by: float = 0.0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Family(Generic[Result]):
    """The places of one queue and consumer group that name a partition. They share a safety net."""

    queue: str
    group: Hashable
    backoff: GroupBackoff
    places: dict[str, Group[Result]] = field(default_factory=dict)
    activity: int = 0
    sweep: asyncio.Task[None] | None = None
    again: bool = False  # sweep once more when this one has ended
    timer: asyncio.TimerHandle | None = None


def activity_of(group: Group[Result]) -> int:
    """Grows whenever something may have become readable for the group."""
    return group.activity + (0 if group.family is None else group.family.activity)


def longest_waiting(group: Group[Result], count: int) -> list[Waiter[Result]]:
    chosen: list[Waiter[Result]] = []
    for waiter in group.waiters.values():
        if len(chosen) == count:
            break
        if not waiter.answer.done() and not waiter.looking:
            chosen.append(waiter)
    return chosen


def resolve(waiter: Waiter[Result], found: Result | None) -> None:
    if not waiter.answer.done():
        waiter.answer.set_result(found)
