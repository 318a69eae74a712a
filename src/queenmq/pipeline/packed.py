"""From the packed form in which PostgreSQL sends messages (pipeline_packed.sql) to a batch of single ones.

A row of it is a range of a partition, with each column of its messages glued together. Arrow keeps texts the same
way, so the received bytes become columns as they are; only lengths become positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

# Larger payloads are sent one by one: a packed row must stay small.
LARGEST: Final = 16_384

_POSTGRES_EPOCH_US: Final = 946_684_800_000_000
_UUID_BYTES: Final = 16
_UUID_TEXT: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)
_DIGITS: Final = [place for place in range(_UUID_TEXT) if place not in _HYPHENS]


class PackedRange(NamedTuple):
    """A row of pipeline_packed. What was not asked for, or has no message, is None."""

    range_index: int
    messages: int
    special: int
    created_at: bytes | None
    transaction_ids: bytes | None
    transaction_lengths: bytes | None
    trace_ids: bytes | None
    ids: bytes | None
    payloads: bytes | None
    payload_lengths: bytes | None
    headers: bytes | None
    header_lengths: bytes | None

    @property
    def size(self) -> int:
        texts = (self.payloads, self.transaction_ids, self.headers)
        return sum(len(text or b"") for text in texts) + 12 * self.messages


def unpack(found: Sequence[PackedRange], ranges: Sequence[tuple[int, int]]) -> Any | None:
    """The messages of `ranges` (first and last offset) as one batch with the columns of pipeline_read.

    None if they cannot be had from `found`: messages are missing, encrypted, large, or only some of them have a trace
    id.
    """
    import numpy as np
    import pyarrow as pa

    counts = np.array([part.messages for part in found], np.int64)
    first = np.array([first for first, _ in ranges], np.int64)
    last = np.array([last for _, last in ranges], np.int64)
    if any(part.special for part in found) or (counts != last - first + 1).any():
        return None
    total = int(counts.sum())
    # A message's place among all, less the place of the first one of its range, plus the offset of that one.
    offsets = np.arange(total, dtype=np.int64) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    indexes = np.array([part.range_index for part in found], np.int32)
    created = np.frombuffer(_glued(part.created_at for part in found), ">i8").astype(np.int64) + _POSTGRES_EPOCH_US
    columns = {
        "range_index": pa.array(np.repeat(indexes, counts)),
        "offset": pa.array(offsets),
        "created_at": pa.array(created).cast(pa.timestamp("us", "UTC")),
        "transaction_id": _texts(
            _glued(part.transaction_ids for part in found),
            _glued(part.transaction_lengths for part in found),
            pa.string(),
        ),
        "trace_id": _uuids(_glued(part.trace_ids for part in found), total),
        "id": _uuids(_glued(part.ids for part in found), total),
        "headers": _some_texts(
            _glued(part.headers for part in found), _glued(part.header_lengths for part in found), total
        ),
    }
    if found[0].payload_lengths is not None:
        columns["payload"] = _texts(
            _glued(part.payloads for part in found), _glued(part.payload_lengths for part in found), pa.binary()
        )
    if any(column is None or len(column) != total for column in columns.values()):
        return None
    return pa.RecordBatch.from_pydict(columns)


def _glued(parts: Any) -> bytes:
    return b"".join(part for part in parts if part)


def _texts(glued: bytes, lengths: bytes, kind: Any) -> Any | None:
    import numpy as np
    import pyarrow as pa

    found = np.frombuffer(lengths, ">i4")
    ends = np.zeros(len(found) + 1, np.int32)
    np.cumsum(found, out=ends[1:])
    if len(glued) != ends[-1]:
        return None
    return pa.Array.from_buffers(kind, len(found), [None, pa.py_buffer(ends), pa.py_buffer(glued)])


def _some_texts(glued: bytes, lengths: bytes, total: int) -> Any | None:
    """Texts of which those without a length are null."""
    import pyarrow as pa
    from pyarrow import compute

    if not glued:
        return pa.nulls(total, pa.string())
    found = _texts(glued, lengths, pa.string())
    return None if found is None else compute.if_else(compute.equal(compute.binary_length(found), 0), None, found)


def _uuids(glued: bytes, total: int) -> Any | None:
    """The texts of `total` ids; nulls if there is none at all, None if there are some."""
    import numpy as np
    import pyarrow as pa

    if not glued:
        return pa.nulls(total, pa.string())
    if len(glued) != total * _UUID_BYTES:
        return None
    texts = np.full((total, _UUID_TEXT), ord("-"), np.uint8)
    texts[:, _DIGITS] = np.frombuffer(glued.hex().encode(), np.uint8).reshape(total, 2 * _UUID_BYTES)
    ends = np.arange(0, _UUID_TEXT * total + 1, _UUID_TEXT, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), total, [None, pa.py_buffer(ends), pa.py_buffer(texts)])
