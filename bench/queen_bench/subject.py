"""What is under load: a server we start, a server that runs already, or (in `peers`) another broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from queen_bench.broker import Broker
from queen_bench.connection import Connection
from queen_bench.errors import BenchError
from queen_bench.layout import Layout
from queen_bench.processes import Watch, listener
from queen_bench.queen import QueenBroker


class Subject(Protocol):
    """Something that runs and takes load."""

    @property
    def watch(self) -> Watch: ...

    def broker(self, layout: Layout, connections: int) -> Broker: ...


class Contender(Protocol):
    """A subject that can be brought up, as often as there are scenarios."""

    @property
    def name(self) -> str: ...

    def takes(self, scenario: str, peers: bool) -> bool:
        """Whether it can run the scenario; `peers` says whether anything but a Queen can."""

    def running(self) -> AbstractAsyncContextManager[Subject]: ...

    def facts(self) -> dict[str, str]:
        """What is worth knowing about it beside its figures; known after it ran."""


@dataclass(frozen=True)
class HttpSubject:
    """A server that speaks the contract."""

    host: str
    port: int
    watch: Watch
    folder: Path | None = None  # of a server that we started, with its database

    def broker(self, layout: Layout, connections: int) -> QueenBroker:
        return QueenBroker(self.host, self.port, layout)

    async def connect(self) -> Connection:
        return await Connection.open(self.host, self.port)


class GivenServer:
    """A server that runs already, given as `URL` or `URL,postgres=PID`.

    Its processes are found by its port if it runs on this machine; its PostgreSQL if that is a child of it, or named.
    """

    def __init__(self, place: str) -> None:
        url, _, postgres = place.partition(",postgres=")
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or (postgres and not postgres.isdecimal()):
            raise BenchError(f"{place!r} is not of the form http://host:port or http://host:port,postgres=PID")
        self.name = url
        self._host = parts.hostname
        self._port = parts.port or 80
        self._postgres = int(postgres) if postgres else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HttpSubject]:
        connection = await Connection.open(self._host, self._port)
        connection.close()
        yield HttpSubject(self._host, self._port, Watch(listener(self._port), self._postgres))

    def takes(self, scenario: str, peers: bool) -> bool:
        return True

    def facts(self) -> dict[str, str]:
        return {"url": self.name}
