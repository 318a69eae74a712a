"""One Queen server: database, cluster, engine, background services and HTTP front, started and stopped in order."""

from __future__ import annotations

from queenmq.clock import Clock, SystemClock
from queenmq.cluster.node import Node, Siblings
from queenmq.config import Settings
from queenmq.engine.engine import Engine
from queenmq.http.app import App
from queenmq.http.auth import Authenticator
from queenmq.http.front import HttpFront
from queenmq.http.limits import Limits
from queenmq.services.retention import Eviction, Retention
from queenmq.services.sampler import Sampler
from queenmq.services.service import Service
from queenmq.services.shared_state import SharedStateRefresh
from queenmq.services.statistics import StatisticsRefresh
from queenmq.services.vacuum import Vacuum
from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate
from queenmq.storage.statements import statement


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
        app = App(self.engine, Authenticator.from_settings(settings, clock))
        self.front = HttpFront(app.handle, Limits.of(settings), clock)
        self.front.on_stop.append(self.engine.end_long_polls)
        self._shared_state = SharedStateRefresh(self.database, self.engine, settings)
        self._services: list[Service] = [
            self._shared_state,
            StatisticsRefresh(self.engine, settings),
            Sampler(self.database, self.engine, settings),
        ]
        if siblings is None or siblings.index == 0:
            self._services += [
                Retention(self.database, self.engine, settings),
                Eviction(self.database, self.engine, settings),
                Vacuum(self.database, settings),
            ]

    @property
    def address(self) -> tuple[str, int]:
        return self.front.address

    async def start(self) -> None:
        """Raises StartupError; whatever was started by then is stopped again."""
        try:
            await self.database.open()
            await migrate(self.database)
            await self.node.open(await self.database.fetchval(statement("register_server"), self.node.server_id))
            await self._shared_state.work()
            await self.front.start(self._settings.host, self._settings.port, shared=self._shares_port)
            self.node.announce(self.front.address)
        except BaseException:
            await self.node.close()
            await self.database.close()
            raise
        for service in self._services:
            service.start()

    async def stop(self) -> None:
        """Let running requests finish within the grace, then close everything."""
        await self.front.stop(self._settings.shutdown_grace_s)
        for service in self._services:
            await service.stop()
        await self.engine.close()
        await self.node.close()
        await self.database.close()
