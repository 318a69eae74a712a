"""What the verbs of a broker have in common, and what the settings mean for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queenmq.broker.activity import Activity
from queenmq.broker.caches import CacheBounds
from queenmq.broker.lane import Lane, Vegas
from queenmq.broker.lock_wait import LockWait
from queenmq.broker.long_polls import LongPolls
from queenmq.broker.merging import Policy
from queenmq.broker.queue_options import QueueOptions
from queenmq.clock import Clock
from queenmq.config import ConcurrencySettings, LaneSettings, Settings
from queenmq.core.group_backoff import BackoffSettings
from queenmq.journal.files import JournalBounds
from queenmq.journal.interface import Journal
from queenmq.journal.push_journal import PushJournal
from queenmq.journal.shared import JournalSharing, RemoteJournal, SharedJournal
from queenmq.storage.database import Database


@dataclass(frozen=True, slots=True)
class Parts:
    database: Database
    activity: Activity
    long_polls: LongPolls[Any]
    locks: LockWait


def cache_bounds_of(settings: Settings) -> CacheBounds:
    return CacheBounds(
        partition_ids=settings.cache.partition_max, partition_id_ttl_s=settings.cache.partition_ttl_ms / 1000
    )


def backoff_of(settings: Settings, queues: QueueOptions) -> Callable[[str], BackoffSettings]:
    """How often long polls of a queue are probed."""
    usual = BackoffSettings(
        base_s=settings.pop.wait_initial_interval_ms / 1000,
        threshold=settings.pop.wait_backoff_threshold,
        multiplier=settings.pop.wait_backoff_multiplier,
        longest_s=settings.pop.wait_max_interval_ms / 1000,
    )
    return lambda queue: queues.backoff(queue, usual)


def policy_of(settings: Settings, lane: LaneSettings) -> Policy:
    return Policy(
        preferred=lane.preferred_batch_size,
        max_hold_s=lane.max_hold_ms / 1000,
        max_requests=lane.max_batch_size,
        max_weight=settings.lanes.max_items_per_call,
        max_concurrent=lane.max_concurrent,
        max_pending=settings.limits.max_pending,
    )


def concurrency_of(concurrency: ConcurrencySettings) -> Vegas | None:
    return Vegas(concurrency) if concurrency.mode == "vegas" else None


def journal_of(settings: Settings, shared: JournalSharing | None, clock: Clock) -> Journal | None:
    """The journal; with `shared`, that of all workers, which the one with the listener keeps."""
    if settings.journal.folder is None:
        return None
    bounds = JournalBounds(
        max_bytes=settings.journal.max_bytes,
        max_records=settings.journal.max_records,
        records_per_file=settings.journal.records_per_file,
    )
    if shared is None:
        return PushJournal(settings.journal.folder, bounds, settings.server.encryption_keys, clock=clock)
    if shared.listener is None:
        return RemoteJournal(shared, bounds, clock)
    return SharedJournal(shared, settings.journal.folder, bounds, settings.server.encryption_keys, clock)


def figures_of(lane: Lane[Any, Any]) -> dict[str, float]:
    """Calls, requests, items and seconds since the start, and what waits and runs now."""
    return {
        "calls": lane.calls,
        "requests": lane.requests,
        "items": lane.items,
        "seconds": lane.seconds,
        "pending": lane.pending,
        "in_flight": lane.in_flight,
    }
