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
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from queenmq.clock import SYSTEM
from queenmq.ids import uuid7_text
from queenmq.pipeline.checkpoint import made_of
from queenmq.pipeline.chunks import BUCKETS, CHUNK, Packer
from queenmq.pipeline.connection import arrow_connection, arrow_errors, connection, database_errors, rows
from queenmq.pipeline.errors import BadOption, Contended, DatabaseAway, OtherContent, PipelineError, WriteIncomplete
from queenmq.pipeline.generation import generation_of_environment
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.patience import Patience, patiently
from queenmq.pipeline.registry import CheckedQueues, checked_queues
from queenmq.pipeline.staging import CHECKSUM_MASK, COLUMNS, HEADERS_TYPES, Stager

log = logging.getLogger(__name__)

BATCH_EPOCH: Final = 0
# For staging: the commit of the epoch waits for the disk, and with it for all that was written to the log before.
ASYNCHRONOUS: Final = "SET synchronous_commit = off"
# How long queued pushes of a partition are waited for, and how often what others were in the way of is tried again.
BUSY_TRIES: Final = 120
BUSY_PAUSE_S: Final = 0.5
# ADBC takes 40 ms to connect, as long as psycopg needs for so many rows.
FEW_ROWS: Final = 2000
# How often a driver says that it lives which moves rows slowly on purpose; after a minute others take over.
SIGN_S: Final = 15.0
# Buckets that are moved at the same time, each over a connection of its own.
MOVERS: Final = 2
# An attempt's id is its time in milliseconds and some random bits, so the number shows which are old.
RANDOM_BITS: Final = 22

Answer = TypeVar("Answer")


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
                patiently(partial(_ask, self._url, "pipeline_unstage", *given))
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


def promote(
    options: WriteOptions, sink: str, epoch: int, messages: list[Any], *, made_of: str | None = None
) -> tuple[int, int]:
    """In the driver: the epoch's commit. Returns the rows written and those that were there already.

    More rows than `commit_rows` are decided on first and then moved in steps of at most so many. From then on the
    epoch is these rows: if the driver dies, the next one that comes with it, or any other write, moves those that are
    left. Pushes that were queued for one of the partitions before are waited for: nothing is written past them. So is
    a PostgreSQL that is restarted: a commit whose answer was lost is found to be done. An error after the decision says
    that it is decided. Raises OtherContent if the epoch was committed before and was not the same, unless the options
    say that this does not matter.
    """
    staged = [message for message in messages if message is not None]
    count = sum(message.rows for message in staged)
    checksum = sum(message.checksum for message in staged) & CHECKSUM_MASK
    attempts = [message.attempt for message in staged if message.rows]
    given = (sink, epoch, attempts, count, made_of, checksum, options.strict, options.commit_rows)
    found = _when_free(lambda: _promoted(options.url, given))
    written, duplicates, differs, newest, at, unfinished = found
    if unfinished:
        try:
            _finish(options, sink, epoch)
            [(written, duplicates, _)] = patiently(lambda: _ask(options.url, "pipeline_committed", sink, epoch))
        except WriteIncomplete:
            raise
        except PipelineError as error:
            raise type(error)(_decided(options, sink, epoch, error)) from error
        _finish_others(options)
    if differs or newest is not None:
        then = None if newest is not None else (written + duplicates, at)
        raise OtherContent(_other_content(sink, epoch, count, then, newest))
    if options.rate and not unfinished and at is None:
        # A stream of small batches may not be faster either.
        time.sleep(min(written, options.commit_rows) / options.rate)
    return written, duplicates


def _finish(options: WriteOptions, sink: str, epoch: int) -> None:
    """Move what is left of an epoch that was decided on, not faster than the options allow."""
    if not options.rate:
        with ThreadPoolExecutor(MOVERS) as movers:
            list(movers.map(lambda bucket: _move(options, sink, epoch, bucket), range(BUCKETS)))
    _move(options, sink, epoch, None)


def _finish_others(options: WriteOptions) -> None:
    """Move what drivers that died have left, as far as it can be done now: nobody's write depends on it."""
    unbound = replace(options, rate=None)
    try:
        for sink, epoch in _ask(options.url, "pipeline_unfinished"):
            try:
                while _steps(unbound, sink, epoch, None):
                    pass
            except DatabaseAway:
                raise
            except PipelineError as error:
                log.warning("epoch %d of sink %r, which its driver has left, is not finished: %s", epoch, sink, error)
    except PipelineError as error:
        log.warning("what other drivers may have left is not moved now: %s", error)


def _decided(options: WriteOptions, sink: str, epoch: int, error: PipelineError) -> str:
    """What went wrong while the rows of an epoch were moved that is decided, and what that means."""
    moved = "some of its rows are in the queues"
    with suppress(PipelineError):
        [(written, _, there)] = _ask(options.url, "pipeline_committed", sink, epoch)
        moved = f"{there} of its {written} rows are in the queues"
    if sink.startswith("stream "):
        again = "this batch is decided", "the stream goes on with them when it is started again"
    elif options.write_id:
        again = "this write is decided", "the same write under its writeId moves them, too, and writes nothing twice"
    else:
        again = "this write is decided", "do not repeat it, or all of its rows are written twice"
    return (
        f"{again[0]}, and {moved}; a later large write or a server moves the others within some minutes: {again[1]} "
        f"({error.message})"
    )


