"""Long polls parked until there may be something for them, and what wakes them.

The waiters of a key (queue, partition or any, consumer group) share their probes of the database: one probe serves as
many of them as there is work for, the one that has waited longest first. A key is woken by a push, by an ack that frees
a partition, at the moment that the last probe named (a lease ends, a delay or window ripens), and, because any of these
may get lost, by itself at growing intervals. Who waits for what is kept by `waiters`; the keys that name a partition
are probed together by `safety_net`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from itertools import islice
from typing import Generic

import msgspec

from queenmq.broker.safety_net import SafetyNet
from queenmq.broker.waiters import (
    KeyWaiters,
    KnownKeys,
    Result,
    Waiter,
    WaiterRegistry,
    WaitKey,
    activity_of,
    longest_waiting,
    resolve,
)
from queenmq.broker.wake_ups import by_queue
from queenmq.clock import Clock
from queenmq.cluster.port import Cluster, Lease
from queenmq.core.group_backoff import BackoffSettings
from queenmq.core.histogram import SECONDS, Histogram
from queenmq.errors import Overloaded, QueenError

log = logging.getLogger(__name__)

_lease = msgspec.json.Decoder(tuple[str, str, str])  # queue, partition, group
_SHORTEST_S = 0.001
_LATE_S = 3.0


class _NoKeys:
    """No queue has keys."""

    rules: Mapping[str, object] = {}

    def key_of(self, queue: str, partition: str) -> str | None:
        return None

    def freed(self, queue: str, partition: str, group: str) -> None: ...

    def holds(self, queue: str, group: Hashable, partitions: Collection[str]) -> bool:
        return False


class LongPolls(Generic[Result]):
    def __init__(
        self,
        backoff: Callable[[str], BackoffSettings],
        cluster: Cluster,
        clock: Clock,
        *,
        max_waiters: int,
        check_limit_s: float,
        ready: Callable[[str, Hashable, list[str]], Awaitable[list[str]]],
    ) -> None:
        """`backoff` has the settings of a queue. `ready` says which partitions of a queue are worth a probe by a group.
        A probe that takes longer than `check_limit_s` is given up, so that its key is not stuck."""
        self._cluster = cluster
        self._clock = clock
        self._max_waiters = max_waiters
        self._check_limit_s = check_limit_s
        self._safety_net = SafetyNet(ready, self._start_check, check_limit_s, clock)
        self.registry: WaiterRegistry[Result] = WaiterRegistry(
            backoff, sweep_later=self._safety_net.sweep_later, cluster=cluster
        )
        self.keys: KnownKeys = _NoKeys()
        self.linked = cluster.linked
        self.closed = False
        self.latency = Histogram(SECONDS)  # from a wake-up until a waiter has its messages

    async def wait(
        self,
        key: WaitKey,
        probe: Callable[[], Awaitable[Result]],
        timeout_s: float,
        discard: Callable[[Result], None],
    ) -> Result | None:
        """Probe at once; if nothing is there, park until something is or the time is over (None).

        `discard` gets what was found when nobody waits for it any more.
        """
        if self.registry.total >= self._max_waiters:
            raise Overloaded("too many long polls are waiting: connection refused for now (ECONNREFUSED)")
        deadline = self._clock.monotonic() + timeout_s
        group = self.registry.enter(key)
        try:
            while True:
                activity = activity_of(group)
                found = await probe()
                if found or self.closed or self._clock.monotonic() >= deadline:
                    return found
                if activity == activity_of(group):
                    break
            self._probe_again(group, found)
            return await self._park(group, Waiter(probe, asyncio.get_running_loop().create_future(), discard), deadline)
        finally:
            self.registry.leave(group)

    # Wake-ups

    def wake(self, queue: str, partitions: Collection[str] | None = None) -> None:
        """Something became readable in these partitions, by a change that was made here: wake the long polls of every
        server. None: it is not known in which partitions."""
        if self.registry.total:
            # Only a push knows its partitions.
            self.wake_here(queue, partitions, pushed=partitions is not None)
        if self.linked:
            self._cluster.readable(queue, partitions)

    def wake_unlimited(self, queue: str) -> None:
        """The limits of a queue were changed: whom they kept waiting may go on."""
        for groups in self.registry.concerned(queue, None):
            for group in groups.values():
                self.registry.note_limit(group, None, None)
        for siblings in self.registry.by_partition(queue):
            for group in siblings.partitions.values():
                self.registry.note_limit(group, None, None)
        self.wake(queue)

    def wake_freed(self, leases: Collection[Lease]) -> None:
        """The same for leases that ended: the long polls that they kept away may go on."""
        if self.keys.rules:
            for lease in leases:
                self.keys.freed(*lease)
        if self.registry.total:
            for queue, partitions in by_queue((queue, partition) for queue, partition, _ in leases).items():
                self.wake_here(queue, partitions)
        if self.linked:
            self._cluster.released(leases)

    def freed_elsewhere(self, payload: str) -> None:
        """No server has ended this lease. Every server is notified of it by the database."""
        queue, partition, group = _lease.decode(payload)
        self._cluster.found_free(queue, partition, group)
        self.wake_here(queue, (partition,))

    def wake_here(self, queue: str, partitions: Collection[str] | None = None, *, pushed: bool = False) -> None:
        """Wake only the long polls of this server; not those that a limit keeps waiting, unless a lease that ended may
        have changed that."""
        count = 1 if partitions is None else len(partitions)
        for groups in self.registry.concerned(queue, partitions):
            for group in list(groups.values()):
                if group.limit is not None and self._stays_limited(group, partitions if pushed else None):
                    continue
                group.activity += 1
                group.hint += count if group.key.partition is None else 1
                group.backoff.reset()
                if group.waiters and group.woken_at is None:
                    group.woken_at = self._clock.monotonic()
                self._start_check(group)
        if partitions is None:
            for siblings in self.registry.by_partition(queue):
                siblings.activity += 1
                self._safety_net.start_sweep(siblings)
        elif not pushed:
            self._wake_limited(queue, partitions)

    def _stays_limited(self, group: KeyWaiters[Result], pushed: Collection[str] | None) -> bool:
        """Whether a limit still keeps a group waiting, after a push to some partitions, or (None) after another
        change."""
        if group.limited_until <= self._clock.monotonic():
            return False
        if group.limit == "rate" or pushed is None:
            return group.limit == "rate"
        if group.limit == "leases" or group.key.partition is not None:
            return True
        return self.keys.holds(group.key.queue, group.key.group, pushed)

    def _wake_limited(self, queue: str, freed: Collection[str]) -> None:
        """Leases in these partitions have ended. What they took of a limit is for those who wait by name in other
        partitions, too: one for each of them."""
        for siblings in self.registry.by_partition(queue):
            if not siblings.limited:
                continue
            counts: Counter[str | None] = Counter(self.keys.key_of(queue, partition) for partition in freed)
            counts[None] = len(freed)
            for key, count in counts.items():
                for group in list(islice(siblings.limited.get(key, {}).values(), count)):
                    if group.limit != "rate":
                        group.activity += 1
                        self._start_check(group)

    def close(self) -> None:
        """Answer every waiter with nothing; later ones probe once."""
        self.closed = True
        self.interrupt()

    def interrupt(self) -> None:
        """Answer every waiter with nothing."""
        for group in self.registry.groups():
            for waiter in group.waiters.values():
                resolve(waiter, None)

    async def _park(self, group: KeyWaiters[Result], waiter: Waiter[Result], deadline: float) -> Result | None:
        group.waiters[id(waiter)] = waiter
        left_s = deadline - self._clock.monotonic()
        alarm = self._clock.call_later(left_s, self._time_is_over, waiter)
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
                waiter.discard(found)
        else:
            answer.cancel()

    def _time_is_over(self, waiter: Waiter[Result]) -> None:
        if waiter.probing and not waiter.overdue:
            # What the probe brings is still for this waiter; but it does not wait for ever.
            waiter.overdue = True
            self._clock.call_later(_LATE_S, resolve, waiter, None)
        else:
            resolve(waiter, None)

    def _start_check(self, group: KeyWaiters[Result]) -> None:
        now = self._clock.monotonic()
        if group.check is not None and now < group.check_ends_by:
            return
        if not group.waiters:
            return
        group.check_ends_by = now + self._check_limit_s
        group.check = asyncio.get_running_loop().create_task(self._check(group))

    async def _check(self, group: KeyWaiters[Result]) -> None:
        """Probe for as many waiters as there may be work for, and go on while there is more."""
        this = group.check
        missed: Result | None = None
        try:
            while group.waiters:
                activity, wanted = activity_of(group), max(group.hint, 1)
                group.hint = 0
                woken_at, group.woken_at = group.woken_at, None
                chosen = longest_waiting(group, wanted)
                if not chosen:
                    break
                async with self._clock.timeout(self._check_limit_s):
                    served, missed = await self._probe_for(chosen)
                if served:
                    self._measure(group, woken_at)
                if served == len(chosen):
                    group.backoff.reset()
                    group.hint = max(group.hint, 2 * wanted)
                elif activity == activity_of(group):
                    (group.backoff.reset if served else group.backoff.found_nothing)()
                    break
        except (QueenError, TimeoutError) as error:
            log.debug("a probe for long polls of %s failed: %s", group.key.queue, error)
            group.backoff.found_nothing()
        finally:
            if group.check is this:
                group.check = None
                if group.members:
                    self._probe_again(group, missed)

    def _measure(self, group: KeyWaiters[Result], woken_at: float | None) -> None:
        """Somebody was served: how long after the wake-up, before the probe or during it, if there was one."""
        if woken_at is None:
            woken_at, group.woken_at = group.woken_at, None
        if woken_at is not None:
            self.latency.add(self._clock.monotonic() - woken_at)

    async def _probe_for(self, chosen: list[Waiter[Result]]) -> tuple[int, Result | None]:
        """One probe for each, which share a call. Returns how many were served, and what another got that says when to
        probe again."""
        for waiter in chosen:
            waiter.probing = True
        try:
            results = await asyncio.gather(*(waiter.probe() for waiter in chosen), return_exceptions=True)
        finally:
            for waiter in chosen:
                waiter.probing = False
        served, missed = 0, None
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
                missed = found
            if waiter.overdue:
                resolve(waiter, None)
        return served, missed

    def _hand_over(self, waiter: Waiter[Result], found: Result) -> None:
        if waiter.answer.done():
            waiter.discard(found)
        else:
            waiter.answer.set_result(found)

    def _probe_again(self, group: KeyWaiters[Result], missed: Result | None = None) -> None:
        """Set the alarm of a key: the interval of its safety net (one for all partitions), or the known moment."""
        ready_in_s = None if missed is None else missed.ready_in_s
        if missed is None or missed.limit is None:
            self.registry.note_limit(group, None, None)
        else:
            self.registry.note_limit(group, missed.limit, missed.limit_key)
        if ready_in_s is None:
            if group.siblings is not None:
                return
            delay = group.backoff.interval_s
        else:
            delay = max(ready_in_s, _SHORTEST_S)
            if group.siblings is None and group.limit != "rate":
                delay = min(delay, group.backoff.interval_s)
        due = self._clock.monotonic() + delay
        if group.limit is not None:
            group.limited_until = due
        if group.timer is not None:
            if group.timer_at <= due:
                return
            group.timer.cancel()
        group.timer, group.timer_at = self._clock.call_later(delay, self._alarm, group), due

    def _alarm(self, group: KeyWaiters[Result]) -> None:
        group.timer = None
        if group.members:
            self._start_check(group)
            if group.check is None:
                self._probe_again(group)
