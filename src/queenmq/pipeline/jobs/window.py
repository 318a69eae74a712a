"""window: queue to queue aggregations with Structured Streaming, declared in a small file (`window_spec`).

A message is late if it arrived more than `lateness` after its time; that is a property of the message alone, so it
goes to the side queue or is dropped whenever it is read. All others are in their window. A time after the arrival (a
clock that is ahead) counts as the arrival. A message without a time that can be read stops the job, unless the file
says what becomes of it. What is left out of the windows is counted.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from queenmq.pipeline import register
from queenmq.pipeline.checkpoint import made_of
from queenmq.pipeline.columns import MISFIT
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.frames import activate, read_stream
from queenmq.pipeline.named_write import committed
from queenmq.pipeline.options import key_of_environment
from queenmq.pipeline.patience import patiently
from queenmq.pipeline.runs import Outcome, Run
from queenmq.pipeline.streaming import LOOK_S, run_queries
from queenmq.pipeline.window_spec import ARRIVAL, ERROR, QUEUE, WindowSpec

TRIGGER: Final = "1 second"
EMPTY_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
# The name of what is counted beside the results.
LEFT_OUT: Final = "left out"
# Of a message that goes to a side queue.
KEPT: Final = ("value", "partition", "transactionId", "traceId", "headers")


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    spec: WindowSpec
    checkpoint: str
    trigger: str = TRIGGER
    available_now: bool = False
    seconds: float | None = None
    start: str = "earliest"


def window(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Run the queries until they end (availableNow), the time is over, Ctrl-C, or the run drains."""
    tally = Tally()

    def seen(query: Any) -> None:
        tally.look(query)
        run.outcome.rows = tally.rows

    restarts = run_queries(
        lambda: _queries(spark, settings),
        run,
        settings.url,
        seconds=settings.seconds,
        endless=not settings.available_now,
        seen=seen,
    )
    outcome = run.outcome
    outcome.rows = tally.rows
    outcome.summary = {"messages read": tally.rows, "batches": tally.batches}
    outcome.summary["dropped by Spark's watermark"] = tally.dropped
    outcome.summary |= tally.left_out
    if restarts:
        outcome.summary["restarts after an outage"] = restarts
    outcome.offsets = {"messages": outcome.rows}
    return outcome


def _queries(spark: Any, settings: Settings) -> list[Any]:
    """They go on where their checkpoints are."""
    spec = settings.spec
    messages = source(spark, settings)
    queries = [_start(results(messages, spec), settings, "results", spec.target, spec.updates)]
    if spec.late is not None:
        queries.append(_start(late(messages, spec), settings, "late", spec.late))
    if spec.undated is not None:
        queries.append(_start(undated(messages), settings, "undated", spec.undated))
    return queries


def run_until(spark: Any, settings: Settings, stop: threading.Event, seen: Callable[[Any], None]) -> None:
    """Run only the results until `stop` is set, and call `seen` with the query then; for measurements."""
    spec = settings.spec
    query = _start(results(source(spark, settings), spec), settings, "results", spec.target, spec.updates)
    try:
        while query.isActive and not stop.wait(LOOK_S):
            pass
        seen(query)
    finally:
        query.stop()


def source(spark: Any, settings: Settings) -> Any:
    """The stream of messages with `at`, the time that windows go by, and `late`."""
    spec = settings.spec
    options: dict[str, Any] = {"startingOffsets": settings.start}
    if spec.late is not None or spec.undated is not None or "headers" in (spec.where or ""):
        options["includeHeaders"] = True
    if spec.schema:
        options["valueSchema"] = spec.schema
        if not spec.bad_values:
            # What becomes of a bad time is said by badTime.
            options |= {"badValues": "mark", "lenientFields": json.dumps([spec.time.removeprefix("data.")])}
    if key := key_of_environment():
        options["encryptionKey"] = key
    found = read_stream(spark, settings.url, spec.source, **options)
    if spec.where:
        # What is not known to be wanted is not wanted, and must not be complained of.
        found = found.where(f"coalesce({spec.where}, false)")
    return timed(found, spec)


def timed(messages: Any, spec: WindowSpec) -> Any:
    """With the columns `at`, `late` and `undated`, all of them properties of the message alone."""
    from pyspark.sql import functions as f

    arrival = f.col("timestamp")
    if MISFIT in messages.columns:
        told = _complaint(messages, spec, f.col(MISFIT), "; badValue: null in the window file reads null instead")
        arrival = f.when(f.col(MISFIT).isNotNull(), f.raise_error(told).cast("timestamp")).otherwise(arrival)
    if spec.time == ARRIVAL:
        return messages.withColumns({"at": arrival, "late": f.lit(False), "undated": f.lit(False)})
    found = messages.withColumn("undated", f.col(spec.time).isNull())
    found = found.withColumn("at", f.least(f.coalesce(event_time(messages, spec), arrival), arrival))
    arrival = f.col("timestamp")
    return found.withColumn("late", f.col("at") < arrival - f.expr(f"INTERVAL {spec.lateness}"))


def event_time(messages: Any, spec: WindowSpec) -> Any:
    """The event time of a message; a message without one raises, unless the file says otherwise."""
    from pyspark.sql import functions as f

    told = f.col(spec.time)
    if spec.bad_time != ERROR:
        return told
    problem = f.lit(f"{spec.time} has no time that can be read (an ISO-8601 text)")
    remedy = "; badTime in the window file says what becomes of such messages: arrival, or {queue: NAME}"
    return f.coalesce(told, f.raise_error(_complaint(messages, spec, problem, remedy)).cast("timestamp"))


