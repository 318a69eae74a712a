"""The files of a lake as a data frame where Spark cannot read them itself: object stores without the jars of Hadoop.

Tasks read the Parquet files with Arrow, as they have written them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from queenmq.pipeline.columns import BASE, HEADERS, PARSED, Columns, schema
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.json_values import spark_type
from queenmq.pipeline.lake import Lake, fitted
from queenmq.pipeline.options import ReadOptions

TASKS_PER_CORE: Final = 4
ROWS_AT_ONCE: Final = 10_000


def can_read(spark: Any, uri: str) -> bool:
    """Whether Spark has the classes for the file system."""
    from py4j.protocol import Py4JJavaError

    try:
        spark._jvm.org.apache.hadoop.fs.Path(uri).getFileSystem(spark._jsc.hadoopConfiguration())
    except Py4JJavaError:
        return False
    return True


def native_frame(spark: Any, lake: Lake, paths: list[str]) -> Any:
    """The messages of the files. Raises PipelineError if a field has types that have none in common."""
    from queenmq.pipeline.lake_schema import wider

    place = lake.place
    given = spark.sparkContext.parallelize(paths, min(len(paths), 2 * spark.sparkContext.defaultParallelism))
    kinds = given.map(lambda path: Lake(place).parsed_type(path)).filter(bool).distinct().collect()
    try:
        kind = reduce(lambda one, other: wider(one, other, ""), map(spark_type, sorted(kinds))) if kinds else None
    except TypeError as error:
        raise PipelineError(f"the files of the lake cannot be read together: {error}") from None
    options = ReadOptions(url="", queue="", headers=True, value_schema=kind.json() if kind else None)
    tasks = min(len(paths), TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    spark.dataSource.register(_source(place, options, [paths[number::tasks] for number in range(tasks)]))
    return spark.read.format("queen_lake").load()


class _Files(InputPartition):
    def __init__(self, paths: list[str]) -> None:
        super().__init__(None)
        self.paths = paths


class LakeReader(DataSourceReader):
    def __init__(self, place: str, options: ReadOptions, tasks: list[list[str]]) -> None:
        self._place = place
        self._options = options
        self._tasks = tasks

    def partitions(self) -> Sequence[Any]:
        return [_Files(paths) for paths in self._tasks]

    def read(self, partition: Any) -> Iterator[Any]:
        names = [*BASE, *HEADERS, *([PARSED] if self._options.value_schema else [])]
        target = Columns(self._options, names).schema
        lake = Lake(self._place)
        for path in partition.paths:
            for batch in lake.batches(path, ROWS_AT_ONCE):
                yield fitted(batch, target)


def _source(place: str, options: ReadOptions, tasks: list[list[str]]) -> type:
    class LakeSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "queen_lake"

        def schema(self) -> Any:
            return schema(options)

        def reader(self, schema: Any) -> Any:
            return LakeReader(place, options, tasks)

    return LakeSource
