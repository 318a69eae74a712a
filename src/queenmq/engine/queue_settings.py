"""The options of queues as this server knows them: from its cache, or asked of the database once for all who want them.

They are advice. What must hold (encryption, size, leases) is decided by the functions in the database.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from queenmq.cluster.messages import Options
from queenmq.cluster.node import Node
from queenmq.cluster.queue_configs import Row
from queenmq.cluster.single_flight import SingleFlight
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_DEFAULT_LEASE_S = 60
_decoder = msgspec.json.Decoder(Options)


class QueueSettings:
    def __init__(self, database: Database, node: Node, *, cached: bool) -> None:
        self._database = database
        self._node = node
        self._cached = cached
        self._flights: SingleFlight[Options | None] = SingleFlight()

    async def know(self, queues: Iterable[str]) -> None:
        """Have the options of these queues at hand. A queue that does not exist stays unknown."""
        configs = self._node.state.tiers.configs
        for queue in queues if isinstance(queues, set) else set(queues):
            if not self._cached or configs.get(queue) is None:
                await self._flights.load(queue, lambda queue=queue: self.load(queue))  # type: ignore[misc]

    def encrypted(self, queue: str) -> bool:
        return bool(self._option(queue, "encryption_enabled", False))

    def lease_s(self, queue: str) -> int:
        return int(self._option(queue, "lease_time_s", 0) or _DEFAULT_LEASE_S)

    def _option(self, queue: str, name: str, default: int | bool) -> int | bool | str | None:
        options = self._node.state.tiers.configs.peek(queue) if self._node.is_open else None
        return default if options is None else options.get(name, default)

    async def load(self, queue: str) -> Options | None:
        """Ask the database now; None if the queue does not exist."""
        rows = await self.read([queue])
        if not rows:
            return None
        self._node.state.tiers.configs.loaded(queue, rows[0].options, rows[0].version, self._node.now)
        return rows[0].options

    async def correct(self, queues: list[str]) -> None:
        """What is believed of these queues has turned out to be wrong."""
        for row in await self.read(queues):
            self._node.state.tiers.configs.corrected(row.queue, row.options, row.version, self._node.now)

    async def publish(self, queue: str) -> None:
        """The queue was made or changed here: every server is to know."""
        for row in await self.read([queue]):
            self._node.config_set(row.queue, row.options, row.version)

    async def read(self, queues: list[str] | None) -> list[Row]:
        """As the database has them; all queues without a list."""
        rows = await self._database.fetch(statement("queue_configs"), queues)
        return [Row(row["name"], _decoder.decode(row["options"]), row["version"]) for row in rows]
