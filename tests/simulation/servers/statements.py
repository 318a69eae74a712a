"""The statements that a server sends, answered by the model of the tables: each method is named after its SQL file."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from queenmq.core.acknowledgement import SEPARATOR
from queenmq.core.message import BETWEEN
from queenmq.storage.statements import sql_files, statement
from simulation.servers.tables import Operation, Stored, Tables

Row = dict[str, Any]
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_CLAIM_S = 30.0
_PRIORITY = 5  # of all operations


def moment(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


class Statements:
    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.switches: dict[str, tuple[bool, int]] = {}
        self._versions = 1
        self._by_text: dict[str, str] = {}

    def named(self, text: str) -> str:
        """The name of the file that the text of a statement comes from."""
        if not self._by_text:
            self._by_text.update((statement(name), name) for name in sql_files("queries"))
        return self._by_text[text]

    def run(self, name: str, arguments: tuple[Any, ...]) -> list[Row]:
        """What is not modelled finds nothing: it keeps figures, or is about things that no simulated queue has."""
        do: Callable[..., list[Row]] | None = getattr(self, name, None)
        return [] if do is None else do(*arguments)

    # Push

    def push_or_queue(self, *given: Any) -> list[Row]:
        queues, partitions, _, target, _, ids, names, _, payloads, *_, mode, requests, limit, _, _ = given
        return [
            self.tables.push(
                list(zip(queues, partitions, strict=True)),
                list(zip(target, ids, names, payloads, strict=True)),
                mode,
                requests,
                limit,
            )
        ]

    def push_now(self, *given: Any, only_asked: bool = False) -> list[Row]:
        queues, partitions, _, target, _, ids, names, _, payloads, *_ = given
        messages = list(zip(target, ids, names, payloads, strict=True))
        targets = list(zip(queues, partitions, strict=True))
        return [self.tables.push(targets, messages, "now", only_asked=only_asked)]

    def transact(self, *given: Any) -> list[Row]:
        queues, partitions, _, target, _, ids, names, _, payloads, *_ = given[:12]
        parts, transactions, groups, leases, statuses, _, required, expected, _ = given[12:]
        if expected is not None:
            raise NotImplementedError("transactions that expect offsets")
        return [
            self.tables.transact(
                list(zip(queues, partitions, strict=True)),
                list(zip(target, ids, names, payloads, strict=True)),
                list(zip(parts, transactions, groups, leases, statuses, strict=True)),
                required,
            )
        ]

    def stored_messages(self, queues: list[str], partitions: list[str], names: list[str]) -> list[Row]:
        rows = []
        for queue, partition, name in zip(queues, partitions, names, strict=True):
            there = self.tables.queues.get(queue)
            part = None if there is None else there.partitions.get(partition)
            stored = None if part is None else part.by_transaction.get(name)
            found = (None, None) if stored is None else (stored.id, stored.offset)
            rows.append({"partition_id": part and part.id, "id": found[0], "offset": found[1]})
        return rows

    def partition_ids(self, queues: list[str], partitions: list[str]) -> list[Row]:
        known = self.tables.queues
        return [
            {"id": part.id if queue in known and (part := known[queue].partitions.get(name)) else None}
            for queue, name in zip(queues, partitions, strict=True)
        ]

    # Consume

    def pop_leased(self, *given: Any) -> list[Row]:
        queues, partitions, groups, batches, parts, auto_ack, leases, *_ = given
        if any(auto_ack) or set(parts) != {1}:
            raise NotImplementedError("pops that acknowledge, or of several partitions")
        return [
            _popped(row) for row in self.tables.pop(list(zip(queues, partitions, groups, batches, leases, strict=True)))
        ]

    def too_many_groups(self, *_: Any) -> list[Row]:
        return [{"too_many": False}]

    def subscribe(
        self, queue: str, partition: str | None, group: str, mode: str, since: datetime | None, *_: Any
    ) -> list[Row]:
        seconds = None if since is None else (since - EPOCH).total_seconds()
        return [{"subscribe": self.tables.subscribe(queue, partition, group, mode, seconds)}]

    def partitions_ready(self, queue: str, group: str, names: list[str]) -> list[Row]:
        there = self.tables.queues.get(queue)
        now = self.tables.now()
        found = []
        for name in names:
            part = None if there is None else there.partitions.get(name)
            row = None if part is None else part.groups.get(group)
            if part is None:
                continue
            if row is None or (
                row.ready_at is not None
                and row.ready_at <= now
                and not (row.lease is None and row.position >= part.last)
            ):
                found.append({"name": name})
        return found

    def renew(self, leases: list[str], seconds: list[int], _: str) -> list[Row]:
        ends = self.tables.renew(leases, seconds)
        return [{"lease_id": lease, "expires_at": moment(end)} for lease, end in ends.items()]

    def release(self, leases: list[str], _: str) -> list[Row]:
        self.tables.release(leases)
        return [{"release": None}]

    def ack(self, *given: Any) -> list[Row]:
        parts, groups, leases, statuses, _, counts, joined, _ = given
        names = [[one] if count == 1 else one.split(SEPARATOR) for one, count in zip(joined, counts, strict=True)]
        return self.tables.ack_runs(list(zip(parts, groups, leases, statuses, names, strict=True)))

    def acks_finished(
        self, parts: list[str], names: list[str], groups: list[str | None], leases: list[str | None]
    ) -> list[Row]:
        return [self._finished(*asked) for asked in zip(parts, names, groups, leases, strict=True)]

    def _finished(self, part: str, name: str, group: str | None, lease: str | None) -> Row:
        there = self.tables.partitions.get(part)
        message = None if there is None else there.by_transaction.get(name)
        of = {} if there is None else {one: row for one, row in there.groups.items() if group in (None, one)}
        said = [] if message is None else [self.tables.said.get((part, message.offset, one, lease)) for one in of]
        return {
            "finished": message is not None and any(row.is_finished(message.offset) for row in of.values()),
            "dead": message is not None and any(message.id in self.tables.dead.get((part, one), ()) for one in of),
            "said": max(filter(None, said), default=None),
            "held": lease is not None and any(row.lease == lease for row in of.values()),
            "expired": (part, lease) in self.tables.expired,
            "queue_name": there and there.queue.name,
            "partition_name": there and there.name,
        }

    # Locks

    def find_locked(
        self,
        queues: list[str],
        partitions: list[str],
        parts: list[str],
        groups: list[str],
        leases: list[str],
        subscribed: list[str],
        _tables: bool,
    ) -> list[Row]:
        tables = self.tables
        heads = []
        for index, (queue, name) in enumerate(zip(queues, partitions, strict=True), 1):
            there = tables.queues.get(queue)
            part = None if there is None else there.partitions.get(name)
            if part is not None and (
                tables.is_held("head", part.id)
                or any(
                    row.ready_at is None and tables.is_held("position", part.id, of) for of, row in part.groups.items()
                )
            ):
                heads.append(index)
        positions = [
            index
            for index, (part_id, group) in enumerate(zip(parts, groups, strict=True), 1)
            if tables.is_held("position", part_id, group)
        ]
        locked = [
            index
            for index, lease in enumerate(leases, 1)
            if any(tables.is_held("position", part.id, group) for part, group, _ in tables.leased([lease]))
        ]
        row: Row = {"is_table": False, "queues": None, "queue_marks": None}
        for kind, found in (("head", heads), ("position", positions), ("lease", locked)):
            row[f"{kind}s"], row[f"{kind}_marks"] = (found, ["held"] * len(found)) if found else (None, None)
        return [row]

    def lock_holder(self, _kind: str, _names: list[str]) -> list[Row]:
        return [dict.fromkeys(("pid", "application", "username", "state", "open_s", "prepared"))]

    # Operations

    def operation_load(self) -> list[Row]:
        depth = sum(one.status in ("pending", "processing") for one in self.tables.operations.values())
        return [{"depth": depth, "finished": 10 * len(self.tables.operations)}]

    def claim_operations(
        self, worker: str, claim: str, partitions: int, run: int, _bytes: int, priority: int
    ) -> list[Row]:
        if priority > _PRIORITY:
            return []
        now = self.tables.now()
        heads: list[Operation] = []
        for part in self.tables.partitions.values():
            waiting = self.tables.open_operations(part)
            if not waiting or self.tables.is_held("head", part.id):
                continue
            first = waiting[0]
            is_free = first.status == "pending" or first.claimed_at <= now - _CLAIM_S
            if is_free and (first.next_attempt_at is None or first.next_attempt_at <= now):
                heads.append(first)
        heads = sorted(heads, key=lambda one: one.number)[:partitions]
        claimed = [one for first in heads for one in self.tables.open_operations(first.partition)[:run]]
        for one in claimed:
            one.status, one.worker, one.claim, one.claimed_at = "processing", worker, claim, now
            one.attempts += 1
        return [_claimed(one) for one in sorted(claimed, key=lambda one: one.number)]

    def hold_operations(self, claim: str, ids: list[str], _lock_ms: int) -> list[Row]:
        tables = self.tables
        held = [
            one for one in map(tables.operations.get, ids) if one and one.claim == claim and one.status == "processing"
        ]
        may_run = [
            one.id
            for one in held
            if all(older in held for older in tables.open_operations(one.partition) if older.number < one.number)
        ]
        return [{"hold_operations": may_run}]

    def complete_operations(self, ids: list[str], _results: list[str]) -> list[Row]:
        for one in ids:
            done = self.tables.operations[one]
            done.status, done.claim, done.next_attempt_at, done.messages = "completed", None, None, []
        return []

    def give_back_operations(self, claim: str) -> list[Row]:
        return self._give_back(lambda one: one.claim == claim)

    def release_operations(self, worker: str) -> list[Row]:
        return self._give_back(lambda one: one.worker == worker)

    def _give_back(self, is_meant: Callable[[Operation], bool]) -> list[Row]:
        for one in self.tables.operations.values():
            if one.status == "processing" and is_meant(one):
                one.status, one.claim, one.attempts = "pending", None, max(one.attempts - 1, 0)
        return []

    def fail_operation(self, operation: str, claim: str, _error: str, is_certain: bool) -> list[Row]:
        one = self.tables.operations[operation]
        if is_certain:
            raise NotImplementedError("operations that fail because of their content")
        if one.claim != claim or one.status != "processing":
            return []
        one.status, one.claim = "pending", None
        one.next_attempt_at = self.tables.now() + min(30.0, 0.1 * 2 ** min(one.attempts - 1, 20))
        return [{"became": "pending", "attempts": one.attempts}]

    def record_replayed(self, *_: Any) -> list[Row]:
        return []

    # What servers know of each other and of queues

    def register_server(self, *_: Any) -> list[Row]:
        self._versions += 1
        return [{"epoch": self._versions}]

    def unhide(self, *_: Any) -> list[Row]:
        return [{"unhide": 0}]

    def newest_version(self) -> list[Row]:
        return [{"last_value": self._versions}]

    def queue_configs(self, names: list[str] | None) -> list[Row]:
        return [
            {"name": queue.name, "version": 1, "options": json.dumps({"lease_time_s": int(queue.lease_s)})}
            for queue in self.tables.queues.values()
            if names is None or queue.name in names
        ]

    def maintenance(self) -> list[Row]:
        return [{"switch": name, "is_on": on, "version": version} for name, (on, version) in self.switches.items()]

    def set_maintenance(self, switch: str, on: bool) -> list[Row]:
        self._versions += 1
        self.switches[switch] = on, self._versions
        return [{"version": self._versions}]


def _popped(row: Row) -> Row:
    """As `queen.pop` says it."""
    part, messages = row["partition"], row["messages"]
    return {
        "request": row["request"],
        "partition_id": part and part.id,
        "partition_name": part and part.name,
        "message_count": len(messages) if messages else None,
        "glued": BETWEEN.join(_glued(one, row["failures"][one.offset]) for one in messages) if messages else None,
        "has_sealed": False,
        "first_created_at": moment(messages[0].at) if messages else None,
        "ready_in_ms": row["ready_in_ms"],
    }


def _glued(one: Stored, failures: int) -> bytes:
    said = {
        "id": one.id,
        "transactionId": one.transaction,
        "offset": one.offset,
        "createdAt": moment(one.at).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "retryCount": failures,
        "producerSub": None,
        "traceId": None,
    }
    return json.dumps(said, separators=(",", ":")).encode()[:-1] + b',"data":' + one.payload


def _claimed(one: Operation) -> Row:
    return {
        "id": one.id,
        "number": one.number,
        "partition_id": one.partition.id,
        "queue_name": one.partition.queue.name,
        "partition_name": one.partition.name,
        "message_ids": [message[0] for message in one.messages],
        "transaction_ids": [message[1] for message in one.messages],
        "payloads": [message[2] for message in one.messages],
        "trace_ids": [None] * len(one.messages),
        "encrypted": [False] * len(one.messages),
        "producers": [None] * len(one.messages),
        "headers": None,
    }
