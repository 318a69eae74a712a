"""One Queen server: database, engine, background services and HTTP front, started and stopped in order."""

from __future__ import annotations

from queenmq.clock import SystemClock
from queenmq.config import Settings
from queenmq.engine.engine import Engine
from queenmq.http.app import App
from queenmq.http.auth import Authenticator
from queenmq.http.front import HttpFront
from queenmq.http.limits import Limits
from queenmq.services.retention import Eviction, Retention
from queenmq.services.service import Service
from queenmq.services.vacuum import Vacuum
from queenmq.storage.database import Database
from queenmq.storage.migrations import migrate


class Server:
    """Serves HTTP on top of the PostgreSQL at `database_url`."""

    def __init__(self, settings: Settings, database_url: str) -> None:
        self._settings = settings
        clock = SystemClock()
        self.database = Database(settings, database_url)
        self.engine = Engine(settings, self.database)
        app = App(self.engine, Authenticator.from_settings(settings, clock))
        self.front = HttpFront(app.handle, Limits.of(settings), clock)
        self.front.on_stop.append(self.engine.end_long_polls)
        self._services: list[Service] = [
            Retention(self.database, settings),
            Eviction(self.database, settings),
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
            await self.front.start(self._settings.host, self._settings.port)
        except BaseException:
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
        await self.database.close()
