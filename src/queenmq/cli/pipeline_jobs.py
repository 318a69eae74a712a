"""Running what `queen pipeline` was asked for: the database, the job's settings, Spark, and the result."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from queenmq.cli import exits
from queenmq.cli.pipeline_streams import STREAMS, Given, Job, pair
from queenmq.clock import SYSTEM
from queenmq.errors import QueenError, StartupError

if TYPE_CHECKING:
    from queenmq.config import DatabaseSettings


_OF_A_QUEUE: Final = ("analytics", "archive", "audit", "copy", "infer", "upsert", "window")


def run(given: Given) -> int:
    with in_sentences():
        url = url_of(given)
        if given.job == "runs":
            return _show_runs(given, url)
        if given.job == "accept-gaps":
            return _accept_gaps(given, url)
        if given.job == "compact":
            return _compact(given, url)
        if given.job == "archive" and given.forget:
            return _forget(given, url)
        return _run_job(given, url)


@contextmanager
def in_sentences() -> Iterator[None]:
    """What goes wrong with the pipeline is reported in a sentence, and by the exit status."""
    from queenmq.pipeline import PipelineError, require
    from queenmq.pipeline.errors import NoSuchQueue, explained

    try:
        require()
        yield
    except NoSuchQueue as error:
        raise exits.Failed(error.message, exits.NOT_FOUND) from error
    except PipelineError as error:
        raise StartupError(error.message) from error
    except StartupError:
        raise
    except QueenError as error:
        raise StartupError(error.message) from error
    except exits.Failed:
        raise
    except Exception as error:
        told = explained(error)
        if type(told) is PipelineError and type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            raise
        status = exits.NOT_FOUND if isinstance(told, NoSuchQueue) else exits.FAILED
        raise exits.Failed(told.message, status) from error


def url_of(given: Given) -> str:
    if given.url:
        url: str = given.url
        return url
    from queenmq import config
    from queenmq.storage.connecting import dsn
    from queenmq.storage.embedded import default_data_dir, running_url

    settings = config.load(flags={"QUEEN_DATA_DIR": given.data_dir})
    if settings.database.is_bundled:
        return running_url(settings.server.data_dir or default_data_dir())
    return _with_tls(dsn(settings.database), settings.database)


def _with_tls(url: str, database: DatabaseSettings) -> str:
    """PG_USE_SSL in the words of libpq, which reads the URL here; what the URL itself says about TLS stays."""
    if not database.use_ssl or "sslmode=" in url:
        return url
    wanted = "sslmode=verify-full&sslrootcert=system" if database.ssl_reject_unauthorized else "sslmode=require"
    return f"{url}{'&' if '?' in url else '?'}{wanted}"


def _run_job(given: Given, url: str) -> int:
    from queenmq.pipeline.display import Progress, as_json, table
    from queenmq.pipeline.lake import check_address
    from queenmq.pipeline.runs import Run
    from queenmq.pipeline.session import session

    check_address(getattr(given, "lake", None) or "")  # before it is recorded
    work = _JOBS[given.job](given, url)
    confs = dict(pair(text) for text in given.conf)
    if getattr(given, "jdbc_jar", None):
        confs["spark.jars"] = given.jdbc_jar
    hidden = {"url", "into_url", "data_dir", "command", "json", "conf", "option"}
    shown = {name: value for name, value in vars(given).items() if name not in hidden and value not in (None, [], ())}
    begun = SYSTEM.monotonic()
    with _terminable(), Run(url, given.job, getattr(given, "queue", None), given.master, shown) as run:
        _check_names(given, url)
        spark = session(given.master, f"queen {given.job}", confs)
        with Progress(spark, run):
            outcome = work(spark, run)
    seconds = SYSTEM.monotonic() - begun
    if given.json:
        print(as_json(run, seconds))
    elif given.job == "infer":
        print(json.dumps(outcome.summary["schema"], indent=2, ensure_ascii=False))
    else:
        print(table({"job": given.job, "run": run.id, "seconds": f"{seconds:.1f}", **outcome.summary}))
    return 0 if outcome.ok else 1


def _check_names(given: Given, url: str) -> None:
    """A misspelt name is found before Spark starts, which takes its time."""
    from queenmq.pipeline.connection import connection, rows
    from queenmq.pipeline.errors import BadOption, NoSuchQueue
    from queenmq.pipeline.lake import Lake, published

    with connection(url) as opened:
        # Without one, analytics is about all queues.
        needed = getattr(given, "queues", [given.queue] if given.job in _OF_A_QUEUE and given.queue else [])
        for queue in needed:
            if not rows(opened, "pipeline_queue", queue):
                raise NoSuchQueue(f"there is no queue {queue!r}")
        if given.job == "replay" and not published(opened, Lake(given.lake), given.queue):
            raise BadOption(f"the lake {given.lake!r} has no published file of queue {given.queue!r}")


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a job as Ctrl-C does, so that its run is recorded as ended."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _archive(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.archive import Settings, archive

    settings = Settings(
        url=url,
        queue=given.queue,
        lake=given.lake,
        schema=given.schema,
        format=given.format,
        file_bytes=given.file_mb << 20,
    )
    return lambda spark, run: archive(spark, settings, run)


def _replay(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.replay import Settings, replay

    settings = Settings(
        url=url,
        queue=given.queue,
        lake=given.lake,
        into=given.into,
        into_url=given.into_url,
        since=given.since,
        until=given.until,
        partitions=tuple(given.partition),
        where=given.where,
        rate=given.rate,
        name=given.name,
    )
    return lambda spark, run: replay(spark, settings, run)


def _audit(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.audit import Settings, audit

    settings = Settings(url, given.queue, given.lake, given.plot)
    return lambda spark, run: audit(spark, settings, run)


def _infer(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.infer import Settings, infer

    settings = Settings(url=url, queue=given.queue, sample=given.sample)
    return lambda spark, run: infer(spark, settings, run)


def _analytics(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.analytics import Settings, analytics

    back = timedelta(minutes=given.back)
    settings = Settings(url, given.queue, given.lake, back, given.every, given.times)
    return lambda spark, run: analytics(spark, settings, run)


def _bench(given: Given, url: str) -> Job:
    from queen_bench.pipeline.jobs import Settings, bench

    settings = Settings(
        url=url,
        messages=given.messages,
        partitions=given.partitions,
        payload=given.payload,
        rounds=given.rounds,
        jdbc=bool(given.jdbc_jar),
        postgres=given.postgres,
        only=tuple(given.only),
        server=given.server,
        growth=given.growth,
    )
    return lambda spark, run: bench(spark, settings, run)


def _backfill(given: Given, url: str) -> Job:
    from queenmq.pipeline.jobs.backfill import Settings, backfill

    settings = Settings(
        url=url,
        queue=given.queue,
        format=given.format,
        path=given.path,
        options=dict(pair(text) for text in given.option),
        value=given.value,
        partition=given.partition,
        transaction=given.transaction_id,
        order=tuple(given.order_by),
        where=given.where,
        name=given.name,
    )
    return lambda spark, run: backfill(spark, settings, run)


# Each makes its settings, and refuses wrong ones, before Spark starts.
_JOBS: Final[dict[str, Callable[[Given, str], Job]]] = {
    "archive": _archive,
    "replay": _replay,
    "audit": _audit,
    "backfill": _backfill,
    "infer": _infer,
    "analytics": _analytics,
    "bench": _bench,
    **STREAMS,
}


def _forget(given: Given, url: str) -> int:
    from queenmq.pipeline.connection import connection, rows
    from queenmq.pipeline.lake import Lake

    with connection(url) as opened:
        rows(opened, "archive_forget", Lake(given.lake).name, given.queue)
    print(f"retention of {given.queue} no longer waits for {given.lake}")
    return 0


def _compact(given: Given, url: str) -> int:
    from queenmq.pipeline.display import as_json, table
    from queenmq.pipeline.jobs.compact import Settings, compact
    from queenmq.pipeline.lake import check_address
    from queenmq.pipeline.runs import Run

    check_address(given.lake)
    settings = Settings(
        url=url, queue=given.queue, lake=given.lake, keep_days=given.keep_days, file_bytes=given.file_mb << 20
    )
    begun = SYSTEM.monotonic()
    options = {"lake": given.lake, "keep_days": given.keep_days, "file_mb": given.file_mb}
    with _terminable(), Run(url, "compact", given.queue, "none", options) as run:
        outcome = compact(settings, run)
    seconds = SYSTEM.monotonic() - begun
    print(as_json(run, seconds) if given.json else table({"job": "compact", "run": run.id, **outcome.summary}))
    return 0


def _accept_gaps(given: Given, url: str) -> int:
    from queenmq.pipeline.connection import connection, rows
    from queenmq.pipeline.errors import NoSuchQueue

    with connection(url) as opened:
        if not rows(opened, "pipeline_queue", given.queue):
            raise NoSuchQueue(f"there is no queue {given.queue!r}")
        found = rows(opened, "pipeline_accept_gaps", given.queue, given.partition)
    for name, first, last in found:
        print(f"{name}: {f'offset {first}' if first == last else f'offsets {first} to {last}'}")
    total = sum(last - first + 1 for _, first, last in found)
    print(f"{total} missing messages of {given.queue} are accepted" if total else "nothing is missing")
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
