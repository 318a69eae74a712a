"""A model of the tables, and of the hot functions of the schema: push, pop, ack, renew, release, transact, subscribe.

Each function does at one moment what the function of the same name in `storage/sql/functions` does in a transaction,
for queues without delays, filters, limits, policies and size limits. It raises Blocked where PostgreSQL would wait for
a row. `tests/integration/test_simulated_tables.py` runs the same programs here and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

NO_LEASE: Final = "Invalid or expired lease"
NOT_FOUND: Final = "Message not found"
QUEUE_MODE: Final = "__QUEUE_MODE__"
SOON_S: Final = 2.0  # a pop of any partition says when something will be there, if it is that soon
LockedRow = tuple[str, ...]
_OPEN: Final = ("pending", "processing")
_PUSHED: Final = (
    *("duplicate_index", "duplicate_id", "duplicate_offset", "refused"),
    *("queued_target", "queued_request", "queued_id", "queued_before", "overflow"),
)


class Blocked(Exception):
    """Another transaction holds these rows."""

    def __init__(self, rows: Collection[LockedRow]) -> None:
        super().__init__(rows)
        self.rows = rows


def refusal(sqlstate: str, message: str) -> asyncpg.PostgresError:
    """What RAISE in a function becomes."""
    error: asyncpg.PostgresError = asyncpg.PostgresError.new({"C": sqlstate, "M": message, "R": "exec_stmt_raise"})
    return error


@dataclass(slots=True)
class Stored:
    offset: int
    id: str
    transaction: str
    payload: bytes
    at: float


@dataclass(slots=True)
class Position:
    """A row of partition_consumers."""

    position: int = 0
    done: set[int] = field(default_factory=set)
    lease: str | None = None
    expires: float = 0.0
    leased: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    retry_at: float = 0.0
    ready_at: float | None = None  # None: asleep

    def end_lease(self) -> None:
        self.lease, self.expires, self.leased = None, 0.0, set()

    def is_finished(self, offset: int) -> bool:
        return offset <= self.position or offset in self.done

    def move(self, floor: int) -> None:
        """To `floor`, and over what is finished behind it."""
        while floor + 1 in self.done:
            floor += 1
        self.position = floor
        self.done = {offset for offset in self.done if offset > floor}
        self.failures = {offset: times for offset, times in self.failures.items() if not self.is_finished(offset)}


@dataclass(slots=True, eq=False)
class Partition:
    id: str
    queue: Queue
    name: str
    messages: list[Stored] = field(default_factory=list)
    by_transaction: dict[str, Stored] = field(default_factory=dict)
    groups: dict[str, Position] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return len(self.messages)

    def unread(self, row: Position, most: int) -> list[Stored]:
        found: list[Stored] = []
        for message in self.messages[row.position :]:
            if message.offset not in row.done:
                found.append(message)
                if len(found) == most:
                    break
        return found


@dataclass(slots=True, eq=False)
class Queue:
    name: str
    lease_s: float = 60
    retry_limit: int = 3
    retry_delay_s: float = 1.0
    partitions: dict[str, Partition] = field(default_factory=dict)
    groups: dict[str, float | None] = field(default_factory=dict)  # since when they read; None: from the beginning


@dataclass(slots=True, kw_only=True)
class Operation:
    id: str
    number: int
    partition: Partition
    messages: list[tuple[str, str, bytes]]  # id, transaction id, payload
    status: str = "pending"
    worker: str = ""
    claim: str | None = None
    claimed_at: float = 0.0
    attempts: int = 0
    next_attempt_at: float | None = None


class Tables:
    """`clock` tells the time of the database, `new_id` makes UUIDs."""

    def __init__(self, clock: Callable[[], float], new_id: Callable[[], str]) -> None:
        self._clock = clock
        self._last_time = 0.0
        self.new_id = new_id
        self.queues: dict[str, Queue] = {}
        self.partitions: dict[str, Partition] = {}
        self.operations: dict[str, Operation] = {}
        self.dead: dict[tuple[str, str], set[str]] = {}  # ids of messages, by partition and group
        # Of the attempts: what was said of a failure, by partition, offset, group and lease; and leases that expired.
        self.said: dict[tuple[str, int, str, str | None], str] = {}
        self.expired: set[tuple[str, str | None]] = set()
        self.held: dict[LockedRow, object] = {}  # rows that transactions have locked, and whose they are
        self.owner: object = None  # whose statement runs

    def now(self) -> float:
        """Never the same twice."""
        self._last_time = max(self._clock(), self._last_time + 1e-6)
        return self._last_time

    # Locks

    def is_held(self, *row: str) -> bool:
        return self.held.get(row, self.owner) is not self.owner

    def _require(self, rows: Iterable[LockedRow]) -> None:
        held = [row for row in rows if self.is_held(*row)]
        if held:
            raise Blocked(held)

    # Push

    def partition(self, queue: str, name: str) -> Partition:
        """Which is made if there is none."""
        there = self.queues.setdefault(queue, Queue(queue))
        if name not in there.partitions:
            made = there.partitions[name] = Partition(self.new_id(), there, name)
            self.partitions[made.id] = made
            made.groups = {group: Position() for group in there.groups}
        return there.partitions[name]

    def _require_heads(self, targets: Iterable[Partition]) -> None:
        for target in targets:
            asleep = [group for group, row in target.groups.items() if row.ready_at is None]
            self._require([("head", target.id), *(("position", target.id, group) for group in asleep)])

    def open_operations(self, partition: Partition) -> list[Operation]:
        """In their order."""
        return [one for one in self.operations.values() if one.partition is partition and one.status in _OPEN]

    def push(
        self,
        targets: Sequence[tuple[str, str]],
        messages: Sequence[tuple[int, str, str, bytes]],
        mode: str,
        requests: Sequence[int] | None = None,
        limit: int | None = None,
        *,
        only_asked: bool = False,
    ) -> dict[str, Any]:
        """`messages` are (number of the target from 1, id, transaction id, payload). With `only_asked` nothing is
        stored."""
        parts = [self.partition(*target) for target in targets]
        self._require_heads(parts)
        row: dict[str, Any] = dict.fromkeys(_PUSHED)
        row["partition_ids"] = [part.id for part in parts]
        row["last_offsets"] = [part.last for part in parts]
        behind: set[int] = set()
        if mode == "queue":
            behind = set(range(1, len(parts) + 1))
        elif mode != "now":
            behind = {number for number, part in enumerate(parts, 1) if self.open_operations(part)}
        if behind and mode == "refuse":
            raise refusal("55P03", "a partition has queued operations")
        if behind:
            self._queue(parts, messages, behind, requests, limit, row)
        duplicates = []
        now = self.now()
        filled = set()
        for index, (target, message_id, transaction, payload) in enumerate(messages, 1):
            part = parts[target - 1]
            known = part.by_transaction.get(transaction)
            if target in behind:
                continue
            if known is not None:
                duplicates.append((index, known.id, known.offset))
            elif not only_asked:
                stored = Stored(part.last + 1, message_id, transaction, payload, now)
                part.messages.append(stored)
                part.by_transaction[transaction] = stored
                filled.add(target)
        if duplicates:
            columns = map(list, zip(*duplicates, strict=True))
            row["duplicate_index"], row["duplicate_id"], row["duplicate_offset"] = columns
        for target in sorted(filled):
            for waiting in parts[target - 1].groups.values():
                if waiting.ready_at is None:
                    waiting.ready_at = self.now()
        return row

    def _queue(
        self,
        parts: Sequence[Partition],
        messages: Sequence[tuple[int, str, str, bytes]],
        behind: set[int],
        requests: Sequence[int] | None,
        limit: int | None,
        row: dict[str, Any],
    ) -> None:
        before = sum(one.status in _OPEN for one in self.operations.values())
        row["queued_before"] = before
        if limit is not None and before >= limit:
            row["overflow"] = sorted(behind)
            return
        overflow = set()
        if limit is not None and before:
            for target in behind:
                ahead = self.open_operations(parts[target - 1])
                if len(ahead) >= max(1, limit // 10) and any(one.next_attempt_at is not None for one in ahead):
                    overflow.add(target)
        made: dict[tuple[int, int], list[tuple[str, str, bytes]]] = {}
        for index, (target, *message) in enumerate(messages):
            if target in behind - overflow:
                made.setdefault((target, requests[index] if requests else 1), []).append(tuple(message))  # type: ignore[arg-type]
        queued = []
        for (target, request), content in made.items():
            one = Operation(
                id=self.new_id(), number=len(self.operations) + 1, partition=parts[target - 1], messages=content
            )
            self.operations[one.id] = one
            queued.append((target, request, one.id))
        row["overflow"] = sorted(overflow) or None
        if queued:
            row["queued_target"], row["queued_request"], row["queued_id"] = map(list, zip(*queued, strict=True))

    # Consume

    def subscribe(self, queue: str, partition: str | None, group: str, mode: str, since: float | None) -> bool:
        now = self.now()
        if (mode == "new" and since is None) or (since is not None and since > now):
            since = now
        there = self.queues.get(queue)
        if there is None:
            if since is not None and partition is None:
                raise NotImplementedError("a group that subscribes to a queue that does not exist")
            return True
        if partition is None:
            if group in there.groups:
                return True
            there.groups[group] = since
            parts = sorted(there.partitions.values(), key=lambda part: part.id)
        else:
            parts = [there.partitions[partition]] if partition in there.partitions else []
        since = there.groups.get(group, since)
        for part in parts:
            if group not in part.groups:
                place = 0 if since is None else sum(message.at < since for message in part.messages)
                row = part.groups[group] = Position(place)
                if place < part.last or self.is_held("head", part.id):
                    row.ready_at = part.messages[place].at if place < part.last else self.now()
        return True

    def pop(self, requests: Sequence[tuple[str, str | None, str, int, str]]) -> list[dict[str, Any]]:
        """`requests` are (queue, partition, group, batch, lease), each for one partition."""
        kinds: dict[tuple[str, str | None, str, int], list[tuple[int, str]]] = {}
        for number, (*kind, lease) in enumerate(requests, 1):
            kinds.setdefault(tuple(kind), []).append((number, lease))  # type: ignore[arg-type]
        rows: list[dict[str, Any]] = []
        for (queue, partition, group, batch), asked in kinds.items():
            parts = self._readable(queue, partition, group)
            if parts is None:
                rows += [_popped(number) for number, _ in asked]
            else:
                rows += self._pop(parts, group, batch, asked, is_any=partition is None)
        return rows

    def _readable(self, queue: str, partition: str | None, group: str) -> list[Partition] | None:
        """None if the group has not subscribed."""
        there = self.queues.get(queue)
        if there is None:
            return None
        if partition is None:
            return (
                [part for part in there.partitions.values() if group in part.groups] if group in there.groups else None
            )
        part = there.partitions.get(partition)
        return [part] if part is not None and group in part.groups else None

    def _pop(
        self, parts: Sequence[Partition], group: str, batch: int, asked: Sequence[tuple[int, str]], *, is_any: bool
    ) -> list[dict[str, Any]]:
        now = self.now()
        rows: list[dict[str, Any]] = []
        passed: set[str] = set()
        served = 0
        while served < len(asked):
            want = len(asked) - served
            found = [
                part
                for part in self.in_order(parts, group)
                if self._is_ready(part, group, now) and part.id not in passed
            ][:want]
            empty = []
            for part in found:
                row = part.groups[group]
                if row.lease is not None:
                    self.expired.add((part.id, row.lease))
                messages = part.unread(part.groups[group], batch)
                if messages:
                    number, lease = asked[served]
                    rows.append(self._lease(part, group, messages, number, lease, now))
                    served += 1
                else:
                    empty.append(part)
            for part in empty:
                part.groups[group].end_lease()
                self._settle(part, group, verify=True)
                if self._is_ready(part, group, now):
                    passed.add(part.id)
            if len(found) < want:
                break
        ready = [part.groups[group].ready_at for part in parts]
        coming = [at for at in ready if at is not None and at > now and (not is_any or at <= now + SOON_S)]
        if coming:
            rows += [_popped(number, ready_in_ms=(min(coming) - now) * 1000) for number, _ in asked[served:]]
        return rows

    def in_order(self, parts: Sequence[Partition], group: str) -> list[Partition]:
        """The one that has been ready longest first."""
        return sorted(parts, key=lambda part: part.groups[group].ready_at or 0.0)

    def _is_ready(self, part: Partition, group: str, now: float) -> bool:
        ready_at = part.groups[group].ready_at
        return ready_at is not None and ready_at <= now and not self.is_held("position", part.id, group)

    def _lease(
        self, part: Partition, group: str, messages: list[Stored], number: int, lease: str, now: float
    ) -> dict[str, Any]:
        row = part.groups[group]
        row.position = messages[0].offset - 1
        row.done = {offset for offset in row.done if offset > row.position}
        row.lease, row.expires = lease, now + (part.queue.lease_s or 60)
        row.leased = {message.offset for message in messages}
        row.ready_at, row.retry_at = row.expires, 0.0
        return _popped(number, part, messages, {one.offset: row.failures.get(one.offset, 0) for one in messages})

    def _settle(self, part: Partition, group: str, *, verify: bool) -> None:
        row = part.groups[group]
        now = self.now()
        is_free = not self.is_held("head", part.id)
        is_empty = row.position >= part.last or (verify and not part.unread(row, 1))
        if not is_free and is_empty and row.ready_at is not None and row.ready_at <= now:
            return
        if is_free and is_empty:
            row.move(part.last)
            row.retry_at, row.ready_at = 0.0, None
        else:
            row.ready_at = max(now, row.retry_at)

    # Leases

    def leased(self, leases: Collection[str]) -> list[tuple[Partition, str, Position]]:
        return [
            (part, group, row)
            for part in self.partitions.values()
            for group, row in part.groups.items()
            if row.lease is not None and row.lease in leases
        ]

    def _require_leases(self, leases: Collection[str]) -> list[tuple[Partition, str, Position]]:
        found = self.leased(leases)
        self._require(("position", part.id, group) for part, group, _ in found)
        return found

    def renew(self, leases: Sequence[str], seconds: Sequence[int]) -> dict[str, float]:
        """The end of each that is live."""
        ends: dict[str, float] = {}
        for _, _, row in self._require_leases(leases):
            now = self.now()
            if row.lease is not None and row.expires > now:
                longest = max(s for lease, s in zip(leases, seconds, strict=True) if lease == row.lease)
                row.expires = row.ready_at = max(row.expires, now + longest)
                ends[row.lease] = min(ends.get(row.lease, row.expires), row.expires)
        return ends

    def release(self, leases: Sequence[str]) -> None:
        for part, group, row in self._require_leases(leases):
            row.end_lease()
            self._settle(part, group, verify=False)

    # Acknowledge

    def ack_runs(self, runs: Sequence[tuple[str, str | None, str | None, str, Sequence[str]]]) -> list[dict[str, Any]]:
        """`runs` are (partition id, group, lease, status, transaction ids)."""
        self._require(("position", part, group or QUEUE_MODE) for part, group, *_ in runs)
        now = self.now()
        whole = {(part, group): True for part, group, *_ in runs}
        for part, group, lease, status, names in runs:
            there, row = self._row(part, group)
            whole[part, group] &= (
                there is not None
                and row is not None
                and status in ("completed", "success")
                and lease is not None
                and row.lease == lease
                and row.expires > now
                and [there.messages[offset - 1].transaction for offset in sorted(row.leased)] == list(names)
            )
        answers: list[dict[str, Any]] = []
        for (part, group), is_whole in whole.items():
            there, row = self._row(part, group)
            if is_whole and there is not None and row is not None:
                self._finish_leased(there, row)
        items: list[tuple[int, int, tuple[str, str, str | None, str | None, str]]] = []
        for number, (part, group, lease, status, names) in enumerate(runs, 1):
            if whole[part, group]:
                there = self.partitions[part]
                answers.append(_acked(there, group, run=number, item=None, problem=None, released=True, dead=False))
            else:
                items += [(number, place, (part, name, group, lease, status)) for place, name in enumerate(names, 1)]
        judged = self.ack([item for _, _, item in items])
        for (number, place, _), one in zip(items, judged, strict=True):
            answers.append(one | {"run": number, "item": place})
        return answers

    def _row(self, part: str, group: str | None) -> tuple[Partition | None, Position | None]:
        there = self.partitions.get(part)
        return there, None if there is None or group is None else there.groups.get(group)

    def _finish_leased(self, part: Partition, row: Position) -> None:
        now = self.now()
        row.move(max(row.position, *row.leased))
        row.end_lease()
        if row.position < part.last:
            row.ready_at = max(now, row.retry_at)
        else:
            row.retry_at = 0.0
            row.ready_at = now if self.is_held("head", part.id) else None

    def ack(
        self,
        items: Sequence[tuple[str, str, str | None, str | None, str]],
        required: Collection[str] | None = None,
        *,
        only_asked: bool = False,
    ) -> list[dict[str, Any]]:
        """`items` are (partition id, transaction id, group, lease, status). With `only_asked` nothing is changed."""
        now = self.now()
        items = [
            (part, name, self._group(part, group, required, now), lease, status)
            for part, name, group, lease, status in items
        ]
        self._require(("position", part, group) for part, _, group, _, _ in items)  # type: ignore[misc]
        judged = [self._judge(item, required, now) for item in items]
        if only_asked:
            return [{"problem": problem} for problem, _, _ in judged]
        tallies: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for (part, _, group, _, _), (problem, verdict, offset) in zip(items, judged, strict=True):
            if problem is None and verdict is not None and offset is not None:
                tallies.setdefault((part, str(group)), []).append((offset, verdict))
        reached = self._reached(items)
        released = {
            key: self._apply(self.partitions[key[0]], key[1], said, now, reaches_head=key[0] in reached)
            for key, said in tallies.items()
        }
        return [
            _acked(
                self.partitions.get(part),
                group,
                problem=problem,
                released=problem is None and released.get((part, str(group)), False),
                dead=problem is None and verdict in ("dlq", "exhausted"),
            )
            for (part, _, group, _, _), (problem, verdict, _) in zip(items, judged, strict=True)
        ]

    def _reached(self, items: Iterable[tuple[str, str, str, str | None, str]]) -> set[str]:
        """Partitions whose newest message is named: only their heads are locked, so that groups may fall asleep."""
        named = [(self.partitions[part], name) for part, name, *_ in items if part in self.partitions]
        return {
            part.id
            for part, name in named
            if name in part.by_transaction and part.by_transaction[name].offset >= part.last
        }

    def _group(self, part: str, group: str | None, required: Collection[str] | None, now: float) -> str:
        if group is not None:
            return group
        there = self.partitions.get(part)
        held = [
            name
            for name, row in (there.groups.items() if there else ())
            if row.lease is not None and row.lease in (required or ()) and row.expires > now
        ]
        return held[0] if len(held) == 1 else QUEUE_MODE

    def _judge(
        self, item: tuple[str, str, str | None, str | None, str], required: Collection[str] | None, now: float
    ) -> tuple[str | None, str | None, int | None]:
        """The problem, what is done, and with which offset; nothing is done if the message is finished already."""
        part, name, group, lease, status = item
        there, row = self._row(part, group)
        message = None if there is None else there.by_transaction.get(name)
        if there is None or message is None:
            return NOT_FOUND, None, None
        offset = message.offset
        failures = 0 if row is None else row.failures.get(offset, 0)
        verdict = "completed" if status == "success" else status
        if status == "failed" and (required is not None or failures >= there.queue.retry_limit):
            verdict = "exhausted"
        is_fenced = lease is not None or bool(required)
        is_live = row is not None and row.lease is not None and row.expires > now
        if is_live and row is not None and is_fenced:
            is_live = row.lease == lease if lease is not None else row.lease in (required or ())
        if is_fenced and not is_live:
            return NO_LEASE, None, None
        if row is None or row.is_finished(offset):
            return None, None, None
        is_leased = offset in row.leased
        if (is_fenced and not is_leased) or (verdict in ("failed", "retry") and not (is_leased and is_live)):
            return NO_LEASE, None, None
        return None, verdict, offset

    def _apply(
        self, part: Partition, group: str, said: list[tuple[int, str]], now: float, *, reaches_head: bool
    ) -> bool:
        """Whether the lease has ended with it."""
        row = part.groups[group]
        finishing = {offset for offset, verdict in said if verdict not in ("failed", "retry")}
        failed = {offset for offset, verdict in said if verdict == "failed"}
        had_lease, leased = row.lease is not None, row.leased
        is_released = len(finishing) < len({offset for offset, _ in said}) or (bool(leased) and leased <= finishing)
        for offset, verdict in said:
            if verdict in ("failed", "dlq", "exhausted"):
                self.said[part.id, offset, group, row.lease] = "dlq" if verdict == "dlq" else "failed"
            if verdict in ("dlq", "exhausted"):
                self.dead.setdefault((part.id, group), set()).add(part.messages[offset - 1].id)
        for offset in failed:
            row.failures[offset] = row.failures.get(offset, 0) + 1
        remaining = leased - finishing
        goal = 0 if not leased else min(remaining) - 1 if remaining else max(leased)
        row.done |= finishing
        row.move(max(row.position, goal))
        is_at_end = row.position >= part.last
        if is_at_end:
            row.retry_at = 0.0
        elif failed:
            row.retry_at = now + part.queue.retry_delay_s
        if is_released:
            row.end_lease()
        else:
            row.leased = remaining
        if is_released or not had_lease:
            asleep = is_at_end and reaches_head and not self.is_held("head", part.id)
            row.ready_at = None if asleep else max(now, row.retry_at)
        return is_released

    def transact(
        self,
        targets: Sequence[tuple[str, str]],
        messages: Sequence[tuple[int, str, str, bytes]],
        acks: Sequence[tuple[str, str, str | None, str | None, str]],
        required: Collection[str],
    ) -> dict[str, Any]:
        """All of it or nothing. Raises QN001 with the sentence for the caller."""
        row: dict[str, Any] = dict.fromkeys(
            ("partition_ids", "last_offsets", "dead_lettered", "ack_queues", "ack_partitions", "ack_groups")
        )
        before = [(part, part.last, _asleep(part)) for part in (self.partition(*target) for target in targets)]
        now = self.now()
        self._require(("position", part, self._group(part, group, required, now)) for part, _, group, _, _ in acks)
        if messages:
            pushed = self.push(targets, messages, "refuse")
            if pushed["duplicate_index"]:
                _undo(before)
                name = messages[pushed["duplicate_index"][0] - 1][2]
                used = f"transactionId '{name}' is already used in this partition"
                raise refusal("QN001", f"duplicate key value violates unique constraint: {used}")
            row["partition_ids"], row["last_offsets"] = pushed["partition_ids"], pushed["last_offsets"]
        problems = [one["problem"] for one in self.ack(acks, required, only_asked=True)]
        if any(problems):
            _undo(before)
            raise refusal("QN001", f"ACK operation failed: {next(filter(None, problems))}")
        if acks:
            done = self.ack(acks, required)
            row["dead_lettered"] = [one["dead_lettered"] for one in done]
            row["ack_queues"] = [one["queue_name"] for one in done]
            row["ack_partitions"] = [one["partition_name"] for one in done]
            row["ack_groups"] = [one["consumer_group"] for one in done]
        return row


def _asleep(part: Partition) -> list[Position]:
    return [row for row in part.groups.values() if row.ready_at is None]


def _undo(before: list[tuple[Partition, int, list[Position]]]) -> None:
    """Take back what a transaction has pushed."""
    for part, last, asleep in before:
        for message in part.messages[last:]:
            del part.by_transaction[message.transaction]
        del part.messages[last:]
        for row in asleep:
            row.ready_at = None


def _popped(
    number: int,
    part: Partition | None = None,
    messages: list[Stored] | None = None,
    failures: dict[int, int] | None = None,
    ready_in_ms: float | None = None,
) -> dict[str, Any]:
    return {
        "request": number,
        "partition": part,
        "messages": messages,
        "failures": failures,
        "ready_in_ms": ready_in_ms,
    }


def _acked(
    part: Partition | None, group: str | None, *, problem: str | None, released: bool, dead: bool, **more: Any
) -> dict[str, Any]:
    return {
        "problem": problem,
        "queue_name": None if part is None else part.queue.name,
        "partition_name": None if part is None else part.name,
        "consumer_group": group,
        "lease_released": released,
        "dead_lettered": dead,
        **more,
    }
