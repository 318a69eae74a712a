"""The Spark session of a job."""

from __future__ import annotations

import os

import pytest

from queenmq.pipeline.session import local_cores


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[1]", 1), ("local[2]", 2), ("local[16,4]", 16), ("local[*]", os.cpu_count())],
)
def test_a_local_master_tells_its_cores(master: str, cores: int) -> None:
    assert local_cores(master) == cores
