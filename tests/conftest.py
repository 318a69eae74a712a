"""Fixtures that every level shares: one real PostgreSQL a session, one fresh database a test, one server on it.

All chance in a run comes from one seed, which pytest-randomly prints first and `--randomly-seed=N` takes back.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import hypothesis
import hypothesis.core
import pooler
import pytest
from httpx._transports import default as httpx_transport
from longest import expected_s
from server_settings import settings_with
from versioned_sql import VersionedSession

from queenmq.config import DatabaseSettings, Settings
from queenmq.server import Server
from queenmq.storage.database import Database
from queenmq.storage.embedded import EmbeddedPostgres, running_url
from queenmq.storage.migrations import migrate

# Hypothesis would try the same examples in every run of CI. A failure shows how its example is made again. How long an
# example takes says more about the machine than about the code.
hypothesis.settings.register_profile(
    "queen",
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("queen")

# A new client of httpx reads all certificates of the machine: 25 ms, more than a server takes to start and stop.
httpx_transport.create_ssl_context = cache(httpx_transport.create_ssl_context)  # type: ignore[attr-defined]

# A shell's `&` starts its command with SIGINT ignored, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TESTS = Path(__file__).parent
# The markers of all tests in a folder; a file elsewhere says `pytestmark = pytest.mark.slow` itself.
_MARKERS = {
    "acceptance": ("slow",),
    "chaos": ("chaos", "slow"),
    "cluster": ("slow",),
    "dashboard": ("browser", "slow"),
    "frameworks": ("slow",),
    "pipeline": ("spark", "slow"),
    "wheel": ("slow",),
}

_numbers = itertools.count(1)
# Parallel workers may share a PostgreSQL.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
_TEMPLATE = f"queen_template{_WORKER}"
_ROLE = f"queen_tests{_WORKER}"
_PASSWORD = "as-ordinary-as-can-be"
# PostgreSQL 14 always copies the files of a template.
_WITH_STRATEGIES = 15


def _seed(config: pytest.Config) -> int | None:
    """The seed of this run; None if pytest-randomly is switched off."""
    seed = config.getoption("randomly_seed", None)
    return seed if isinstance(seed, int) else None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if hypothesis.core.global_force_seed is None:
        hypothesis.core.global_force_seed = _seed(config)  # type: ignore[assignment]
    _send_at_once(config)


def _send_at_once(config: pytest.Config) -> None:
    """Before every test, a worker asks pytest-rerunfailures in the main process how often that test has failed.

    A message to which there is no answer goes before the question, which would wait 40 ms for its acknowledgement.
    """
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_itemcollected(item: pytest.Item) -> None:
    folder = item.path.relative_to(_TESTS).parts[0]
    for marker in _MARKERS.get(folder, ()):
        item.add_marker(marker)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that parallel workers end at about the same time; otherwise in random order."""
    items.sort(key=lambda item: -expected_s(item.path.relative_to(_TESTS)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why tests were repeated, and name the command that runs the failed ones again with the same chance."""
    if repeated := terminalreporter.stats.get("rerun", ()):
        terminalreporter.section("why they were repeated")
        for report in repeated:
            terminalreporter.write_line(f"{report.nodeid}\n{report.longreprtext[-2000:]}")
    failed = [report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())]
    seed = _seed(config)
    if failed and seed is not None:
        terminalreporter.section("to run them again with the same seed")
        for nodeid in dict.fromkeys(failed):
            terminalreporter.write_line(f".venv/bin/pytest --randomly-seed={seed} '{nodeid}'")


class Postgres:
    """A running PostgreSQL whose template database has the newest schema.

    Servers and tests connect as an ordinary role that owns the database. `url` is the administrator's, for what only
    an administrator can do.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.version = 0

    def url_of(self, database: str) -> str:
        host = urlsplit(self.url).netloc.rpartition("@")[2]
        return f"postgresql://{_ROLE}:{_PASSWORD}@{host}/{database}"

    def administrator_of(self, url: str) -> str:
        """The administrator's URL of the same database."""
        return urlsplit(self.url)._replace(path=urlsplit(url).path).geturl()

    async def create(self, template: str = _TEMPLATE, options: str = "") -> str:
        """A new database made from `template`; its URL. Its files are copied, which costs half of logging its pages."""
        name = f"test{_WORKER}_{next(_numbers)}"
        strategy = "STRATEGY file_copy" if self.version >= _WITH_STRATEGIES else ""
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template} OWNER {_ROLE} {strategy} {options}")
        return self.url_of(name)

    async def drop(self, url: str) -> None:
        await self._execute(f"DROP DATABASE IF EXISTS {url.rsplit('/', 1)[1]} WITH (FORCE)")

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url)
        self.version = connection.get_server_version().major
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The bundled PostgreSQL in a folder of its own, or the one that QUEEN_TEST_POSTGRES names."""
    given = os.environ.get("QUEEN_TEST_POSTGRES")
    if given:
        with asyncio.Runner() as runner:
            server = Postgres(given)
            runner.run(_make_template(server))
            yield server
        return
    folder: Path = tmp_path_factory.mktemp("postgres")
    with asyncio.Runner() as runner:
        bundled = EmbeddedPostgres(folder)
        runner.run(bundled.start())
        server = Postgres(running_url(folder, administrator=True))
        try:
            runner.run(_set_up(server))
            runner.run(bundled.stop())
            runner.run(bundled.start())
            server = Postgres(running_url(folder, administrator=True))
            runner.run(_make_template(server))
            yield server
        finally:
            runner.run(bundled.stop())


async def _set_up(server: Postgres) -> None:
    """A database a test is made and dropped: without waiting for the disk, which only a loss of power would show."""
    for name in ("fsync", "full_page_writes"):
        await server._execute(f"ALTER SYSTEM SET {name} = off")
    await server._execute("ALTER SYSTEM SET max_prepared_transactions = 10")


async def _make_template(server: Postgres) -> None:
    await server._execute(f"DROP DATABASE IF EXISTS {_TEMPLATE} WITH (FORCE)")
    await server._execute(f"DROP ROLE IF EXISTS {_ROLE}")
    await server._execute(f"CREATE ROLE {_ROLE} LOGIN PASSWORD '{_PASSWORD}'")
    await server._execute(f"CREATE DATABASE {_TEMPLATE} OWNER {_ROLE}")
    database = Database(DatabaseSettings(), server.url_of(_TEMPLATE))
    await database.open()
    try:
        await migrate(database)
    finally:
        await database.close()


@pytest.fixture(scope="session", autouse=pooler.IS_ASKED_FOR)
def through_pooler(postgres: Postgres) -> Iterator[pooler.Pooler]:
    """From now on, servers in this process reach the databases of the tests through a pooler."""
    if pooler.is_missing():
        pytest.skip("there is no pgbouncer (apt install pgbouncer)")
    direct = Database.__init__

    def through(self: Database, settings: DatabaseSettings, url: str) -> None:
        way = pooler.through(url)
        direct(self, settings if way == url else replace(settings, listen_url=url), way)

    with pooler.pooled(postgres.url_of("postgres")) as bouncer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooler, "active", bouncer)
        patch.setattr(Database, "__init__", through)
        yield bouncer


@pytest.fixture
async def database_url(postgres: Postgres) -> AsyncIterator[str]:
    """A fresh database with the newest schema."""
    url = await postgres.create()
    yield url
    await postgres.drop(url)


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """The PostgreSQL's own database, in which there is no schema of ours."""
    return postgres.url_of("postgres")


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain session on the same database, as psql would open it."""
    connection = await asyncpg.connect(
        database_url, server_settings={"timezone": "UTC"}, connection_class=VersionedSession
    )
    yield connection
    await connection.close()


@pytest.fixture
def settings() -> Settings:
    """Override in a module or class to test with other settings."""
    return settings_with()


@pytest.fixture
async def server(database_url: str, settings: Settings) -> AsyncIterator[Server]:
    """A server in this process, listening on a free port."""
    running = Server(settings, database_url)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of that server."""
    host, port = server.address
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield client
