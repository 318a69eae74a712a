"""Two servers that know each other, on a PostgreSQL with a standby: what `queen verify run --faults` harms."""

from __future__ import annotations

import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Final

import aiohttp

from queenmq.clock import SYSTEM
from queenmq.errors import StartupError
from queenmq.faults.network import Relay
from queenmq.faults.postgres import Pair
from queenmq.faults.servers import ServerProcess
from queenmq.storage.embedded import free_port

NAMES: Final = ("one", "two")
MEND_S: Final = 90.0
# A database that is away is noticed soon, and little work is much, so that even short faults have consequences.
VARIABLES: Final = {
    "DB_POOL_SIZE": "10",
    "DB_LOCK_TIMEOUT": "2000",
    "QUEEN_COORDINATOR_ENABLED": "true",
    "QUEEN_DB_SILENCE_MS": "700",
    "QUEEN_JOURNAL_WAIT_MS": "1000",
    "QUEEN_OUTAGE_AFTER_MS": "700",
    "QUEEN_PUSH_QUEUE_DEPTH": "50",
    "QUEEN_PUSH_STANDING_AFTER_MS": "200",
    "QUEEN_PUSH_STANDING_WAIT_MS": "30",
    "QUEEN_PUSH_WAIT_THRESHOLD_MS": "100",
    "QUEEN_SHUTDOWN_GRACE_S": "2",
}


class Cluster:
    def __init__(self, databases: Pair, servers: list[ServerProcess], network: Relay) -> None:
        self.databases = databases
        self.servers = servers
        self.network = network

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    async def mended(self) -> None:
        """Return when every server says that it is well. Raises StartupError if that takes too long."""
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for server in self.servers:
                deadline = SYSTEM.monotonic() + MEND_S
                while not await _is_well(session, server.url):
                    if SYSTEM.monotonic() > deadline:
                        raise StartupError(
                            f"the server {server.name} is not well {MEND_S:.0f} s after the faults: {server.last_words}"
                        )
                    await SYSTEM.sleep(0.1)


async def _is_well(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


@asynccontextmanager
async def started(*, standby: bool, variables: Mapping[str, str] | None = None) -> AsyncIterator[Cluster]:
    """A cluster in a temporary folder, which goes with it. Raises StartupError if there can be none here."""
    if sys.platform != "linux":
        raise StartupError("faults need Linux: processes are found in /proc, and their files bounded with prlimit")
    async with AsyncExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="queen-faults-", ignore_cleanup_errors=True))
        )
        databases = Pair(folder)
        stack.push_async_callback(databases.stop)
        await databases.start()
        network = Relay(*NAMES)
        await network.open()
        stack.callback(network.close)
        secret = secrets.token_hex(32)
        servers = [_server(folder, name, databases.url, network, secret, variables or {}) for name in NAMES]
        # One after the other: the first makes the schema.
        for server in servers:
            stack.push_async_callback(server.stop)
            await server.start()
        if standby:
            await databases.attach()
        cluster = Cluster(databases, servers, network)
        await cluster.mended()
        yield cluster


def _server(
    folder: Path, name: str, url: str, network: Relay, secret: str, variables: Mapping[str, str]
) -> ServerProcess:
    [(host, port)] = network.peers_of(name)
    own = {
        "DATABASE_URL": url,
        "FILE_BUFFER_DIR": str(folder / f"journal-{name}"),
        "QUEEN_SYNC_SECRET": secret,
        "QUEEN_UDP_PEERS": f"{host}:{port}",
        "QUEEN_UDP_PORT": str(_free_udp_port()),
    }
    return ServerProcess(folder, name, free_port(), VARIABLES | own | dict(variables))


def _free_udp_port() -> int:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
