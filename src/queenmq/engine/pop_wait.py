"""POP_WAIT: long polls parked until there may be something for them.

Waiters are kept by place (queue, partition or any, consumer group) and indexed by queue and partition, so a wake-up
costs what it wakes. The waiters of a place share their looks at the database: one look serves as many of them as there
is work for, the one that has waited longest first. A place is woken by a push, by an ack that frees a partition, at the
moment that the last look named (a lease ends, a delay or window ripens), and, because any of these may get lost, by
itself at growing intervals. Of that safety net, the places that differ only in their partition share one sweep, because
there may be thousands of them (one long poll a customer, chat or device).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from queenmq.core.group_backoff import BackoffSettings, GroupBackoff
from queenmq.core.histogram import SECONDS, Histogram
from queenmq.errors import Overloaded, QueenError

log = logging.getLogger(__name__)

ANY_QUEUE = ""  # cannot be a queue's name: waiters that look at several queues
_SHORTEST_S = 0.001
_LATE_S = 3.0


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
class _Waiter(Generic[Result]):
    look: Callable[[], Awaitable[Result]]
    answer: asyncio.Future[Result | None]
    looking: bool = False
    overdue: bool = False


@dataclass(slots=True, eq=False)
class _Group(Generic[Result]):
    """The waiters of one place."""

    place: Place
    backoff: GroupBackoff
    family: _Family[Result] | None
    waiters: OrderedDict[int, _Waiter[Result]] = field(default_factory=OrderedDict)
    members: int = 0  # parked and looking
    activity: int = 0
    hint: int = 0  # partitions that became readable since the last look
    woken_at: float | None = None  # by the first wake-up that was not followed by a look yet
    check: asyncio.Task[None] | None = None
    check_ends_by: float = 0.0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Family(Generic[Result]):
    """The places of one queue and consumer group that name a partition. They share a safety net."""

    queue: str
    group: Hashable
    backoff: GroupBackoff
    places: dict[str, _Group[Result]] = field(default_factory=dict)
    activity: int = 0
    sweep: asyncio.Task[None] | None = None
    again: bool = False  # sweep once more when this one has ended
    timer: asyncio.TimerHandle | None = None


class PopWait(Generic[Result]):
    def __init__(
        self,
        backoff: BackoffSettings,
        *,
        max_waiters: int,
        check_limit_s: float,
        discard: Callable[[Result], None],
        ready: Callable[[str, Hashable, list[str]], Awaitable[list[str]]],
        came: Callable[[str], None] = lambda _queue: None,
        went: Callable[[str], None] = lambda _queue: None,
    ) -> None:
        """`discard` gets what was found for a waiter that has gone. `ready` says which partitions of a queue are worth
        a look by a group. `came` and `went` are told of the first and of the last waiter of a queue. A look that takes
        longer than `check_limit_s` is given up, so that its place is not stuck."""
        self._backoff = backoff
        self._max_waiters = max_waiters
        self._check_limit_s = check_limit_s
        self._discard = discard
        self._ready = ready
        self._came = came
        self._went = went
        self._groups: dict[Place, _Group[Result]] = {}
        self._by_queue: dict[str, dict[str | None, dict[Place, _Group[Result]]]] = {}
        self._families: dict[str, dict[Hashable, _Family[Result]]] = {}
        self.total = 0
        self.closed = False
        self.latency = Histogram(SECONDS)  # from a wake-up until a waiter has its messages

    async def wait(self, place: Place, look: Callable[[], Awaitable[Result]], timeout_s: float) -> Result | None:
        """Look at once; if nothing is there, park until something is or the time is over (None)."""
        if self.total >= self._max_waiters:
            raise Overloaded("too many long polls are waiting: connection refused for now (ECONNREFUSED)")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        group = self._enter(place)
        try:
            while True:
                activity = _activity(group)
                found = await look()
                if found or self.closed or loop.time() >= deadline:
                    return found
                if activity == _activity(group):
                    break
            self._look_again(group, found.ready_in_s)
            return await self._park(group, look, deadline)
        finally:
            self._leave(group)

    def wake(self, queue: str, partitions: Collection[str] | None = None) -> None:
        """Something became readable in these partitions of `queue`; None if it is not known in which."""
        count = 1 if partitions is None else len(partitions)
        for groups in self._concerned(queue, partitions):
            for group in list(groups.values()):
                group.activity += 1
                group.hint += count if group.place.partition is None else 1
                group.backoff.reset()
                if group.waiters and group.woken_at is None:
                    group.woken_at = asyncio.get_running_loop().time()
                self._start_check(group)
        if partitions is None:
            for family in self._families.get(queue, {}).values():
                family.activity += 1
                self._start_sweep(family)

    def _concerned(self, queue: str, partitions: Collection[str] | None) -> list[dict[Place, _Group[Result]]]:
        here = self._by_queue.get(queue, {})
        if partitions is None or len(partitions) < len(here):
            found = [here[partition] for partition in (None, *(partitions or ())) if partition in here]
        else:
            found = [groups for partition, groups in here.items() if partition is None or partition in partitions]
        return found + list(self._by_queue.get(ANY_QUEUE, {}).values())

    def close(self) -> None:
        """Answer every waiter with nothing; later ones look once."""
        self.closed = True
        self.interrupt()

    def interrupt(self) -> None:
        """Answer every waiter with nothing."""
        for group in self._groups.values():
            for waiter in group.waiters.values():
                _resolve(waiter, None)

    def parked(self) -> dict[str, int]:
        """Waiters by queue."""
        return {
            queue: sum(group.members for groups in places.values() for group in groups.values())
            for queue, places in self._by_queue.items()
            if queue
        }

    def average_interval_s(self) -> float:
        """How long places wait until they are looked at again by themselves."""
        intervals = [(group.family or group).backoff.interval_s for group in self._groups.values()]
        return sum(intervals) / len(intervals) if intervals else 0.0

    def statistics(self) -> dict[str, int]:
        groups = self._groups.values()
        return {
            "groups_tracked": len(groups),
            "groups_in_flight": sum(group.check is not None for group in groups),
            "groups_backed_off": sum((group.family or group).backoff.backed_off for group in groups),
            "waiters": self.total,
        }

    def _enter(self, place: Place) -> _Group[Result]:
        group = self._groups.get(place)
        if group is None:
            group = _Group(place, GroupBackoff(self._backoff), self._join_family(place))
            self._groups[place] = group
            if place.queue not in self._by_queue:
                self._came(place.queue)
            self._by_queue.setdefault(place.queue, {}).setdefault(place.partition, {})[place] = group
            if group.family is not None and place.partition is not None:
                group.family.places[place.partition] = group
        group.members += 1
        self.total += 1
        return group

    def _join_family(self, place: Place) -> _Family[Result] | None:
        if place.partition is None:
            return None
        families = self._families.setdefault(place.queue, {})
        family = families.get(place.group)
        if family is None:
            family = families[place.group] = _Family(place.queue, place.group, GroupBackoff(self._backoff))
            self._sweep_later(family)
        return family

    def _leave(self, group: _Group[Result]) -> None:
        self.total -= 1
        group.members -= 1
        if group.members:
            return
        if group.timer is not None:
            group.timer.cancel()
        place = group.place
        del self._groups[place]
        places = self._by_queue[place.queue]
        del places[place.partition][place]
        if not places[place.partition]:
            del places[place.partition]
        if not places:
            del self._by_queue[place.queue]
            self._went(place.queue)
        if group.family is not None and place.partition is not None:
            del group.family.places[place.partition]
            if not group.family.places:
                self._end_family(group.family)

    def _end_family(self, family: _Family[Result]) -> None:
        if family.timer is not None:
            family.timer.cancel()
        del self._families[family.queue][family.group]
        if not self._families[family.queue]:
            del self._families[family.queue]

    async def _park(
        self, group: _Group[Result], look: Callable[[], Awaitable[Result]], deadline: float
    ) -> Result | None:
        loop = asyncio.get_running_loop()
        waiter: _Waiter[Result] = _Waiter(look, loop.create_future())
        group.waiters[id(waiter)] = waiter
        alarm = loop.call_at(deadline, self._time_is_over, waiter)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise
        finally:
            alarm.cancel()
            group.waiters.pop(id(waiter), None)

    def _abandon(self, waiter: _Waiter[Result]) -> None:
        answer = waiter.answer
        if answer.done() and not answer.cancelled():
            found = answer.result()
            if found:
                self._discard(found)
        else:
            answer.cancel()

    def _time_is_over(self, waiter: _Waiter[Result]) -> None:
        if waiter.looking and not waiter.overdue:
            # What the look brings is still for this waiter; but it does not wait for ever.
            waiter.overdue = True
            asyncio.get_running_loop().call_later(_LATE_S, _resolve, waiter, None)
        else:
            _resolve(waiter, None)

    def _start_check(self, group: _Group[Result]) -> None:
        now = asyncio.get_running_loop().time()
        if group.check is not None and now < group.check_ends_by:
            return
        if not group.waiters:
            return
        group.check_ends_by = now + self._check_limit_s
        group.check = asyncio.get_running_loop().create_task(self._check(group))

    async def _check(self, group: _Group[Result]) -> None:
        """Look for as many waiters as there may be work for, and go on while there is more."""
        this = group.check
        ready_in_s: float | None = None
        try:
            while group.waiters:
                activity, wanted = _activity(group), max(group.hint, 1)
                group.hint = 0
                woken_at, group.woken_at = group.woken_at, None
                chosen = _longest_waiting(group, wanted)
                if not chosen:
                    break
                async with asyncio.timeout(self._check_limit_s):
                    served, ready_in_s = await self._look_for(chosen)
                if served:
                    self._measure(group, woken_at)
                if served == len(chosen):
                    group.backoff.reset()
                    group.hint = max(group.hint, 2 * wanted)
                elif activity == _activity(group):
                    (group.backoff.reset if served else group.backoff.found_nothing)()
                    break
        except (QueenError, TimeoutError) as error:
            log.debug("a look for long polls of %s failed: %s", group.place.queue, error)
            group.backoff.found_nothing()
        finally:
            if group.check is this:
                group.check = None
                if group.members:
                    self._look_again(group, ready_in_s)

    def _measure(self, group: _Group[Result], woken_at: float | None) -> None:
        """Somebody was served: how long after the wake-up, before the look or during it, if there was one."""
        if woken_at is None:
            woken_at, group.woken_at = group.woken_at, None
        if woken_at is not None:
            self.latency.add(asyncio.get_running_loop().time() - woken_at)

    async def _look_for(self, chosen: list[_Waiter[Result]]) -> tuple[int, float | None]:
        """One look for each, which share a call. Returns how many were served, and how soon to look again."""
        for waiter in chosen:
            waiter.looking = True
        try:
            results = await asyncio.gather(*(waiter.look() for waiter in chosen), return_exceptions=True)
        finally:
            for waiter in chosen:
                waiter.looking = False
        served, ready_in_s = 0, None
        for waiter, found in zip(chosen, results, strict=True):
            if isinstance(found, BaseException):
                if not isinstance(found, QueenError):
                    raise found
                continue
            if found:
                served += 1
                self._hand_over(waiter, found)
                continue
            if found.ready_in_s is not None:
                ready_in_s = found.ready_in_s
            if waiter.overdue:
                _resolve(waiter, None)
        return served, ready_in_s

    def _hand_over(self, waiter: _Waiter[Result], found: Result) -> None:
        if waiter.answer.done():
            self._discard(found)
        else:
            waiter.answer.set_result(found)

    def _look_again(self, group: _Group[Result], ready_in_s: float | None) -> None:
        """Set the alarm of a place: the interval of the safety net (unless its family has one), or the known moment."""
        if ready_in_s is None:
            if group.family is not None:
                return
            delay = group.backoff.interval_s
        else:
            delay = max(ready_in_s, _SHORTEST_S)
            if group.family is None:
                delay = min(delay, group.backoff.interval_s)
        loop = asyncio.get_running_loop()
        if group.timer is not None:
            if group.timer.when() <= loop.time() + delay and not group.timer.cancelled():
                return
            group.timer.cancel()
        group.timer = loop.call_later(delay, self._alarm, group)

    def _alarm(self, group: _Group[Result]) -> None:
        group.timer = None
        if group.members:
            self._start_check(group)
            if group.check is None:
                self._look_again(group, None)

    def _sweep_later(self, family: _Family[Result]) -> None:
        loop = asyncio.get_running_loop()
        family.timer = loop.call_later(family.backoff.interval_s, self._start_sweep, family)

    def _start_sweep(self, family: _Family[Result]) -> None:
        if family.sweep is not None:
            family.again = True
            return
        if family.timer is not None:
            family.timer.cancel()
        family.again = False
        family.sweep = asyncio.get_running_loop().create_task(self._sweep(family))

    async def _sweep(self, family: _Family[Result]) -> None:
        """Ask once for all places of a family, and look where something is that no wake-up told of."""
        idle = [partition for partition, group in family.places.items() if group.check is None and group.waiters]
        try:
            async with asyncio.timeout(self._check_limit_s):
                ready = await self._ready(family.queue, family.group, idle) if idle else []
            (family.backoff.reset if ready else family.backoff.found_nothing)()
            for partition in ready:
                if partition in family.places:
                    self._start_check(family.places[partition])
        except (QueenError, TimeoutError) as error:
            log.debug("a sweep for long polls of %s failed: %s", family.queue, error)
            family.backoff.found_nothing()
        finally:
            family.sweep = None
            if family.places:
                (self._start_sweep if family.again else self._sweep_later)(family)


def _activity(group: _Group[Result]) -> int:
    return group.activity + (0 if group.family is None else group.family.activity)


def _longest_waiting(group: _Group[Result], count: int) -> list[_Waiter[Result]]:
    chosen: list[_Waiter[Result]] = []
    for waiter in group.waiters.values():
        if len(chosen) == count:
            break
        if not waiter.answer.done() and not waiter.looking:
            chosen.append(waiter)
    return chosen


def _resolve(waiter: _Waiter[Result], found: Result | None) -> None:
    if not waiter.answer.done():
        waiter.answer.set_result(found)
