"""The engine of one server: the operations, wired to one database and to each other's wake-ups."""

from __future__ import annotations

from queenmq.clock import Clock
from queenmq.config import Settings
from queenmq.engine.ack import Acker
from queenmq.engine.administration import Administration
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.lease import Leases
from queenmq.engine.pop import Popper
from queenmq.engine.push import Pusher
from queenmq.engine.transaction import Transactor
from queenmq.engine.waiters import Waiters
from queenmq.storage.database import Database


class Engine:
    def __init__(self, settings: Settings, database: Database, clock: Clock) -> None:
        self.settings = settings
        self.encryption = PayloadEncryption(settings.encryption_key)
        self.waiters = Waiters(settings.max_waiters)
        wake, pending = self.waiters.wake, settings.max_pending
        self.leases = Leases(database, pending, freed=wake)
        self.pusher = Pusher(database, self.encryption, pending, pushed=wake)
        self.popper = Popper(settings, database, self.encryption, self.leases, self.waiters, clock)
        self.acker = Acker(database, pending, freed=wake)
        self.transactor = Transactor(database, self.encryption, pending, changed=wake)
        self.administration = Administration(database, self.encryption, settings.worker_id, changed=wake)

    def end_long_polls(self) -> None:
        """Answer every waiting long poll now."""
        self.waiters.close()

    async def close(self) -> None:
        """Finish what was submitted. The HTTP front has stopped before."""
        self.waiters.close()
        for batcher in (self.pusher.batcher, self.acker.batcher, self.popper.batcher):
            await batcher.close()
        await self.leases.close()
