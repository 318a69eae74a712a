"""Two workers, one journal: PostgreSQL hangs, workers are killed, and each push of a producer may reach another one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from chaos.harness import Load, Queen, audit, drain, producing

LONG = os.environ.get("QUEEN_LONG") == "1"
SEED = int(os.environ.get("QUEEN_SEED") or random.randrange(2**32))
ROUNDS = 12 if LONG else 2


class Wandering(Load):
    """Every push has a connection of its own."""

    async def produce(self, lane: str) -> None:
        number = 0
        while not self.done:
            number += 1
            async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
                if await self._push(client, lane, number):
                    self.acknowledged[lane].append(number)
                    self.answers += 1
                    self.progress.set()


def workers_of(queen: Queen) -> list[psutil.Process]:
    """The oldest first."""
    assert queen.process is not None
    found = [p for p in psutil.Process(queen.process.pid).children() if "queenmq.cli.workers" in p.cmdline()]
    return sorted(found, key=lambda worker: worker.create_time())


@pytest.mark.skipif(not LONG, reason="QUEEN_LONG=1; tests/cluster/test_workers.py has the quick form")
async def test_the_order_of_every_producer_holds_whatever_happens_to_the_workers(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"QUEEN_SEED={SEED}")  # noqa: T201
    (tmp_path / "data").mkdir()
    queen = Queen(tmp_path / "data", NUM_WORKERS="2", QUEEN_OUTAGE_AFTER_MS="500", QUEEN_JOURNAL_WAIT_MS="500")
    await queen.start()
    try:
        async with producing(queen.url, Wandering) as load:
            await load.more(60)
            for _ in range(ROUNDS):
                queen.signal_postgres(signal.SIGSTOP)
                await asyncio.sleep(chance.uniform(0, 2))
                victim = chance.choice(workers_of(queen))
                how = chance.choice(("kill", "freeze", "nothing"))
                if how == "kill":
                    victim.kill()
                elif how == "freeze":
                    victim.suspend()
                    await asyncio.sleep(chance.uniform(0, 2))
                    victim.resume()
                await asyncio.sleep(chance.uniform(0, 1))
                queen.signal_postgres(signal.SIGCONT)
                await load.more(30)
        print(f"{load.deferred} of {load.answers} deferred")  # noqa: T201
        audit(load, await drain(queen.url))
    finally:
        await queen.stop()
