"""Writing rows into queues, exactly once.

A task copies its rows in chunks into a staging table under an id of its own attempt and reports the id and the count to
the driver. The commit of the epoch moves the rows of the attempts that won into the queues (`queen.promote`), guarded
by a row for (sink, epoch): a replayed epoch finds it and does nothing. That row also says what the epoch was made of,
because an epoch of the same number with other messages (a checkpoint that was restored from an older copy) must not be
taken for a replay. What losing attempts have staged is swept.

The sink of a stream is its query, the epoch its batch. A batch write is a sink of its own; `writeId` names it, so
that the same write after a crash of the driver is known to be the same. With `batchId`, the writes of a `writeId` are
the epochs of one sink, of which only the newest are remembered, as of a stream. A write without a name never comes
again, so that it is forgotten a day later (`queen.sweep_staged`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from queenmq.clock import SYSTEM
from queenmq.ids import uuid7_text
from queenmq.pipeline.checkpoint import made_of
from queenmq.pipeline.chunks import BUCKETS, CHUNK, Packer
from queenmq.pipeline.connection import arrow_connection, arrow_errors, connection, rows
from queenmq.pipeline.errors import BadOption, DatabaseAway, PipelineError
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.patience import Patience, patiently
from queenmq.pipeline.promotion import ask, promote
from queenmq.pipeline.registry import CheckedQueues, checked_queues
from queenmq.pipeline.staging import COLUMNS, HEADERS_TYPES, Stager

log = logging.getLogger(__name__)

BATCH_EPOCH: Final = 0
# For staging: the commit of the epoch waits for the disk, and with it for all that was written to the log before.
ASYNCHRONOUS: Final = "SET synchronous_commit = off"
# ADBC takes 40 ms to connect, as long as psycopg needs for so many rows.
FEW_ROWS: Final = 2000
# An attempt's id is its time in milliseconds and some random bits, so the number shows which are old.
RANDOM_BITS: Final = 22


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged."""

    sink: str
    attempt: int
    rows: int
    checksum: int


def check_target(options: WriteOptions, schema: Any, overwrite: bool) -> WriteOptions:
    """Raise BadOption unless rows of this schema can go into a queue."""
    if overwrite:
        raise BadOption("a queue cannot be overwritten: use mode('append')")
    kinds = {f.name: f.dataType for f in schema.fields}
    types = {name: (k.simpleString() if name == "headers" else k.typeName()) for name, k in kinds.items()}
    if "value" not in types:
        raise BadOption("rows to write need a column value with the JSON text")
    for name, kind in types.items():
        if name not in COLUMNS:
            raise BadOption(f"unknown column {name!r}: rows to write have {', '.join(COLUMNS)}")
        if kind not in {"encrypted": ("boolean",), "headers": HEADERS_TYPES}.get(name, ("string",)):
            hint = {
                "value": ": to_json makes text of it",
                "headers": f": it is {HEADERS_TYPES[0]} or {HEADERS_TYPES[-1]}",
            }
            raise BadOption(f"column {name!r} cannot be {kind}{hint.get(name, '')}")
    if "queue" not in types and options.queue is None:
        raise BadOption("the option queue is missing: it names the queue to write to, where rows have no column queue")
    return options


