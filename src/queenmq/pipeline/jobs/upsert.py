"""upsert: the messages of a queue as changes of a table of Delta Lake or Iceberg: one row a key, the newest message
counts.

Every batch of the stream is one commit of the table, with the number of the batch in it, so that a batch that comes
again changes nothing. A row keeps where its message was, so that an older message never replaces a newer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from queenmq.pipeline.connection import connection, database_errors
from queenmq.pipeline.errors import BadOption, PipelineError
from queenmq.pipeline.frames import activate, read_stream
from queenmq.pipeline.generation import hold_generation
from queenmq.pipeline.jobs.window import TRIGGER
from queenmq.pipeline.json_values import has_variant
from queenmq.pipeline.lake import Lake
from queenmq.pipeline.lake_table import DELTA, ICEBERG, check_installed
from queenmq.pipeline.options import key_of_environment
from queenmq.pipeline.registry import AUTO
from queenmq.pipeline.runs import Outcome, Run
from queenmq.pipeline.streaming import run_query

# A batch is in the memory of the driver.
MOST_MESSAGES: Final = 100_000
# Of the row: where its message was.
PLACE: Final = ("queen_partition", "queen_offset", "queen_timestamp")
_DELETED: Final = "queen_deleted"


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    queue: str
    table: str
    keys: tuple[str, ...]
    checkpoint: str
    schema: str = AUTO
    delete: str | None = None
    trigger: str = TRIGGER
    available_now: bool = False
    seconds: float | None = None
    most: int = MOST_MESSAGES
    format: str = DELTA


def upsert(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Until everything is read (availableNow), the time is over or Ctrl-C."""
    check_installed(settings.format)
    run_query(
        lambda: _start(spark, settings),
        run,
        settings.url,
        seconds=settings.seconds,
        endless=not settings.available_now,
    )
    return run.outcome


def _start(spark: Any, settings: Settings) -> Any:
    writer = changes(spark, settings).writeStream.queryName(f"{settings.queue} upsert")
    activate(spark)
    trigger = {"availableNow": True} if settings.available_now else {"processingTime": settings.trigger}
    writer = writer.foreachBatch(_merge(settings)).option("checkpointLocation", settings.checkpoint)
    return writer.trigger(**trigger).start()


def changes(spark: Any, settings: Settings) -> Any:
    """The messages as rows of the table, and whether they delete. Raises BadOption for a key that is no field, and for
    fields that no table can have.
    """
    from pyspark.sql import functions as f

    options: dict[str, Any] = {
        "valueSchema": settings.schema,
        "badValues": "fail",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": settings.most,
    }
    if key := key_of_environment():
        options["encryptionKey"] = key
    found = read_stream(spark, settings.url, settings.queue, **options)
    if has_variant(found.schema["data"].dataType):
        raise BadOption("the table has no VARIANT: leave the field out, or make it a STRING or a STRUCT")
    fields = found.schema["data"].dataType.fieldNames()
    for key in settings.keys:
        if key not in fields:
            raise BadOption(f"the key {key!r} is no field of the schema: it has {', '.join(fields)}")
    places = [f.col(name.removeprefix("queen_")).alias(name) for name in PLACE]
    deleted = f.coalesce(f.expr(settings.delete), f.lit(False)) if settings.delete else f.lit(False)
    return found.select(*(f.col(f"data.`{name}`").alias(name) for name in fields), *places, deleted.alias(_DELETED))


def _merge(settings: Settings) -> Any:
    place = Lake(settings.table).place

    def merge(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise PipelineError("Spark does not report the query of a batch")
        rows = newest(batch.toArrow(), settings.keys)
        with connection(settings.url) as opened, database_errors(), opened.transaction():
            hold_generation(opened)  # until the table has committed
            if settings.format == ICEBERG:
                from queenmq.pipeline import iceberg_upsert

                iceberg_upsert.apply(settings.url, place, rows, settings.keys, _DELETED, query, number)
            else:
                from queenmq.pipeline import delta_upsert

                delta_upsert.apply(place, rows, settings.keys, _DELETED, query, number)

    return merge


def newest(rows: Any, keys: tuple[str, ...]) -> Any:
    """The last row of each key. Raises PipelineError for a row without one."""
    import pyarrow as pa
    from pyarrow import compute

    for key in keys:
        if rows.column(key).null_count:
            place = compute.index(rows.column(key).is_null(), True).as_py()
            where = ", ".join(f"{name.removeprefix('queen_')} {rows.column(name)[place]}" for name in PLACE[:2])
            raise PipelineError(f"a message has no value for the key {key!r}: {where}")
    numbered = rows.append_column("queen_row", pa.array(range(rows.num_rows), pa.int64()))
    ordered = numbered.sort_by([("queen_timestamp", "ascending"), ("queen_offset", "ascending")])
    placed = ordered.append_column("queen_order", pa.array(range(rows.num_rows), pa.int64()))
    last = placed.group_by(list(keys)).aggregate([("queen_order", "max")]).column("queen_order_max")
    return ordered.take(last).drop_columns(["queen_row"])
