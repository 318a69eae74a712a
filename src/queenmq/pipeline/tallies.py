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
MASK: Final = (1 << 128) - 1
_CONTENT: Final = ("transactionId", "messageId", "value", "encrypted", "headers")

# First and last offset.
Run = tuple[int, int]


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


def stored_sums(url: str, queue: str, task: Slice, deleted: Mapping[str, list[Run]]) -> dict[str, tuple[int, int]]:
    """Number and checksum of the messages of a slice, by partition, without the offsets that are `deleted`."""
    options = ReadOptions(url=url, queue=queue, headers=True, encrypted="raw", fail_on_data_loss=False)
    found: dict[str, tuple[int, int]] = {}
    for batch in read_slice(options, ["partitionId", "offset", *_CONTENT], task):
        _add(found, batch, None, deleted)
    return found


def archived_sums(
    place: str, paths: list[str], windows: Mapping[str, Run], deleted: Mapping[str, list[Run]]
) -> dict[str, tuple[int, int]]:
    """The same for files of a lake, of the offsets within `windows`."""
    lake = Lake(place)
    found: dict[str, tuple[int, int]] = {}
    for path in paths:
        for batch in lake.batches(path, ROWS_AT_ONCE, ["partitionId", "offset", *_CONTENT]):
            _add(found, batch, windows, deleted)
    return found


def merged(parts: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for part in parts:
        for key, (rows, total) in part.items():
            before = found.get(key, (0, 0))
            found[key] = (before[0] + rows, (before[1] + total) & MASK)
    return found


def _add(
    found: dict[str, tuple[int, int]],
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
    rows, totals = [0] * len(ids), [0] * len(ids)
    for code, number in zip(codes.tolist(), _numbers(batch), strict=True):
        rows[code] += 1
        totals[code] += number
    for place, key in enumerate(ids):
        if rows[place]:
            before = found.get(key, (0, 0))
            found[key] = (before[0] + rows[place], (before[1] + totals[place]) & MASK)


def _numbers(batch: Any) -> list[int]:
    """A number for each message, of all that it is made of. Reencryption changes stored payloads, and not those in the
    lake; who changes one of either cannot decrypt it: so a payload that is encrypted does not count.
    """
    import pyarrow as pa

    digest, number = hashlib.sha256, int.from_bytes
    columns = [batch.column(name).to_pylist() for name in ("offset", "transactionId", "messageId", "encrypted")]
    values = batch.column("value").cast(pa.binary()).to_pylist()
    made = [
        f"{offset}\0{transaction_id}\0{message_id}\0".encode() + (b"" if encrypted else value)
        for offset, transaction_id, message_id, encrypted, value in zip(*columns, values, strict=True)
    ]
    if "headers" in batch.schema.names and batch.column("headers").null_count < batch.num_rows:
        given = batch.column("headers").to_pylist()
        made = [one if pairs is None else one + repr(pairs).encode() for one, pairs in zip(made, given, strict=True)]
    return [number(digest(one).digest()[:16], "big") for one in made]


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
