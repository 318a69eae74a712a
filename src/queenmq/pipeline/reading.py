"""Reading a slice as Arrow batches, in the task that Spark runs.

The slice is read in portions, a statement each: no transaction is longer than one of them, and what is held in memory
is one batch of a portion, however large the partition is. If the connection is lost, what is left is read over another
one. Portions grow or shrink until they have about
`PORTION_BYTES`. They come packed (see `packed`) as long as the messages allow it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any, Final

from queenmq.pipeline import packed
from queenmq.pipeline.columns import Columns
from queenmq.pipeline.connection import arrow_connection, arrow_errors, batches, connection, database_errors, rows
from queenmq.pipeline.errors import DatabaseAway, DataLost
from queenmq.pipeline.heads import some
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.patience import Patience, patiently
from queenmq.pipeline.planning import Portion, Range, Slice, portions
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

FIRST_OFFSETS: Final = 1_000
MOST_OFFSETS: Final = 100_000
PORTION_BYTES: Final = 32 * 1024 * 1024
BATCH_BYTES: Final = 2 * 1024 * 1024
BATCH_HINT: Final = "adbc.postgresql.batch_size_hint_bytes"
# With fewer messages in a range, on average, a row for each range costs more than a row for each message: with so many
# ranges more than it saves to do without ADBC, which takes 40 ms to connect.
LEAST_IN_RANGE: Final = 4
MANY_RANGES: Final = 10_000
# The loop over the ranges must stay one: no other plan gives its rows in order.
SESSION: Final = (
    "SET application_name = 'queen pipeline'",
    "SET max_parallel_workers_per_gather = 0",
    "SET enable_seqscan = off",
    "SET jit = off",
)


class PortionSize:
    """How many offsets the next statement covers. An endless iterator that learns from what came."""

    def __init__(self) -> None:
        self._next = FIRST_OFFSETS

    def __iter__(self) -> PortionSize:
        return self

    def __next__(self) -> int:
        return self._next

    def learn(self, rows: int, size: int) -> None:
        if rows:
            fitting = PORTION_BYTES * rows // max(1, size)
            self._next = max(1, min(MOST_OFFSETS, fitting, self._next * 8))


def read_slice(options: ReadOptions, names: list[str], task: Slice, gaps: list[Range] | None = None) -> Iterator[Any]:
    """The messages of the slice in order, as record batches with the columns `names`.

    Offsets whose messages were deleted by hand are no loss; they are added to `gaps`. Raises DataLost if others are
    gone (retention was faster), unless the options say that this does not matter.
    """
    size = PortionSize()
    with ExitStack() as opened:
        reader = _Reader(options, Columns(options, names), task.ranges, opened)
        for portion in portions(task.ranges, size):
            count = received = 0
            for batch in reader.read(portion):
                count += batch.num_rows
                received += batch.nbytes
                yield batch
            size.learn(count, received)
            if count != sum(last - first + 1 for _, first, last in portion):
                known = _check(options, [_part(task.ranges[index], a, b) for index, a, b in reader.unread()])
                if gaps is not None:
                    gaps += known


class _Reader:
    """Reads portions packed until messages come that cannot be packed, and from there on one by one.

    Connects when it is needed, for one of the two ways at a time; `opened` closes.
    """

    def __init__(self, options: ReadOptions, columns: Columns, ranges: list[Range], opened: ExitStack) -> None:
        self._url = options.url
        self._columns = columns
        self._ranges = ranges
        self._opened = opened
        self._single: Portion = []
        self._read: list[tuple[Any, Any]] = []
        self._patience = Patience()
        self._packed = len(ranges) < MANY_RANGES or Slice(ranges).offsets >= LEAST_IN_RANGE * len(ranges)

    def read(self, portion: Portion) -> Iterator[Any]:
        done = 0
        self._single = []
        while self._packed and done < len(portion):
            try:
                for batch, ranges in self._read_packed(portion[done:]):
                    yield batch
                    done += ranges
            except DatabaseAway as error:
                self._wait(error)
                continue
            if done < len(portion):
                self._packed = False
                self._opened.close()
        if done < len(portion):
            yield from self._read_single(portion[done:])
        self._patience.succeeded()

    def unread(self) -> Portion:
        """What the last portion did not have. Everything that came packed was complete."""
        import numpy as np

        indexes = np.concatenate([np.zeros(0, np.int32), *(index for index, _ in self._read)])
        offsets = np.concatenate([np.zeros(0, np.int64), *(offset for _, offset in self._read)])
        counts = np.bincount(indexes, minlength=len(self._single) + 1)[1:]
        ends = np.cumsum(counts)
        found: Portion = []
        for place, (index, first, last) in enumerate(self._single):
            if counts[place] != last - first + 1:
                there = offsets[ends[place] - counts[place] : ends[place]]
                edges = np.concatenate([[first - 1], there, [last + 1]])
                for gap in np.flatnonzero(np.diff(edges) > 1):
                    found.append((index, int(edges[gap]) + 1, int(edges[gap + 1]) - 1))
        return found

    def _read_packed(self, portion: Portion) -> Iterator[tuple[Any, int]]:
        """Batches, with the number of ranges in each, as far as they can be had packed."""
        if self._connection.info.parameter_status("server_encoding") != "UTF8":
            return  # the lengths are those of the texts as they are stored
        columns = self._columns
        partitions = columns.partitions([self._ranges[index] for index, _, _ in portion])
        for group in _groups(self._packed_ranges(portion)):
            batch = packed.unpack(group, [portion[part.range_index - 1][1:] for part in group])
            if batch is None:
                return
            yield columns.make(batch, partitions), len(group)

    def _wait(self, error: DatabaseAway) -> None:
        """The connection is lost: wait for another one, or raise the error."""
        for name in ("_connection", "_arrow_cursor"):
            self.__dict__.pop(name, None)
        with suppress(Exception):  # it is broken
            self._opened.close()
        self._patience.failed(error)

    def _packed_ranges(self, portion: Portion) -> Iterator[packed.PackedRange]:
        ids = [self._ranges[index].partition_id for index, _, _ in portion]
        first = [first for _, first, _ in portion]
        last = [last for _, _, last in portion]
        columns = self._columns
        wanted = (columns.needs_payload, columns.needs_id, packed.LARGEST, columns.needs_headers)
        with database_errors(), self._connection.cursor() as cursor:
            found = cursor.stream(statement("pipeline_packed"), (ids, first, last, *wanted), binary=True)
            yield from map(packed.PackedRange._make, found)

    def _read_single(self, portion: Portion) -> Iterator[Any]:
        self._single, self._read = portion, []
        while True:
            try:
                yield from self._read_rest(*_rest(portion, self._read))
            except DatabaseAway as error:
                self._wait(error)
            else:
                return

    def _read_rest(self, portion: Portion, before: int) -> Iterator[Any]:
        """What is left of a portion; it had so many ranges before."""
        if not portion:
            return
        partitions = self._columns.partitions([self._ranges[index] for index, _, _ in portion])
        ids = "{" + ",".join(self._ranges[index].partition_id for index, _, _ in portion) + "}"
        first = "{" + ",".join(str(first) for _, first, _ in portion) + "}"
        last = "{" + ",".join(str(last) for _, _, last in portion) + "}"
        with arrow_errors():
            cursor = self._arrow_cursor
            headers = "on" if self._columns.needs_headers else "off"
            cursor.execute(statement("pipeline_slice"), (ids, first, last, headers))
            cursor.fetchall()
            cursor.adbc_statement.set_options(**{BATCH_HINT: str(BATCH_BYTES)})
            cursor.execute(statement(self._columns.statement))
        for batch in batches(cursor):
            made = self._columns.make(batch, partitions)
            # Copied: a column keeps the memory of its whole batch, payloads included.
            indexes = abs(batch.column("range_index").to_numpy()) + before
            self._read.append((indexes, batch.column("offset").to_numpy().copy()))
            yield made

    @cached_property
    def _connection(self) -> Any:
        made = self._opened.enter_context(connection(self._url))
        with database_errors():
            made.execute("; ".join(SESSION))
        return made

    @cached_property
    def _arrow_cursor(self) -> Any:
        made = self._opened.enter_context(self._opened.enter_context(arrow_connection(self._url)).cursor())
        for line in SESSION:
            made.execute(line)
        return made


def _groups(found: Iterator[packed.PackedRange]) -> Iterator[list[packed.PackedRange]]:
    """As many ranges together as make a batch."""
    group: list[packed.PackedRange] = []
    size = 0
    for part in found:
        group.append(part)
        size += part.size
        if size >= BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _rest(portion: Portion, read: list[tuple[Any, Any]]) -> tuple[Portion, int]:
    """What of a portion comes after the last message that was read, and the number of ranges before it."""
    filled = [(indexes, offsets) for indexes, offsets in read if len(indexes)]
    if not filled:
        return portion, 0
    place, offset = int(filled[-1][0][-1]) - 1, int(filled[-1][1][-1])
    index, _, last = portion[place]
    if offset == last:
        return portion[place + 1 :], place + 1
    return [(index, offset + 1, last), *portion[place + 1 :]], place


def _part(whole: Range, first: int, last: int) -> Range:
    return Range(whole.partition_id, whole.partition, first, last)


def _lost(url: str, ids: list[str], first: list[int], last: list[int]) -> list[tuple[Any, ...]]:
    with connection(url) as opened:
        return rows(opened, "pipeline_lost", ids, first, last)


def _check(options: ReadOptions, missing: list[Range]) -> list[Range]:
    """Returns those of the ranges that were deleted by hand. Raises DataLost if there are others, or warns."""
    bounds = [part.first for part in missing], [part.last for part in missing]
    found = patiently(lambda: _lost(options.url, [part.partition_id for part in missing], *bounds))
    lost = [_part(missing[place - 1], first, last) for place, first, last in found]
    if not lost:
        return missing
    names = sorted({part.partition for part in lost})
    where = f"{names[0]!r}" if len(names) == 1 else f"{names[0]!r} to {names[-1]!r}"
    spans = [f"offset {part.first}" if part.offsets == 1 else f"offsets {part.first} to {part.last}" for part in lost]
    sentence = (
        f"{sum(part.offsets for part in lost)} messages of queue {options.queue!r}, partition {where}, were deleted "
        f"before they were read: {some(spans)}"
    )
    if options.fail_on_data_loss:
        raise DataLost(
            f"{sentence}; failOnDataLoss=false reads what is left; if that is as it should be, "
            f"'queen pipeline accept-gaps --queue {options.queue}' makes it known"
        )
    log.warning("%s", sentence)
    return []
