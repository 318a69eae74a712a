"""Functions over data frames, for programs and notebooks: reading, writing, the lake, windows."""

from __future__ import annotations

from typing import Any

from queenmq.pipeline.connection import connection
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.lake import Lake, published
from queenmq.pipeline.lake_schema import frame as lake_frame
from queenmq.pipeline.lake_table import check_whole


def read(spark: Any, url: str, queue: str, *, columns: str | None = None, **options: Any) -> Any:
    """The stored messages of a queue.

    `columns` (`"partition string, offset long"`) reads only those; options as in docs/pipeline.md.
    """
    reader = spark.read.format("queen").options(**_texts(options)).option("url", url).option("subscribe", queue)
    return (reader.schema(columns) if columns else reader).load()


def read_stream(spark: Any, url: str, queue: str, *, columns: str | None = None, **options: Any) -> Any:
    """The messages of a queue as a stream."""
    reader = spark.readStream.format("queen").options(**_texts(options)).option("url", url).option("subscribe", queue)
    return (reader.schema(columns) if columns else reader).load()


def write(frame: Any, url: str, queue: str, *, write_id: str | None = None, **options: Any) -> None:
    """Push every row: `value` is its JSON text, `partition` and `transactionId` are its keys. All rows or none.

    A write with an id is done once, however often it is called.
    """
    writer = frame.write.format("queen").mode("append").options(**_texts(options))
    writer = writer.option("url", url).option("queue", queue)
    (writer.option("writeId", write_id) if write_id else writer).save()


def write_stream(frame: Any, url: str, queue: str, checkpoint: str, *, mode: str = "append", **options: Any) -> Any:
    """A stream writer that pushes every row once; `.trigger(…).start()` starts it."""
    activate(frame.sparkSession)
    writer = frame.writeStream.format("queen").outputMode(mode).options(**_texts(options))
    return writer.option("url", url).option("queue", queue).option("checkpointLocation", checkpoint)


def activate(spark: Any) -> None:
    """Make the session the active one of this thread, where Spark finds the sources of a stream that starts. A session
    of Spark Connect does so in its server."""
    if is_remote(spark):
        return
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def is_remote(spark: Any) -> bool:
    """Whether it is a session of Spark Connect."""
    return "connect" in type(spark).__module__


def archived(spark: Any, url: str, queue: str, lake: str) -> Any:
    """The archived messages of a queue: those in published files of the lake."""
    place = Lake(lake)
    with connection(url) as opened:
        files = published(opened, place, queue)
    check_whole(place, url, queue)
    found = lake_frame(spark, place, files)
    if found is None:
        raise BadOption(f"the lake {lake!r} has no published file of queue {queue!r}")
    return found


def windowed(messages: Any, declared: dict[str, Any]) -> Any:
    """Aggregate a batch or a stream of messages as a window file would.

    The frame has a column `value` with the results.
    """
    from pyspark.sql import functions as f

    from queenmq.pipeline.jobs.window import event_time, results
    from queenmq.pipeline.window_spec import ARRIVAL, make

    spec = make(declared)
    if spec.undated is not None:
        raise BadOption("window: badTime {queue: …} is for the job window; a program can filter such messages itself")
    at = f.col("timestamp") if spec.time == ARRIVAL else event_time(messages, spec)
    if spec.bad_time == ARRIVAL and spec.time != ARRIVAL:
        at = f.coalesce(at, f.col("timestamp"))
    return results(messages.withColumns({"at": at, "late": f.lit(False), "undated": f.lit(False)}), spec)


def _texts(options: dict[str, Any]) -> dict[str, str]:
    """Spark wants texts; True is 'true'."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
