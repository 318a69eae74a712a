"""Fairness: the keys of a queue take turns, so that one with very many partitions does not get them all.

Which key is next is only advice to a pop: it prefers partitions of that key, and takes what has waited longest if there
are none. So nothing is kept in the database but the key of each row; what this server remembers may be lost at any
moment. Which keys have something ready is asked at intervals, for a small part of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import asyncpg
import msgspec

from queenmq.clock import Clock
from queenmq.core.fairness import FairnessPolicy, Turns
from queenmq.errors import NotFound, QueenError
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_MOST_KEYS: Final = 10_000
_MOST_PLACES: Final = 1000
_LOOK_S: Final = 0.1  # between checks; and ten times as long as one takes, but no longer than two seconds
_FIRST_LOOK_S: Final = 0.02  # while nothing is known; the group may be subscribing just now
_LOOK_FACTOR: Final = 10.0
_LONGEST_LOOK_S: Final = 2.0
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
        self.look_at = 0.0
        self.look_from = ""  # if there are more keys than one check returns, the next one goes on with the others
        self.looking = False


class Fairness:
    """`publish` tells every server that something of a queue has changed."""

    def __init__(self, database: Database, clock: Clock, publish: Callable[[str], Awaitable[None]]) -> None:
        self._database = database
        self._clock = clock
        self._publish = publish
        self.rules: dict[str, FairnessPolicy] = {}  # by queue; while it is empty, pops do not come here
        self._places: dict[tuple[str, str], _Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def set(self, queue: str, by: str | None, policy: FairnessPolicy | None) -> bool:
        """False if nothing changes. Raises NotFound if there is no such queue.

        When this returns, all rows have their keys, unless somebody holds some for long; these follow later.
        """
        given = (None, None) if policy is None else (_encoder.encode(policy).decode(), policy.separator)
        asked = (statement("set_fairness"), queue, by, *given)
        changed: bool | None = await self._database.fetchval(*asked, repeatable=True)
        if changed is None:
            raise NotFound("Queue not found")
        await self._fill(queue)
        await self._read()
        await self._publish(queue)
        return changed

    async def refresh(self) -> None:
        """Follow the database, and go on where another server has stopped."""
        for queue in await self._read():
            await self._fill(queue)

    def changed_elsewhere(self, queue: str, separator: object) -> None:
        """Another server has changed a queue."""
        if separator is not None or queue in self.rules:
            self._start(self._read())

    def close(self) -> None:
        """Check no more."""
        self.rules = {}
        for task in tuple(self._tasks):
            task.cancel()

    async def call(self, name: str, claims: Sequence[Claimed], *arguments: object) -> list[asyncpg.Record]:
        """Run a statement that pops for `claims`, with the keys whose turn it is."""
        keys = self._keys(claims)
        if not any(keys):
            return await self._database.fetch(statement(name), *arguments)
        rows: list[asyncpg.Record] = []
        try:
            rows = await self._database.fetch(statement(_WITH_KEYS[name]), *arguments, keys)
            return rows
        finally:
            self._settle(claims, keys, rows)

    def _keys(self, claims: Sequence[Claimed]) -> list[str | None]:
        keys: list[str | None] = []
        for claim in claims:
            place = self._place(claim) if claim.partition is None and claim.queue in self.rules else None
            keys.append(None if place is None else place.turns.next(claim.batch))
        return keys

    def _place(self, claim: Claimed) -> _Place:
        place = self._places.get((claim.queue, claim.group))
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            place = self._places[claim.queue, claim.group] = _Place(self.rules[claim.queue])
        if not place.looking and self._clock.monotonic() >= place.look_at:
            place.looking = True
            self._start(self._look(claim.queue, claim.group, place))
        return place

    async def _look(self, queue: str, group: str, place: _Place) -> None:
        began = self._clock.monotonic()
        try:
            asked = (statement("fair_keys_ready"), queue, group, _MOST_KEYS, place.look_from)
            rows = await self._database.fetch(*asked, repeatable=True)
            place.turns.found(row["fair_key"] for row in rows if row["is_ready"])
            place.look_from = rows[-1]["fair_key"] if len(rows) == _MOST_KEYS else ""
        finally:
            now = self._clock.monotonic()
            least_s = _LOOK_S if place.turns.ready else _FIRST_LOOK_S
            place.look_at = now + max(least_s, min((now - began) * _LOOK_FACTOR, _LONGEST_LOOK_S))
            place.looking = False

    def _settle(self, claims: Sequence[Claimed], keys: list[str | None], rows: list[asyncpg.Record]) -> None:
        """What was promised to keys is settled with what they got."""
        asked: Counter[tuple[str, str, str]] = Counter()
        for claim, key in zip(claims, keys, strict=True):
            place = self._places.get((claim.queue, claim.group))
            if key is not None and place is not None:
                place.turns.kept(key, claim.batch)
                asked[claim.queue, claim.group, key] += 1
        for row in rows:
            if row["request"] is None:
                continue
            claim, wanted = claims[row["request"] - 1], keys[row["request"] - 1]
            if not row["message_count"]:
                # A limit, or a call that is full, says nothing about the key.
                if wanted is not None and (row["message_count"] == 0 or (row["ready_in_ms"] or 0) < 0):
                    asked[claim.queue, claim.group, wanted] -= 1
                continue
            place = self._places.get((claim.queue, claim.group))
            if place is not None:
                key = place.policy.key_of(row["partition_name"])
                place.turns.got(key, row["message_count"])
                asked[claim.queue, claim.group, key] -= 1
        if rows:
            for queue, group, key in (what for what, missing in asked.items() if missing > 0):
                if place := self._places.get((queue, group)):
                    place.turns.exhausted(key)

    async def _read(self) -> list[str]:
        """The rules as the database has them; the queues whose keys are still to be written."""
        rows = await self._database.fetch(statement("fair_queues"), repeatable=True)
        rules = {row["name"]: _decoder.decode(row["given"]) for row in rows if row["given"] is not None}
        for place in [place for place in self._places if rules.get(place[0]) != self.rules.get(place[0])]:
            del self._places[place]
        self.rules = rules
        return [row["name"] for row in rows if not row["filled"]]

    async def _fill(self, queue: str) -> None:
        """Write the keys of all partitions, in steps. Rows that somebody holds are tried again."""
        for _ in range(_PASSES):
            after, left_out = "", False
            while True:
                row = await self._database.fetchrow(statement("fill_fair_keys"), queue, after, _STEP, False)
                if row is None or row["reached"] is None:
                    break
                after, left_out = row["reached"], left_out or row["left_out"]
            if not left_out:
                await self._database.fetchrow(statement("fill_fair_keys"), queue, after, 0, True)
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