def stage(options: WriteOptions, sink: str, epoch: int, batches: Iterator[Any]) -> Staged:
    """In a task: copy the rows to the staging table."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = context.partitionId() if context else 0
    attempt = int(SYSTEM.wall() * 1000) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return Staged(sink, attempt, 0, 0)
    encrypted, checked = patiently(lambda: _announce(options, attempt, sink, epoch))
    stager, packer = Stager(options, encrypted, checked), Packer(attempt, task, options.commit_rows)
    with closing(StagingTable(options.url, attempt)) as target:
        for batch in chain((first,), filled):
            for chunks in packer.add(stager.make(batch)):
                target.add(chunks)
        for chunks in packer.rest():
            target.add(chunks)
    return Staged(sink, attempt, stager.rows, stager.checksum)


class StagingTable:
    """Where a task stages its chunks; over another connection if one is lost."""

    def __init__(self, url: str, attempt: int) -> None:
        self._url = url
        self._attempt = attempt
        self._opened = ExitStack()
        self._cursor: Any = None

    def add(self, table: Any) -> None:
        patience = Patience()
        while True:
            try:
                self._ingest(table)
            except DatabaseAway as error:
                self.close()
                patience.failed(error)
                # Whether they were stored before the connection was lost is not known.
                given = (self._attempt, table.column("place")[0].as_py())
                patiently(partial(ask, self._url, "pipeline_unstage", *given))
            else:
                return

    def _ingest(self, table: Any) -> None:
        chunks = table.to_pylist() if self._cursor is None and table.num_rows <= BUCKETS else []
        if chunks and sum(chunk["rows"] for chunk in chunks) <= FEW_ROWS:
            with connection(self._url) as opened:
                opened.execute(ASYNCHRONOUS)
                for chunk in chunks:
                    rows(opened, "pipeline_stage", *(chunk.get(column) for column in CHUNK))
            return
        if self._cursor is None:
            self._cursor = self._opened.enter_context(self._opened.enter_context(arrow_connection(self._url)).cursor())
            with arrow_errors():
                self._cursor.execute(ASYNCHRONOUS)
        with arrow_errors():
            self._cursor.adbc_ingest("pipeline_chunks", table, mode="append", db_schema_name="queen")

    def close(self) -> None:
        self._cursor = None
        with suppress(Exception):  # it may be broken, and everything is stored that shall be
            self._opened.close()


def _announce(options: WriteOptions, attempt: int, sink: str, epoch: int) -> tuple[set[str], CheckedQueues]:
    """The attempt is known and can be swept. Returns the queues that demand encrypted payloads, and those that demand
    messages that fit their schema."""
    with connection(options.url) as opened:
        rows(opened, "pipeline_attempt", attempt, sink, epoch)
        encrypted = {name for (name,) in rows(opened, "pipeline_encrypted_queues")}
        return encrypted, checked_queues(opened) if options.check_schema else {}


def _withdraw(url: str, messages: list[Any]) -> None:
    """Remove what these attempts have staged. What others have staged for the same epoch stays, because another driver
    may be about to commit it; what failed attempts have staged goes with the next commit."""
    if attempts := [message.attempt for message in messages if message is not None]:
        ask(url, "pipeline_withdraw", attempts)


def sink_of(options: WriteOptions) -> tuple[str, int]:
    """The sink and the epoch of a batch write."""
    if options.write_id is None:
        return f"unnamed {uuid7_text()}", BATCH_EPOCH
    if options.batch_id is None:
        return f"batch {options.write_id}", BATCH_EPOCH
    return f"batches {options.write_id}", options.batch_id


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._sink, self._epoch = sink_of(options)

    def write(self, iterator: Iterator[Any]) -> Staged:
        return stage(self._options, self._sink, self._epoch, iterator)

    def commit(self, messages: list[Any]) -> None:
        promote(self._options, self._sink, self._epoch, messages, made_of=self._options.made_of)

    def abort(self, messages: list[Any]) -> None:
        if self._options.write_id:
            _withdraw(self._options.url, messages)
        else:
            ask(self._options.url, "pipeline_sweep", self._sink, BATCH_EPOCH)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        epoch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if query is None or epoch is None:
            raise PipelineError("Spark does not report the query and batch of a task")
        name = f"stream {query}" + (f" {self._options.stream_name}" if self._options.stream_name else "")
        return stage(self._options, name, int(epoch), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        sinks = {message.sink for message in messages if message is not None}
        made = made_of(self._options.checkpoint, batchId) if sinks else None
        for sink in sinks:  # one, or none for an epoch without tasks
            promote(self._options, sink, batchId, messages, made_of=made)

    def abort(self, messages: list[Any], batchId: int) -> None:
        _withdraw(self._options.url, messages)
