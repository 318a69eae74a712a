"""The engine of one server: the operations, wired to one database and to each other's wake-ups."""

from __future__ import annotations

from collections.abc import Collection

from queenmq.config import Settings
from queenmq.core.vegas import Vegas, VegasSettings
from queenmq.engine.ack import Acker
from queenmq.engine.administration import Administration
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.lease import Leases
from queenmq.engine.pop import Popper
from queenmq.engine.push import Pusher
from queenmq.engine.sidecar import Policy, Sidecar
from queenmq.engine.transaction import Transactor
from queenmq.storage.database import Database


class Engine:
    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.encryption = PayloadEncryption(settings.encryption_key)
        self.leases = Leases(database, _policy(settings, "renew_lease"), freed=self.wake)
        self.pusher = Pusher(
            database, self.encryption, _policy(settings, "push"), _concurrency(settings), pushed=self.wake
        )
        self.popper = Popper(
            settings, database, self.encryption, self.leases, _policy(settings, "pop"), _concurrency(settings)
        )
        self.acker = Acker(database, _policy(settings, "ack"), _concurrency(settings), freed=self.wake)
        self.transactor = Transactor(database, self.encryption, _policy(settings, "transaction"), changed=self.wake)
        self.administration = Administration(database, self.encryption, settings.worker_id, changed=self.wake)
        self.sidecar = Sidecar(self.pusher.lane, self.popper.lane, self.acker.lane, self.leases.lane)

    def wake(self, queue: str, partitions: Collection[str] | None = None) -> None:
        """Tell long polls that something became readable in a queue, and where if that is known."""
        self.popper.waiting.wake(queue, partitions)

    def end_long_polls(self) -> None:
        """Answer every waiting long poll now."""
        self.popper.waiting.close()

    async def close(self) -> None:
        """Finish what was submitted. The HTTP front has stopped before."""
        self.end_long_polls()
        await self.sidecar.close()
        await self.leases.close()


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
