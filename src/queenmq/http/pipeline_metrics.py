"""The metric families of declared pipelines."""

from __future__ import annotations

from queenmq.http.exposition import Exposition
from queenmq.reports.pipeline import Pipeline


def add_pipelines(page: Exposition, found: list[Pipeline]) -> None:
    """Every server says the same: what supervisors and drivers have reported to the database."""
    for one in found:
        who = {"pipeline": one.name}
        page.gauge(
            "queen_pipeline_wanted",
            "1 if the pipeline shall run, 0 if it was stopped.",
            int(one.wanted == "running"),
            **who,
        )
        page.gauge(
            "queen_pipeline_running", "1 while the driver of the pipeline runs.", int(one.state == "running"), **who
        )
        page.gauge(
            "queen_pipeline_lag_messages", "Stored messages that the pipeline has not processed yet.", one.lag, **who
        )
        page.gauge(
            "queen_pipeline_lag_seconds",
            "Everything that was pushed more than so many seconds ago is processed by the pipeline.",
            one.lag_seconds,
            **who,
        )
        page.counter("queen_pipeline_rows_total", "Messages that the pipeline has processed.", one.rows, **who)
        page.counter("queen_pipeline_batches_total", "Batches that the pipeline has ended.", one.batches, **who)
        page.gauge(
            "queen_pipeline_batch_seconds", "Duration of the last batch of the pipeline.", one.batch_seconds, **who
        )
        page.counter(
            "queen_pipeline_starts_total", "How often a driver of the pipeline was started.", one.starts, **who
        )
        page.gauge("queen_pipeline_failures", "Starts of the pipeline that have failed in a row.", one.failures, **who)
