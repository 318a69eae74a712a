"""The faults, each for a while and then mended, one after the other.

| fault | what happens |
|---|---|
| `kill` | SIGKILL to a server, which is started again |
| `pause` | SIGSTOP to a server or to PostgreSQL, and SIGCONT |
| `restart` | PostgreSQL is stopped, orderly or with SIGKILL, and started again |
| `failover` | PostgreSQL is killed, its standby becomes the primary, and the other one is made a standby again |
| `cut` | no UDP packet arrives, in one direction or both |
| `forge` | every UDP packet comes again, changed, cut short and as it was, among random bytes |
| `clock` | the clock of a server jumps by up to a day, and back |
| `horizon` | a stranger's transaction keeps PostgreSQL from removing old versions of rows |
| `full-disk` | the kernel refuses what PostgreSQL and the servers write to files |
| `slow-disk` | each commit takes 100 ms longer |
"""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from queenmq.clock import SYSTEM
from queenmq.faults.cluster import Cluster
from queenmq.faults.processes import send

Fault: TypeAlias = Callable[[Cluster, random.Random, float], Awaitable[None]]
Noted: TypeAlias = Callable[[str, float, float], None]

_LONGEST_S: Final = 2.0
_SHORTEST_S: Final = 0.3
_DAY_S: Final = 86_400.0
_SLOWEST_COMMIT_US: Final = 100_000  # what PostgreSQL allows


async def kill(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    server = chance.choice(cluster.servers)
    await server.kill()
    await SYSTEM.sleep(seconds / 2)
    await server.start()


async def pause(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    if chance.random() < 0.5:
        server = chance.choice(cluster.servers)
        server.pause()
        await SYSTEM.sleep(seconds)
        server.resume()
        return
    frozen = cluster.databases.primary.pids
    send(frozen, signal.SIGSTOP)
    await SYSTEM.sleep(seconds)
    send(frozen, signal.SIGCONT)


async def restart(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    postgres = cluster.databases.primary
    if chance.random() < 0.5:
        postgres.kill()
    else:
        await postgres.stop()
    await SYSTEM.sleep(seconds / 2)
    await postgres.start()


async def failover(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    cluster.databases.primary.kill()
    await SYSTEM.sleep(seconds / 2)
    await cluster.databases.promote()
    await cluster.databases.attach()


async def cut(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    paths = cluster.network.of()
    for path in chance.sample(paths, k=chance.randint(1, len(paths))):
        path.cut = True
    await SYSTEM.sleep(seconds)
    cluster.network.heal()


async def forge(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    network = cluster.network
    network.recording = True
    end = SYSTEM.monotonic() + seconds
    while SYSTEM.monotonic() < end:
        await SYSTEM.sleep(seconds / 10)
        network.forge()
    network.recording = False
    for path in network.of():
        path.recorded.clear()


async def clock(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    server = chance.choice(cluster.servers)
    server.shift_clock(chance.choice((-_DAY_S, -60.0, 60.0, _DAY_S)))
    await SYSTEM.sleep(seconds)
    server.shift_clock(0)


async def horizon(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    stranger = await cluster.databases.primary.connect()
    try:
        await stranger.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await stranger.fetchval("SELECT count(*) FROM queen.queues")
        await SYSTEM.sleep(seconds)
    finally:
        stranger.terminate()


async def full_disk(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    postgres = cluster.databases.primary
    for server in cluster.servers:
        server.fill_disk()
    postgres.fill_disk()
    await SYSTEM.sleep(seconds)
    for server in cluster.servers:
        server.free_disk()
    # Without its log it cannot go on: it has started anew meanwhile, or ended.
    if not postgres.is_running():
        await postgres.start()
    postgres.free_disk()
    await postgres.answers()


async def slow_disk(cluster: Cluster, chance: random.Random, seconds: float) -> None:
    postgres = cluster.databases.primary
    await postgres.set("commit_siblings", "0")
    await postgres.set("commit_delay", str(_SLOWEST_COMMIT_US))
    await SYSTEM.sleep(seconds)
    await postgres.set("commit_delay", "0")


FAULTS: Final[dict[str, Fault]] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (kill, pause, restart, failover, cut, forge, clock, horizon, full_disk, slow_disk)
}


async def harm(cluster: Cluster, names: Sequence[str], seconds: float, seed: int, note: Noted) -> None:
    """Inject these faults for so long, each once before any comes again, then mend everything.

    `note` gets the name of each, when it began and when it was over. Raises StartupError if something does not come
    back.
    """
    chance = random.Random(seed)  # noqa: S311 - a run can be repeated by its seed
    end = SYSTEM.monotonic() + seconds
    deck: list[str] = []
    while True:
        await SYSTEM.sleep(chance.uniform(_SHORTEST_S, 1.0))
        if SYSTEM.monotonic() >= end:
            break
        deck = deck or chance.sample(names, k=len(names))
        name, lasting = deck.pop(), chance.uniform(_SHORTEST_S, _LONGEST_S)
        begun = SYSTEM.monotonic()
        await FAULTS[name](cluster, chance, lasting)
        note(name, begun, SYSTEM.monotonic())
    await cluster.mended()
