from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.clock import ManualClock
from queenmq.ids import Uuid7Source, is_uuid, uuid7, uuid7_for, uuid7_text

COUNTER_VALUES = 4096


def milliseconds(value: UUID) -> int:
    return value.int >> 80


def test_version_and_variant_bits() -> None:
    for value in (uuid7() for _ in range(100)):
        assert value.version == 7
        assert value.variant == RFC_4122


def test_the_time_is_in_front() -> None:
    assert milliseconds(Uuid7Source(ManualClock(1_700_000_000.25)).next()) == 1_700_000_000_250


def test_next_int_makes_the_same_values() -> None:
    value = UUID(int=Uuid7Source(ManualClock()).next_int())
    assert (value.version, value.variant) == (7, RFC_4122)


def test_the_last_62_bits_are_random() -> None:
    sources = [Uuid7Source(ManualClock()) for _ in range(100)]
    tails = {source.next().int & ((1 << 62) - 1) for source in sources}
    assert len(tails) == len(sources)


def test_increasing_while_the_clock_stands() -> None:
    source = Uuid7Source(ManualClock())
    made = [source.next() for _ in range(3 * COUNTER_VALUES)]
    assert all(a < b for a, b in pairwise(made))


def test_a_used_up_counter_borrows_the_next_millisecond() -> None:
    source = Uuid7Source(ManualClock(1.0))
    made = [source.next() for _ in range(COUNTER_VALUES + 1)]
    assert {milliseconds(value) for value in made[:-1]} == {1000}
    assert milliseconds(made[-1]) == 1001


def test_increasing_when_the_clock_steps_back() -> None:
    clock = ManualClock()
    source = Uuid7Source(clock)
    before = source.next()
    clock.advance(-3600)
    after = source.next()
    assert before < after
    assert milliseconds(after) == milliseconds(before)


def test_a_later_clock_is_followed_again() -> None:
    clock = ManualClock(1000.0)
    source = Uuid7Source(clock)
    source.next()
    clock.advance(-10)
    source.next()
    clock.advance(20)
    assert milliseconds(source.next()) == 1_010_000


@given(steps=st.lists(st.floats(-10, 10), max_size=50))
def test_increasing_under_any_clock(steps: list[float]) -> None:
    clock = ManualClock()
    source = Uuid7Source(clock)
    made = [source.next()]
    for step in steps:
        clock.advance(step)
        made.append(source.next())
    assert all(a < b for a, b in pairwise(made))


def test_text_sorts_like_the_values() -> None:
    made = [uuid7() for _ in range(1000)]
    assert sorted(made, key=str) == made


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads take turns as often as they can, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_threads_never_get_the_same_and_each_sees_increasing_ones() -> None:
    source, threads, each = Uuid7Source(ManualClock()), 8, 2000
    made: list[list[UUID]] = [[] for _ in range(threads)]
    start = threading.Barrier(threads)

    def run(out: list[UUID]) -> None:
        start.wait()
        out.extend(source.next() for _ in range(each))

    workers = [threading.Thread(target=run, args=(out,)) for out in made]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    # The leading 64 bits alone must differ: the random tail would hide a counter that was given twice.
    assert len({value.int >> 64 for out in made for value in out}) == threads * each
    assert all(a < b for out in made for a, b in pairwise(out))


@given(st.uuids())
def test_is_uuid_takes_the_canonical_form_in_either_case(value: UUID) -> None:
    assert is_uuid(str(value))
    assert is_uuid(str(value).upper())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "018f3b1c5a7e7c3a9b1d2e3f4a5b6c7d",
        "{018f3b1c-5a7e-7c3a-9b1d-2e3f4a5b6c7d}",
        "urn:uuid:018f3b1c-5a7e-7c3a-9b1d-2e3f4a5b6c7d",
        "018f3b1c-5a7e-7c3a-9b1d-2e3f4a5b6c7",
        "018f3b1c-5a7e-7c3a-9b1d-2e3f4a5b6c7d\n",
        " 018f3b1c-5a7e-7c3a-9b1d-2e3f4a5b6c7d",
        "018f3b1c-5a7e-7c3a-9b1d-2e3f4a5b6c7g",
        "018f3b1c-5a7e-7c3a-9b1d-2e3f4a5b6c7\u0661",
    ],
)
def test_is_uuid_refuses_everything_else(text: str) -> None:
    assert not is_uuid(text)


def test_ids_of_parts_are_the_same_for_everybody_and_as_old_as_the_whole() -> None:
    origin = uuid7_text()
    parts = {uuid7_for(origin, f"items[{number}]") for number in range(1000)}
    assert len(parts) == 1000
    assert parts == {uuid7_for(origin, f"items[{number}]") for number in range(1000)}
    assert {part[:13] for part in parts} == {origin[:13]}
    assert all(UUID(part).version == 7 and UUID(part).variant == RFC_4122 for part in parts)
    assert parts.isdisjoint(uuid7_for(uuid7_text(), f"items[{number}]") for number in range(1000))


def test_text_and_number_are_of_one_sequence() -> None:
    source = Uuid7Source(ManualClock(1_700_000_000.25))
    made = [UUID(source.next_text()) if number % 2 else source.next() for number in range(3 * COUNTER_VALUES)]
    assert all(a < b for a, b in pairwise(made))
    assert {(value.version, value.variant) for value in made} == {(7, RFC_4122)}
    assert [milliseconds(made[place]) - 1_700_000_000_250 for place in (0, COUNTER_VALUES, -1)] == [0, 1, 2]


def test_a_forked_child_does_not_draw_the_numbers_of_its_parent() -> None:
    uuid7()  # now there is a stock
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, uuid7_text().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = UUID(os.read(read, 36).decode())
    os.close(read)
    os.close(write)
    assert theirs.int & ((1 << 62) - 1) != uuid7().int & ((1 << 62) - 1)
