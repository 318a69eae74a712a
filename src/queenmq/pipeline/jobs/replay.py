"""replay: messages from the lake back into a queue, in order, with their ids, throttled, and only once.

The messages are written in steps of time, each a write of its own with a name made of what is replayed: a replay that
is started again, at whatever rate, goes on where it was, and one that is complete writes nothing. In the target a
transactionId that is still stored is not written again either.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from queenmq.clock import SYSTEM
from queenmq.pipeline.connection import connection
from queenmq.pipeline.errors import BadOption, OtherContent
from queenmq.pipeline.lake import Lake, published
from queenmq.pipeline.lake_schema import frame
from queenmq.pipeline.lake_table import check_whole
from queenmq.pipeline.named_write import committed_in, write_once
from queenmq.pipeline.runs import Outcome, Run
from queenmq.pipeline.staging import COLUMNS

STEP_ROWS: Final = 200_000
# How long a step of a throttled replay takes: what is decided goes on if the run is stopped, and then without a rate.
STEP_S: Final = 5.0
# In the place of a step's number: an empty write after the last one.
END: Final = "end"
MOST_MOMENTS: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    queue: str
    lake: str
    into: str | None = None
    into_url: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    partitions: tuple[str, ...] = ()
    where: str | None = None
    rate: float | None = None
    name: str | None = None


def replay(spark: Any, settings: Settings, run: Run) -> Outcome:
    """Raises BadOption before anything is written if the lake has nothing of the queue or the predicate is wrong."""
    lake = Lake(settings.lake)
    with connection(settings.url) as opened:
        files = published(opened, lake, settings.queue)
    if not files:
        raise BadOption(f"the lake {settings.lake!r} has no published file of queue {settings.queue!r}")
    check_whole(lake, settings.url, settings.queue)
    chosen = [f for f in files if _overlaps(f.first_at, f.last_at, settings)]
    found = filtered(spark, lake, chosen, settings)
    outcome = run.outcome
    name = settings.name or name_of(settings, lake, newest_of(found))
    done, ended = _before(settings, name)
    steps = [] if found is None else step_bounds(found, _step_rows(settings), done)
    if [messages for *_, messages in steps][: None if ended else len(done)] != done:
        raise OtherContent(
            f"the replay {name!r} was made before with other messages than those that the lake has for it now: nothing "
            "was written. Give it another --name to write all of these"
        )
    written = there = 0
    begun = SYSTEM.monotonic()
    for number, (first, last, _) in enumerate(steps):
        new, old = write_step(found, settings, _write_name(name, number), first, last)
        written, there = written + new, there + old
        run.progress(new)
        if settings.rate:
            time.sleep(max(0.0, written / settings.rate - (SYSTEM.monotonic() - begun)))
    if steps and not ended:
        _write(found.limit(0), settings, _write_name(name, END))
    outcome.offsets = {"messages": written}
    outcome.summary = {
        "messages written": written,
        "already there": there,
        "steps": len(steps),
        "files read": len(chosen),
        "name": name,
    }
    return outcome


def filtered(spark: Any, lake: Lake, files: list[Any], settings: Settings) -> Any:
    """The messages to replay; None if no file can have any."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    found = frame(spark, lake, files)
    if found is None:
        return None
    if settings.since:
        found = found.where(f.col("timestamp") >= f.lit(settings.since))
    if settings.until:
        found = found.where(f.col("timestamp") < f.lit(settings.until))
    if settings.partitions:
        found = found.where(f.col("partition").isin(*settings.partitions))
    if settings.where:
        try:
            found = found.where(settings.where)
        except (AnalysisException, ParseException) as error:
            raise BadOption(f"the predicate is wrong: {str(error).splitlines()[0]}") from None
    return found


def step_bounds(found: Any, size: int, done: Sequence[int] = ()) -> list[tuple[datetime, datetime, int]]:
    """Spans of time with about `size` messages each (more, if they came at the same moment).

    The same files give the same steps. `done` are the messages of the steps that are written already, which may have
    been of another size: the steps begin with these, if the messages are the same.
    """
    from pyspark.sql import functions as f

    micros = f.unix_micros("timestamp")
    low, high, total = found.agg(f.min(micros), f.max(micros), f.count("*")).first()
    if not total:
        return []
    width = max(1, -(-(high - low + 1) // MOST_MOMENTS))
    moments = found.groupBy(f.floor((micros - low) / width).alias("at")).count().orderBy("at").collect()
    steps: list[tuple[int, int, int]] = []
    first = count = 0
    for row in moments:
        count += row["count"]
        if count >= (done[len(steps)] if len(steps) < len(done) else size):
            steps.append((first, row["at"] + 1, count))
            first, count = row["at"] + 1, 0
    if count:
        steps.append((first, moments[-1]["at"] + 1, count))
    return [(_moment(low + a * width), _moment(low + b * width), n) for a, b, n in steps]


def _before(settings: Settings, name: str) -> tuple[list[int], bool]:
    """The messages of each step that was written, or decided on, by a run before, and whether it came to the end."""
    done: list[int] = []
    with connection(settings.into_url or settings.url) as opened:
        while found := committed_in(opened, _write_name(name, len(done))):
            written, duplicates, _ = found
            done.append(written + duplicates)
        return done, committed_in(opened, _write_name(name, END)) is not None


def write_step(found: Any, settings: Settings, name: str, first: datetime, last: datetime) -> tuple[int, int]:
    """One write. Returns the messages that are new and those that were there already."""
    from pyspark.sql import functions as f

    part = found.where((f.col("timestamp") >= f.lit(first)) & (f.col("timestamp") < f.lit(last)))
    # All of a partition in one task, in its order; times never fall within a partition.
    return _write(
        part.repartition("partition").sortWithinPartitions("partition", "timestamp", "offset"), settings, name
    )


def _write(found: Any, settings: Settings, name: str) -> tuple[int, int]:
    from pyspark.sql import functions as f

    target, url = settings.into or settings.queue, settings.into_url or settings.url
    bound = {"encryptedFor": settings.queue} if target != settings.queue else {}
    throttle = {} if settings.rate is None else {"rowsPerSecond": str(settings.rate)}
    made = found.withColumn("queue", f.lit(target)).select(*COLUMNS)
    return write_once(made, url, name, checkSchema="false", **bound, **throttle)


def newest_of(found: Any) -> datetime | None:
    """When the newest message came. It does not depend on how the messages are spread over files, nor on how many of
    the older ones have expired.
    """
    from pyspark.sql import functions as f

    if found is None:
        return None
    [[micros]] = found.agg(f.max(f.unix_micros("timestamp"))).collect()
    return None if micros is None else _moment(micros)


def name_of(settings: Settings, lake: Lake, newest: datetime | None) -> str:
    """The same for the same replay of the same messages, whenever it is started and whatever became of the files.

    If other messages came with no newer one, the write under this name is refused rather than done again.
    """
    what = {k: v for k, v in asdict(settings).items() if k not in ("url", "into_url", "rate", "name", "lake")}
    text = json.dumps([what, lake.name, newest], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _step_rows(settings: Settings) -> int:
    return max(1, min(STEP_ROWS, int(settings.rate * STEP_S))) if settings.rate else STEP_ROWS


def _write_name(replay: str, step: int | str) -> str:
    return f"replay {replay} {step}"


def _overlaps(first: datetime, last: datetime, settings: Settings) -> bool:
    return (settings.since is None or last >= settings.since) and (settings.until is None or first < settings.until)


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
