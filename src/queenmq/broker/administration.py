"""What is done to queues and groups rather than with messages: configure, delete, seek, dead letters, traces.

Delete, clear, seek and redrive may take long: they are begun here and go on as operations (`operation_runner`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import asyncpg
import msgspec

from queenmq.broker.activity import Activity
from queenmq.broker.operation_runner import OperationProgress, OperationRunner
from queenmq.broker.queue_options import QueueOptions as KnownOptions
from queenmq.broker.single_flight import SingleFlight
from queenmq.broker.wake_ups import Wake
from queenmq.core.options import ConfigureRights, QueueOptions, read_pop_wait
from queenmq.errors import DatabaseUnavailable
from queenmq.ids import uuid7_text
from queenmq.operations.steps import StepKind, StepParameters
from queenmq.storage.database import Database
from queenmq.storage.failures import after_commit
from queenmq.storage.statements import statement


class Labels(NamedTuple):
    namespace: str
    task: str


class Configured(NamedTuple):
    queue_id: str
    partition_id: str
    labels: Labels
    options: QueueOptions


@dataclass(frozen=True, slots=True)
class Purge:
    """Which dead letters to forget: those of a queue that failed until a moment, of a group and of partitions of a name
    if given; at most `limit` in one step."""

    queue: str
    group: str | None
    partition: str | None
    until: datetime
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """Which dead letters to deliver again: those of a queue, and of these only what the others say, each if given.
    `error` is a part of the error, in any case; `since` and `until` are about when they failed."""

    queue: str
    partition: str | None = None
    group: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    partition_id: str
    transaction_id: str
    group: str | None
    event_type: str
    data: bytes
    names: list[str]


class Administration:
    def __init__(
        self,
        database: Database,
        settings: KnownOptions,
        operations: OperationRunner,
        worker_id: str,
        activity: Activity,
        changed: Wake,
    ) -> None:
        self._database = database
        self._settings = settings
        self._operations = operations
        self._worker_id = worker_id
        self._activity = activity
        self._changed = changed
        self._pings: SingleFlight[bool] = SingleFlight()

    async def configure(
        self, queue: str, labels: Labels, options: QueueOptions, rights: ConfigureRights, given: Set[str] | None = None
    ) -> Configured:
        """Create or reconfigure a queue. With `given`, only these options are changed, and a label that is empty stays
        as it is; without it, everything is replaced.

        Raises Forbidden if messages would be deleted earlier or protected less, unless that is allowed.
        """
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(statement("lock_options"), queue)
            stored = await connection.fetchrow(statement("stored_options"), queue)
            if stored is not None and given is not None:
                labels = Labels(labels.namespace or stored["namespace"], labels.task or stored["task"])
                known = {**stored, **read_pop_wait(stored["pop_wait"])}
                kept = {name: known[name] for name in QueueOptions.__struct_fields__ if name not in given}
                options = msgspec.structs.replace(options, **kept)
            row = await self._store(connection, queue, labels, options, rights)
        with after_commit():
            await self._settings.publish(queue)
        self._activity.touched.add(queue)
        self._changed(queue)
        return Configured(str(row["queue_id"]), str(row["partition_id"]), labels, options)

    @staticmethod
    async def _store(
        connection: asyncpg.Connection[asyncpg.Record],
        queue: str,
        labels: Labels,
        options: QueueOptions,
        rights: ConfigureRights,
    ) -> asyncpg.Record:
        row = await connection.fetchrow(
            statement("configure"),
            queue,
            *labels,
            options.lease_time,
            options.retry_limit,
            options.retry_delay,
            options.max_size,
            options.ttl,
            options.dead_letter_queue,
            options.dlq_after_max_retries,
            options.priority,
            options.delayed_processing,
            options.window_buffer,
            options.retention_seconds,
            options.completed_retention_seconds,
            options.retention_enabled,
            options.encryption_enabled,
            options.max_wait_time_seconds,
            options.archive_before_delete,
            options.set_aside_failed_pushes,
            *rights,
            options.pop_wait(),
        )
        if row is None:
            raise AssertionError("queen.configure returned no row")
        return row

    async def delete_queue(self, queue: str) -> tuple[bool, OperationProgress]:
        """Delete a queue with everything of it; False if there was none. What is left of it cannot be reached."""
        return await self._operations.delete_queue(queue)

    async def clear(self, queue: str, partition: str | None) -> OperationProgress | None:
        """Delete every message of a queue or partition that is there now. None if there is no such queue."""
        return await self._operations.begin("clear", queue, StepParameters(partition=partition))

    async def redrive(self, which: Redrive) -> OperationProgress | None:
        """Have dead letters that are there now delivered again, in order. None if there is no such queue."""
        narrowed = {
            "error": which.error,
            "fingerprint": which.fingerprint,
            "since": which.since,
            "until": which.until,
        }
        kind: StepKind = "redrive" if all(one is None for one in narrowed.values()) else "redrive_matching"
        parameters = StepParameters(partition=which.partition, group=which.group, **narrowed)  # type: ignore[arg-type]
        return await self._operations.begin(kind, which.queue, parameters)

    async def delete_group(self, group: str, queue: str | None, with_metadata: bool) -> int:
        """Forget the positions of a group; with metadata, also where it starts. Returns the partitions forgotten."""
        deleted: int = await self._database.fetchval(statement("delete_group"), group, queue, with_metadata)
        if queue is not None:
            self._activity.touched.add(queue)
        return deleted

    async def resubscribe(self, group: str, since: datetime) -> int:
        """Change where a group starts in partitions without a position. Returns the subscriptions changed."""
        changed: int = await self._database.fetchval(statement("resubscribe"), group, since)
        return changed

    async def seek(self, group: str, queue: str, partition: str | None, at: datetime | None) -> OperationProgress:
        """Move a group behind `at`, or to the end if it is None, in a queue or a partition of it."""
        parameters = StepParameters(partition=partition, group=group, at=at)
        return await self._operations.begin("seek", queue, parameters) or OperationProgress(0)

    async def purge(self, which: Purge) -> tuple[int, bool]:
        """Forget dead letters, the oldest first, at most `limit`; messages that are stored stay.

        Returns how many were forgotten and whether there may be more.
        """
        row = await self._database.fetchrow(
            statement("purge_dead_letters"), which.queue, which.group, which.partition, which.until, which.limit
        )
        if row is None:
            raise AssertionError("purge_dead_letters returned no row")
        self._activity.touched.add(which.queue)
        return row["purged"], row["chosen"] >= which.limit

    async def delete_message(self, partition_id: str, transaction_id: str) -> bool:
        """Delete a message with its dead letters and traces; False if there is none."""
        deleted: bool = await self._database.fetchval(statement("delete_message"), partition_id, transaction_id)
        await self._message_changed(partition_id)
        return deleted

    async def retry_message(self, partition_id: str, transaction_id: str) -> bool:
        """Take a message out of the dead letters and have it delivered again; False if it is no dead letter."""
        taken: int = await self._database.fetchval(
            statement("retry_message"), partition_id, transaction_id, uuid7_text()
        )
        await self._message_changed(partition_id)
        return taken > 0

    async def bury_message(self, partition_id: str, transaction_id: str) -> bool:
        """Put a message to the dead letters of every group that has not finished it; False if it is not stored."""
        found: bool = await self._database.fetchval(
            statement("bury_message"), partition_id, transaction_id, "Dead-lettered by an operator"
        )
        await self._message_changed(partition_id)
        return found

    async def _message_changed(self, partition_id: str) -> None:
        with after_commit():
            place = await self._database.fetchrow(statement("partition_names"), partition_id, repeatable=True)
        if place is not None:
            self._activity.touched.add(place["queue"])
            self._changed(place["queue"], (place["partition"],))

    async def add_trace(self, trace: Trace) -> str | None:
        """Record a trace; its id, or None if there is no such message."""
        trace_id = await self._database.fetchval(
            statement("add_trace"),
            trace.partition_id,
            trace.transaction_id,
            trace.group,
            trace.event_type,
            trace.data,
            self._worker_id,
            trace.names,
        )
        return None if trace_id is None else str(trace_id)

    async def database_answers(self) -> bool:
        """One question for all who ask at the same time: they need no token."""
        return await self._pings.load(None, self._ping)

    async def _ping(self) -> bool:
        try:
            await self._database.fetchval(statement("ping"), repeatable=True)
        except DatabaseUnavailable:
            return False
        return True
