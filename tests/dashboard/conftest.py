"""Two servers of a cluster with a shop on them, and one browser, for all tests of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster.processes import SECRET, ServeProcess
from playwright.sync_api import Browser, Page
from ports import free_udp_port

from dashboard.browser import chromium, outside, require_chromium, visit
from dashboard.scene import FOR_PICTURES, Shop, fill, neglect, past

if TYPE_CHECKING:
    from conftest import Postgres


@dataclass(frozen=True)
class Served:
    url: str
    shop: Shop
    database: str


@pytest.fixture(scope="package")
def browser(postgres: Postgres) -> Iterator[Browser]:
    """PostgreSQL must be there before: it cannot be started from this thread while the browser runs."""
    require_chromium()
    with chromium() as running:
        yield running


@contextmanager
def two_servers(folder: Path, database: str, **variables: str) -> Iterator[list[ServeProcess]]:
    """Of one cluster, both of them up."""
    ports = [free_udp_port() for _ in range(2)]
    servers = [
        ServeProcess(
            folder,
            name,
            DATABASE_URL=database,
            QUEEN_UDP_PORT=str(own),
            QUEEN_UDP_PEERS=f"127.0.0.1:{other}",
            QUEEN_SYNC_SECRET=SECRET,
            DB_POOL_SIZE="8",
            FILE_BUFFER_DIR=str(folder / name),
            **variables,
        )
        for name, own, other in (("queen-1", ports[0], ports[1]), ("queen-2", ports[1], ports[0]))
    ]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.make_sure_it_is_gone)
            server.launch()
        for server in servers:
            server.until_up()
        yield servers


@pytest.fixture(scope="package")
def served(browser: Browser, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("dashboard")
    url = outside(postgres.create())
    with ExitStack() as stack:
        stack.callback(lambda: outside(postgres.drop(url)))
        servers = stack.enter_context(two_servers(folder, url))
        shop = Shop(servers[0].url)
        stack.callback(shop.http.close)
        outside(past(url))
        fill(shop)
        if FOR_PICTURES:
            outside(neglect(shop, url))
        yield Served(servers[0].url, shop, url)


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    """A desktop browser on the first server."""
    with visit(browser, served.url) as opened:
        yield opened
