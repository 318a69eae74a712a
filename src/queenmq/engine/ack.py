"""Ack: acknowledgements of many requests become one call of `queen.ack`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from queenmq.core.acknowledgement import Acknowledgement, Lanes
from queenmq.core.vegas import Vegas
from queenmq.engine.activity import Activity
from queenmq.engine.sidecar import Lane, Policy
from queenmq.engine.wake_ups import Freed
from queenmq.storage.database import Database
from queenmq.storage.statements import statement


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
    def __init__(
        self, database: Database, policy: Policy, concurrency: Vegas | None, activity: Activity, freed: Freed
    ) -> None:
        self._database = database
        self._activity = activity
        self._freed = freed
        self.lane: Lane[list[Acknowledgement], list[Acked]] = Lane(
            "ack", self._run, policy, concurrency=concurrency, admission=lambda: Lanes().admit
        )

    async def ack(self, items: list[Acknowledgement]) -> list[Acked]:
        """Apply the acknowledgements of one request; results in their order."""
        if not items:
            return []
        return await self.lane.submit(items, items[0].lane, len(items))

    async def _run(self, requests: list[list[Acknowledgement]]) -> list[list[Acked]]:
        acked = iter(await self._apply([item for request in requests for item in request]))
        self._activity.acked_requests(len(requests))
        return [list(islice(acked, len(request))) for request in requests]

    async def _apply(self, items: list[Acknowledgement]) -> list[Acked]:
        rows = await self._database.fetch(statement("ack"), *columns(items))
        freed = {
            (row["queue_name"], row["partition_name"], row["consumer_group"]) for row in rows if row["lease_released"]
        }
        if freed:
            self._freed(freed)
        self._activity.acked((row["queue_name"], row["problem"], row["dead_lettered"]) for row in rows)
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
