"""The progress of a stream as a document: read back as written, and short for many partitions."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.progress import Progress, Read, pack, unpack

POSITIONS = st.dictionaries(st.integers(1, 2**62), st.integers(1, 2**62), max_size=400)


@given(POSITIONS)
def test_documents_are_read_back(positions: dict[int, int]) -> None:
    document = json.loads(json.dumps(Progress("q", positions).document()))
    assert Progress.of(document) == Progress("q", positions)
    assert unpack(pack(positions)) == positions


def test_what_stands_beside_the_positions_is_read_back() -> None:
    newest = (Read(3, 17, "0199", 1_700_000_000_000_000), Read(1, 2, "0198", 1_600_000_000_000_000))
    progress = Progress("q", {1: 2, 3: 17}, 42, newest)
    assert Progress.of(json.loads(json.dumps(progress.document()))) == progress
    assert Progress.of({"queue": "q", "offsets": {"1": 2}}).dropped is None, "of a version that kept no records"


def test_equal_progress_makes_equal_documents() -> None:
    forward = {n: n * 3 for n in range(1, 1000)}
    backward = dict(reversed(forward.items()))
    assert Progress("q", forward).document() == Progress("q", backward).document()


def test_few_partitions_are_readable() -> None:
    assert Progress("q", {2: 20, 1: 10}).document() == {"queue": "q", "offsets": {"1": 10, "2": 20}}


def test_a_hundred_thousand_partitions_are_short_and_quick() -> None:
    source = random.Random(1)
    positions = {n: source.randrange(1, 100_000) for n in range(1, 100_001)}
    begun = time.perf_counter()
    text = json.dumps(Progress("q", positions).document())
    assert Progress.of(json.loads(text)).positions == positions
    assert len(text) < 500_000
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize("document", [{}, {"queue": "q"}, {"queue": "q", "packed": "?"}, {"queue": "q", "offsets": 1}])
def test_unreadable_documents_are_told(document: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match="cannot read"):
        Progress.of(document)
