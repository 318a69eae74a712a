"""The clients of `queen verify` in a simulated world: what they do at the end they read from the model itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from queenmq.verify.clients import RETRY_LIMIT, Clients
from queenmq.verify.history import Dead, Delivered, History, ListDead, Popped, Pushed, Read, Stored, operations

if TYPE_CHECKING:
    from simulation.servers.world import World

_POLL_MS: Final = 30_000
_LATE_S: Final = 10.0  # slow statements of those who had the partition before, one after the other


class StillQueued(AssertionError):
    """What was accepted has not been stored in time, although nothing is wrong any more."""


class SimulatedClients(Clients):
    def __init__(self, world: World, *parts: Any) -> None:
        super().__init__(*parts)
        self._world = world

    async def end(self) -> None:
        end = self._world.loop.time() + self.load.settle_s
        while not self._is_settled():
            if self._world.loop.time() > end:
                raise StillQueued(f"an accepted push has not been stored within {self.load.settle_s} s")
            await self.pause(0.1)
        await super().end()

    def _is_settled(self) -> bool:
        world = self._world
        tables = world.postgres.statements.tables
        return (
            all(process.is_up for process in world.processes)
            and not any(one.status in ("pending", "processing") for one in tables.operations.values())
            and not any(journal.pending for journal in world.journals())
        )

    async def _settled(self, operation: str) -> None:
        """All of them are."""

    async def _timers_pushed(self) -> None:
        """There are none."""

    async def _read(self, partition: str) -> None:
        op = self._recorder.invoke("end", Read(self.queue, partition))
        part = self._world.postgres.statements.tables.queues[self.queue].partitions.get(partition)
        stored = [] if part is None else part.messages
        found = [Delivered(partition, one.offset, one.transaction) for one in stored]
        self._recorder.complete(op, "ok", Stored(found))

    async def _dead_letters(self, group: str) -> None:
        op = self._recorder.invoke("end", ListDead(self.queue, group, RETRY_LIMIT))
        tables = self._world.postgres.statements.tables
        dead = []
        for (part, of), messages in tables.dead.items():
            if of == group:
                names = {one.id: one.transaction for one in tables.partitions[part].messages}
                dead += sorted(names[one] for one in messages)
        self._recorder.complete(op, "ok", Dead(dead))


async def parked(clients: Clients) -> None:
    """Long polls without a safety net, and pushes at odd moments. What comes late has been missed by a wake-up."""
    consumers = (_waiting(clients, f"waiting-{number}") for number in range(clients.load.consumers))
    await asyncio.gather(_now_and_then(clients), *consumers)


async def _now_and_then(clients: Clients) -> None:
    while not clients.is_over:
        for _ in range(clients.chance.randint(1, 3)):
            await clients.push("producer", clients.partition(), clients.new_ids("producer", 1))
            await clients.pause(clients.chance.choice((0.0, 0.001, 0.005, 0.02, 0.5)))
        await clients.pause(clients.chance.expovariate(0.08))


async def _waiting(clients: Clients, process: str) -> None:
    while not clients.is_over:
        messages = await clients.pop(process, "readers", wait_ms=_POLL_MS)
        if messages:
            await clients.ack(process, messages)


def late(history: History) -> list[str]:
    """The messages that somebody who was waiting got long after they were stored."""
    done = operations(history)
    stored = {name: one.ended for one in done if isinstance(one.answer, Pushed) for name in one.request.ids}  # type: ignore[union-attr]
    found = []
    for one in done:
        if isinstance(one.answer, Popped):
            for message in one.answer.messages:
                waited_s = one.ended - stored.pop(message.id, one.ended)
                if waited_s > _LATE_S:
                    found.append(f"late: {message.id} came {waited_s:.1f} s after it was stored (operation {one.op})")
    return found
