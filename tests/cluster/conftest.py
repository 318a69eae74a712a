"""What the tests of the cluster share: three servers in this process, or three as processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest
from integration.queen import until
from ports import free_udp_port

from cluster.members import Member, cluster
from cluster.processes import SECRET, Remote, ServeProcess
from queenmq.faults.network import Relay

if TYPE_CHECKING:
    from conftest import Postgres


@pytest.fixture
async def trio(database_url: str) -> AsyncIterator[tuple[Relay, list[Member]]]:
    """Three servers in this process, and the network between them."""
    async with cluster(database_url) as running:
        yield running


@pytest.fixture(scope="module")
def processes(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServeProcess]]:
    """Three processes on one database. Only packets wake their long polls: the safety net is a minute away."""
    folder = tmp_path_factory.mktemp("processes")
    url = asyncio.run(postgres.create())
    ports = [free_udp_port() for _ in range(3)]
    with ExitStack() as stack:
        stack.callback(lambda: asyncio.run(postgres.drop(url)))
        servers = []
        for number, port in enumerate(ports):
            server = ServeProcess(
                folder,
                f"server-{number}",
                DATABASE_URL=url,
                QUEEN_UDP_PORT=str(port),
                QUEEN_UDP_PEERS=",".join(f"127.0.0.1:{other}" for other in ports if other != port),
                QUEEN_SYNC_SECRET=SECRET,
                DB_POOL_SIZE="6",
                POP_WAIT_INITIAL_INTERVAL_MS="60000",
                POP_WAIT_MAX_INTERVAL_MS="60000",
            )
            stack.callback(server.make_sure_it_is_gone)
            server.launch()
            servers.append(server)
        for server in servers:
            server.until_up()
        yield servers


@pytest.fixture
async def remotes(processes: list[ServeProcess]) -> AsyncIterator[list[Remote]]:
    """Clients of the three, when all know each other."""
    async with AsyncExitStack() as stack:
        found = [
            Remote(await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=30)))
            for server in processes
        ]
        for remote in found:
            await until(lambda remote=remote: _all_there(remote, len(found) - 1))
        yield found


async def _all_there(remote: Remote, others: int) -> bool:
    return await remote.alive() == others
