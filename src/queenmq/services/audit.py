"""Writes the refusals that the audit log has counted, and deletes its old rows."""

from __future__ import annotations

from typing import Final

from queenmq.access.audit import AuditLog
from queenmq.clock import SYSTEM, Clock
from queenmq.services.service import Service

INTERVAL_MS: Final = 60_000
_TURNS_A_SWEEP: Final = 30


class AuditKeeper(Service):
    name = "audit log"

    def __init__(self, audit: AuditLog, clock: Clock = SYSTEM) -> None:
        super().__init__(INTERVAL_MS if audit.enabled else 0, clock)
        self._audit = audit
        self._turns = 0

    async def work(self) -> None:
        await self._audit.flush()
        if self._turns % _TURNS_A_SWEEP == 0:
            await self._audit.forget()
        self._turns += 1
