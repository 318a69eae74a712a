"""`queen pipeline`: the jobs on Spark. The exit status is 1 if a job failed or, for audit, found something."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace as Given
from typing import Any, Final

import click

from queenmq.cli import exits
from queenmq.cli.arguments import COUNT, FOLDER, MOMENT, NAMES, Function, data_dir
from queenmq.cli.group import Command, group, under
from queenmq.errors import QueenError, StartupError

LOCAL: Final = "local[*]"


@group(
    "pipeline", "queen pipeline archive --queue orders --lake s3://bucket/lake", "queen pipeline audit --queue orders"
)
def command() -> None:
    """Jobs on Spark, on this machine or on a cluster. Needs pip install 'queenmq[pipeline]'."""


def _job_of(name: str, *examples: str) -> Callable[[Callable[..., None]], Command]:
    """A job with the options that all of them share. The function has only the help: what is done is in `run`."""

    def made(function: Callable[..., None]) -> Command:
        def start(**given: Any) -> int:
            return run(Given(job=name, **given))

        start.__doc__ = function.__doc__
        # Click gathers options from the last to the first; those of the job come first.
        own = getattr(function, "__click_params__", [])
        _common(start).__click_params__ += own  # type: ignore[attr-defined]
        return under(command, name, *examples)(start)

    return made


def _common(function: Function) -> Function:
    for option in reversed(
        (
            click.option("--url", help="PostgreSQL (default: DATABASE_URL, or the bundled one that runs)."),
            data_dir,
            click.option("--master", default=LOCAL, show_default=True, help="Spark master."),
            click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Of Spark; may be repeated."),
            click.option("--json", is_flag=True, help="Print the result as JSON."),
        )
    ):
        function = option(function)
    return function


_queue = click.option("--queue", required=True, help="The queue.")
_lake = click.option("--lake", required=True, metavar="PLACE", help="A folder, or a URI such as s3://bucket/folder.")


@_job_of("archive", "queen pipeline archive --queue orders --lake s3://bucket/lake")
@_queue
@_lake
@click.option("--schema", metavar="DDL", help="Also parse the values, such as 'order INT, amount DOUBLE'.")
@click.option(
    "--file-mb", type=COUNT, default=64, show_default=True, metavar="MB", help="Size of a file, before compression."
)
@click.option("--forget", is_flag=True, help="Retention waits for this lake no longer; nothing is read.")
def archive() -> None:
    """Messages into a lake of Parquet files, incrementally and exactly once."""


@_job_of("replay", "queen pipeline replay --queue orders --lake ./lake --into orders-again --since 2026-01-02")
@click.option("--queue", required=True, help="The archived queue.")
@_lake
@click.option("--into", metavar="QUEUE", help="The queue to write to (default: the same).")
@click.option("--into-url", metavar="URL", help="PostgreSQL to write to (default: the same).")
@click.option("--since", type=MOMENT, metavar="TIME", help="Messages from this moment on (ISO-8601).")
@click.option("--until", type=MOMENT, metavar="TIME", help="Messages before this moment.")
@click.option("--partition", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--where", metavar="SQL", help="A predicate over the columns of the lake.")
@click.option("--rate", type=float, metavar="N", help="Messages a second at most.")
@click.option("--name", help="Of this replay: one of the same name is not done twice (default: made of the above).")
def replay() -> None:
    """Messages from the lake back into a queue."""


@_job_of("audit", "queen pipeline audit --queue orders --lake ./lake --plot audit.png")
@_queue
@click.option("--lake", metavar="PLACE", help="Compare with this archive, too.")
@click.option("--plot", metavar="FILE", help="Write a picture of what is where (PNG).")
def audit() -> None:
    """Prove that nothing was lost or doubled; exit status 1 if it finds something."""


@_job_of("backfill", "queen pipeline backfill --queue orders --format parquet --path ./orders --partition customer")
@_queue
@click.option("--format", required=True, help="Of the source: json, csv, parquet, jdbc, …")
@click.option("--path", help="Of the source, if it has one.")
@click.option("--option", multiple=True, metavar="NAME=VALUE", help="Of the source; may be repeated.")
@click.option("--value", metavar="COLUMN", help="Holds the JSON (default: a row becomes an object).")
@click.option("--partition", metavar="COLUMN", help="Names the partition.")
@click.option("--transaction-id", metavar="COLUMN", help="Names the message: stored once per partition.")
@click.option("--order-by", metavar="COLUMNS", type=NAMES, default="", help="Order within a partition.")
@click.option("--where", metavar="SQL", help="A predicate over the columns of the source.")
@click.option("--name", help="Of this backfill: one of the same name is not done twice.")
def backfill() -> None:
    """Files, JDBC or any Spark source into a queue."""


@_job_of("window", "queen pipeline window --file totals.yaml --checkpoint ./progress")
@click.option("--file", required=True, type=FOLDER, help="The declaration (YAML, see docs/pipeline.md).")
@click.option("--checkpoint", required=True, metavar="PLACE", help="Where Spark keeps its progress.")
@click.option("--trigger", default="1 second", show_default=True, metavar="TIME", help="Between batches.")
@click.option("--available-now", is_flag=True, help="What is there now, then end.")
@click.option("--seconds", type=float, metavar="S", help="End after this time.")
@click.option(
    "--start",
    type=click.Choice(("earliest", "latest")),
    default="earliest",
    show_default=True,
    help="Of the first run.",
)
def window() -> None:
    """Aggregate a queue into another, by windows of time; runs until Ctrl-C."""


@_job_of("analytics", "queen pipeline analytics --queue orders --every 60")
@click.option("--queue", help="Only this one (default: all).")
@click.option("--lake", metavar="PLACE", help="Write the rows there, too.")
@click.option("--back", type=float, default=60, show_default=True, metavar="MINUTES", help="Of the first look.")
@click.option("--every", type=float, metavar="S", help="Go on, a look every so many seconds, until Ctrl-C.")
@click.option("--times", type=COUNT, metavar="N", help="End after so many looks.")
def analytics() -> None:
    """Rates, lag, latency, dead letters and skew by queue, group and minute."""


@_job_of("bench", "queen pipeline bench --messages 100000 --only read,archive")
@click.option("--messages", type=COUNT, default=1_000_000, show_default=True, metavar="N", help="To write and read.")
@click.option("--partitions", type=COUNT, default=1_000, show_default=True, metavar="N", help="Of the queue.")
@click.option("--payload", type=COUNT, default=230, show_default=True, metavar="BYTES", help="Of a message.")
@click.option("--rounds", type=COUNT, default=3, show_default=True, metavar="N", help="Of the reads.")
@click.option("--jdbc-jar", metavar="FILE", help="PostgreSQL's driver: compare with Spark's own reader, too.")
@click.option("--postgres", type=COUNT, metavar="PID", help="Of the database, to count its CPU.")
@click.option("--only", type=NAMES, default="", metavar="NAMES", help="Such as read,archive.")
@click.option("--server", metavar="URL", help="Of the same database: measure latency over HTTP.")
def bench() -> None:
    """Measure source, sink and jobs in queues of their own."""


@_job_of("runs", "queen pipeline runs --json")
def runs() -> None:
    """Show the newest runs."""


def run(given: Given) -> int:
    from queenmq.pipeline import PipelineError, require
    from queenmq.pipeline.errors import NoSuchQueue, explained

    try:
        require()
        url = _url(given)
        if given.job == "runs":
            return _show_runs(given, url)
        if given.job == "archive" and given.forget:
            return _forget(given, url)
        return _run_job(given, url)
    except NoSuchQueue as error:
        raise exits.Failed(error.message, exits.NOT_FOUND) from error
    except PipelineError as error:
        raise StartupError(error.message) from error
    except StartupError:
        raise
    except QueenError as error:
        raise StartupError(error.message) from error
    except Exception as error:
        told = explained(error)
        if type(told) is PipelineError and type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            raise
        status = exits.NOT_FOUND if isinstance(told, NoSuchQueue) else exits.FAILED
        raise exits.Failed(told.message, status) from error


def _url(given: Given) -> str:
    if given.url:
        url: str = given.url
        return url
    from queenmq import config
    from queenmq.storage.database import dsn
    from queenmq.storage.embedded import default_data_dir, running_url

    settings = config.load(data_dir=given.data_dir)
    if settings.uses_bundled_database:
        return running_url(settings.data_dir or default_data_dir())
    return dsn(settings)


def _run_job(given: Given, url: str) -> int:
    from queenmq.pipeline.display import Progress, as_json, table
    from queenmq.pipeline.runs import Run
    from queenmq.pipeline.session import session

    work = _job(given, url)
    confs = dict(_pair(text) for text in given.conf)
    if getattr(given, "jdbc_jar", None):
        confs["spark.jars"] = given.jdbc_jar
    hidden = {"url", "into_url", "data_dir", "command", "json", "conf", "option"}
    shown = {name: value for name, value in vars(given).items() if name not in hidden and value not in (None, [], ())}
    begun = time.monotonic()
    with Run(url, given.job, getattr(given, "queue", None), given.master, shown) as run:
        spark = session(given.master, f"queen {given.job}", confs)
        with Progress(spark, run):
            outcome = work(spark, run)
    seconds = time.monotonic() - begun
    if given.json:
        print(as_json(run, seconds))
    else:
        print(table({"job": given.job, "run": run.id, "seconds": f"{seconds:.1f}", **outcome.summary}))
    return 0 if outcome.ok else 1


def _job(given: Given, url: str) -> Callable[[Any, Any], Any]:
    """What to call with session and run. Settings are made, and wrong ones refused, before Spark starts."""
    if given.job == "archive":
        from queenmq.pipeline.jobs import archive as a

        archive = a.Settings(url, given.queue, given.lake, given.schema, file_bytes=given.file_mb << 20)
        return lambda spark, run: a.archive(spark, archive, run)
    if given.job == "replay":
        from queenmq.pipeline.jobs import replay as r

        replay = r.Settings(
            url,
            given.queue,
            given.lake,
            given.into,
            given.into_url,
            given.since,
            given.until,
            tuple(given.partition),
            given.where,
            given.rate,
            given.name,
        )
        return lambda spark, run: r.replay(spark, replay, run)
    if given.job == "audit":
        from queenmq.pipeline.jobs import audit as u

        audit = u.Settings(url, given.queue, given.lake, given.plot)
        return lambda spark, run: u.audit(spark, audit, run)
    if given.job == "window":
        return _window(given, url)
    if given.job == "analytics":
        from queenmq.pipeline.jobs import analytics as n

        back = timedelta(minutes=given.back)
        analytics = n.Settings(url, given.queue, given.lake, back, given.every, given.times)
        return lambda spark, run: n.analytics(spark, analytics, run)
    if given.job == "bench":
        from queenmq.pipeline import bench as m

        trial = m.Settings(
            url,
            given.messages,
            given.partitions,
            given.payload,
            given.rounds,
            bool(given.jdbc_jar),
            given.postgres,
            tuple(given.only),
            given.server,
        )
        return lambda spark, run: m.bench(spark, trial, run)
    from queenmq.pipeline.jobs import backfill as b

    backfill = b.Settings(
        url,
        given.queue,
        given.format,
        given.path,
        dict(_pair(text) for text in given.option),
        given.value,
        given.partition,
        given.transaction_id,
        tuple(given.order_by),
        given.where,
        given.name,
    )
    return lambda spark, run: b.backfill(spark, backfill, run)


def _window(given: Given, url: str) -> Callable[[Any, Any], Any]:
    from queenmq.pipeline.jobs import window as w
    from queenmq.pipeline.window_spec import parse

    try:
        spec = parse(given.file.read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"the window file cannot be read: {error.strerror}") from None
    settings = w.Settings(url, spec, given.checkpoint, given.trigger, given.available_now, given.seconds, given.start)
    given.queue = spec.source
    return lambda spark, run: w.window(spark, settings, run)


def _forget(given: Given, url: str) -> int:
    from queenmq.pipeline.connection import connection, rows
    from queenmq.pipeline.lake import Lake

    with connection(url) as opened:
        rows(opened, "archive_forget", Lake(given.lake).name, given.queue)
    print(f"retention of {given.queue} no longer waits for {given.lake}")
    return 0


def _show_runs(given: Given, url: str) -> int:
    from queenmq.pipeline.runs import newest

    found = newest(url)
    if given.json:
        print(json.dumps(found, default=str))
        return 0
    for one in found:
        ended = f"{(one['ended'] - one['started']).total_seconds():.0f} s" if one["ended"] else ""
        print(f"{one['started']:%Y-%m-%d %H:%M:%S}  {one['job']:<9} {one['queue'] or '':<20} {one['state']:<9}", end="")
        print(f" {one['rows']:>12,} rows  {ended:>8}  {one['error'] or ''}".rstrip())
    if not found:
        print("no runs yet", file=sys.stderr)
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise StartupError(f"{text!r} is not NAME=VALUE")
    return name, value
