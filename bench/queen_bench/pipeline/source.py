"""For `queen pipeline bench`: a source that reads little and hands it out again and again, so that what is measured is
the way of the batches from Python into Spark alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from pyspark.sql.datasource import DataSource

from queenmq.pipeline.batch import BatchReader
from queenmq.pipeline.columns import schema, wanted
from queenmq.pipeline.options import parse_read

# The first batches of a task are small.
LOOKED_AT: Final = 3


class RepeatedDataSource(DataSource):
    """Takes the options of a read and gives as many rows, most of them the same ones."""

    @classmethod
    def name(cls) -> str:
        return "queen-repeated"

    def schema(self) -> Any:
        return schema(parse_read(dict(self.options), streaming=None))

    def reader(self, schema: Any) -> Any:
        options = parse_read(dict(self.options), streaming=False)
        return RepeatedReader(options, wanted(schema, options))


class RepeatedReader(BatchReader):
    def read(self, partition: Any) -> Iterator[Any]:
        left = sum(part.last - part.first + 1 for part in partition.task.ranges)
        if not left:
            return
        [batch] = deque(islice(super().read(partition), LOOKED_AT), 1)
        while left:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= min(left, batch.num_rows)
