"""Ack: acknowledgements of many requests become one call of `queen.ack`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from queenmq.core.acknowledgement import Acknowledgement, Lanes
from queenmq.engine.batcher import Batcher
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_MAX_ITEMS = 5000
_MAX_IN_FLIGHT = 2


@dataclass(slots=True)
class Acked:
    """What became of one acknowledgement; `problem` is None if it was applied."""

    problem: str | None
    queue: str | None
    partition: str | None
    lease_released: bool
    dead_lettered: bool


def columns(items: list[Acknowledgement]) -> tuple[list[object], ...]:
    """The parallel arrays that `queen.ack` wants."""
    return (
        [i.partition_id for i in items],
        [i.transaction_id for i in items],
        [i.group for i in items],
        [i.lease_id for i in items],
        [i.status for i in items],
        [i.error for i in items],
    )


class Acker:
    def __init__(self, database: Database, max_pending: int, freed: Callable[[str], None]) -> None:
        self._database = database
        self._freed = freed
        self.batcher: Batcher[list[Acknowledgement], list[Acked]] = Batcher(
            "ack",
            self._run,
            max_weight=_MAX_ITEMS,
            max_in_flight=_MAX_IN_FLIGHT,
            max_pending=max_pending,
            admission=lambda: Lanes().admit,
        )

    async def ack(self, items: list[Acknowledgement]) -> list[Acked]:
        """Apply the acknowledgements of one request; results in their order."""
        if not items:
            return []
        return await self.batcher.submit(items, len(items))

    async def _run(self, requests: list[list[Acknowledgement]]) -> list[list[Acked]]:
        acked = iter(await self._apply([item for request in requests for item in request]))
        return [list(islice(acked, len(request))) for request in requests]

    async def _apply(self, items: list[Acknowledgement]) -> list[Acked]:
        rows = await self._database.fetch(statement("ack"), *columns(items))
        for queue in {row["queue_name"] for row in rows if row["lease_released"]}:
            self._freed(queue)
        return [
            Acked(
                problem=row["problem"],
                queue=row["queue_name"],
                partition=row["partition_name"],
                lease_released=row["lease_released"],
                dead_lettered=row["dead_lettered"],
            )
            for row in rows
        ]
