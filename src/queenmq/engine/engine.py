"""The engine of one server: the operations, wired to one database and to each other's wake-ups."""

from __future__ import annotations

from collections.abc import Collection

from queenmq.clock import Clock, SystemClock
from queenmq.cluster.node import Node
from queenmq.config import Settings
from queenmq.core.vegas import Vegas, VegasSettings
from queenmq.engine.ack import Acker
from queenmq.engine.activity import Activity
from queenmq.engine.administration import Administration
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.lease import Leases
from queenmq.engine.live import Live
from queenmq.engine.load import LoadWatch
from queenmq.engine.long_operations import LongOperations
from queenmq.engine.maintenance import Maintenance
from queenmq.engine.operations import Operations
from queenmq.engine.places import Places
from queenmq.engine.pop import Popper
from queenmq.engine.push import Pusher
from queenmq.engine.queue_settings import QueueSettings
from queenmq.engine.reports import Reports
from queenmq.engine.sidecar import Policy, Sidecar
from queenmq.engine.statistics import Statistics
from queenmq.engine.streams import Streams
from queenmq.engine.transaction import Transactor
from queenmq.engine.unmerged import Unmerged
from queenmq.engine.vitals import Vitals
from queenmq.engine.wake_ups import by_queue
from queenmq.overload.journal import JournalBounds
from queenmq.overload.push_buffer import PushBuffer
from queenmq.storage.database import Database


class Engine:
    def __init__(self, settings: Settings, database: Database, node: Node, clock: Clock | None = None) -> None:
        self.settings = settings
        self.node = node
        self.database = database
        self.vitals = Vitals(clock or SystemClock())
        self.activity = Activity()
        self.statistics = Statistics(database, self.activity, settings, node.server_id)
        self.reports = Reports(database)
        cached = settings.cache_enabled
        self.queue_settings = QueueSettings(database, node, cached=cached)
        self.encryption = PayloadEncryption(settings.encryption_key, self.queue_settings.encrypted)
        self.maintenance = Maintenance(database, node)
        self.load = LoadWatch(database, settings)
        self.buffer = _buffer(settings)
        places = Places(database, node, self.queue_settings, cached=cached)
        self.leases = Leases(database, _policy(settings, "renew_lease"), freed=self.readable)
        self.pusher = Pusher(
            database,
            self.encryption,
            places,
            self.maintenance,
            _policy(settings, "push"),
            _concurrency(settings),
            self.activity,
            pushed=self.readable,
            load=self.load,
            buffer=self.buffer,
            wait_behind_s=settings.journal_wait_ms / 1000,
        )
        self.popper = Popper(
            settings,
            database,
            self.encryption,
            self.leases,
            self.queue_settings,
            node,
            _policy(settings, "pop"),
            _concurrency(settings),
            self.activity,
        )
        self.acker = Acker(database, _policy(settings, "ack"), _concurrency(settings), self.activity, freed=self.freed)
        self.transactor = Transactor(
            database,
            self.encryption,
            places,
            self._unmerged("transactions", places),
            self.activity,
            pushed=self.readable,
            freed=self.freed,
        )
        self.streams = Streams(
            database,
            self.encryption,
            places,
            self._unmerged("stream cycles", places),
            self.activity,
            changed=self.readable,
            freed=self.freed,
        )
        self.long_operations = LongOperations(database, node, settings, self.load, self.activity, changed=self.readable)
        self.administration = Administration(
            database,
            self.encryption,
            self.queue_settings,
            self.long_operations,
            settings.worker_id,
            self.activity,
            changed=self.readable,
        )
        self.operations = Operations(database, node.server_id, pushed=self.readable)
        self.sidecar = Sidecar(
            self.pusher.lane, self.pusher.queue_lane, self.popper.lane, self.acker.lane, self.leases.lane
        )
        self.live = Live()
        node.on_wake = self.popper.waiting.wake
        node.on_maintenance = self.popper.pause_changed
        node.requests = self.requests

    def _unmerged(self, name: str, places: Places) -> Unmerged:
        policy, wait_behind_s = _policy(self.settings, "transaction"), self.settings.journal_wait_ms / 1000
        return Unmerged(name, self.encryption, places, self.maintenance, policy, self.buffer, wait_behind_s)

    def readable(self, queue: str, partitions: Collection[str] | None = None) -> None:
        """Tell long polls, here and on other servers, that something became readable, and where if that is known."""
        self.popper.waiting.wake(queue, partitions)
        self.node.readable(queue, partitions)

    def written_elsewhere(self, queue: str) -> None:
        """The same for messages that no server has written. Every server hears of them by itself."""
        self.popper.waiting.wake(queue)

    def freed(self, leases: Collection[tuple[str, str, str]]) -> None:
        """The same for leases that ended: whoever they kept away may look."""
        for queue, partitions in by_queue((queue, partition) for queue, partition, _ in leases).items():
            self.popper.waiting.wake(queue, partitions)
        self.node.released(leases)

    def requests(self) -> tuple[int, int]:
        """How many long polls are parked, and how many requests wait for the database."""
        return self.popper.waiting.registry.total, sum(lane.outstanding for lane in self.sidecar.lanes)

    def shared_state(self) -> dict[str, object]:
        """What this server knows of the others, its caches, and how busy it is; every counter."""
        return {
            **self.node.statistics(),
            "sidecar": {"registered": 1, "operations": self.sidecar.statistics()},
            "pop_wait": {**self.popper.waiting.registry.statistics(), "parked": self.popper.waiting.registry.parked()},
            "database_calls": self.database.calls,
        }

    def end_long_polls(self) -> None:
        """Answer every waiting long poll now, and end every live stream."""
        self.popper.close()
        self.live.close()

    async def close(self) -> None:
        """Finish what was submitted. The HTTP front has stopped before."""
        self.end_long_polls()
        await self.long_operations.close()
        await self.statistics.close()
        await self.sidecar.close()
        await self.leases.close()
        if self.buffer is not None:
            await self.buffer.close()


def _buffer(settings: Settings) -> PushBuffer | None:
    if settings.file_buffer_dir is None:
        return None
    bounds = JournalBounds(
        max_bytes=settings.journal_max_bytes,
        max_records=settings.journal_max_records,
        records_per_file=settings.file_buffer_events_per_file,
    )
    return PushBuffer(settings.file_buffer_dir, bounds, settings.encryption_key)


def _policy(settings: Settings, operation: str) -> Policy:
    return Policy(
        preferred=getattr(settings, f"{operation}_preferred_batch_size"),
        max_hold_s=getattr(settings, f"{operation}_max_hold_ms") / 1000,
        max_requests=getattr(settings, f"{operation}_max_batch_size"),
        max_weight=settings.max_items_per_call,
        max_concurrent=getattr(settings, f"{operation}_max_concurrent"),
        max_pending=settings.max_pending,
    )


def _concurrency(settings: Settings) -> Vegas | None:
    if settings.concurrency_mode != "vegas":
        return None
    return Vegas(
        VegasSettings(
            min_limit=settings.vegas_min_limit,
            max_limit=settings.vegas_max_limit,
            alpha=settings.vegas_alpha,
            beta=settings.vegas_beta,
            window_samples=settings.vegas_rtt_window_samples,
            min_window_s=settings.vegas_rtt_min_window_s,
            update_interval_s=settings.vegas_update_interval_ms / 1000,
        )
    )
