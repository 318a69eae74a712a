"""`queen pipeline`: the jobs on Spark. The exit status is 1 if a job failed or, for audit, found something."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from queenmq import config
from queenmq.core.names import parse_timestamp
from queenmq.errors import InvalidRequest, QueenError, StartupError
from queenmq.storage.database import dsn
from queenmq.storage.embedded import default_data_dir, running_url

LOCAL: Final = "local[*]"
Commands = argparse._SubParsersAction  # the type of what add_subparsers returns


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    pipeline = commands.add_parser(
        "pipeline",
        help="jobs on Spark: archive, replay, window, analytics, audit, backfill",
        description="Jobs on Spark, on this machine or on a cluster. Needs pip install 'queenmq[pipeline]'.",
    )
    jobs = pipeline.add_subparsers(dest="job", required=True, metavar="job")
    _add_archive(jobs)
    _add_replay(jobs)
    _add_audit(jobs)
    _add_backfill(jobs)
    _add_window(jobs)
    _add_analytics(jobs)
    _add_bench(jobs)
    runs = jobs.add_parser("runs", help="show the newest runs")
    _add_common(runs)


def _add_archive(jobs: Commands[argparse.ArgumentParser]) -> None:
    job = jobs.add_parser("archive", help="messages into a lake of Parquet files, incrementally and exactly once")
    job.add_argument("--queue", required=True)
    _add_lake(job)
    job.add_argument("--schema", metavar="DDL", help="also parse the values, such as 'order INT, amount DOUBLE'")
    job.add_argument("--file-mb", type=_positive, default=64, metavar="MB", help="size of a file, before compression")
    job.add_argument("--forget", action="store_true", help="retention waits for this lake no longer; nothing is read")
    _add_common(job)


def _add_replay(jobs: Commands[argparse.ArgumentParser]) -> None:
    job = jobs.add_parser("replay", help="messages from the lake back into a queue")
    job.add_argument("--queue", required=True, help="the archived queue")
    _add_lake(job)
    job.add_argument("--into", metavar="QUEUE", help="the queue to write to (default: the same)")
    job.add_argument("--into-url", metavar="URL", help="PostgreSQL to write to (default: the same)")
    job.add_argument("--since", type=_moment, metavar="TIME", help="messages from this moment on (ISO-8601)")
    job.add_argument("--until", type=_moment, metavar="TIME", help="messages before this moment")
    job.add_argument("--partition", action="append", default=[], metavar="NAME", help="only this one; may be repeated")
    job.add_argument("--where", metavar="SQL", help="a predicate over the columns of the lake")
    job.add_argument("--rate", type=float, metavar="N", help="messages a second at most")
    job.add_argument(
        "--name", help="of this replay: one of the same name is not done twice (default: made of the above)"
    )
    _add_common(job)


def _add_audit(jobs: Commands[argparse.ArgumentParser]) -> None:
    job = jobs.add_parser("audit", help="prove that nothing was lost or doubled; exit status 1 if it finds something")
    job.add_argument("--queue", required=True)
    job.add_argument("--lake", metavar="PLACE", help="compare with this archive, too")
    job.add_argument("--plot", metavar="FILE", help="write a picture of what is where (PNG)")
    _add_common(job)


def _add_backfill(jobs: Commands[argparse.ArgumentParser]) -> None:
    job = jobs.add_parser("backfill", help="files, JDBC or any Spark source into a queue")
    job.add_argument("--queue", required=True)
    job.add_argument("--format", required=True, help="of the source: json, csv, parquet, jdbc, …")
    job.add_argument("--path", help="of the source, if it has one")
    job.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the source; may be repeated"
    )
    job.add_argument("--value", metavar="COLUMN", help="holds the JSON (default: a row becomes an object)")
    job.add_argument("--partition", metavar="COLUMN", help="names the partition")
    job.add_argument("--transaction-id", metavar="COLUMN", help="names the message: stored once per partition")
    job.add_argument("--order-by", metavar="COLUMNS", type=_names, default=[], help="order within a partition")
    job.add_argument("--where", metavar="SQL", help="a predicate over the columns of the source")
    job.add_argument("--name", help="of this backfill: one of the same name is not done twice")
    _add_common(job)


def _add_window(jobs: Commands[argparse.ArgumentParser]) -> None:
    job = jobs.add_parser("window", help="aggregate a queue into another, by windows of time; runs until Ctrl-C")
    job.add_argument("--file", required=True, type=Path, help="the declaration (YAML, see docs/pipeline.md)")
    job.add_argument("--checkpoint", required=True, metavar="PLACE", help="where Spark keeps its progress")
    job.add_argument("--trigger", default="1 second", metavar="TIME", help="between batches (default %(default)s)")
    job.add_argument("--available-now", action="store_true", help="what is there now, then end")
    job.add_argument("--seconds", type=float, metavar="S", help="end after this time")
    job.add_argument(
        "--start", choices=("earliest", "latest"), default="earliest", help="of the first run (default %(default)s)"
    )
    _add_common(job)


def _add_analytics(jobs: Commands[argparse.ArgumentParser]) -> None:
    job = jobs.add_parser("analytics", help="rates, lag, latency, dead letters and skew by queue, group and minute")
    job.add_argument("--queue", help="only this one (default: all)")
    job.add_argument("--lake", metavar="PLACE", help="write the rows there, too")
    job.add_argument(
        "--back", type=float, default=60, metavar="MINUTES", help="of the first look (default %(default)s)"
    )
    job.add_argument("--every", type=float, metavar="S", help="go on, a look every so many seconds, until Ctrl-C")
    job.add_argument("--times", type=_positive, metavar="N", help="end after so many looks")
    _add_common(job)


def _add_bench(jobs: Commands[argparse.ArgumentParser]) -> None:
    job = jobs.add_parser("bench", help="measure source, sink and jobs in queues of their own")
    job.add_argument("--messages", type=_positive, default=1_000_000, metavar="N", help="default %(default)s")
    job.add_argument("--partitions", type=_positive, default=1_000, metavar="N", help="default %(default)s")
    job.add_argument("--payload", type=_positive, default=230, metavar="BYTES", help="default %(default)s")
    job.add_argument("--rounds", type=_positive, default=3, metavar="N", help="of the reads (default %(default)s)")
    job.add_argument("--jdbc-jar", metavar="FILE", help="PostgreSQL's driver: compare with Spark's own reader, too")
    job.add_argument("--postgres", type=_positive, metavar="PID", help="of the database, to count its CPU")
    job.add_argument("--only", type=_names, default=[], metavar="NAMES", help="such as read,archive")
    job.add_argument("--server", metavar="URL", help="of the same database: measure latency over HTTP")
    _add_common(job)


def _add_lake(job: argparse.ArgumentParser) -> None:
    job.add_argument("--lake", required=True, metavar="PLACE", help="a folder, or a URI such as s3://bucket/folder")


def _add_common(job: argparse.ArgumentParser) -> None:
    job.add_argument("--url", help="PostgreSQL (default: DATABASE_URL, or the bundled one that runs)")
    job.add_argument("--data-dir", type=Path, metavar="FOLDER", help="of the bundled PostgreSQL (QUEEN_DATA_DIR)")
    job.add_argument("--master", default=LOCAL, help="Spark master (default %(default)s)")
    job.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="of Spark; may be repeated")
    job.add_argument("--json", action="store_true", help="print the result as JSON")


def run(given: argparse.Namespace) -> int:
    from queenmq.pipeline import PipelineError, require
    from queenmq.pipeline.errors import explained

    try:
        require()
        url = _url(given)
        if given.job == "runs":
            return _show_runs(given, url)
        if given.job == "archive" and given.forget:
            return _forget(given, url)
        return _run_job(given, url)
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
        raise StartupError(told.message) from error


def _url(given: argparse.Namespace) -> str:
    if given.url:
        url: str = given.url
        return url
    settings = config.load(data_dir=given.data_dir)
    if settings.uses_bundled_database:
        return running_url(settings.data_dir or default_data_dir())
    return dsn(settings)


def _run_job(given: argparse.Namespace, url: str) -> int:
    from queenmq.pipeline.display import Progress, as_json, table
    from queenmq.pipeline.runs import Run
    from queenmq.pipeline.session import session

    work = _job(given, url)
    confs = dict(_pair(text) for text in given.conf)
    if getattr(given, "jdbc_jar", None):
        confs["spark.jars"] = given.jdbc_jar
    hidden = {"url", "into_url", "data_dir", "command", "json", "conf", "option"}
    shown = {name: value for name, value in vars(given).items() if name not in hidden and value not in (None, [])}
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


def _job(given: argparse.Namespace, url: str) -> Callable[[Any, Any], Any]:
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


def _window(given: argparse.Namespace, url: str) -> Callable[[Any, Any], Any]:
    from queenmq.pipeline.jobs import window as w
    from queenmq.pipeline.window_spec import parse

    try:
        spec = parse(given.file.read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"the window file cannot be read: {error.strerror}") from None
    settings = w.Settings(url, spec, given.checkpoint, given.trigger, given.available_now, given.seconds, given.start)
    given.queue = spec.source
    return lambda spark, run: w.window(spark, settings, run)


def _forget(given: argparse.Namespace, url: str) -> int:
    from queenmq.pipeline.connection import connection, rows
    from queenmq.pipeline.lake import Lake

    with connection(url) as opened:
        rows(opened, "archive_forget", Lake(given.lake).name, given.queue)
    print(f"retention of {given.queue} no longer waits for {given.lake}")
    return 0


def _show_runs(given: argparse.Namespace, url: str) -> int:
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


def _names(raw: str) -> list[str]:
    return [name.strip() for name in raw.split(",") if name.strip()]


def _positive(raw: str) -> int:
    if not raw.isdecimal() or int(raw) < 1:
        raise argparse.ArgumentTypeError(f"{raw!r} is not a whole number above 0")
    return int(raw)


def _moment(raw: str) -> datetime:
    try:
        return parse_timestamp(raw, "the time")
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(error.message) from None
