"""sql: a query of Spark SQL over queues as streams, into another queue, exactly once.

`STREAM(orders)` in the query is the queue `orders` as a stream; everything else is Spark's: joins, windows, watermarks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.frames import activate, read_stream
from queenmq.pipeline.jobs.window import TRIGGER, write_updates
from queenmq.pipeline.options import key_of_environment
from queenmq.pipeline.registry import registered_schema
from queenmq.pipeline.runs import Outcome, Run
from queenmq.pipeline.staging import COLUMNS, HEADERS_TYPES
from queenmq.pipeline.streaming import run_query

# Texts and comments come first, so that nothing is found within them.
_TOKENS: Final = re.compile(
    r"""(?P<skipped>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/)"""
    r"""|\bSTREAM\s*\(\s*(?:`(?P<quoted>[^`]+)`|(?P<plain>[\w.-]+))\s*\)|(?P<name>`[^`]+`)""",
    re.IGNORECASE | re.DOTALL,
)
# What of a result goes beside the payload.
_BESIDE: Final = tuple(name for name in COLUMNS if name not in ("value", "encrypted", "headers"))


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    query: str
    target: str
    checkpoint: str
    schemas: dict[str, str] = field(default_factory=dict)
    prepare: tuple[str, ...] = ()
    updates: bool = False
    trigger: str = TRIGGER
    available_now: bool = False
    seconds: float | None = None
    start: str = "earliest"
    most: int | None = None

    @property
    def sources(self) -> list[str]:
        return sources(self.query)


def sources(query: str) -> list[str]:
    """The queues that a query reads."""
    found = (match["quoted"] or match["plain"] for match in _TOKENS.finditer(query))
    return list(dict.fromkeys(name for name in found if name))


def sql(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Until everything is read (availableNow), the time is over or Ctrl-C. Raises BadOption for a query that Spark
    refuses."""
    run_query(
        lambda: _start(spark, settings),
        run,
        settings.url,
        seconds=settings.seconds,
        endless=not settings.available_now,
    )
    return run.outcome


def _start(spark: Any, settings: Settings) -> Any:
    found = rows(result(spark, settings), settings)
    activate(found.sparkSession)
    options = {"url": settings.url, "queue": settings.target}
    if key := key_of_environment():
        options["encryptionKey"] = key
    writer = found.writeStream.queryName(f"sql into {settings.target}")
    if settings.updates:
        writer = writer.outputMode("update").foreachBatch(write_updates(options, settings.checkpoint))
    else:
        writer = writer.outputMode("append").format("queen").options(**options)
    trigger = {"availableNow": True} if settings.available_now else {"processingTime": settings.trigger}
    return writer.option("checkpointLocation", settings.checkpoint).trigger(**trigger).start()


def result(spark: Any, settings: Settings) -> Any:
    """The result of the query, a stream."""
    from pyspark.errors import PySparkException

    if not settings.sources:
        raise BadOption("the query reads no queue: name one as STREAM(orders)")
    views = {}
    for number, queue in enumerate(settings.sources):
        views[queue] = f"queen_stream_{number}"
        _messages(spark, settings, queue).createOrReplaceTempView(views[queue])
    try:
        for statement in settings.prepare:
            spark.sql(statement)
        found = spark.sql(_TOKENS.sub(lambda match: _replaced(match, views), settings.query))
    except PySparkException as error:
        raise BadOption(f"Spark refuses the query: {str(error).splitlines()[0]}") from None
    if not found.isStreaming:
        raise BadOption("the result of the query is no stream")
    return found


def _replaced(match: re.Match[str], views: dict[str, str]) -> str:
    queue = match["quoted"] or match["plain"]
    return views[queue] if queue else match[0]


def _messages(spark: Any, settings: Settings, queue: str) -> Any:
    options: dict[str, Any] = {"startingOffsets": settings.start}
    if re.search(r"\bheaders\b", settings.query, re.IGNORECASE):
        options["includeHeaders"] = True
    if settings.most is not None:
        options["maxOffsetsPerTrigger"] = settings.most
    if kind := settings.schemas.get(queue) or registered_schema(settings.url, queue):
        options["valueSchema"] = kind
    if key := key_of_environment():
        options["encryptionKey"] = key
    return read_stream(spark, settings.url, queue, **options)


def rows(found: Any, settings: Settings) -> Any:
    """As the sink wants them: a text `value` is the payload, without one all columns are that do not go beside it.

    A column `queue` that has the name of a source comes from the read (`SELECT *`), and does not send a result back.
    """
    from pyspark.sql import functions as f

    if "queue" in found.columns:
        source = f.col("queue").isin(settings.sources)
        found = found.withColumn("queue", f.when(source, f.lit(settings.target)).otherwise(f.col("queue")))
    types = dict(found.dtypes)
    beside = [f.col(name).cast("string").alias(name) for name in _BESIDE if name in types]
    has_headers = types.get("headers") in HEADERS_TYPES
    if has_headers:
        beside.append(f.col("headers"))
    if types.get("value") == "string":
        value = f.col("value")
    else:
        named = [
            f.col(f"`{name}`")
            for name in found.columns
            if name not in _BESIDE and not (name == "headers" and has_headers)
        ]
        if not named:
            raise BadOption("the result of the query has no column for the payload")
        value = f.to_json(f.struct(*named))
    return found.select(value.alias("value"), *beside)
