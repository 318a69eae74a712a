"""Any sequence of pushes, pops, acks, expiries, renewals, seeks and retention, compared with the model after each step.

Time is moved by hand: a lease expires because its expiry is set back, which is what an expiry means in database time.
QUEEN_LONG=1 tries for hours instead of seconds.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from integration import model
from integration.model import LIMIT_S, Ask, Item, Options, Queue
from integration.session import LOCK_TIMEOUT, Pop, Popped, Session, ack
from queenmq.broker.ack import columns
from queenmq.core.acknowledgement import Acknowledgement, Excepted, Finish
from queenmq.core.message import Message
from queenmq.core.names import QUEUE_MODE
from queenmq.core.push_call import PushCall
from queenmq.ids import uuid7
from queenmq.storage.statements import statement, versioned

LONG = os.environ.get("QUEEN_LONG", "") not in ("", "0")
PARTITIONS = ("a", "b", "c")
GROUPS = (QUEUE_MODE, "g", "h")
STATUSES = ("completed", "failed", "dlq", "retry", "success")
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
HOUR_MS = 3_600_000

some = st.integers(0, 1_000_000)  # an index into whatever there is, modulo its length
partition = st.sampled_from(PARTITIONS)
group = st.sampled_from(GROUPS)
transactions = st.integers(0, 9).map(lambda n: f"t{n}")
pushes = st.lists(st.tuples(partition, transactions), min_size=1, max_size=5)
asks = st.builds(
    Ask,
    partition=st.none() | partition,
    group=group,
    batch=st.integers(1, 4),
    partitions=st.integers(1, 3),
    auto_ack=st.integers(0, 5).map(lambda n: n == 0),
)
# Which message, which group, which lease, what is said of it.
says = st.tuples(
    some, some, st.sampled_from(("held", "held", "held", "none", "stale", "other")), st.sampled_from(STATUSES)
)


@dataclass
class Row:
    """A row of partition_consumers, as the database itself sees it now."""

    position: int
    finished: set[int]
    lease_id: str | None
    live: bool
    unfinished: set[int]
    failures: dict[int, int]  # by offset
    attempts: int
    asleep: bool
    ready: bool
    outlived: bool  # claimable before its lease ends


class Head(NamedTuple):
    first_offset: int
    last_offset: int
    last_message_id: UUID | None


class Kept(NamedTuple):
    id: UUID
    created_at: datetime


@dataclass
class Snapshot:
    lanes: dict[tuple[str, str], Row]
    messages: dict[str, dict[int, Kept]]
    heads: dict[str, Head]
    letters: dict[model.Letter, tuple[str, int]]


_SNAPSHOT = """
WITH p AS MATERIALIZED (
    SELECT p.id, p.name FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1
)
SELECT
    ARRAY(SELECT (p.name, l.first_offset, l.last_offset, l.last_message_id)
          FROM p JOIN queen.partition_lookup l ON l.partition_id = p.id),
    ARRAY(SELECT (p.name, c.consumer_group, c.position,
                  c.done::text, c.lease_id, coalesce(c.lease_expires_at > clock_timestamp(), false),
                  coalesce(c.lease_offsets::text, ''),
                  ARRAY(SELECT f.times || ' ' || f.offsets::text FROM unnest(c.failures) AS f), c.attempts,
                  c.ready_at IS NULL, coalesce(c.ready_at <= clock_timestamp(), false),
                  coalesce(c.ready_at < c.lease_expires_at - interval '1 ms', false))
          FROM p JOIN queen.partition_consumers c ON c.partition_id = p.id),
    ARRAY(SELECT (p.name, m."offset", m.id, m.created_at) FROM p JOIN queen.messages m ON m.partition_id = p.id),
    ARRAY(SELECT (p.name, d.consumer_group, d.message_id, d.error_message, d.retry_count)
          FROM p JOIN queen.dead_letter_queue d ON d.partition_id = p.id)
