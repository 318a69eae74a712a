"""The kinds of pipelines that can be declared, a function each: it reads the fields and says what to run.

A new kind is a function here and an entry in `KINDS`. It names the queues that it reads and writes (who may read all
of them may see the pipeline), the checkpoint, what the state in there depends on, and makes the job when the driver
starts. Settings are made at once, so that what is wrong with them is found by `apply`. A job that publishes past the
sink begins its transactions with `hold_generation`, and one that runs for long ends when `run.drain` is set.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Final

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
    most = fields.number("maxOffsetsPerTrigger")
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
        )
        return lambda spark, run: copy(spark, settings, run)

    state = {"kind": "copy", "source": source}  # the same for filter
    return Plan(reads=(source,), writes=(target,), checkpoint=checkpoint, state=state, job=job)


def _filter(fields: Fields) -> Plan:
    if fields.text("where", needed=True) is None:
        return Plan(reads=(), job=_nothing)
    return _copy(fields)


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
    "window": _window,
}
