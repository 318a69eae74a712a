"""POP_WAIT: long polls parked until there may be something for them.

The waiters of a place (queue, partition or any, consumer group) share their looks at the database: one look serves as
many of them as there is work for, the one that has waited longest first. A place is woken by a push, by an ack that
frees a partition, at the moment that the last look named (a lease ends, a delay or window ripens), and, because any of
these may get lost, by itself at growing intervals. Who waits where is kept by `waiter_registry`; the places that name a
partition are looked after together by `safety_net`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import Generic

from queenmq.core.group_backoff import BackoffSettings
from queenmq.core.histogram import SECONDS, Histogram
from queenmq.engine.safety_net import SafetyNet
from queenmq.engine.waiter import Group, Place, Result, Waiter, activity_of, longest_waiting, resolve
from queenmq.engine.waiter_registry import WaiterRegistry
from queenmq.errors import Overloaded, QueenError

log = logging.getLogger(__name__)

_SHORTEST_S = 0.001
_LATE_S = 3.0


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
        self._max_waiters = max_waiters
        self._check_limit_s = check_limit_s
        self._discard = discard
        self._safety_net = SafetyNet(ready, self._start_check, check_limit_s)
        self.registry = WaiterRegistry(backoff, family_began=self._safety_net.sweep_later, came=came, went=went)
        self.closed = False
        self.latency = Histogram(SECONDS)  # from a wake-up until a waiter has its messages

    async def wait(self, place: Place, look: Callable[[], Awaitable[Result]], timeout_s: float) -> Result | None:
        """Look at once; if nothing is there, park until something is or the time is over (None)."""
        if self.registry.total >= self._max_waiters:
            raise Overloaded("too many long polls are waiting: connection refused for now (ECONNREFUSED)")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        group = self.registry.enter(place)
        try:
            while True:
                activity = activity_of(group)
                found = await look()
                if found or self.closed or loop.time() >= deadline:
                    return found
                if activity == activity_of(group):
                    break
            self._look_again(group, found.ready_in_s)
            return await self._park(group, look, deadline)
        finally:
            self.registry.leave(group)

    def wake(self, queue: str, partitions: Collection[str] | None = None) -> None:
        """Something became readable in these partitions of `queue`; None if it is not known in which."""
        count = 1 if partitions is None else len(partitions)
        for groups in self.registry.concerned(queue, partitions):
            for group in list(groups.values()):
                group.activity += 1
                group.hint += count if group.place.partition is None else 1
                group.backoff.reset()
                if group.waiters and group.woken_at is None:
                    group.woken_at = asyncio.get_running_loop().time()
                self._start_check(group)
        if partitions is None:
            for family in self.registry.families(queue):
                family.activity += 1
                self._safety_net.start_sweep(family)

    def close(self) -> None:
        """Answer every waiter with nothing; later ones look once."""
        self.closed = True
        self.interrupt()

    def interrupt(self) -> None:
        """Answer every waiter with nothing."""
        for group in self.registry.groups():
            for waiter in group.waiters.values():
                resolve(waiter, None)

    async def _park(
        self, group: Group[Result], look: Callable[[], Awaitable[Result]], deadline: float
    ) -> Result | None:
        loop = asyncio.get_running_loop()
        waiter: Waiter[Result] = Waiter(look, loop.create_future())
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

    def _abandon(self, waiter: Waiter[Result]) -> None:
        answer = waiter.answer
        if answer.done() and not answer.cancelled():
            found = answer.result()
            if found:
                self._discard(found)
        else:
            answer.cancel()

    def _time_is_over(self, waiter: Waiter[Result]) -> None:
        if waiter.looking and not waiter.overdue:
            # What the look brings is still for this waiter; but it does not wait for ever.
            waiter.overdue = True
            asyncio.get_running_loop().call_later(_LATE_S, resolve, waiter, None)
        else:
            resolve(waiter, None)

    def _start_check(self, group: Group[Result]) -> None:
        now = asyncio.get_running_loop().time()
        if group.check is not None and now < group.check_ends_by:
            return
        if not group.waiters:
            return
        group.check_ends_by = now + self._check_limit_s
        group.check = asyncio.get_running_loop().create_task(self._check(group))

    async def _check(self, group: Group[Result]) -> None:
        """Look for as many waiters as there may be work for, and go on while there is more."""
        this = group.check
        ready_in_s: float | None = None
        try:
            while group.waiters:
                activity, wanted = activity_of(group), max(group.hint, 1)
                group.hint = 0
                woken_at, group.woken_at = group.woken_at, None
                chosen = longest_waiting(group, wanted)
                if not chosen:
                    break
                async with asyncio.timeout(self._check_limit_s):
                    served, ready_in_s = await self._look_for(chosen)
                if served:
                    self._measure(group, woken_at)
                if served == len(chosen):
                    group.backoff.reset()
                    group.hint = max(group.hint, 2 * wanted)
                elif activity == activity_of(group):
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

    def _measure(self, group: Group[Result], woken_at: float | None) -> None:
        """Somebody was served: how long after the wake-up, before the look or during it, if there was one."""
        if woken_at is None:
            woken_at, group.woken_at = group.woken_at, None
        if woken_at is not None:
            self.latency.add(asyncio.get_running_loop().time() - woken_at)

    async def _look_for(self, chosen: list[Waiter[Result]]) -> tuple[int, float | None]:
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
                resolve(waiter, None)
        return served, ready_in_s

    def _hand_over(self, waiter: Waiter[Result], found: Result) -> None:
        if waiter.answer.done():
            self._discard(found)
        else:
            waiter.answer.set_result(found)

    def _look_again(self, group: Group[Result], ready_in_s: float | None) -> None:
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

    def _alarm(self, group: Group[Result]) -> None:
        group.timer = None
        if group.members:
            self._start_check(group)
            if group.check is None:
                self._look_again(group, None)