"""


def _offsets(ranges: str) -> set[int]:
    """What is in an int8multirange: {[1,3),[5,6)} are 1, 2 and 5."""
    bounds = [int(bound) for bound in re.findall(r"\d+", ranges)]
    return {offset for lower, upper in zip(bounds[::2], bounds[1::2], strict=True) for offset in range(lower, upper)}


class Storage:
    """One session, driven from a synchronous test on a loop of its own; one queue an example."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.compared = True  # nothing has happened since the last comparison with the model
        fast = {"synchronous_commit": "off", "enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
        self.session = Session(self.run(asyncpg.connect(url, server_settings=fast)))
        self._number = 0

    def run(self, coroutine: Any) -> Any:
        self.compared = False
        return self._loop.run_until_complete(coroutine)

    def new_queue(self) -> str:
        self._number += 1
        return f"queue{self._number}"

    def new_partition(self, queue: str, name: str) -> str:
        """Made by hand, because equal examples need equal ids: they decide which partition is served first."""
        partition_id = UUID(int=self._number << 64 | PARTITIONS.index(name))
        self.execute(
            "INSERT INTO queen.partitions (id, queue_id, name) SELECT $1, id, $3 FROM queen.queues WHERE name = $2",
            partition_id,
            queue,
            name,
        )
        return str(partition_id)

    def close(self) -> None:
        self.run(self.session.sql.close())
        self._loop.close()

    def execute(self, text: str, *arguments: Any) -> Any:
        return self.run(self.session.sql.fetch(text, *arguments))

    def now(self) -> datetime:
        return self.run(self.session.sql.fetchval("SELECT clock_timestamp()"))

    def snapshot(self, queue: str) -> Snapshot:
        return self.run(self._snapshot(queue))

    async def _snapshot(self, queue: str) -> Snapshot:
        heads, lanes, stored, letters = (
            [tuple(row) for row in rows] for rows in await self.session.sql.fetchrow(_SNAPSHOT, queue)
        )
        last = {name: newest for name, _, newest, _ in heads}
        messages: dict[str, dict[int, Kept]] = {name: {} for name in last}
        for name, offset, *message in stored:
            messages[name][offset] = Kept(*message)
        return Snapshot(
            lanes={(name, group): self._row(last[name], *row) for name, group, *row in lanes},
            messages=messages,
            heads={name: Head(*head) for name, *head in heads},
            letters={(name, group, str(message)): (error, retries) for name, group, message, error, retries in letters},
        )

    @staticmethod
    def _row(
        last: int,
        position: int,
        done: str,
        lease_id: UUID | None,
        live: bool,
        delivered: str,
        failures: list[str],
        *rest: Any,
    ) -> Row:
        finished = set(range(1, min(position, last) + 1)) | {offset for offset in _offsets(done) if offset <= last}
        levels = [level.split(" ", 1) for level in failures]
        failed = {offset: int(times) for times, offsets in levels for offset in _offsets(offsets)}
        held = None if lease_id is None else str(lease_id)
        return Row(position, finished, held, live, _offsets(delivered), failed, *rest)


class AnySequence(RuleBasedStateMachine):
    """One queue in PostgreSQL next to its model."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self.storage = storage
        self.queue = storage.new_queue()
        self.model = Queue(Options())
        self.sweep = ""
        self.positions: dict[tuple[str, str], int] = {}

    # What the queue is like

    @initialize(
        retry_limit=st.integers(0, 2),
        count_expiries=st.booleans(),
        bury=st.booleans(),
        old=st.sampled_from(("", "ttl", "maxWaitTimeSeconds", "retentionSeconds", "completedRetentionSeconds")),
        poison=st.sampled_from(("block", "skip", "park")),
    )
    def configure(self, retry_limit: int, count_expiries: bool, bury: bool, old: str, poison: str) -> None:
        limits: dict[str, Any] = {
            "": {},
            "ttl": {"ttl": LIMIT_S},
            "maxWaitTimeSeconds": {"max_wait_time_seconds": LIMIT_S},
            "retentionSeconds": {"retention_seconds": LIMIT_S, "retention_enabled": True},
            "completedRetentionSeconds": {"completed_retention_seconds": LIMIT_S, "retention_enabled": True},
        }[old]
        self.sweep = old
        self.model.options = Options(retry_limit, count_expiries, old == "ttl", bury, poison)
        self.storage.run(
            self.storage.session.configure(
                self.queue,
                retry_limit=retry_limit,
                retry_delay=HOUR_MS,
                dlq_after_max_retries=count_expiries,
                dead_letter_queue=bury,
                **limits,
            )
        )
        if poison != "block":
            self.storage.execute(
                statement("set_policy"),
                *(self.queue, "", None),
                *(True, "{}", None, None, 0.0, poison),
                *(False, *[None] * 4),
                *(False, *[None] * 7),
                *(False, *[None] * 2),
            )
        self.storage.execute("DELETE FROM queen.partitions")  # Default has an id that cannot be chosen

    # Producing

    @rule(items=pushes)
    def push(self, items: list[tuple[str, str]]) -> None:
        self._create_partitions(name for name, _ in items)
        outcomes = self.storage.run(self.storage.session.push(*((self.queue, p, t) for p, t in items)))
        for (name, transaction), outcome in zip(items, outcomes, strict=True):
            expected = self.model.push(name, transaction, outcome.message_id)
            assert (outcome.status, outcome.message_id) == expected
            assert outcome.partition_id == self.model.partitions[name].id
        self._learn_times()

    @rule(where=partition, transaction=transactions)
    def insert(self, where: str, transaction: str) -> None:
        """As a psql session does it."""
        there = self.model.partitions.get(where)
        if there is None or there.find(transaction):
            return
        self.storage.run(self.storage.session.insert(self.queue, where, transaction))
        stored = self.storage.snapshot(self.queue).messages[where][there.last + 1]
        assert self.model.push(where, transaction, str(stored.id))[0] == "queued"
        self._learn_times()

    def _create_partitions(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.model.partitions:
                self.model.create(name, self.storage.new_partition(self.queue, name))

    def _learn_times(self) -> None:
        messages = self.storage.snapshot(self.queue).messages
        for name, there in self.model.partitions.items():
            for offset, message in there.messages.items():
                message.at = messages[name][offset].created_at

    # Consuming

    @rule(
        wanted=st.lists(asks, min_size=1, max_size=3),
        start=st.sampled_from(("all", "all", "new", "timestamp")),
        at=some,
    )
    def pop(self, wanted: list[Ask], start: str, at: int) -> None:
        """Several pops merged into one call; those whose group is unknown subscribe and pop again."""
        again = self._pop(wanted)
        for ask in again:
            self._subscribe(ask, start, at)
            self._pop([ask])

    def _pop(self, wanted: list[Ask]) -> list[Ask]:
        pops = [Pop(self.queue, a.partition, a.group, a.batch, a.most_partitions, a.auto_ack) for a in wanted]
        answers: list[Popped] = self.storage.run(self.storage.session.pop_merged(pops))
        unknown = []
        served: set[tuple[str, str]] = set()
        # Equal requests are served together, when the first of them has its turn.
        order = sorted(range(len(wanted)), key=lambda i: pops.index(next(p for p in pops if _alike(p, pops[i]))))
        for i in order:
            assert answers[i].subscribed == self.model.known(wanted[i])
            if not answers[i].subscribed:
                unknown.append(wanted[i])
                continue
            rows = [self._delivery(row) for row in answers[i].rows]
            note(f"{wanted[i]} got {rows} under {pops[i].lease_id}")
            self.model.popped(wanted[i], pops[i].lease_id, rows, self.positions, served)
            if wanted[i].auto_ack and wanted[i].most_partitions > 1:
                served |= {(name, wanted[i].group) for name, _, _ in rows}
        self._note_silent_visits()
        return unknown

    def _delivery(self, row: asyncpg.Record) -> model.Delivery:
        stored = self.model.partitions[row["partition_name"]].find(row["transaction_id"])
        assert stored is not None, "delivered although it is not stored"
        assert (stored.id, stored.at) == (str(row["message_id"]), row["created_at"])
        return row["partition_name"], stored.offset, row["retry_count"]

    def _note_silent_visits(self) -> None:
        """A pop that was content before it had seen all lanes may have looked into one with nothing to deliver."""
        rows = self.storage.snapshot(self.queue).lanes
        for key, lane in self.model.lanes.items():
            if not lane.claimable() or self._same(lane, rows[key]):
                continue
            self.model.visit(lane, self.positions.get(key, 0))
            assert not lane.deliverable(), "a lane was changed although nothing of it was delivered"

    def _subscribe(self, ask: Ask, start: str, at: int) -> None:
        since = {"all": None, "new": self.storage.now(), "timestamp": self._some_time(at)}[start]
        self.storage.run(
            self.storage.session.subscribe(
                self.queue, ask.group, ask.partition, start, since if start == "timestamp" else None
            )
        )
        if since is not None:
            since = min(since, self.storage.now())
        self.model.subscribe(ask.partition, ask.group, since)

    def _some_time(self, at: int) -> datetime:
        """The creation time of some message, or one before or after all of them."""
        times = [m.at for p in self.model.partitions.values() for m in p.messages.values()]
        times += [LONG_AGO, self.storage.now() - timedelta(seconds=LIMIT_S)]
        return times[at % len(times)]

    # Acknowledging

    def _items(self, says: list[tuple[int, int, str, str]]) -> list[Item]:
        """Half of them speak of delivered messages, some of others in their lanes, some of any to any group."""
        leased = [lane for lane in self.model.lanes.values() if lane.lease and lane.partition.messages]
        delivered = [
            (lane, o) for lane in leased for o in sorted(lane.lease.unfinished & lane.partition.messages.keys())
        ]
        beside = [(lane, o) for lane in leased for o in lane.partition.messages]
        anything = [(p, o) for p in self.model.partitions.values() for o in p.messages]
        items = []
        said: dict[tuple[str, int, str], str] = {}
        for which, whose, lease, status in says:
            known = {0: [], 1: beside}.get(which % 4, delivered)
            if known:
                lane, offset = known[which // 4 % len(known)]
                where, name = lane.partition, lane.group
            elif anything:
                where, offset = anything[which // 4 % len(anything)]
                name = GROUPS[whose % len(GROUPS)]
            else:
                continue
            key = (where.name, offset, name)
            if said.setdefault(key, status) != status:
                continue  # a message that one request calls two things at once
            lease_id = self._lease(lease, where.name, name, whose)
            items.append(Item(where.name, where.messages[offset].transaction, name, lease_id, status))
        return items

    def _lease(self, kind: str, where: str, name: str, which: int) -> str | None:
        lane = self.model.lanes.get((where, name))
        if kind == "held" and lane is not None and lane.lease is not None:
            return lane.lease.id
        if kind == "stale" and self.model.leases:
            return self.model.leases[which % len(self.model.leases)]
        return str(uuid7()) if kind == "other" else None

    def _acknowledgements(self, items: list[Item]) -> list[Acknowledgement]:
        ids = {name: there.id for name, there in self.model.partitions.items()}
        return [Acknowledgement(ids[i.partition], i.transaction, i.group, i.lease, i.status, None) for i in items]

    @rule(says=st.lists(says, min_size=1, max_size=5))
    def ack(self, says: list[tuple[int, int, str, str]]) -> None:
        self._ack(self._items(says))

    @rule(which=some, statuses=st.lists(st.sampled_from(STATUSES), min_size=12, max_size=12), fenced=st.booleans())
    def ack_lease(self, which: int, statuses: list[str], fenced: bool) -> None:
        """All that one lease delivered, in one request."""
        leases = sorted({lane.lease.id for lane in self.model.lanes.values() if lane.lease})
        if not leases:
            return
        lease_id = leases[which % len(leases)]
        items = [
            Item(lane.partition.name, lane.partition.messages[o].transaction, lane.group, lease_id, "")
            for lane in self.model.holding(lease_id)
            for o in sorted(lane.lease.unfinished & lane.partition.messages.keys())
        ]
        pairs = zip(items, statuses, strict=False)
        self._ack([Item(i.partition, i.transaction, i.group, i.lease if fenced else None, s) for i, s in pairs])

    @rule(which=some, status=st.sampled_from(STATUSES), other=st.none() | st.tuples(some, st.sampled_from(STATUSES)))
    def finish(self, which: int, status: str, other: tuple[int, str] | None) -> None:
        """The same without naming the messages, but for one of which something else may be said."""
        leases = self.model.leases
        if not leases:
            return
        lease_id = leases[which % len(leases)]
        said = [
            Item(lane.partition.name, lane.partition.messages[o].transaction, lane.group, lease_id, status)
            for lane in self.model.holding(lease_id)
            for o in sorted(lane.lease.unfinished & lane.partition.messages.keys())
        ]
        excepted: tuple[Excepted, ...] = ()
        if other is not None and said:
            place, instead = other[0] % len(said), other[1]
            said[place] = replace(said[place], status=instead)
            partition_id = self.model.partitions[said[place].partition].id
            excepted = (Excepted(said[place].transaction, partition_id, instead, None),)
        note(f"{said}")
        rows = self.storage.run(self.storage.session.finish(Finish(lease_id, status, None, excepted)))
        verdicts = self.model.ack(said)
        assert bool(rows) == any(verdict.problem is None for verdict in verdicts)
        whole = [row for row in rows if row["exception"] is None]
        assert {row["problem"] for row in rows} <= {None}
        if rows:
            assert sum(row["messages"] for row in whole) == len(said)
            assert sum(row["dead_lettered"] for row in whole) == sum(verdict.dead_lettered for verdict in verdicts)

    def _ack(self, items: list[Item]) -> None:
        note(f"{items}")
        acked = self.storage.run(self.storage.session.ack(self._acknowledgements(items)))
        got = [model.Verdict(one.problem, one.lease_released, one.dead_lettered) for one in acked]
        assert got == self.model.ack(items)

    @rule(
        says=st.lists(says, max_size=3),
        items=st.lists(st.tuples(partition, transactions), max_size=2, unique=True),
        named=st.booleans(),
        leases=st.lists(some, max_size=2),
    )
    def transact(
        self, says: list[tuple[int, int, str, str]], items: list[tuple[str, str]], named: bool, leases: list[int]
    ) -> None:
        """Pushes and acks together: all of it or nothing."""
        acks = [
            Item(i.partition, i.transaction, i.group if named else None, i.lease, i.status.replace("retry", "failed"))
            for i in self._items(says)
        ]
        statuses: dict[tuple[str, str, str | None], str] = {}  # without groups, two items may mean the same message
        acks = [i for i in acks if statuses.setdefault((i.partition, i.transaction, i.group), i.status) == i.status]
        required = [self.model.leases[which % len(self.model.leases)] for which in leases if self.model.leases]
        messages = [Message(self.queue, p, b"1", str(uuid7()), t) for p, t in items]
        call = PushCall.merge(messages)
        self._create_partitions(name for name, _ in items)
        arguments = (
            *call.arguments(),
            *columns(self._acknowledgements(acks)),
            required,
            None,
            LOCK_TIMEOUT,
        )
        before = self.model.copy()
        try:
            row = self.storage.run(self.storage.session.sql.fetchrow(statement("transact"), *arguments))
        except asyncpg.PostgresError as error:
            assert error.sqlstate == "QN001", error
            row = None
        duplicate = any(self.model.push(m.partition, m.transaction_id, m.id)[0] == "duplicate" for m in messages)
        verdicts = self.model.ack(acks, required)
        refused = duplicate or any(verdict.problem for verdict in verdicts)
        assert (row is None) == refused, f"{verdicts}"
        if row is None:
            self.model = before
            return
        assert list(row["dead_lettered"] or ()) == [verdict.dead_lettered for verdict in verdicts]
        self._learn_times()

    # Leases and time

    def _some_lease(self, which: int) -> str:
        leases = self.model.leases or [str(uuid7())]
        return leases[-1 - which % len(leases)]

    @rule(which=some)
    def expire(self, which: int) -> None:
        lease_id = self._some_lease(which)
        self.storage.execute(
            "UPDATE queen.partition_consumers SET lease_expires_at = clock_timestamp(), ready_at = clock_timestamp() "
            "WHERE lease_id = $1",
            lease_id,
        )
        self.model.expire(lease_id)

    @rule()
    def end_pauses(self) -> None:
        """The retry delays pass."""
        self.storage.execute(
            "UPDATE queen.partition_consumers SET retry_at = clock_timestamp(), ready_at = clock_timestamp() "
            "WHERE retry_at > clock_timestamp() AND ready_at = retry_at AND lease_id IS NULL"
        )
        self.storage.execute(
            "UPDATE queen.partition_consumers c SET skipped = ARRAY("
            "SELECT (CASE WHEN s.parks THEN s.until ELSE clock_timestamp() END, s.offsets, s.parks)::queen.skipped "
            "FROM unnest(c.skipped) AS s), ready_at = CASE WHEN lease_id IS NULL AND ready_at < '9999-01-01' "
            "THEN clock_timestamp() ELSE ready_at END WHERE skipped IS NOT NULL"
        )
        self.model.end_pauses()

    @rule(which=some)
    def retry_skipped(self, which: int) -> None:
        kept = sorted(
            {(key[0], o) for key, lane in self.model.lanes.items() for o in lane.skipped.keys() | lane.parked}
        )
        if kept:
            self._retry(*kept[which % len(kept)])

    def _retry(self, where: str, offset: int) -> None:
        there = self.model.partitions[where]
        text = versioned("SELECT queen.end_skipping($1, $2)")
        [[groups]] = self.storage.execute(text, there.id, there.messages[offset].transaction)
        assert groups == self.model.retry(where, offset)

    @rule(which=st.lists(some, min_size=1, max_size=2))
    def renew(self, which: list[int]) -> None:
        leases = {self._some_lease(w) for w in which}
        renewed = self.storage.run(self.storage.session.renew(*leases, seconds=600))
        assert renewed == {lease_id for lease_id in leases if self.model.is_live(lease_id)}

    @rule(which=some)
    def release(self, which: int) -> None:
        """The client of a pop went away."""
        lease_id = self._some_lease(which)
        self.storage.run(self.storage.session.release(lease_id))
        self.model.release(lease_id)

    # Positions

    @rule(whose=group, where=st.none() | partition, at=st.none() | some)
    def seek(self, whose: str, where: str | None, at: int | None) -> None:
        moment = None if at is None else self._some_time(at)
        moved = self.storage.run(self.storage.session.seek(whose, self.queue, where, moment))
        assert moved == self.model.seek(whose, where, moment)
        self._may_rewind(whose)

    @rule(whose=group, metadata=st.booleans())
    def delete_group(self, whose: str, metadata: bool) -> None:
        deleted = self.storage.run(self.storage.session.delete_group(whose, self.queue, metadata))
        assert deleted == self.model.delete_group(whose, metadata)
        self._may_rewind(whose)

    def _may_rewind(self, whose: str) -> None:
        self.positions = {key: position for key, position in self.positions.items() if key[1] != whose}

    # Getting old

    @rule(what=st.sampled_from(("age", "sweep", "age and sweep")))
    def get_old(self, what: str) -> None:
        if self.sweep and "age" in what:
            self._age()
        if self.sweep and "sweep" in what:
            self._retain_or_evict()

    def _retain_or_evict(self) -> None:
        step = "evict" if self.sweep == "maxWaitTimeSeconds" else "retain"
        deleted = self.storage.run(self.storage.session.sweep(step, self.queue))
        left = self.storage.snapshot(self.queue).messages
        for name, there in self.model.partitions.items():
            gone = there.messages.keys() - left[name].keys()
            deleted -= len(gone)
            aged = {message.offset for message in there.messages.values() if message.aged}
            assert gone == {offset for offset in aged if offset <= self._deletable(there)}, name
            self.model.delete(there, gone)
        assert deleted == 0

    def _age(self) -> None:
        """Much time passes for all that is stored."""
        ids = [there.id for there in self.model.partitions.values()]
        for table, column in (("messages", "created_at"), ("partition_lookup", "last_message_at")):
            self.storage.execute(
                f"UPDATE queen.{table} SET {column} = {column} - $2::interval WHERE partition_id = ANY ($1::uuid[])",
                ids,
                model.AGEING,
            )
        self.model.age()

    def _deletable(self, there: model.Partition) -> int:
        """Up to which offset the sweep may delete what is too old, after it has moved groups over it."""
        upto = there.aged_upto()
        read = min((self.positions[there.name, lane.group] for lane in self.model.lanes_of(there)), default=0)
        if not any(message.aged for message in there.messages.values()):
            return 0
        if self.sweep == "completedRetentionSeconds":
            return read
        if self.sweep == "maxWaitTimeSeconds":
            if upto <= read:
                return 0  # eviction is for what waits
            return self.model.skip_free_lanes(there, self.positions, "Message waited longer than maxWaitTimeSeconds")
        if self.sweep == "ttl" and self.model.options.bury:
            return self.model.skip_free_lanes(there, self.positions, "Message expired (ttl)")
        return upto

    @rule()
    def resync(self) -> None:
        """There is nothing to repair."""
        rows = self.storage.execute(statement("resync_lookup"), None, 1000)
        assert [row["changed"] for row in rows] == [0]

    # What must hold after every step

    @invariant()
    def compare(self) -> None:
        there = self.storage.snapshot(self.queue)
        self._compare_messages(there)
        assert there.lanes.keys() == self.model.lanes.keys()
        for key, lane in self.model.lanes.items():
            self._compare_lane(key, lane, there.lanes[key])
        assert there.letters == self.model.letters, "dead letters"
        self.positions = {key: row.position for key, row in there.lanes.items()}
        self.storage.compared = True

    def _compare_messages(self, there: Snapshot) -> None:
        assert there.messages.keys() == self.model.partitions.keys()
        for name, partition in self.model.partitions.items():
            head, stored = there.heads[name], there.messages[name]
            ids = {offset: str(row.id) for offset, row in stored.items()}
            assert ids == {offset: message.id for offset, message in partition.messages.items()}
            assert head.last_offset == partition.last
            assert sorted(stored) == list(range(head.first_offset, partition.last + 1)), "a gap"
            if partition.last in stored:
                assert head.last_message_id == stored[partition.last].id

    def _compare_lane(self, key: tuple[str, str], lane: model.Lane, row: Row) -> None:
        assert self._same(lane, row), f"{key}: {row} is not {lane}"
        assert not row.outlived, "claimable before its lease ends"
        stored = lane.partition.messages.keys()
        assert not stored - row.finished - set(range(row.position + 1, lane.partition.last + 1)), (
            "past an unread message"
        )
        assert row.position >= self.positions.get(key, 0), "the position went back"
        if lane.unread():
            assert not row.asleep, "asleep with something unread"
            ready = lane.claimable() and bool(lane.deliverable())
            # The next pop passes over what has expired, even if it is kept back.
            passed_over = self.model.options.ttl and any(lane.partition.messages[o].aged for o in lane.unread())
            assert row.ready == ready or (passed_over and lane.claimable()), f"{key}: claimable {row.ready}"

    @staticmethod
    def _same(lane: model.Lane, row: Row) -> bool:
        stored = lane.partition.messages.keys()
        lease = (lane.lease.id, lane.lease.live, lane.lease.unfinished) if lane.lease else (None, False, set())
        return (
            row.finished & stored == lane.finished & stored
            and (row.lease_id, row.live, row.unfinished) == lease
            # What nobody can read nobody can see.
            and (row.attempts == lane.attempts or not lane.unread())
            and {o: n for o, n in row.failures.items() if o in stored}
            == {o: n for o, n in lane.failures.items() if o in stored}
        )

    def teardown(self) -> None:
        """Nothing is lost: in the end every group gets all that it has not finished, in order."""
        if not self.storage.compared:
            return  # a step has failed
        for number in range(len(self.model.leases)):
            self.expire(number)
        # Twice: what a pop finds over its attempts is dead or kept back, and the rest comes with the next pop.
        for _ in range(2):
            self.end_pauses()
            for (where, _), lane in self.model.lanes.items():
                for offset in [*lane.parked]:
                    self._retry(where, offset)
            for where, name in self.model.lanes:
                self._pop([Ask(where, name, 1000, 1, True)])
                self.compare()
        assert not any(lane.unread() for lane in self.model.lanes.values())
        assert not self.storage.execute(statement("stale_lookup"), 10)
        self.storage.run(self.storage.session.delete_queue(self.queue))


def _alike(one: Pop, other: Pop) -> bool:
    return replace(one, lease_id="") == replace(other, lease_id="")


@pytest.fixture
def storage(own_database: str) -> Iterator[Storage]:
    with closing(Storage(own_database)) as opened:
        yield opened


@pytest.mark.timeout(0 if LONG else 600)
def test_any_sequence_does_what_the_model_does(storage: Storage) -> None:
    run_state_machine_as_test(
        lambda: AnySequence(storage),
        settings=settings(
            max_examples=20_000 if LONG else 400,
            stateful_step_count=100 if LONG else 40,
            deadline=None,
            phases=[phase for phase in Phase if phase is not Phase.explain],  # it traces every line
            suppress_health_check=list(HealthCheck),
        ),
    )


async def test_the_failures_of_a_finished_message_are_not_charged_to_the_next(sql: asyncpg.Connection) -> None:
    """The model knows it, but few sequences lead here."""
    session = Session(sql)
    await session.configure("q", retry_limit=1, retry_delay=0)
    await session.push(("q", "a", "1"))
    await session.subscribe("q")
    [failed] = (await session.pop("q")).rows
    await session.ack([ack(failed, None, "failed")])
    await session.ack([ack(failed, None, "completed")])
    await session.push(("q", "a", "2"))
    [fresh] = (await session.pop("q")).rows
    assert (fresh["transaction_id"], fresh["retry_count"]) == ("2", 0)
    [result] = await session.ack([ack(fresh, None, "failed")])
    assert not result.dead_lettered


async def test_a_leased_partition_does_not_end_the_step_of_retention(sql: asyncpg.Connection) -> None:
    """One sweep deletes what is free everywhere, also behind a partition of which a consumer holds a part."""
    session = Session(sql)
    await session.configure("q", ttl=LIMIT_S, dead_letter_queue=True)
    for name in PARTITIONS:
        await session.push(("q", name, "1"), ("q", name, "2"))
    await session.subscribe("q")
    [first] = (await session.pop("q", "a")).rows
    await session.ack([ack(first, None)])
    await session.pop("q", "a")
    await sql.execute("UPDATE queen.messages SET created_at = created_at - $1::interval", model.AGEING)
    assert await session.sweep("retain", "q") == 5
