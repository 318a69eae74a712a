"""`format("queen")`: the entry that Spark knows. What it hands out is in `batch`, `stream` and `sink`."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from queenmq.pipeline.columns import schema, wanted
from queenmq.pipeline.options import parse_read, parse_write


class QueenDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "queen"

    def schema(self) -> Any:
        # Spark does not say here whether it is for a stream; the columns are the same.
        return schema(parse_read(dict(self.options), streaming=None))

    def reader(self, schema: Any) -> Any:
        from queenmq.pipeline.batch import BatchReader

        options = parse_read(dict(self.options), streaming=False)
        return BatchReader(options, wanted(schema, options))

    def streamReader(self, schema: Any) -> Any:
        from queenmq.pipeline.stream import StreamReader

        options = parse_read(dict(self.options), streaming=True)
        return StreamReader(options, wanted(schema, options))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from queenmq.pipeline.sink import BatchWriter, check_target

        return BatchWriter(check_target(parse_write(dict(self.options), streaming=False), schema, overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from queenmq.pipeline.sink import StreamWriter, check_target

        return StreamWriter(check_target(parse_write(dict(self.options), streaming=True), schema, False))
