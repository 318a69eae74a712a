"""analytics: what happened in each queue, group and minute, into `queen.pipeline_analytics` and, if asked, into the
lake.

Arrivals are counted from the messages, with the hottest partitions and the skew. Consumption, lag, retries and
latency are samples of where the groups stand when the job runs: run it every minute (`--every`) for rates by the
minute. Only minutes that are over are counted, and each is in one file of the lake: the sample that a run takes comes
with the file of the next one. A lake gets what it lacks, also what runs without it have stored meanwhile.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from queenmq.clock import SYSTEM, utc_now
from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.frames import read
from queenmq.pipeline.generation import hold_generation
from queenmq.pipeline.lake import Lake, folder_of
from queenmq.pipeline.runs import Outcome, Run

HOTTEST: Final = 5
MINUTE: Final = timedelta(minutes=1)
# Folders and files of the lake that are ours.
_DAY: Final = re.compile(r"/date=\d{4}-\d\d-\d\d$")
_FILE: Final = re.compile(r"/\d{4}\.parquet$")


@dataclass(frozen=True)
class Settings:
    url: str
    queue: str | None = None
    lake: str | None = None
    back: timedelta = timedelta(hours=1)
    every: float | None = None
    times: int | None = None


def analytics(spark: Any, settings: Settings, run: Run) -> Outcome:
    """One sample, or one every so many seconds until Ctrl-C or `times` are done."""
    samples = 0
    minutes = 0
    try:
        while True:
            begun = SYSTEM.monotonic()
            minutes += sample(spark, settings, run)
            samples += 1
            if settings.every is None or samples == settings.times:
                break
            time.sleep(max(0.0, settings.every - (SYSTEM.monotonic() - begun)))
    except KeyboardInterrupt:
        pass
    run.outcome.offsets = {"messages": run.outcome.rows}
    run.outcome.summary = {"messages": run.outcome.rows, "minutes": minutes, "samples": samples}
    return run.outcome


def sample(spark: Any, settings: Settings, run: Run, now: datetime | None = None) -> int:
    """Every queue once. Returns the rows stored."""
    until = (now or utc_now()).replace(second=0, microsecond=0)
    stored = 0
    with connection(settings.url) as opened:
        for queue, known in rows(opened, "analytics_queues", settings.queue):
            since = max(known + MINUTE, until - settings.back) if known else until - settings.back
            found = _arrivals(spark, settings.url, queue, since, until) if since < until else []
            found += _groups(opened, queue, until)
            found += _dead(opened, queue, min(since, until - MINUTE), until)
            merged = _merged(found)
            with opened.transaction():
                hold_generation(opened)
                rows(opened, "analytics_store", queue, json.dumps(merged, default=str))
                if settings.lake:
                    # Before the commit: a run that dies in between has written what the next one finds again.
                    _to_lake(opened, Lake(settings.lake), queue, until - settings.back, until)
            stored += len(merged)
            run.progress(sum(one.get("arrived") or 0 for one in found))
    return stored


def _arrivals(spark: Any, url: str, queue: str, since: datetime, until: datetime) -> list[dict[str, Any]]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    bounds = {"startingTimestamp": since.isoformat(), "endingTimestamp": until.isoformat()}
    keys = read(
        spark,
        url,
        queue,
        columns="partition string, timestamp timestamp",
        failOnDataLoss=False,
        encryptedPayloads="null",
        **bounds,
    )
    # A number: PySpark hands times out in the time zone of the driver's machine.
    minute = f.floor(f.unix_seconds("timestamp") / 60).alias("minute")
    counted = keys.groupBy(minute, "partition").agg(f.count("*").alias("arrived"))
    ranked = counted.withColumn(
        "rank", f.row_number().over(Window.partitionBy("minute").orderBy(f.desc("arrived"), "partition"))
    )
    hot = f.when(f.col("rank") <= HOTTEST, f.struct("rank", "partition", "arrived"))
    summed = ranked.groupBy("minute").agg(
        f.sum("arrived").alias("arrived"),
        (f.max("arrived") / f.avg("arrived")).alias("skew"),
        f.sort_array(f.collect_list(hot)).alias("hot"),
    )
    found = {datetime.fromtimestamp(row["minute"] * 60, UTC): row for row in summed.collect()}
    # A minute without messages is a fact, too: it is the last one that is known.
    found.setdefault(until - MINUTE, None)
    return [_arrived(at, row) for at, row in found.items()]


def _arrived(at: datetime, row: Any) -> dict[str, Any]:
    made = {"consumer_group": "", "minute": at.isoformat()}
    if row is None:
        return made | {"arrived": 0}
    hottest = [{"partition": one["partition"], "arrived": one["arrived"]} for one in row["hot"]]
    return made | {"arrived": row["arrived"], "skew": row["skew"], "hottest": hottest}


def _groups(opened: Any, queue: str, until: datetime) -> list[dict[str, Any]]:
    found = []
    for group, lag, total, retries, latency in rows(opened, "analytics_sample", queue, until - MINUTE):
        took = dict(zip(("p50", "p95", "p99"), latency, strict=True)) if latency and latency[0] is not None else None
        made = {"consumer_group": group, "minute": until.isoformat(), "lag": lag, "total_consumed": total}
        found.append(made | {"retries": retries, "latency_ms": took})
    return found


def _dead(opened: Any, queue: str, since: datetime, until: datetime) -> list[dict[str, Any]]:
    found: dict[tuple[str, datetime], dict[str, int]] = {}
    for group, minute, reason, count in rows(opened, "analytics_dead", queue, since, until):
        found.setdefault((group, minute), {})[reason] = count
    return [
        {"consumer_group": group, "minute": at.isoformat(), "dead_letters": sum(by.values()), "reasons": by}
        for (group, at), by in found.items()
    ]


def _merged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a group and minute."""
    by: dict[tuple[str, str], dict[str, Any]] = {}
    for one in found:
        by.setdefault((one["consumer_group"], one["minute"]), {}).update(one)
    return list(by.values())


