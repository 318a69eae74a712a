"""The statistics of queues and groups: updated queue by queue in bounded steps, so that no answer has to count.

A queue is measured again when something was done to it here or by another server, and in any case from time to time,
because psql works on it too. It is measured in pages of partitions (`queen.measure_page`), those first whose figures
are oldest, and a bounded number of them at a time: a turn costs the same however many partitions there are. One queue
takes a twentieth of the time at most, a thousandth while it is quiet, and all of them together take a tenth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime

import asyncpg

from queenmq.broker.activity import ALL_QUEUES, COUNTED, MOST_READERS_OF_GROUP, Activity, Counts, Reader
from queenmq.clock import SYSTEM, Clock
from queenmq.config import StatisticsSettings
from queenmq.core.consumer import Consumer, shown
from queenmq.errors import QueenError
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_PAGE = 1000  # partitions
_PAGES = 40  # of a queue, in a turn
_KEPT = 100  # partitions that lag most, and that were written last, of each queue
_LEAST_PAUSES = 20  # between two turns of a queue, in durations of the last one
_QUIET_PAUSES = 1000  # of a queue in which nothing seems to have happened: what psql did to it, say
_MOST_OF_THE_TIME = 0.1  # that a turn may take; what is left over comes first in the next one
_CHEAP_MS = 5.0
_TRIES = 3  # of which one must be cheap: the first measurement is slow, and so are some on a busy machine
_AT_ONCE = 20
_FRESH_S = 0.25
_MOST_NAMED = 20_000
# That are stored, those that were seen last.
_MOST_CONSUMERS = 100_000
_FORGET_CONSUMERS_S = 60.0
_MOST_STRANGERS = 10_000  # that may be stored before too many are forgotten
# When consumers are stored one queue after the other, because that of all at once has failed.
_MOST_SINGLE_QUEUES = 200
_MOST_FAILURES = 3
_PATIENCE = "300ms"


class Statistics:
    """`most_known` bounds of how many queues the cost is remembered; `at_once` is how much history goes in a step."""

    def __init__(
        self,
        database: Database,
        activity: Activity,
        settings: StatisticsSettings,
        server_id: str,
        clock: Clock = SYSTEM,
        *,
        most_known: int,
        at_once: int,
    ) -> None:
        self._database = database
        self._activity = activity
        self._settings = settings
        self._server_id = server_id
        self._clock = clock
        self._most_known = most_known
        self._at_once = at_once
        self._costs_ms: dict[str, tuple[float, ...]] = {}  # the last ones of each queue
        self._behind: dict[str, datetime] = {}  # queues with pages that were last measured before that moment
        self._fresh_at = float("-inf")
        self._errors = 0
        self._named: set[Reader] = set()  # consumers that were stored not long ago
        self._strangers = 0  # stored since too many were forgotten
        self._forget_consumers_at = float("-inf")
        self._one_at_a_time = asyncio.Lock()
        self._one_walk_at_a_time = asyncio.Lock()
        self._walks: set[asyncio.Task[int]] = set()
        self._next_walk: asyncio.Task[int] | None = None  # not begun yet

    async def refresh(self, *, everything: bool = False) -> int:
        """Update what is due, as far as the time allows, or every queue. Returns how many were updated."""
        async with self._one_at_a_time:
            touched, self._activity.touched = self._activity.touched, set()
            idle_s = 0.0 if everything else self._settings.reconcile_interval_ms / 1000
            pauses, quiet = (0, 0) if everything else (_LEAST_PAUSES, _QUIET_PAUSES)
            due = await self._database.fetch(
                statement("statistics_due"), [*touched, *self._behind], idle_s, pauses, quiet, repeatable=True
            )
            turn_s = self._settings.interval_ms / 1000
            end = float("inf") if everything else self._clock.monotonic() + turn_s * _MOST_OF_THE_TIME
            done = 0
            for row in due:
                if self._clock.monotonic() > end:
                    break
                name = row["name"]
                began = None if everything or name in touched else self._behind.get(name)
                touched.discard(name)
                await self._measure(row, began or row["now"], end, is_busy=row["is_busy"])
                done += 1
            # What is too costly just now has its turn later. What does not exist any more is forgotten.
            self._activity.touched |= {name for name in touched if name in self._costs_ms}
            return done

    async def refresh_within(self, seconds: float) -> int | None:
        """Update every queue; None if that takes longer: then it goes on by itself.

        Callers share the next walk, not the one under way: that may have passed what they have just changed.
        """
        if self._next_walk is None:
            self._next_walk = asyncio.get_running_loop().create_task(self._walk())
            self._walks.add(self._next_walk)
            self._next_walk.add_done_callback(self._walked)
        walk = self._next_walk
        with suppress(TimeoutError):
            async with self._clock.timeout(seconds):
                await asyncio.wait((walk,))
        return walk.result() if walk.done() else None

    async def _walk(self) -> int:
        async with self._one_walk_at_a_time:
            self._next_walk = None
            return await self.refresh(everything=True)

    def _walked(self, walk: asyncio.Task[int]) -> None:
        self._walks.discard(walk)
        if self._next_walk is walk:
            self._next_walk = None
        if not walk.cancelled() and walk.exception() is not None:
            log.warning("updating the statistics of every queue failed: %s", walk.exception())

    async def close(self) -> None:
        """Give up what goes on in the background."""
        walks = tuple(self._walks)
        for walk in walks:
            walk.cancel()
        if walks:
            await asyncio.wait(walks)

    async def freshen(self) -> None:
        """Before an answer: update the queues that were touched here and that take no time."""
        now = self._clock.monotonic()
        cheap = [name for name in self._activity.touched if self._is_cheap(name)]
        if not cheap or now - self._fresh_at < _FRESH_S or self._one_at_a_time.locked():
            return
        self._fresh_at = now
        async with self._one_at_a_time:
            for row in await self._database.fetch(statement("queue_ids"), cheap[:_AT_ONCE], repeatable=True):
                self._activity.touched.discard(row["name"])
                await self._measure(row, row["now"], now, is_busy=True)

    def _is_cheap(self, name: str) -> bool:
        costs_ms = self._costs_ms.get(name, ())
        return len(costs_ms) < _TRIES or min(costs_ms) < _CHEAP_MS

    async def _measure(self, queue: asyncpg.Record, before: datetime, end: float, *, is_busy: bool) -> None:
        """Measure pages that were last measured before that moment, and sum.

        That is one at least, a bounded number of them, and all that have never been measured; none begins after `end`.
        Without an end, it is all of them. If the queue is busy, those that are left over have the next turns.
        """
        started, pages, more, everything = self._clock.monotonic(), 0, True, end == float("inf")
        share = started + self._settings.interval_ms / 1000 / _LEAST_PAUSES
        while more:
            [page] = await self._database.fetch(
                statement("measure_page"), queue["id"], before, _PAGE, _KEPT, everything, repeatable=True
            )
            more = page["more"]
            pages += page["measured"]
            now = self._clock.monotonic()
            is_enough = not page["unmeasured"] and (pages >= _PAGES or now > share)
            if not page["measured"] or (not everything and (is_enough or now > end)):
                break
        cost_ms = (self._clock.monotonic() - started) * 1000
        if pages:
            await self._database.fetchval(statement("sum_statistics"), queue["id"], cost_ms, _KEPT, repeatable=True)
        if len(self._costs_ms) > self._most_known:
            self._costs_ms.clear()
            self._behind.clear()
        before_ms = self._costs_ms.setdefault(queue["name"], ())
        if pages:
            # One that is measured in several turns is large, however short they are.
            self._costs_ms[queue["name"]] = (*before_ms, float("inf") if more else cost_ms)[-_TRIES:]
        self._behind.pop(queue["name"], None)
        if more and is_busy:
            self._behind[queue["name"]] = before

    async def store_activity(self, parked: dict[str, int]) -> None:
        """Add what was done here to the history."""
        errors = self._database.errors
        self._activity.of(ALL_QUEUES).db_errors += errors - self._errors
        self._errors = errors
        taken = self._activity.take()
        for queue in parked:
            taken.setdefault(queue, Counts())
        parked = parked | {ALL_QUEUES: sum(parked.values())}
        try:
            await self._database.fetch(statement("add_activity"), self._server_id, *_columns(taken, parked))
        except Exception:
            self._activity.put_back(taken)
            raise

    async def name_readers(self) -> None:
        """Before an answer that says who reads: store those who were not seen before."""
        activity = self._activity
        strangers = {reader: who for reader, who in activity.readers.items() if reader not in self._named}
        if strangers:
            try:
                await self._store_readers(strangers)
            except QueenError as error:  # then they are shown without a name
                log.debug("consumers could not be noted: %s", error)

    async def store_readers(self) -> None:
        """Store who has popped since the last time, and forget who has not popped for long."""
        readers = self._activity.take_readers()
        if len(self._named) > _MOST_NAMED:
            self._named.clear()
        if readers:
            try:
                await self._store_readers(readers)
            except QueenError:  # mostly somebody holds the row of one queue
                await self._store_by_queue(readers)
            except BaseException:
                self._activity.put_back_readers(readers)
                raise
        now = self._clock.monotonic()
        if now >= self._forget_consumers_at or self._strangers >= _MOST_STRANGERS:
            self._forget_consumers_at, self._strangers = now + _FORGET_CONSUMERS_S, 0
            bounds = self._settings.history_retention_days, MOST_READERS_OF_GROUP, self._at_once, _MOST_CONSUMERS
            while await self._database.fetchval(statement("forget_consumers"), *bounds) == self._at_once:
                pass

    async def _store_by_queue(self, readers: dict[Reader, Consumer]) -> None:
        """Those that cannot be stored now are taken again the next time. The statistics go on."""
        by_queue: dict[str, dict[Reader, Consumer]] = {}
        for reader, who in readers.items():
            by_queue.setdefault(reader[0], {})[reader] = who
        failed: dict[Reader, Consumer] = {}
        failures = tried = 0
        try:
            while by_queue and failures < _MOST_FAILURES and tried < _MOST_SINGLE_QUEUES:
                queue = next(iter(by_queue))
                tried += 1
                try:
                    await self._store_readers(by_queue[queue])
                except QueenError as error:
                    log.debug("consumers of %r could not be noted: %s", queue, error)
                    failed |= by_queue[queue]
                    failures += 1
                del by_queue[queue]
        finally:
            for left in (*by_queue.values(), failed):
                self._activity.put_back_readers(left)

    async def _store_readers(self, readers: dict[Reader, Consumer]) -> None:
        await self._database.fetch(statement("note_consumers"), *_consumer_columns(readers), _PATIENCE, repeatable=True)
        strangers = readers.keys() - self._named
        self._strangers += len(strangers)
        self._named |= strangers

    async def forget_activity(self) -> int:
        """Delete a bounded part of the history that is too old; how much."""
        days, limit = self._settings.history_retention_days, self._at_once
        gone: int = await self._database.fetchval(statement("forget_activity"), days, limit)
        await self._database.fetch(statement("forget_samples"), self._settings.sample_retention_days)
        return gone


def _columns(taken: dict[str, Counts], parked: dict[str, int]) -> Iterable[list[object]]:
    yield list(taken)
    for name in (*COUNTED, "lag_max_ms"):
        yield [getattr(counts, name) for counts in taken.values()]
    yield [parked.get(queue, 0) for queue in taken]


def _consumer_columns(readers: dict[Reader, Consumer]) -> Iterable[list[object]]:
    yield [queue for queue, _, _ in readers]
    yield [group for _, group, _ in readers]
    yield [int(tag, 16) for _, _, tag in readers]
    for name in ("name", "host", "process", "address"):
        yield [getattr(who, name) for who in readers.values()]
    yield [shown(who.subject) for who in readers.values()]
