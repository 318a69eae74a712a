"""The jobs of `queen pipeline` that are streams: what of their commands becomes settings, before Spark starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from queenmq.errors import StartupError


class Given(SimpleNamespace):
    """The name of the job, and the options of its command."""


# What is called with the session and the run.
Job: TypeAlias = Callable[[Any, Any], Any]


def _window(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.window import Settings, window
    from queenmq.pipeline.window_spec import parse

    try:
        spec = parse(given.file.read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"the window file cannot be read: {error.strerror}") from None
    given.queue = spec.source
    settings = Settings(
        url=url,
        spec=spec,
        checkpoint=given.checkpoint,
        trigger=given.trigger,
        available_now=given.available_now,
        seconds=given.seconds,
        start=given.start,
    )
    return lambda spark, run: window(spark, settings, run)


def _copy(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.copy import Settings, copy

    settings = Settings(
        url=url,
        source=given.queue,
        target=given.into,
        checkpoint=given.checkpoint,
        where=given.where,
        schema=given.schema,
        trigger=given.trigger,
        available_now=given.available_now,
        seconds=given.seconds,
        start=given.start,
    )
    return lambda spark, run: copy(spark, settings, run)


def _sql(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.sql import Settings, sql

    if (given.query is None) == (given.file is None):
        raise StartupError("give the query, or a file with it")
    settings = Settings(
        url=url,
        query=given.query or _read(given.file),
        target=given.target,
        checkpoint=given.checkpoint,
        schemas=dict(pair(text) for text in given.schema),
        prepare=tuple(given.prepare),
        updates=given.updates,
        trigger=given.trigger,
        available_now=given.available_now,
        seconds=given.seconds,
        start=given.start,
        most=given.batch,
    )
    if not settings.sources:
        raise StartupError("the query reads no queue: name one as STREAM(orders)")
    given.queue = settings.sources[0]
    given.queues = settings.sources
    return lambda spark, run: sql(spark, settings, run)


def _upsert(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.upsert import Settings, upsert
    from queenmq.pipeline.lake import check_address
    from queenmq.pipeline.lake_table import check_installed

    check_installed(given.format)
    check_address(given.table)
    settings = Settings(
        url=url,
        queue=given.queue,
        table=given.table,
        keys=tuple(given.key),
        checkpoint=given.checkpoint,
        schema=given.schema,
        delete=given.delete,
        trigger=given.trigger,
        available_now=given.available_now,
        seconds=given.seconds,
        most=given.batch,
        format=given.format,
    )
    return lambda spark, run: upsert(spark, settings, run)


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{file} cannot be read: {getattr(error, 'strerror', error)}") from None


def pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise StartupError(f"{text!r} is not NAME=VALUE")
    return name, value


STREAMS: Final[dict[str, Callable[[Given, str], Job]]] = {
    "copy": _copy,
    "sql": _sql,
    "upsert": _upsert,
    "window": _window,
}
