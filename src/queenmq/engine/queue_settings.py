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
        self._flights: SingleFlight[None] = SingleFlight()

    async def know(self, queues: Iterable[str]) -> None:
        """Have the options of these queues at hand. A queue that does not exist stays unknown."""
        configs = self._node.state.tiers.configs
        missing = frozenset(queue for queue in queues if not self._cached or configs.get(queue) is None)
        if missing:
            await self._flights.load(missing, lambda: self._load(missing))

    def encrypted(self, queue: str) -> bool:
        return self._option(queue, "encryption_enabled") is True

    def lease_s(self, queue: str) -> int:
        value = self._option(queue, "lease_time_s")
        # What another server says may be anything.
        return value if isinstance(value, int) and value > 0 else _DEFAULT_LEASE_S

    def _option(self, queue: str, name: str) -> int | bool | str | None:
        options = self._node.state.tiers.configs.peek(queue) if self._node.is_open else None
        return None if options is None else options.get(name)

    async def _load(self, queues: Iterable[str]) -> None:
        for row in await self.read(list(queues)):
            self._node.state.tiers.configs.loaded(row.queue, row.options, row.version, self._node.now)

    async def correct(self, queues: list[str]) -> None:
        """What is believed of these queues has turned out to be wrong."""
        configs = self._node.state.tiers.configs
        rows = await self.read(queues)
        for queue in set(queues).difference(row.queue for row in rows):
            configs.forget(queue)
        for row in rows:
            configs.corrected(row.queue, row.options, row.version, self._node.now)

    async def publish(self, queue: str) -> None:
        """The queue was made or changed here: every server is to know."""
        for row in await self.read([queue]):
            self._node.config_set(row.queue, row.options, row.version)

    async def read(self, queues: list[str] | None) -> list[Row]:
        """As the database has them; all queues without a list."""
        rows = await self._database.fetch(statement("queue_configs"), queues)
        return [Row(row["name"], _decoder.decode(row["options"]), row["version"]) for row in rows]
