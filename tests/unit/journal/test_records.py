"""The record format: nothing is lost but what was damaged, and nothing is found that was not written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queenmq.journal.records import HEADER_BYTES, Damaged, Record, Torn, encode, read, scan

SALT = bytes(range(16))
bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=6)


def file_of(records: list[bytes]) -> tuple[bytes, list[int]]:
    """The file, and where each record ends."""
    data, ends = b"", []
    for sequence, body in enumerate(records, start=1):
        data += encode(SALT, 1, sequence, body)
        ends.append(len(data))
    return data, ends


@given(bodies)
def test_what_is_written_is_read(records: list[bytes]) -> None:
    data, _ = file_of(records)
    found = list(scan(SALT, data))
    assert [(part.sequence, part.body) for part in found if isinstance(part, Record)] == list(enumerate(records, 1))
    assert len(found) == len(records)


@given(bodies)
def test_a_cut_at_any_byte_loses_only_the_record_it_cuts(records: list[bytes]) -> None:
    data, ends = file_of(records)
    for size in range(len(data) + 1):
        found = list(scan(SALT, data[:size]))
        whole = sum(end <= size for end in ends)
        assert [part.sequence for part in found if isinstance(part, Record)] == list(range(1, whole + 1))
        rest = found[whole:]
        begin = ends[whole - 1] if whole else 0
        assert rest == ([] if size == begin else [Torn(begin)])


@given(bodies, st.integers(0, 7))
def test_one_bit_flipped_anywhere_damages_exactly_one_record(records: list[bytes], bit: int) -> None:
    data, ends = file_of(records)
    starts = [0, *ends[:-1]]
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << bit
        guilty = next(index for index, end in enumerate(ends) if place < end)
        found = list(scan(SALT, bytes(flipped)))
        assert [part.sequence for part in found if isinstance(part, Record)] == [
            index + 1 for index in range(len(records)) if index != guilty
        ]
        assert [part for part in found if not isinstance(part, Record)] == [Damaged(starts[guilty], ends[guilty])]


def test_a_record_inside_a_body_is_never_taken_for_one() -> None:
    """Also not when the header around it is damaged: whoever pushes does not know the salt."""
    planted = encode(b"another salt....", 1, 99, b"planted")
    data = bytearray(encode(SALT, 1, 1, b"x" + planted + b"y") + encode(SALT, 1, 2, b"next"))
    data[5] ^= 1
    found = list(scan(SALT, bytes(data)))
    assert [part.sequence for part in found if isinstance(part, Record)] == [2]


def test_one_record_is_read_back_or_refused() -> None:
    data = encode(SALT, 1, 7, b"body")
    record = read(SALT, data)
    assert record is not None
    assert (record.sequence, record.body) == (7, b"body")
    assert read(SALT, data[:-1]) is None
    assert read(SALT, data[: HEADER_BYTES - 1]) is None
    assert read(b"another salt....", data) is None


@given(st.binary(max_size=300))
def test_rubbish_is_no_record(rubbish: bytes) -> None:
    assert not [part for part in scan(SALT, rubbish) if isinstance(part, Record)]
