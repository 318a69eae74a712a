"""One Queen server: database, cluster, engine, background services and HTTP front, started and stopped in order."""

from __future__ import annotations

import logging

from queenmq.clock import Clock, SystemClock
from queenmq.cluster.node import Node, Siblings
from queenmq.config import Settings
from queenmq.engine.engine import Engine
from queenmq.engine.wake_ups import WRITTEN_ELSEWHERE
from queenmq.errors import DatabaseUnavailable
from queenmq.http.app import App
from queenmq.http.auth import Authenticator
from queenmq.http.coordinated import CoordinatedApp
from queenmq.http.forwarder import Forwarder
from queenmq.http.front import HttpFront
from queenmq.http.limits import Limits
from queenmq.http.telemetry import telemetry
from queenmq.services.database_watch import DatabaseWatch
from queenmq.services.journal_replay import JournalReplay
from queenmq.services.load_monitor import LoadMonitor
from queenmq.services.long_operation_worker import LongOperationWorker
from queenmq.services.operation_worker import OperationWorker
from queenmq.services.retention import Eviction, Retention
from queenmq.services.sampler import Sampler
from queenmq.services.service import Service
from queenmq.services.shared_state import SharedStateRefresh
from queenmq.services.statistics import StatisticsRefresh
from queenmq.services.vacuum import Vacuum
from queenmq.storage.database import Database, DatabaseAway
from queenmq.storage.migrations import migrate
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)


class Server:
    """Serves HTTP on top of the PostgreSQL at `database_url`; with siblings, as one of several worker processes."""

    def __init__(
        self, settings: Settings, database_url: str, siblings: Siblings | None = None, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        clock = clock or SystemClock()
        self._shares_port = siblings is not None
        self.database = Database(settings, database_url)
        self.node = Node(settings, clock, siblings)
        self.engine = Engine(settings, self.database, self.node, clock)
        self.database.on_notice(WRITTEN_ELSEWHERE, self.engine.written_elsewhere)
        self._forwarder = Forwarder(settings, self.node) if settings.coordinator_enabled else None
        self._app = self._make_app(Authenticator.from_settings(settings, clock))
        self._telemetry = telemetry(settings, self.engine)
        handle = self._app.handle if self._telemetry is None else self._telemetry.traced(self._app.handle)
        self.front = HttpFront(handle, Limits.of(settings), clock)
        self.front.on_stop.append(self.engine.end_long_polls)
        if self._forwarder is not None:
            self.front.on_stop.append(self._forwarder.end_long_polls)
        # Workers share a port, so that none of them can be reached by it alone.
        self._peer_front: HttpFront | None = None
        if self._shares_port and self._forwarder is not None:
            self._peer_front = HttpFront(handle, Limits.of(settings), clock)
        self._shared_state = SharedStateRefresh(self.database, self.engine, settings)
        self._services: list[Service] = [
            DatabaseWatch(self.database, settings, self._come_up),
            self._shared_state,
            LoadMonitor(self.database, self.engine.load, settings),
            OperationWorker(self.database, self.engine.operations, self.engine.load, settings),
            LongOperationWorker(self.database, self.engine.long_operations, settings),
            StatisticsRefresh(self.engine, settings),
            Sampler(self.database, self.engine, settings),
        ]
        if self.engine.buffer is not None:
            self._services.append(JournalReplay(self.database, self.engine, self.engine.buffer, settings))
        if siblings is None or siblings.index == 0:
            self._services += [
                Retention(self.database, self.engine, settings),
                Eviction(self.database, self.engine, settings),
                Vacuum(self.database, settings),
            ]

    def _make_app(self, authenticator: Authenticator) -> App:
        if self._forwarder is None:
            return App(self.engine, authenticator)
        return CoordinatedApp(self.engine, authenticator, self._forwarder)

    @property
    def address(self) -> tuple[str, int]:
        return self.front.address

    async def start(self) -> None:
        """Raises StartupError; whatever was started by then is stopped again. A database that is away is waited for."""
        try:
            if self.engine.buffer is not None:
                await self.engine.buffer.open()
            try:
                await self._come_up()
            except DatabaseAway as error:
                log.error("%s; the server starts without it and goes on trying", error)
            await self.front.start(self._settings.host, self._settings.port, shared=self._shares_port)
            await self._announce()
            for service in self._services:
                service.start()
            if self._telemetry is not None:
                self._telemetry.start()
        except BaseException:
            await self.stop()
            raise

    async def _reachable_at(self) -> tuple[str, int]:
        """Where other servers reach this one and no other."""
        if self._peer_front is None:
            return self.front.address
        if not self._peer_front.is_listening:
            await self._peer_front.start(self._settings.host, 0)
        return self._peer_front.address

    async def _come_up(self) -> None:
        """Use the database from now on, for the first time or again. Raises StartupError, and goes on without."""
        try:
            await self.database.open()
            await self._first_contact()
            await self._shared_state.work()
        except DatabaseUnavailable as error:
            self.database.abandon()
            raise DatabaseAway(str(error)) from error
        except BaseException:
            self.database.abandon()
            raise

    async def _first_contact(self) -> None:
        if self.node.is_open:
            return
        await migrate(self.database)
        await self.node.open(await self.database.fetchval(statement("register_server"), self.node.server_id))
        await self._announce()

    async def _announce(self) -> None:
        if self.node.is_open and self.front.is_listening:
            self.node.announce(await self._reachable_at())

    async def stop(self) -> None:
        """Let running requests finish within the grace, then close everything."""
        await self.front.stop(self._settings.shutdown_grace_s)
        if self._peer_front is not None:
            await self._peer_front.stop(self._settings.shutdown_grace_s)
        if self._forwarder is not None:
            self._forwarder.close()
        for service in self._services:
            await service.stop()
        if self._telemetry is not None:
            await self._telemetry.stop()
        await self.engine.close()
        await self.node.close()
        await self.database.close()
