"""How several servers together were, from the samples that each of them stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from queenmq.reports.scope import TimeRange
from queenmq.reports.servers import Sample, by_bucket, last_of_each, measured, together

BUCKET = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def spread(last: float, **others: float) -> dict[str, float]:
    return {"avg": last, "min": last, "max": last, "last": last} | others


def sample(server: str, bucket: datetime = BUCKET, **changes: Any) -> Sample:
    figures = {
        "event_loop": {"lag_ms": spread(2.5, max=10), "free_slots": spread(4, min=1)},
        "threadpool": {"db": {"queue_size": spread(1, max=6)}, "system": {"queue_size": spread(0)}},
        "database": {"pool_size": spread(5), "pool_idle": spread(3), "pool_active": spread(2)},
        "cpu": {"user_us": spread(100), "system_us": spread(50), "interval_us": spread(1000)},
        "memory": {"rss_bytes": spread(1024 * 1024), "virtual_bytes": spread(2)},
        "backoff": {"groups": spread(7)},
        "of a later version": spread(1),
    }
    text = msgspec.json.encode(figures | changes).decode()
    return Sample(server, bucket, "host", 6632, "worker", 12, text, bucket + timedelta(seconds=30))


def test_counts_are_summed_and_averages_averaged() -> None:
    calm = {"event_loop": {"lag_ms": spread(0.5), "free_slots": spread(2)}}
    state = by_bucket([sample("a"), sample("b", **calm)])[BUCKET]
    assert (state.loop_lag_avg_ms, state.loop_lag_max_ms) == (1.5, 10)
    assert (state.free_slots_avg, state.free_slots_min) == (3, 1)
    assert (state.waiting_avg, state.waiting_max) == (1, 6)
    assert (state.connections, state.connections_active, state.connections_idle) == (10, 4, 6)
    assert (state.user_percent, state.system_percent) == (20, 10)
    assert (state.resident_mb, state.backed_off) == (2, 14)


def test_counts_stay_integers() -> None:
    state = together([sample("a").measured()])
    for count in (state.connections, state.connections_active, state.waiting_max, state.backed_off):
        assert isinstance(count, int)


def test_nobody_is_nothing() -> None:
    assert set(msgspec.structs.astuple(together([]))) == {0}


def test_each_bucket_has_its_own_state_and_each_server_its_newest_sample() -> None:
    later = BUCKET + timedelta(minutes=1)
    samples = [sample("a"), sample("a", later), sample("b")]
    assert {bucket: state.connections for bucket, state in by_bucket(samples).items()} == {BUCKET: 10, later: 5}
    assert {name: newest.bucket for name, newest in last_of_each(samples).items()} == {"a": later, "b": BUCKET}


def test_when_no_server_measured() -> None:
    """From minute 10 to 28 nobody was there; the samples of the last minutes may be still to come."""
    there = [*range(10), *range(30, 58)]
    samples = [sample("a", BUCKET + timedelta(minutes=n)) for n in there]
    hour = TimeRange(BUCKET + timedelta(seconds=17), BUCKET + timedelta(minutes=60))
    found = [round((bucket - BUCKET) / timedelta(minutes=1)) for bucket in measured(samples, hour, 60)]
    assert found == [*range(10), *range(28, 61)]
    day = TimeRange(BUCKET - timedelta(hours=23), BUCKET + timedelta(minutes=59))
    assert all(bucket >= BUCKET - timedelta(minutes=17) for bucket in measured(samples, day, 60))
    assert measured([], hour, 60)[0] > BUCKET + timedelta(minutes=56)
