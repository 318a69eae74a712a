"""What one consumer connection has in flight, on verbs that answer what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from itertools import count

import pytest

from queenmq.broker.finish import Finished, Taken
from queenmq.broker.in_flight import InFlight
from queenmq.broker.pop import Claim, Delivered
from queenmq.clock import SYSTEM
from queenmq.core.acknowledgement import Finish
from queenmq.core.names import BEGINNING
from queenmq.errors import DatabaseUnavailable

CLAIM = Claim(queue="q", partition=None, group="__QUEUE_MODE__", batch=1, partitions=1, auto_ack=False, start=BEGINNING)


class Batch(Delivered):
    def __bool__(self) -> bool:
        return True


class Verbs:
    """There is always a batch, of a partition of its own. `codes` is what becomes of leases that are finished."""

    def __init__(self) -> None:
        self.codes: list[str | None] = []
        self.given_back: list[str] = []
        self.takes = 0
        self._numbers = count()

    def batch(self) -> Delivered:
        return Batch(replace(CLAIM, lease_id=f"lease-{next(self._numbers)}"))

    async def pop(self, claim: Claim, wait_ms: int = 0) -> Delivered:
        return self.batch()

    async def take_now(self, finish: Finish, claim: Claim) -> Taken:
        self.takes += 1
        finished = await self.finish(finish)
        over = finished.code in (None, "lease_not_found")
        return Taken(finished, self.batch() if over else None)

    async def finish(self, finish: Finish) -> Finished:
        code = self.codes.pop(0) if self.codes else None
        if code == DatabaseUnavailable.code:
            raise DatabaseUnavailable("away")
        return Finished(None if code is None else "not done", code)

    async def renew(self, lease_id: str, seconds: int) -> datetime | None:
        return None

    def give_back(self, *leases: tuple[str, str]) -> None:
        self.given_back += [lease_id for lease_id, _ in leases]


class Client:
    """What it holds, and how large its batches are."""

    def __init__(self, verbs: Verbs, most: int = 1, most_bytes: int = 1000) -> None:
        self.held: list[str] = []
        self.size = 10
        self.flight = InFlight(
            verbs, CLAIM, self._deliver, self._room, lambda: True, most=most, most_bytes=most_bytes, clock=SYSTEM
        )

    def _deliver(self, delivered: Delivered) -> int:
        self.held.append(delivered.claim.lease_id)
        return self.size

    async def _room(self) -> None:
        return

    async def has(self, number: int) -> None:
        async with asyncio.timeout(30):
            while len(self.held) != number:
                await asyncio.sleep(0)

    async def finish(self, lease_id: str) -> Finished:
        done: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        self.held.remove(lease_id)
        self.flight.finish(Finish(lease_id, "completed", None), done.set_result)
        finished = await done
        if finished.code not in (None, "lease_not_found"):
            self.held.append(lease_id)
        return finished


async def turns() -> None:
    """Let everything happen that can."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def verbs() -> Verbs:
    return Verbs()


@pytest.fixture
async def client(verbs: Verbs) -> AsyncIterator[Client]:
    client = Client(verbs)
    claiming = asyncio.create_task(client.flight.claim())
    yield client
    claiming.cancel()
    await asyncio.wait((claiming,))
    client.flight.close()


@pytest.mark.parametrize("code", ["row_locked", "message_not_found", "outcome_unknown", "database_unavailable"])
async def test_a_finish_that_does_not_work_takes_no_place_more(client: Client, verbs: Verbs, code: str) -> None:
    await client.has(1)
    verbs.codes = [code] * 20
    [lease_id] = client.held
    for _ in range(20):
        await client.finish(lease_id)
        await turns()
        assert client.held == [lease_id]
    assert verbs.takes == 1, "a repetition only finishes"
    assert (await client.finish(lease_id)).problem is None
    await turns()
    assert len(client.held) == 1
    assert client.held != [lease_id]


async def test_a_large_batch_is_forgotten(verbs: Verbs) -> None:
    """As many batches are claimed at once as would fit if all were as large as the largest, but not for ever."""
    client = Client(verbs, most=8, most_bytes=1000)
    client.size = 1000
    claiming = asyncio.create_task(client.flight.claim())
    await client.has(1)
    await turns()
    assert len(client.held) == 1, "one fills it"
    client.size = 10
    for _ in range(100):
        await client.finish(client.held[0])
        await turns()
    assert len(client.held) == 8
    takes = verbs.takes
    for lease_id in tuple(client.held):
        client.flight.finish(Finish(lease_id, "completed", None), lambda _: None)
    await turns()
    assert verbs.takes - takes == 8, "each finish brings the next"
    claiming.cancel()
    await asyncio.wait((claiming,))
    client.flight.close()
