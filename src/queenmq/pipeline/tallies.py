"""What an audit counts and adds up in its tasks, for each partition of a queue: what is stored, and what is archived.

With Arrow and Python and not as data frames: a task has whole partitions, or parts whose figures can be added, so that
no message has to go to another task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queenmq.pipeline.lake import Lake
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.planning import Range, Slice
from queenmq.pipeline.reading import read_slice

IDS: Final = ("messageId", "transactionId")
# Partitions with more messages are cut: the ids of one that is not are in the memory of one task.
WHOLE: Final = 1_000_000
ROWS_AT_ONCE: Final = 50_000
MOST_BYTES: Final = 256 * 1024 * 1024
MASK: Final = (1 << 64) - 1
_CONTENT: Final = ("transactionId", "messageId", "value", "encrypted", "headers")

# First and last offset.
Run = tuple[int, int]
# How many messages, and two sums of numbers of 64 bits that are made of them.
Sums = tuple[int, int, int]


@dataclass(slots=True)
class Stored:
    """Messages of a partition, or of a part of it. `doubled`: the columns in which a value seems to be there twice."""

    partition_id: str
    rows: int
    first: int
    last: int
    doubled: frozenset[str]


def whole_slices(ranges: Iterable[Range], tasks: int) -> list[Slice]:
    """Like `planning.slices`, without cutting a partition."""
    given = list(ranges)
    size = max(1, min(WHOLE, -(-sum(part.offsets for part in given) // max(1, tasks))))
    dealt: list[Slice] = []
    room = 0
    for part in given:
        if room <= 0:
            dealt.append(Slice())
            room = size
        dealt[-1].ranges.append(part)
        room -= part.offsets
    return dealt


def stored(url: str, queue: str, task: Slice) -> list[Stored]:
    """What there is of each partition of a slice, which has them one after the other."""
    options = ReadOptions(url=url, queue=queue, headers=True, encrypted="raw", fail_on_data_loss=False)
    found: list[Stored] = []
    current = ""
    offsets: list[int] = []
    ids: dict[str, list[int]] = {name: [] for name in IDS}

    def end() -> None:
        if offsets:
            # Hashes cost a fraction of the ids; what they find twice is checked again.
            doubled = frozenset(name for name, hashes in ids.items() if len(set(hashes)) < len(hashes))
            found.append(Stored(current, len(offsets), min(offsets), max(offsets), doubled))

    for batch in read_slice(options, ["partitionId", "offset", *IDS], task):
        places = batch.column("offset").to_pylist()
        hashes = {name: list(map(hash, batch.column(name).to_pylist())) for name in IDS}
        for partition_id, first, last in _stretches(batch.column("partitionId")):
            if partition_id != current:
                end()
                current, offsets, ids = partition_id, [], {name: [] for name in IDS}
            offsets += places[first:last]
            for name in IDS:
                ids[name] += hashes[name][first:last]
    end()
    return found


def archived(place: str, paths: list[str]) -> list[tuple[str, str, list[Run]]]:
    """The offsets in some files of a lake: id and name of a partition, with runs of offsets without gaps. A message
    that is there twice is in two runs.
    """
    import numpy as np

    lake = Lake(place)
    found: dict[tuple[str, str], list[Run]] = {}
    for path in paths:
        for batch in lake.batches(path, ROWS_AT_ONCE, ["partitionId", "partition", "offset"]):
            coded = batch.column("partitionId").dictionary_encode()
            codes, offsets = coded.indices.to_numpy(), batch.column("offset").to_numpy()
            order = np.lexsort((offsets, codes))
            codes, offsets = codes[order], offsets[order]
            starts = np.flatnonzero(np.concatenate([[True], (np.diff(codes) != 0) | (np.diff(offsets) != 1)]))
            ends = np.append(starts[1:], len(codes)) - 1
            ids, names = coded.dictionary.to_pylist(), batch.column("partition")
            for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
                key = ids[codes[first]], names[int(order[first])].as_py()
                found.setdefault(key, []).append((int(offsets[first]), int(offsets[last])))
    return [(*key, runs) for key, runs in found.items()]


def stored_sums(url: str, queue: str, task: Slice, deleted: Mapping[str, list[Run]]) -> dict[str, Sums]:
    """Number and checksum of the messages of a slice, by partition, without the offsets that are `deleted`."""
    options = ReadOptions(url=url, queue=queue, headers=True, encrypted="raw", fail_on_data_loss=False)
    found: dict[str, Sums] = {}
    for batch in read_slice(options, ["partitionId", "offset", *_CONTENT], task):
        _add(found, batch, None, deleted)
    return found


def archived_sums(
    place: str, paths: list[str], windows: Mapping[str, Run], deleted: Mapping[str, list[Run]]
) -> dict[str, Sums]:
    """The same for files of a lake, of the offsets within `windows`."""
    lake = Lake(place)
    found: dict[str, Sums] = {}
    for path in paths:
        for batch in lake.batches(path, ROWS_AT_ONCE, ["partitionId", "offset", *_CONTENT]):
            _add(found, batch, windows, deleted)
    return found


def merged(parts: Iterable[Mapping[str, Sums]]) -> dict[str, Sums]:
    found: dict[str, Sums] = {}
    for part in parts:
        for key, sums in part.items():
            found[key] = _added(found.get(key, (0, 0, 0)), sums)
    return found


def _added(one: Sums, other: Sums) -> Sums:
    return one[0] + other[0], (one[1] + other[1]) & MASK, (one[2] + other[2]) & MASK


def _add(
    found: dict[str, Sums],
    batch: Any,
    windows: Mapping[str, Run] | None,
    deleted: Mapping[str, list[Run]],
) -> None:
    import numpy as np
    import pyarrow as pa

    coded = batch.column("partitionId").dictionary_encode()
    ids, codes, offsets = coded.dictionary.to_pylist(), coded.indices.to_numpy(), batch.column("offset").to_numpy()
    kept = np.ones(len(codes), bool)
    if windows is not None:
        low, high = np.array([windows.get(key, (1, 0)) for key in ids], np.int64).reshape(-1, 2)[codes].T
        kept = (offsets >= low) & (offsets <= high)
    for code, key in enumerate(ids):
        for first, last in deleted.get(key, ()):
            kept &= ~((codes == code) & (offsets >= first) & (offsets <= last))
    if not kept.all():
        batch, codes = batch.filter(pa.array(kept)), codes[kept]
    rows = np.bincount(codes, minlength=len(ids))
    totals = np.zeros((len(ids), 2), np.uint64)
    np.add.at(totals, codes, _numbers(batch))
    for place, key in enumerate(ids):
        if rows[place]:
            sums = int(rows[place]), int(totals[place, 0]), int(totals[place, 1])
            found[key] = _added(found.get(key, (0, 0, 0)), sums)


def _numbers(batch: Any) -> Any:
    """Two numbers for each message, of all that it is made of. Reencryption changes stored payloads, and not those in
    the lake; who changes one of either cannot decrypt it: so a payload that is encrypted does not count.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    if batch.nbytes > MOST_BYTES and batch.num_rows > 1:  # a column of Arrow has 2 GB at most
        half = batch.num_rows // 2
        return np.concatenate([_numbers(batch.slice(0, half)), _numbers(batch.slice(half))])
    # Tables have texts of either kind, short or large.
    kind = pa.large_binary()
    nothing = pa.scalar(b"", kind)
    clear = compute.if_else(batch.column("encrypted").fill_null(False), nothing, batch.column("value").cast(kind))
    if "headers" in batch.schema.names and batch.column("headers").null_count < batch.num_rows:
        # A message without any is the same whether others have some or not.
        pairs = batch.column("headers").to_pylist()
        texts = pa.array([b"" if one is None else repr(one).encode() for one in pairs], kind)
        clear = compute.binary_join_element_wise(clear, texts, nothing)
    columns = (
        batch.column("offset").cast(pa.string()).cast(kind),
        batch.column("transactionId").cast(kind),
        batch.column("messageId").cast(kind),
        clear,
    )
    between = pa.scalar(b"\0", kind)
    made = compute.binary_join_element_wise(*columns, between, null_handling="replace", null_replacement="")
    digest = hashlib.sha256
    digests = b"".join([digest(one).digest() for one in made.to_pylist()])
    return np.frombuffer(digests, np.uint64).reshape(-1, 4)[:, :2]


def _stretches(column: Any) -> Iterator[tuple[str, int, int]]:
    """Rows that follow upon each other and have the same text: the text, the first row, and the one after the last."""
    import numpy as np

    if not len(column):
        return
    coded = column.dictionary_encode()
    codes = coded.indices.to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], np.diff(codes) != 0])).tolist()
    for first, last in zip(starts, [*starts[1:], len(codes)], strict=True):
        yield coded.dictionary[int(codes[first])].as_py(), first, last
