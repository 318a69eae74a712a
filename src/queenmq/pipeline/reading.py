"""Reading a slice as Arrow batches, in the task that Spark runs.

The slice is read in portions, a statement each: no transaction is longer than one of them, and what is held in memory
is one batch of a portion, however large the partition is. Portions grow or shrink until they have about
`PORTION_BYTES`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from queenmq.pipeline.columns import Columns
from queenmq.pipeline.connection import arrow_connection
from queenmq.pipeline.errors import DataLost
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.planning import Range, Slice, portions
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

FIRST_OFFSETS: Final = 1_000
MOST_OFFSETS: Final = 100_000
PORTION_BYTES: Final = 32 * 1024 * 1024
BATCH_BYTES: Final = 4 * 1024 * 1024
BATCH_HINT: Final = "adbc.postgresql.batch_size_hint_bytes"
# The loop over the slice must stay one: no other plan gives its rows in order.
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


def read_slice(options: ReadOptions, names: list[str], task: Slice) -> Iterator[Any]:
    """The messages of the slice in order, as record batches with the columns `names`.

    Raises DataLost if some are gone (retention was faster), unless the options say that this does not matter.
    """
    columns = Columns(options, names)
    query = statement(columns.statement)
    size = PortionSize()
    with arrow_connection(options.url) as opened, opened.cursor() as cursor:
        for line in SESSION:
            cursor.execute(line)
        for portion in portions(task.ranges, size):
            rows = received = 0
            lanes = columns.lanes([task.ranges[index] for index, _, _ in portion])
            for batch in _batches(cursor, query, task.ranges, portion):
                rows += batch.num_rows
                received += batch.nbytes
                yield columns.make(batch, lanes)
            size.learn(rows, received)
            _check(options, task.ranges, portion, rows)


def _batches(cursor: Any, query: str, ranges: list[Range], portion: list[tuple[int, int, int]]) -> Iterator[Any]:
    ids = "{" + ",".join(ranges[index].partition_id for index, _, _ in portion) + "}"
    first = "{" + ",".join(str(first) for _, first, _ in portion) + "}"
    last = "{" + ",".join(str(last) for _, _, last in portion) + "}"
    cursor.execute(statement("pipeline_slice"), (ids, first, last))
    cursor.fetchall()
    cursor.adbc_statement.set_options(**{BATCH_HINT: str(BATCH_BYTES)})
    cursor.execute(query)
    yield from cursor.fetch_record_batch()


def _check(options: ReadOptions, ranges: list[Range], portion: list[tuple[int, int, int]], rows: int) -> None:
    expected = sum(last - first + 1 for _, first, last in portion)
    if rows == expected:
        return
    names = sorted({ranges[index].partition for index, _, _ in portion})
    where = f"{names[0]!r}" if len(names) == 1 else f"{names[0]!r} to {names[-1]!r}"
    sentence = (
        f"{expected - rows} messages of queue {options.queue!r}, partition {where}, were deleted before they were read"
    )
    if options.fail_on_data_loss:
        raise DataLost(f"{sentence}; failOnDataLoss=false reads what is left")
    log.warning("%s", sentence)
