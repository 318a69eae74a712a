"""The memory of a read does not grow with the partition: it streams in batches.

`QUEEN_LONG=1` reads 10 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from pipeline.db import Db
from queenmq.pipeline import read

LONG = bool(os.environ.get("QUEEN_LONG"))
PAYLOAD = 1_000_000
MESSAGES = 10_000 if LONG else 300
MOST_MB = 150
SCRIPT = """
import resource, sys
from queenmq.pipeline.connection import connection
from queenmq.pipeline.heads import batch_ranges
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.planning import Slice
from queenmq.pipeline.reading import read_slice

options = ReadOptions(url=sys.argv[1], queue="orders")
with connection(options.url) as opened:
    ranges = batch_ranges(opened, options)
before = None
size = 0
for batch in read_slice(options, ["offset", "value"], Slice(ranges)):
    size += batch.nbytes
    if before is None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.timeout(1200)
def test_a_partition_is_never_held_as_a_whole(spark: Any, db: Db) -> None:
    """Neither by the reader, nor by Spark, whose heap is small."""
    for _ in range(0, MESSAGES, 100):
        db.fill("orders", 1, 100, padding=PAYLOAD)
    done = subprocess.run([sys.executable, "-c", SCRIPT, db.url], capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr
    size, grown = map(int, done.stdout.split())
    assert size > MESSAGES * PAYLOAD
    assert grown < MOST_MB, f"{grown} MB more for {size >> 20} MB of messages"
    found = read(spark, db.url, "orders").selectExpr("count(*)", "sum(length(value))").first()
    assert found[0] == MESSAGES
    assert found[1] > MESSAGES * PAYLOAD
