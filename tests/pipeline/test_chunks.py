"""Rows of a task as chunks: all of them, those of a partition in order, within the bounds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.pipeline import chunks
from queenmq.pipeline.chunks import BUCKETS, ROW_BITS, Packer

rows = st.lists(
    st.tuples(
        st.sampled_from(["orders", "stats"]),
        st.sampled_from(["p0", "p1", "p2", "ä", "p3"]),
        st.sampled_from([None, "k1", "k2"]),
        st.booleans(),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=60,
)


def table(given: list[tuple[str, str, str | None, bool, int]], first: int) -> pa.Table:
    return pa.table(
        {
            "queue": [row[0] for row in given],
            "partition": [row[1] for row in given],
            "message_id": [f"m{first + n}" for n in range(len(given))],
            "transaction_id": pa.array([row[2] for row in given], pa.string()),
            "trace_id": pa.nulls(len(given), pa.string()),
            "is_encrypted": [row[3] for row in given],
            "payload": pa.array([b"x" * row[4] for row in given], pa.binary()),
        }
    )


@given(st.lists(rows, min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 60))
def test_rows_keep_their_order_within_a_partition(batches: list[list[Any]], most: int, gathered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MOST_GATHERED_ROWS", gathered)
        patch.setattr(chunks, "MOST_BYTES", 50)
        packer, made, count = Packer(7, 3, most), [], 0
        for batch in batches:
            made += list(packer.add(table(batch, count)))
            count += len(batch)
        made += list(packer.rest())
        assert list(packer.rest()) == []
    found = [chunk for one in made for chunk in one.to_pylist()]
    places = [chunk["place"] for chunk in found]
    assert places == sorted(set(places)) and places[0] == 3 << ROW_BITS

    unpacked: dict[tuple[str, str], list[Any]] = {}
    buckets: dict[tuple[str, str], int] = {}
    for chunk in found:
        assert chunk["attempt"] == 7 and 0 <= chunk["bucket"] < BUCKETS
        assert sum(chunk["counts"]) == chunk["rows"] == len(chunk["message_ids"]) == len(chunk["payloads"]) <= most
        assert chunk["rows"] == 1 or sum(map(len, chunk["payloads"])) <= 50
        targets = list(zip(chunk["queues"], chunk["partitions"], strict=True))
        assert len(set(targets)) == len(targets)
        at = 0
        encrypted = chunk.get("encrypted") or [False] * chunk["rows"]
        transactions = chunk.get("transaction_ids") or [None] * chunk["rows"]
        for target, rows_of_it, clear in zip(targets, chunk["counts"], chunk["clear"], strict=True):
            assert buckets.setdefault(target, chunk["bucket"]) == chunk["bucket"]
            flags = encrypted[at : at + rows_of_it]
            assert clear == (not all(flags))
            unpacked.setdefault(target, []).extend(
                zip(
                    chunk["message_ids"][at : at + rows_of_it],
                    transactions[at : at + rows_of_it],
                    flags,
                    map(len, chunk["payloads"][at : at + rows_of_it]),
                    strict=True,
                )
            )
            at += rows_of_it
    expected: dict[tuple[str, str], list[Any]] = {}
    for n, row in enumerate(row for batch in batches for row in batch):
        expected.setdefault((row[0], row[1]), []).append((f"m{n}", row[2], row[3], row[4]))
    assert unpacked == expected


def test_what_no_row_has_takes_no_room() -> None:
    packer = Packer(1, 0, 100)
    assert list(packer.add(table([("orders", "p0", None, False, 1)] * 3, 0))) == []
    [made] = packer.rest()
    assert not {"transaction_ids", "trace_ids", "encrypted", "headers"} & set(made.column_names)
