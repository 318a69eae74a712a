"""Staging rows as chunks: many rows in one row of the staging table, as arrays, sorted by queue and partition. No I/O.

PostgreSQL stores, decides on and removes a chunk as one row, and moves what is in it into the queues as it would a
push. All rows of a partition are in one bucket, so that buckets can be moved at the same time. Chunks of a bucket are
moved in the order of their `place`, and rows of a partition keep their order within a chunk and from chunk to chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

BUCKETS: Final = 4
# What is sorted at a time: the more it is, the fewer partitions does a chunk have, whose heads are locked together.
MOST_GATHERED_ROWS: Final = 50_000
MOST_GATHERED_BYTES: Final = 16 * 1024 * 1024
MOST_ROWS: Final = 5_000
# Of payloads; PostgreSQL has a chunk in memory while it moves it.
MOST_BYTES: Final = 4 * 1024 * 1024
# `place` is the task, then the row.
ROW_BITS: Final = 40

# The columns of a chunk; the last four only if a row has something there.
CHUNK: Final = (
    *("attempt", "place", "bucket", "rows", "queues", "partitions", "counts", "clear", "message_ids", "payloads"),
    *("transaction_ids", "trace_ids", "headers", "encrypted"),
)
_OPTIONAL: Final = {"transaction_id": "transaction_ids", "trace_id": "trace_ids", "headers": "headers"}


class Packer:
    """Makes the chunks of one task attempt."""

    def __init__(self, attempt: int, task: int, most_rows: int) -> None:
        self._attempt = attempt
        self._most = min(most_rows, MOST_ROWS)
        self._place = task << ROW_BITS
        self._gathered: list[Any] = []

    def add(self, rows: Any) -> Iterator[Any]:
        """Rows as `Stager.make` makes them. Yields a table of chunks when enough have come."""
        self._gathered.append(rows)
        many = sum(table.num_rows for table in self._gathered) >= MOST_GATHERED_ROWS
        if many or sum(table.nbytes for table in self._gathered) >= MOST_GATHERED_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[Any]:
        """The chunks of what has come since."""
        import pyarrow as pa

        if self._gathered:
            gathered = pa.concat_tables(self._gathered, promote_options="default").combine_chunks()
            self._gathered = []
            yield self._packed(gathered)

    def _packed(self, rows: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = pc.binary_join_element_wise(rows["queue"], rows["partition"], "\0").combine_chunks().dictionary_encode()
        keys = names.dictionary.to_pylist()
        buckets = [crc32(key.encode()) % BUCKETS for key in keys]
        order = sorted(range(len(keys)), key=buckets.__getitem__)
        ranks = [0] * len(keys)
        for rank, key in enumerate(order):
            ranks[key] = rank
        by_rank = pa.array(ranks, pa.int32()).take(names.indices)
        placed = rows.take(pc.array_sort_indices(by_rank)).combine_chunks()
        counts = {one["values"]: one["counts"] for one in by_rank.value_counts().to_pylist()}
        sizes = pc.cumulative_sum(pc.binary_length(placed["payload"]).cast(pa.int64())).to_pylist()
        chunks = self._cut([(buckets[key], counts[rank]) for rank, key in enumerate(order)], sizes)

        bounds = [0]
        for _, parts in chunks:
            bounds.append(bounds[-1] + sum(count for _, count in parts))
        targets = [tuple(keys[order[rank]].split("\0", 1)) for rank in range(len(order))]
        encrypted = placed["is_encrypted"].to_pylist()
        made = {
            "attempt": pa.array([self._attempt] * len(chunks), pa.int64()),
            "place": pa.array([self._place + first for first in bounds[:-1]], pa.int64()),
            "bucket": pa.array([bucket for bucket, _ in chunks], pa.int16()),
            "rows": pa.array([last - first for first, last in pairwise(bounds)], pa.int32()),
            "queues": pa.array([[targets[rank][0] for rank, _ in parts] for _, parts in chunks], pa.list_(pa.string())),
            "partitions": pa.array(
                [[targets[rank][1] for rank, _ in parts] for _, parts in chunks], pa.list_(pa.string())
            ),
            "counts": pa.array([[count for _, count in parts] for _, parts in chunks], pa.list_(pa.int32())),
            "clear": pa.array(_clear(encrypted, chunks), pa.list_(pa.bool_())),
        }
        self._place += rows.num_rows
        offsets = pa.array(bounds, pa.int32())
        for column, name in {"message_id": "message_ids", "payload": "payloads"}.items():
            made[name] = pa.ListArray.from_arrays(offsets, _whole(placed[column]))
        for column, name in _OPTIONAL.items():
            if column in placed.column_names and placed[column].null_count < placed.num_rows:
                made[name] = pa.ListArray.from_arrays(offsets, _whole(placed[column]))
        if any(encrypted):
            made["encrypted"] = pa.ListArray.from_arrays(offsets, _whole(placed["is_encrypted"]))
        return pa.table(made)

    def _cut(self, targets: list[tuple[int, int]], sizes: list[int]) -> list[tuple[int, list[tuple[int, int]]]]:
        """Chunks as (bucket, [(target, its rows)]), of (bucket, rows) of the targets in their order. `sizes` are the
        bytes up to each row."""
        chunks: list[tuple[int, list[tuple[int, int]]]] = []
        first = at = end = 0
        for target, (bucket, count) in enumerate(targets):
            left = count
            while left:
                if not chunks or at == end or chunks[-1][0] != bucket:
                    chunks.append((bucket, []))
                    first = at
                    before = sizes[first - 1] if first else 0
                    fit = bisect_right(sizes, before + MOST_BYTES, first)
                    end = min(first + self._most, max(fit, first + 1))
                taken = min(left, end - at)
                chunks[-1][1].append((target, taken))
                at += taken
                left -= taken
        return chunks


def _clear(encrypted: list[bool], chunks: list[tuple[int, list[tuple[int, int]]]]) -> list[list[bool]]:
    """By chunk and target, whether one of its rows is not encrypted."""
    at, made = 0, []
    for _, parts in chunks:
        of_chunk = []
        for _, count in parts:
            of_chunk.append(not all(encrypted[at : at + count]))
            at += count
        made.append(of_chunk)
    return made


def _whole(column: Any) -> Any:
    """A column of a table as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
