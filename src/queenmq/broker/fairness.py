"""Fairness: the keys of a queue take turns, so that one with very many partitions does not get them all.

Which key is next is only advice to a pop: it prefers partitions of that key, and takes what has waited longest if there
are none. So nothing is kept in the database but the key of each row; what this server remembers may be lost at any
moment. Which keys have something ready is asked at intervals, for a small part of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Collection, Hashable, Sequence
from math import inf
from typing import Final, NamedTuple, Protocol

import asyncpg
import msgspec

from queenmq.clock import Clock
from queenmq.core.fairness import FairnessPolicy, Turns
from queenmq.errors import QueenError
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_MOST_KEYS: Final = 10_000
_MOST_PLACES: Final = 1000
_MOST_LOOKS: Final = 4  # at once; others are checked a little later
_LOOK_S: Final = 0.1  # between checks; and ten times as long as one takes, but no longer than two seconds
_FIRST_LOOK_S: Final = 0.02  # while nothing is known; the group may be subscribing just now
_LOOK_FACTOR: Final = 10.0
_LONGEST_LOOK_S: Final = 2.0
# Of keys that a check has found full: until the next check, also if that begins only with the next probe of a long
# poll. If they had turns in between, they would have all of them as long as they are full.
_LONGEST_HOLD_S: Final = 5.0
# Pops that are merged ask for up to so many messages of a key one after the other: the index is read for it once, and
# what is used of its limit is written once. Not while keys are full: one may have less left than that; and not of a key
# with fewer partitions that are ready: what it has not goes to the oldest of any key.
_RUN: Final = 4
_FULL_S: Final = 5.0
_MEETING_MS: Final = 5.0  # how long a key counts as full of which another pop has the row
# With fewer keys than that, calls for the queue go one by one: they would meet at the rows of the same keys.
_FEW_KEYS: Final = 8
_GONE_S: Final = 10.0  # a group that does not pop for so long has no say in that
_FORGET_S: Final = 3600.0  # between removals of what limits of keys have kept
_STEP: Final = 1000
_PASSES: Final = 20
_WITH_KEYS: Final = {"pop": "pop_fair", "pop_leased": "pop_leased_fair", "take": "take_fair"}
_decoder = msgspec.json.Decoder(FairnessPolicy)
_encoder = msgspec.json.Encoder()


class Claimed(Protocol):
    """What of a claim matters here."""

    @property
    def queue(self) -> str: ...
    @property
    def partition(self) -> str | None: ...
    @property
    def group(self) -> str: ...
    @property
    def batch(self) -> int: ...


class _Place:
    """Turns of a queue and group, and when to check again."""

    def __init__(self, policy: FairnessPolicy) -> None:
        self.policy = policy
        self.turns = Turns(policy)
        self.narrow: set[str] = set()  # keys with fewer partitions ready than a run may want
        self.is_limited = False  # there are limits of keys
        self.full_at = -inf  # when a pop met a key that a limit allowed nothing
        self.look_at = 0.0
        self.look_from = ""  # if there are more keys than one check returns, the next one goes on with the others
        self.looking = False


class _Turn(NamedTuple):
    """Of one claim in a call."""

    place: _Place | None
    key: str | None  # whose turn it is
    is_open: bool = False  # it was left to age


_NO_TURN: Final = _Turn(None, None)


class Fairness:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.rules: dict[str, FairnessPolicy] = {}  # by queue; while it is empty, pops do not come here
        # Queues of whose pops one call should run at a time, with the groups because of which.
        self.one_at_a_time: dict[Hashable, set[str]] = {}
        self._places: dict[tuple[str, str], _Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looks = 0
        self._forget_at = 0.0
        self._reading = asyncio.Lock()
        self._asked = self._begun = self._done = 0  # reads of the rules; who asks before one begins shares it

    async def follow(self, queue: str, separator: str | None) -> None:
        """The rule of a queue was changed.

        When this returns, all rows have their keys, unless somebody holds some for long; these follow later.
        """
        await self._fill(queue, separator)
        await self._read()

    async def refresh(self) -> None:
        """Follow the database, and go on where another server has stopped."""
        for queue, separator in await self._read():
            await self._fill(queue, separator)
        if self._clock.monotonic() >= self._forget_at:
            self._forget_at = self._clock.monotonic() + _FORGET_S
            await self._database.fetch(statement("forget_keys"))

    def changed_elsewhere(self, queue: str, separator: object) -> None:
        """Another server has changed a queue."""
        self.forget_holds(queue)
        if (separator is not None or queue in self.rules) and self._asked == self._begun:
            self._start(self._read())

    def forget_holds(self, queue: str) -> None:
        """The limits of a queue may have changed."""
        if queue in self.rules:
            self.one_at_a_time.pop(queue, None)
            for place in [place for place in self._places if place[0] == queue]:
                del self._places[place]

    def close(self) -> None:
        """Check no more."""
        self.rules = {}
        self.one_at_a_time.clear()
        for task in tuple(self._tasks):
            task.cancel()

    async def call(self, name: str, claims: Sequence[Claimed], *arguments: object) -> list[asyncpg.Record]:
        """Run a statement that pops for `claims`, with the keys whose turn it is."""
        turns = self._turns(claims)
        keys = [turn.key for turn in turns]
        has_keys = any(key is not None for key in keys)
        rows: list[asyncpg.Record] = []
        try:
            if has_keys:
                rows = await self._database.fetch(statement(_WITH_KEYS[name]), *arguments, keys)
            else:
                rows = await self._database.fetch(statement(name), *arguments)
            return rows
        finally:
            try:
                self._settle(claims, turns, rows)
            except Exception:
                # The messages are delivered: they must not be lost because turns could not be counted.
                log.exception("turns of keys could not be counted, and begin anew")
                self._places.clear()
                self.one_at_a_time.clear()

    def key_of(self, queue: str, partition: str) -> str | None:
        rule = self.rules.get(queue)
        return None if rule is None else rule.key_of(partition)

    def freed(self, queue: str, partition: str, group: str) -> None:
        """A lease has ended, which may have been what the limit of its key was used up by."""
        if place := self._places.get((queue, group)):
            place.turns.release(place.policy.key_of(partition))

    def holds(self, queue: str, group: Hashable, partitions: Collection[str]) -> bool:
        """Whether limits allow nothing to the keys of all these partitions."""
        place = self._places.get((queue, str(group)))
        now = self._clock.monotonic()
        return place is not None and all(place.turns.is_held(place.policy.key_of(name), now) for name in partitions)

    def _turns(self, claims: Sequence[Claimed]) -> list[_Turn]:
        now = self._clock.monotonic()
        found: list[_Turn] = []
        last, left = _NO_TURN, 0  # of the turn before: messages that its key may get with the next turns
        for claim in claims:
            if claim.partition is not None or claim.queue not in self.rules:
                found.append(_NO_TURN)
                continue
            place = self._place(claim, now)
            batch = claim.batch
            if not place.is_limited and place.turns.left_to_age(batch):
                found.append(_Turn(place, None, True))
                continue
            if last.key is not None and place is last.place and batch <= left:
                key = place.turns.again(last.key, batch)
                left -= batch
            else:
                key = place.turns.next(batch, now)
                may_run = key not in place.narrow and now - place.full_at > _FULL_S
                left = _RUN - batch if may_run else 0
            last = _Turn(place, key)
            found.append(last)
        return found

    def _place(self, claim: Claimed, now: float) -> _Place:
        place = self._places.get((claim.queue, claim.group))
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
                self.one_at_a_time.clear()
            place = self._places[claim.queue, claim.group] = _Place(self.rules[claim.queue])
        if not place.looking and self._looks < _MOST_LOOKS and now >= place.look_at:
            place.looking = True
            self._looks += 1
            self._start(self._look(claim.queue, claim.group, place))
        return place

    async def _look(self, queue: str, group: str, place: _Place) -> None:
        began = self._clock.monotonic()
        try:
            asked = (statement("fair_keys_ready"), queue, group, _MOST_KEYS, place.look_from, _RUN)
            rows = await self._database.fetch(*asked, repeatable=True)
            now = self._clock.monotonic()
            full = {row["fair_key"]: row["full_for_s"] for row in rows if row["full_for_s"] is not None}
            place.turns.found(
                (row["fair_key"] for row in rows if row["ready"]),
                {key: now + min(full_for_s, _LONGEST_HOLD_S) for key, full_for_s in full.items()},
            )
            place.narrow = {row["fair_key"] for row in rows if row["ready"] < _RUN}
            if rows:
                place.is_limited = rows[0]["is_limited"]
            self._count(queue, group, place)
            place.look_from = rows[-1]["fair_key"] if len(rows) == _MOST_KEYS else ""
        except QueenError:
            place.turns.found(())  # what was known may be wrong by now, and is not to be preferred for ever
            raise
        finally:
            self._looks -= 1
            now = self._clock.monotonic()
            least_s = _LOOK_S if place.turns.ready else _FIRST_LOOK_S
            place.look_at = now + max(least_s, min((now - began) * _LOOK_FACTOR, _LONGEST_LOOK_S))
            place.looking = False

    def _count(self, queue: str, group: str, place: _Place) -> None:
        """Whether calls for the queue go one by one."""
        if self._places.get((queue, group)) is not place:
            return
        long_ago = self._clock.monotonic() - _GONE_S
        groups = {
            one
            for one in self.one_at_a_time.get(queue, ())
            if (its := self._places.get((queue, one))) is not None and its.look_at > long_ago
        }
        groups.discard(group)
        if place.is_limited and len(place.turns.ready) < _FEW_KEYS:
            groups.add(group)
        if groups:
            self.one_at_a_time[queue] = groups
        else:
            self.one_at_a_time.pop(queue, None)

    def _settle(self, claims: Sequence[Claimed], turns: list[_Turn], rows: list[asyncpg.Record]) -> None:
        """What was promised to keys is settled with what they got."""
        missing: Counter[tuple[_Place, str]] = Counter()  # turns of keys that got nothing
        for claim, (place, key, is_open) in zip(claims, turns, strict=True):
            if place is None:
                continue
            if key is not None:
                missing[place, key] += 1
            elif is_open:
                place.turns.closed(claim.batch)
        for row in rows:
            request = row["request"]
            if request is None:
                continue
            place, wanted, _ = turns[request - 1]
            if place is None and (place := self._place_of(claims[request - 1])) is None:
                continue
            count = row["message_count"]
            if count:
                key = place.policy.key_of(row["partition_name"])
                place.turns.got(key, count)
                if missing:
                    missing[place, key] -= 1
            elif count == 0 and (full := row["partition_name"]) is not None:
                del missing[place, full]
                now = self._clock.monotonic()
                if row["ready_in_ms"] > _MEETING_MS:
                    place.full_at = now
                # Longer than until the next probe of a long poll, or it would be the same key's turn again.
                # A lease that ends elsewhere meanwhile is found by turns without a key.
                place.turns.hold(full, now + min(row["ready_in_ms"] / 1000, _LONGEST_LOOK_S))
            elif wanted is not None and (count == 0 or (row["ready_in_ms"] or 0) < 0):
                # A limit, or a call that is full, says nothing about the key.
                missing[place, wanted] -= 1
        for claim, (place, key, _) in zip(claims, turns, strict=True):
            if place is not None and key is not None:
                place.turns.kept(key, claim.batch)
        if rows:
            for (place, key), turns_left in missing.items():
                if turns_left > 0:
                    place.turns.exhausted(key)

    def _place_of(self, claim: Claimed) -> _Place | None:
        return self._places.get((claim.queue, claim.group))

    async def _read(self) -> list[tuple[str, str | None]]:
        """Take the rules as the database has them. Returns the queues whose keys are still to be written, each with
        its separator; nothing if somebody else has read them since this was called."""
        self._asked += 1
        asked = self._asked
        async with self._reading:
            if self._done >= asked:
                return []
            begun = self._begun = self._asked
            rows = await self._database.fetch(statement("fair_queues"), repeatable=True)
            self._done = begun
        rules = {row["name"]: _decoder.decode(row["given"]) for row in rows if row["given"] is not None}
        for place in [place for place in self._places if rules.get(place[0]) != self.rules.get(place[0])]:
            del self._places[place]
            self.one_at_a_time.pop(place[0], None)
        self.rules = rules
        return [(row["name"], row["fair_separator"]) for row in rows if not row["filled"]]

    async def _fill(self, queue: str, separator: str | None) -> None:
        """Write the keys of all partitions, in steps. Rows that somebody holds are tried again."""
        for _ in range(_PASSES):
            after, left_out = "", False
            while True:
                asked = (statement("fill_fair_keys"), queue, separator)
                row = await self._database.fetchrow(*asked, after, _STEP, False)
                if row is None or row["reached"] is None:
                    break
                after, left_out = row["reached"], left_out or row["left_out"]
            if not left_out:
                await self._database.fetchrow(*asked, after, 0, True)
                return

    def _start(self, work: Awaitable[object]) -> None:
        async def quietly() -> None:
            try:
                await work
            except QueenError as error:
                log.debug("keys that take turns could not be read: %s", error)

        task = asyncio.get_running_loop().create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