def _move(options: WriteOptions, sink: str, epoch: int, bucket: int | None) -> None:
    """Make steps while there is something to move: in a bucket, or in all of them one after the other."""
    while _when_free(lambda: _steps(options, sink, epoch, bucket)):
        pass


def _steps(options: WriteOptions, sink: str, epoch: int, bucket: int | None) -> bool:
    """As many steps as can be done now. False if nothing is left."""
    done = 0
    try:
        with connection(options.url) as opened:
            begun, before = SYSTEM.monotonic(), _moved(opened, sink, epoch) if options.rate else 0
            while _step(opened, sink, epoch, bucket, options.commit_rows):
                done += 1
                if options.rate:
                    moved = _moved(opened, sink, epoch)
                    _pause(opened, sink, epoch, begun + (moved - before) / options.rate - SYSTEM.monotonic())
                    begun, before = SYSTEM.monotonic(), moved
    except Contended:
        if not done:
            raise
        return True
    return False


def _pause(opened: Any, sink: str, epoch: int, seconds: float) -> None:
    """Wait before the next step, and say meanwhile that this driver lives, lest others move the epoch on."""
    while seconds > 0:
        time.sleep(min(seconds, SIGN_S))
        seconds -= SIGN_S
        if seconds > 0:
            rows(opened, "pipeline_moving", sink, epoch)


def _step(opened: Any, sink: str, epoch: int, bucket: int | None, most: int) -> bool:
    if bucket is None:
        [(more,)] = rows(opened, "pipeline_promote_step", sink, epoch, most)
    else:
        [(more,)] = rows(opened, "pipeline_promote_bucket", sink, epoch, bucket, most)
    return bool(more)


def _moved(opened: Any, sink: str, epoch: int) -> int:
    """Rows of the epoch that are in the queues, without those that were there before."""
    [(_, _, moved)] = rows(opened, "pipeline_committed", sink, epoch)
    return int(moved)


def _when_free(attempt: Callable[[], Answer]) -> Answer:
    """What `attempt` returns when no partition has queued pushes any more, and nobody else is in its way."""
    tries = 0
    while True:
        try:
            return patiently(attempt)
        except Contended:
            tries += 1
            if tries == BUSY_TRIES:
                raise
            time.sleep(BUSY_PAUSE_S)


def _promoted(url: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    generation = generation_of_environment()
    with connection(url) as opened:
        if generation is None:
            [found] = rows(opened, "pipeline_promote", *given)
        else:
            [found] = rows(opened, "pipeline_promote_held", *given, *generation)
        if found[3] is not None:
            return found  # it is refused, and another driver may be about to commit
        try:
            with database_errors():
                rows(opened, "pipeline_sweep", *given[:2])
        except PipelineError as error:  # the epoch is committed all the same
            log.warning("what attempts that do not count have staged is removed later: %s", error)
    return found


def _ask(url: str, name: str, *arguments: object) -> list[tuple[Any, ...]]:
    with connection(url) as opened:
        return rows(opened, name, *arguments)


def _other_content(sink: str, epoch: int, count: int, then: tuple[int, Any] | None, newest: int | None) -> str:
    kind, _, name = sink.partition(" ")
    renamed = "give the option streamName a new value" if kind == "stream" else f"give another writeId than {name!r}"
    if kind == "batch" and then is not None:
        return (
            f"writeId {name!r} was written before with other messages ({then[0]} rows then, {count} now), on "
            f"{then[1]:%Y-%m-%d %H:%M:%S %Z}: nothing was written. Give another write another writeId; "
            "repeatedWrite=skip ignores every write under a writeId that is done"
        )
    if newest is not None and newest < epoch:
        return (
            f"the last batch of this stream that is known here is {newest}, and now comes {epoch}: nothing was "
            "written. The database was restored from an older copy, and what the batches between had written is gone. "
            f"Go on from a checkpoint as it was after batch {newest}, or with a new one; or {renamed} to go on without "
            "those"
        )
    what = (
        f"batch {epoch} of this stream was written before with other messages ({then[0]} rows then, {count} now), on "
        f"{then[1]:%Y-%m-%d %H:%M:%S %Z}"
        if then is not None
        else f"batch {epoch} of this stream comes after batch {newest} was written"
    )
    return (
        f"{what}: nothing was written. Its checkpoint was restored from an older copy, or two streams share one. Go on "
        f"with the newest checkpoint; or {renamed} to write everything again that this checkpoint has not read (what "
        "was written before is written twice, unless rows have a transactionId)"
    )


def _withdraw(url: str, messages: list[Any]) -> None:
    """Remove what these attempts have staged. What others have staged for the same epoch stays, because another driver
    may be about to commit it; what failed attempts have staged goes with the next commit."""
    if attempts := [message.attempt for message in messages if message is not None]:
        _ask(url, "pipeline_withdraw", attempts)


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
            _ask(self._options.url, "pipeline_sweep", self._sink, BATCH_EPOCH)


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