def _complaint(messages: Any, spec: WindowSpec, problem: Any, remedy: str) -> Any:
    """In the words of our errors, so that it is found in what Spark makes of it, but not in its plan, which it prints,
    too.
    """
    from pyspark.sql import functions as f

    there = {"partition", "offset"} <= set(messages.columns)
    place = [f.lit(", partition '"), f.col("partition"), f.lit("', offset "), f.col("offset").cast("string")]
    return f.concat(
        f.lit("Pipeline"),
        f.lit(f"Error: queue '{spec.source}'"),
        *(place if there else ()),
        f.lit(": "),
        problem,
        f.lit(remedy),
    )


def results(messages: Any, spec: WindowSpec) -> Any:
    """The aggregates as rows for the sink. A final result has a transactionId made of its window and key."""
    from pyspark.sql import functions as f

    span = {
        "tumbling": lambda: f.window("at", spec.size),
        "sliding": lambda: f.window("at", spec.size, spec.every),
        "session": lambda: f.session_window("at", spec.size),
    }[spec.shape]()
    keys = [f.col(column).alias(name) for name, column in spec.by.items()]
    named = [f.expr(expression).alias(name) for name, expression in spec.aggregates.items()]
    left_out = [
        f.count_if(f.col("undated")).alias("without a time"),
        f.count_if(f.col("late") & ~f.col("undated")).alias("late"),
    ]
    messages = messages.observe(LEFT_OUT, *left_out)
    in_windows = "NOT late AND NOT undated" if spec.bad_time == QUEUE else "NOT late"
    in_time = messages.where(in_windows).withWatermark("at", spec.delay)
    summed = in_time.groupBy(span.alias("span"), *keys).agg(*named)
    start, end = f.col("span.start"), f.col("span.end")
    bounds = f.struct(start.alias("start"), end.alias("end")).alias("window")
    value = f.to_json(f.struct(bounds, *(f.col(name) for name in (*spec.by, *spec.aggregates))))
    columns = [value.alias("value")]
    if spec.partition:
        columns.append(f.coalesce(f.col(spec.partition).cast("string"), f.lit("Default")).alias("partition"))
    if not spec.updates:
        key = f.sha2(f.to_json(f.struct(bounds, *(f.col(name) for name in spec.by))), 256)
        columns.append(key.alias("transactionId"))
    return summed.select(*columns)


def late(messages: Any, spec: WindowSpec) -> Any:
    """Late messages as they were, in the partition they had."""
    which = "late AND NOT undated" if spec.bad_time == QUEUE else "late"
    return messages.where(which).select(*KEPT)


def undated(messages: Any) -> Any:
    """Messages without a time that can be read, as they were, in the partition they had."""
    return messages.where("undated").select(*KEPT)


def _start(frame: Any, settings: Settings, name: str, queue: str, updates: bool = False) -> Any:
    activate(frame.sparkSession)
    options = {"url": settings.url, "queue": queue}
    place = f"{settings.checkpoint.rstrip('/')}/{name}"
    if key := key_of_environment():
        options["encryptionKey"] = key
    writer = frame.writeStream.queryName(f"{settings.spec.source} {name}")
    if updates:
        writer = writer.outputMode("update").foreachBatch(write_updates(options, place))
    else:
        writer = writer.outputMode("append").format("queen").options(**options)
    writer = writer.option("checkpointLocation", place)
    trigger = {"availableNow": True} if settings.available_now else {"processingTime": settings.trigger}
    with _without_empty_batches(frame.sparkSession) if updates else nullcontext():
        return writer.trigger(**trigger).start()


@contextmanager
def _without_empty_batches(spark: Any) -> Iterator[None]:
    """For queries that start within. Spark follows a batch that has moved the watermark with an empty one, which
    gives out windows that are over and forgets them. With updates everything was given out; the next batch forgets them
    as well, and a message that comes meanwhile does not have to wait.
    """
    before = spark.conf.get(EMPTY_BATCHES)
    spark.conf.set(EMPTY_BATCHES, "false")
    try:
        yield
    finally:
        spark.conf.set(EMPTY_BATCHES, before)


def write_updates(options: dict[str, str], checkpoint: str) -> Any:
    """Spark has no update mode for Python sinks, so every micro-batch is a write with the name of the query and the
    number of the batch: done once.
    """
    begun: set[str] = set()

    def write(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise PipelineError("Spark does not report the query of a batch")
        register(batch.sparkSession)
        named = {"writeId": f"updates {query}", "batchId": str(number)}
        # The version before gave each batch a name of its own; its last batch may come again.
        before = f"updates {query} {number}"
        if query not in begun and patiently(lambda: committed(options["url"], before)) is not None:
            named = {"writeId": before}
        begun.add(query)
        writer = batch.write.format("queen").mode("append").options(**options, **named)
        if (digest := made_of(checkpoint, number)) is not None:
            writer = writer.option("madeOf", digest)
        writer.save()

    return write


class Tally:
    """What a query has done in all its batches, also if it was started again.

    Spark remembers only the newest, so they are added up while they come.
    """

    def __init__(self) -> None:
        self._seen = -1
        self.rows = self.dropped = self.batches = 0
        self.left_out = {"without a time": 0, "late": 0}

    def look(self, query: Any) -> None:
        for one in query.recentProgress:
            if one["batchId"] > self._seen:
                self._seen = one["batchId"]
                self.batches += 1
                self.rows += int(one["numInputRows"])
                if (counted := (one["observedMetrics"] or {}).get(LEFT_OUT)) is not None:
                    for name in self.left_out:
                        self.left_out[name] += int(counted[name] or 0)
                self.dropped += sum(int(state.get("numRowsDroppedByWatermark", 0)) for state in one["stateOperators"])