def _to_lake(opened: Any, lake: Lake, queue: str, earliest: datetime, until: datetime) -> None:
    """A file of the minutes that are over and that the lake has not, named after the first: written again, it is
    replaced. A lake that has none begins at `earliest`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = f"analytics/{folder_of(queue)}"
    newest = _newest_in(lake, folder)
    since = earliest if newest is None else newest + MINUTE
    # Of every file the same, also if a column has nothing.
    kinds = {
        "queue": pa.string(),
        "group": pa.string(),
        "minute": pa.timestamp("us", "UTC"),
        "arrived": pa.int64(),
        "consumed": pa.int64(),
        "lag": pa.int64(),
        "latency_ms": pa.string(),
        "retries": pa.int64(),
        "dead_letters": pa.int64(),
        "reasons": pa.string(),
        "hottest": pa.string(),
        "skew": pa.float64(),
    }
    found = rows(opened, "analytics_minutes", queue, since, until)
    if not found:
        return
    columns = zip(*found, strict=True)
    table = pa.table([list(column) for column in columns], pa.schema(kinds))
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    lake.write(f"{folder}/date={since:%Y-%m-%d}/{since:%H%M}.parquet", buffer.getvalue())


def _newest_in(lake: Lake, folder: str) -> datetime | None:
    """The newest minute that the lake has of a queue. Only the newest day is listed, and its last file read."""
    for day in sorted(filter(_DAY.search, lake.entries(folder)), reverse=True):
        if files := sorted(filter(_FILE.search, lake.entries(day))):
            found: list[datetime] = []
            for batch in lake.batches(files[-1], 10_000, ["minute"]):
                found += batch.column("minute").to_pylist()
            return max(found)
    return None
