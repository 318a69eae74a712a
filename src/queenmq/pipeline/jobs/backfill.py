"""backfill: files, a JDBC table or any other Spark source into a queue.

Every row becomes one message: its columns as a JSON object, or one column that holds JSON already. The write has a
name, so the same backfill started again after a crash writes nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.named_write import write_once
from queenmq.pipeline.runs import Outcome, Run


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    queue: str
    format: str
    path: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    value: str | None = None
    partition: str | None = None
    transaction: str | None = None
    order: tuple[str, ...] = ()
    where: str | None = None
    name: str | None = None


def backfill(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Raises BadOption for a source or a column that does not exist, before anything is written."""
    found = shaped(load(spark, settings), settings)
    name = f"backfill {settings.name or run.id}"
    written, there = write_once(found, settings.url, name, queue=settings.queue)
    outcome = run.outcome
    outcome.rows = written
    outcome.offsets = {"messages": written}
    outcome.summary = {"messages written": written, "already there": there, "name": name}
    return outcome


def load(spark: Any, settings: Settings) -> Any:
    from pyspark.errors import PySparkException

    reader = spark.read.format(settings.format).options(**settings.options)
    try:
        found = reader.load(settings.path) if settings.path else reader.load()
        return found.where(settings.where) if settings.where else found
    except PySparkException as error:
        raise BadOption(f"the source cannot be read: {str(error).splitlines()[0]}") from None


def shaped(found: Any, settings: Settings) -> Any:
    """The rows as the sink wants them, all of a partition in one task if an order is asked for."""
    from pyspark.sql import functions as f

    named = [settings.value, settings.partition, settings.transaction, *settings.order]
    for column in named:
        if column is not None and column not in found.columns:
            raise BadOption(f"the source has no column {column!r}: it has {', '.join(found.columns)}")
    if settings.order:
        keys = [settings.partition] if settings.partition else []
        found = found.repartition(*keys) if keys else found.coalesce(1)
        found = found.sortWithinPartitions(*keys, *settings.order)
    value = (
        f.col(settings.value).cast("string")
        if settings.value
        else f.to_json(f.struct(*(f.col(f"`{c}`") for c in found.columns)))
    )
    columns = [value.alias("value")]
    if settings.partition:
        columns.append(f.col(settings.partition).cast("string").alias("partition"))
    if settings.transaction:
        columns.append(f.col(settings.transaction).cast("string").alias("transactionId"))
    return found.select(*columns)
