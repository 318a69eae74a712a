"""The kinds of pipelines that can be declared, a function each: it reads the fields and says what to run.

A new kind is a function here and an entry in `KINDS`. It names the queues that it reads and writes (who may read all
of them may see the pipeline), the checkpoint, what the state in there depends on, and makes the job when the driver
starts. Settings are made at once, so that what is wrong with them is found by `apply`. A job that publishes past the
sink begins its transactions with `hold_generation`, and one that runs for long ends when `run.drain` is set.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from queenmq.pipeline.declaration import Fields, Job, Kinds, Plan
from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.window_spec import make, seconds

_START: Final = ("earliest", "latest")
_TRIGGER: Final = "1 second"


def _window(fields: Fields) -> Plan:
    checkpoint, trigger = fields.place("checkpoint"), fields.span("trigger", _TRIGGER)
    start = fields.choice("start", _START, "earliest")
    try:
        spec = make(fields.any("window"))
    except BadOption as error:
        fields.wrong(error.message)
        return Plan(reads=(), job=_nothing)
    # These decide what is in the state, and under which keys. Results may go elsewhere from now on, and `where`,
    # `lateness` and `slack` may change: they say what is added from now on, and when a window is over.
    kept = ("source", "shape", "size", "every", "time", "by", "aggregates", "updates", "schema")
    state = {"kind": "window"} | {name: value for name, value in asdict(spec).items() if name in kept}

    def job(url: str, place: str) -> Job:
        from queenmq.pipeline.jobs.window import Settings, window

        settings = Settings(url=url, spec=spec, checkpoint=place, trigger=trigger, start=start or "earliest")
        return lambda spark, run: window(spark, settings, run)

    writes = tuple(name for name in (spec.target, spec.late, spec.undated) if name is not None)
    return Plan(reads=(spec.source,), writes=writes, checkpoint=checkpoint, state=state, job=job)


def _copy(fields: Fields) -> Plan:
    source, target = fields.queue("source"), fields.queue("target")
    where, schema = fields.text("where"), fields.text("schema")
    checkpoint, trigger = fields.place("checkpoint"), fields.span("trigger", _TRIGGER)
    start = fields.choice("start", _START, "earliest")
    most, commit_rows = fields.number("maxOffsetsPerTrigger"), fields.number("commitRows")
    if source and source == target:
        fields.wrong("target must be another queue than source")

    def job(url: str, place: str) -> Job:
        from queenmq.pipeline.jobs.copy import Settings, copy

        settings = Settings(
            url=url,
            source=source,
            target=target,
            checkpoint=place,
            where=where,
            schema=schema,
            trigger=trigger,
            start=start or "earliest",
            most_per_trigger=most,
            commit_rows=commit_rows,
        )
        return lambda spark, run: copy(spark, settings, run)

    state = {"kind": "copy", "source": source}  # the same for filter
    return Plan(reads=(source,), writes=(target,), checkpoint=checkpoint, state=state, job=job)


def _filter(fields: Fields) -> Plan:
    if fields.text("where", needed=True) is None:
        return Plan(reads=(), job=_nothing)
    return _copy(fields)


def _sql(fields: Fields) -> Plan:
    query, schemas = fields.text("query", needed=True) or "", fields.texts("schemas")
    return _query(fields, query, schemas, {"kind": "sql", "query": " ".join(query.split()), "schemas": schemas})


def _join(fields: Fields) -> Plan:
    """Two queues by equal fields, as a query over both."""
    left, right = fields.queue("left"), fields.queue("right")
    kind, within = fields.choice("type", ("inner", "left"), "inner"), fields.span("within", "1 hour")
    on, select = fields.texts("on"), fields.text("select") or "left.data AS left, right.data AS right, left.partition"
    schemas = fields.texts("schemas")
    if not on:
        fields.wrong("on is missing: the fields that are equal, such as {data.id: data.order}")
    if left and left == right:
        fields.wrong("right must be another queue than left")
    equal = " AND ".join(f"left.{one} = right.{other}" for one, other in on.items())
    # Each side is kept until no message of the other one can come any more that is near enough.
    side = "STREAM(`{}`) WATERMARK timestamp DELAY OF INTERVAL {} AS `{}`"
    near = f"right.timestamp BETWEEN left.timestamp - INTERVAL {within} AND left.timestamp + INTERVAL {within}"
    query = (
        f"SELECT {select} FROM {side.format(left, within, 'left')} {kind} JOIN {side.format(right, within, 'right')} "  # noqa: S608 - of Spark, by who may run anything
        f"ON {equal} AND {near}"
    )
    names = {"left": left, "right": right, "on": on, "type": kind, "within": within, "schemas": schemas}
    return _query(fields, query, schemas, {"kind": "join", **names})


def _query(fields: Fields, query: str, schemas: dict[str, str], state: dict[str, Any]) -> Plan:
    """A query of Spark SQL into a queue. Whether another one can go on from the state is known to Spark alone, so that
    none can.
    """
    from queenmq.pipeline.jobs.sql import sources

    target = fields.queue("target")
    prepare, updates = fields.any("prepare") or [], fields.any("updates", False)
    checkpoint, trigger = fields.place("checkpoint"), fields.span("trigger", _TRIGGER)
    start = fields.choice("start", _START, "earliest")
    most = fields.number("maxOffsetsPerTrigger")
    if not isinstance(prepare, list) or not all(isinstance(one, str) for one in prepare):
        fields.wrong("prepare must be a list of statements")
    if not isinstance(updates, bool):
        fields.wrong(f"updates must be true or false, not {updates!r}")
    reads = tuple(sources(query))
    if query and not reads:
        fields.wrong("the query reads no queue: name one as STREAM(orders)")
    if target in reads:
        fields.wrong("target must be another queue than those that are read")

    def job(url: str, place: str) -> Job:
        from queenmq.pipeline.jobs.sql import Settings, sql

        settings = Settings(
            url=url,
            query=query,
            target=target,
            checkpoint=place,
            schemas=schemas,
            prepare=tuple(prepare),
            updates=updates,
            trigger=trigger,
            start=start or "earliest",
            most=most,
        )
        return lambda spark, run: sql(spark, settings, run)

    return Plan(reads=reads, writes=(target,), checkpoint=checkpoint, state=state | {"updates": updates}, job=job)


def _upsert(fields: Fields) -> Plan:
    queue, table = fields.queue("queue"), fields.place("table")
    form = fields.choice("format", ("delta", "iceberg"), "delta") or "delta"
    keys = fields.any("key")
    keys = [keys] if isinstance(keys, str) else keys
    schema, delete = fields.text("schema") or "auto", fields.text("delete")
    checkpoint, trigger = fields.place("checkpoint"), fields.span("trigger", _TRIGGER)
    most = fields.number("maxOffsetsPerTrigger", 100_000)
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        fields.wrong("key must be a field of the message, or a list of fields")
        keys = []

    def job(url: str, place: str) -> Job:
        from queenmq.pipeline.jobs.upsert import MOST_MESSAGES, Settings, upsert

        settings = Settings(
            url=url,
            queue=queue,
            table=table,
            keys=tuple(keys),
            checkpoint=place,
            schema=schema,
            delete=delete,
            trigger=trigger,
            most=most or MOST_MESSAGES,
            format=form,
        )
        return lambda spark, run: upsert(spark, settings, run)

    state = {"kind": "upsert", "queue": queue, "table": table, "key": keys, "format": form}
    return Plan(reads=(queue,), checkpoint=checkpoint, state=state, job=job)


def _archive(fields: Fields) -> Plan:
    queue, lake = fields.queue("queue"), fields.place("lake")
    schema, form = fields.text("schema"), fields.choice("format", ("parquet", "delta", "iceberg"), None)
    every, file_mb = fields.span("every", "1 minute"), fields.number("fileMb", 64)

    def job(url: str, _: str) -> Job:
        from queenmq.pipeline.jobs.archive import Settings, archive
        from queenmq.pipeline.repeating import repeat

        settings = Settings(
            url=url, queue=queue, lake=lake, schema=schema, format=form, file_bytes=(file_mb or 64) << 20
        )
        return lambda spark, run: repeat(lambda: archive(spark, settings, run), run, url, seconds(every), queue)

    return Plan(reads=(queue,), job=job)


def _analytics(fields: Fields) -> Plan:
    queue = fields.queue("queue", needed=False) or None
    lake, every = fields.place("lake", needed=False) or None, fields.span("every", "1 minute")
    back = fields.span("back", "1 hour")

    def job(url: str, _: str) -> Job:
        from queenmq.pipeline.jobs.analytics import Settings, analytics
        from queenmq.pipeline.repeating import repeat

        settings = Settings(url, queue, lake, timedelta(seconds=seconds(back)))
        return lambda spark, run: repeat(lambda: analytics(spark, settings, run), run, url, seconds(every))

    return Plan(reads=None if queue is None else (queue,), job=job)


def _nothing(_: str, __: str) -> Job:
    """Of a declaration that is refused."""
    raise AssertionError("a declaration with problems has no job")


KINDS: Final[Kinds] = {
    "analytics": _analytics,
    "archive": _archive,
    "copy": _copy,
    "filter": _filter,
    "join": _join,
    "sql": _sql,
    "upsert": _upsert,
    "window": _window,
}
