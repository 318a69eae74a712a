"""Batch reads: the heads are read once, then tasks get fixed ranges of offsets, so a retried task reads the same
again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from queenmq.pipeline.connection import connection
from queenmq.pipeline.heads import batch_ranges
from queenmq.pipeline.options import ReadOptions
from queenmq.pipeline.planning import Slice, slices
from queenmq.pipeline.reading import read_slice


class SliceOfWork(InputPartition):
    def __init__(self, task: Slice) -> None:
        super().__init__(None)
        self.task = task


def tasks(options: ReadOptions) -> int:
    """How many tasks are wanted.

    Spark does not say how many tasks it runs at once, so these are twice the cores of this
    machine unless the option says more.
    """
    return options.least_tasks or 2 * (os.cpu_count() or 1)


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> Sequence[Any]:
        with connection(self._options.url) as opened:
            found = batch_ranges(opened, self._options)
        # Spark wants at least one task.
        return [SliceOfWork(task) for task in slices(found, tasks(self._options)) or [Slice()]]

    def read(self, partition: Any) -> Iterator[Any]:
        return read_slice(self._options, self._names, partition.task)
