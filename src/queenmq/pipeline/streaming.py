"""Running the queries of a job that is a stream: until they end, the time is over, Ctrl-C, or the job shall drain.

Queries wait for a PostgreSQL that is restarted. Those that end for it all the same, because it took long or it
crashed, are started again when it is back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from queenmq.clock import SYSTEM
from queenmq.pipeline.errors import DatabaseAway, PipelineError, StagedRowsMissing, explained
from queenmq.pipeline.patience import PATIENCE_S, wait_for
from queenmq.pipeline.progress import Progress
from queenmq.pipeline.runs import Batch, Run

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2
# A batch that runs may end within this time when the job drains; the supervisor ends it otherwise.
DRAIN_S: Final = 600.0


def run_queries(
    start: Callable[[], list[Any]],
    run: Run,
    url: str,
    *,
    seconds: float | None = None,
    endless: bool = True,
    seen: Callable[[Any], None] = lambda _: None,
) -> int:
    """Start the queries and follow them; `seen` is called with the first one now and then. Returns how often they
    were started again. Raises what a query fails with.
    """
    deadline = None if seconds is None else SYSTEM.monotonic() + seconds
    restarts = 0
    while True:
        try:
            _run_once(start, run, deadline, seen)
        except KeyboardInterrupt:
            return restarts
        except Exception as error:
            found = explained(error)
            if not isinstance(found, DatabaseAway | StagedRowsMissing):
                raise
            restarts += 1
            log.warning("%s; the queries are started again when PostgreSQL answers", found.message)
            wait_for(url, None if endless else PATIENCE_S)
        else:
            return restarts


def run_query(start: Callable[[], Any], run: Run, url: str, *, seconds: float | None, endless: bool) -> None:
    """The same for one query, with an outcome of the messages that it has read."""
    newest, batches = -1, 0

    def seen(query: Any) -> None:
        nonlocal newest, batches
        for one in query.recentProgress:
            if one["batchId"] > newest:
                newest = one["batchId"]
                batches += 1
                run.progress(int(one["numInputRows"]))

    restarts = run_queries(lambda: [start()], run, url, seconds=seconds, endless=endless, seen=seen)
    outcome = run.outcome
    outcome.offsets = {"messages": outcome.rows}
    outcome.summary = {"messages read": outcome.rows, "batches": batches}
    if restarts:
        outcome.summary["restarts after an outage"] = restarts


def _run_once(start: Callable[[], list[Any]], run: Run, deadline: float | None, seen: Callable[[Any], None]) -> None:
    queries = start()
    reported = dict.fromkeys(range(len(queries)), -1)
    try:
        while any(query.isActive for query in queries) and not run.drain.is_set():
            _raise_failure(queries)
            seen(queries[0])
            _report(queries, reported, run)
            if deadline is not None and SYSTEM.monotonic() > deadline:
                break
            queries[0].awaitTermination(LOOK_S)
        if run.drain.is_set():
            _let_end(queries)
        _raise_failure(queries)
        _report(queries, reported, run)
    finally:
        for query in queries:
            query.stop()
        seen(queries[0])


def _let_end(queries: list[Any]) -> None:
    """Wait for the batches that run. The source gives no more messages, so that no other one follows."""
    deadline = SYSTEM.monotonic() + DRAIN_S
    for query in queries:
        while query.isActive and query.status["isTriggerActive"] and SYSTEM.monotonic() < deadline:
            query.awaitTermination(LOOK_S)


def _report(queries: list[Any], reported: dict[int, int], run: Run) -> None:
    if not run.wants_batches:
        return
    for number, query in enumerate(queries):
        for one in query.recentProgress:
            if one["batchId"] > reported[number]:
                reported[number] = one["batchId"]
                run.batch(batch_of(one, query.name or ""))


def batch_of(progress: Any, query: str) -> Batch:
    """What Spark says about a batch that has ended."""
    seconds = (progress["durationMs"] or {}).get("triggerExecution", 0) / 1000
    begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
    positions: dict[str, int] = {}
    complete = True
    for source in progress["sources"]:
        # Sources that are not ours have offsets of their own.
        with suppress(PipelineError, ValueError, TypeError):
            end = Progress.of(json.loads(source["endOffset"]))
            positions[end.queue_id] = sum(end.positions.values())
            if source["latestOffset"]:
                latest = Progress.of(json.loads(source["latestOffset"]))
                complete = complete and sum(latest.positions.values()) <= positions[end.queue_id]
    return Batch(
        number=int(progress["batchId"]),
        query=query,
        rows=int(progress["numInputRows"]),
        seconds=seconds,
        ended=begun + seconds,
        positions=positions,
        covered=begun if complete and positions else None,
    )


def _raise_failure(queries: list[Any]) -> None:
    for query in queries:
        if (error := query.exception()) is not None:
            raise error
