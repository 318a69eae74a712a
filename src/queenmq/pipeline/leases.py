"""What a supervisor asks of PostgreSQL: its leases, the generations of its drivers, and what it says about them."""

from __future__ import annotations

import os
import socket
from typing import Any, Final

from queenmq.ids import uuid7_text
from queenmq.pipeline.connection import connect, database_errors, rows
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.supervisor import LEASE_S, Held

# A statement that takes longer counts as an outage: the leases would end meanwhile.
_STATEMENT_S: Final = 5


class Leases:
    """The leases of one supervisor, which has an id of its own. `only`: the pipelines that it runs; None: all."""

    def __init__(self, url: str, only: list[str] | None = None, lease_s: float = LEASE_S) -> None:
        self.id = uuid7_text()
        self._url = url
        self._only = only
        self._lease_s = lease_s
        self._who = f"{socket.gethostname()}:{os.getpid()}"
        self._connection: Any = None

    def hold(self, *, take: bool) -> list[Held]:
        if take:
            self._ask("pipelines_take", self.id, self._who, self._lease_s, self._only)
        names = ("name", "version", "declaration", "state_number", "wanted", "asked", "silent_s")
        found = self._ask("pipelines_renew", self.id, self._lease_s)
        return [Held(**dict(zip(names, row, strict=True))) for row in found]

    def begin(self, name: str, version: int) -> int | None:
        found = self._ask("pipeline_begin", name, self.id, version)
        return found[0][0] if found else None

    def say(self, name: str, state: str, failures: int, pause_s: float | None, error: str | None) -> None:
        self._ask("pipeline_say", name, self.id, state, failures, pause_s, error)

    def release(self, names: list[str]) -> None:
        self._ask("pipelines_release", self.id, names)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        try:
            if self._connection is None:
                self._connection = connect(self._url)
                with database_errors():
                    self._connection.execute(f"SET statement_timeout = '{_STATEMENT_S}s'")
            with database_errors():
                return rows(self._connection, name, *arguments)
        except PipelineError:
            self.close()
            raise
