"""The options of queues as this server knows them: from its cache, or asked of the database once for all who want them.

They are advice. What must hold (encryption, size, leases) is decided by the functions in the database.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from queenmq.broker.caches import Caches, OptionRow
from queenmq.broker.single_flight import SingleFlight
from queenmq.clock import Clock
from queenmq.core.group_backoff import BackoffSettings
from queenmq.core.options import OptionValues, read_pop_wait
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_DEFAULT_LEASE_S = 60
_decoder = msgspec.json.Decoder(OptionValues)


class QueueOptions:
    def __init__(self, database: Database, caches: Caches, clock: Clock, *, cached: bool) -> None:
        self._database = database
        self._caches = caches
        self._cache = caches.options
        self._clock = clock
        self._cached = cached
        self._flights: SingleFlight[None] = SingleFlight()

    async def load_missing(self, queues: Iterable[str]) -> None:
        """Have the options of these queues at hand. A queue that does not exist stays unknown."""
        missing = frozenset(queue for queue in queues if not self._cached or self._cache.get(queue) is None)
        if missing:
            await self._flights.load(missing, lambda: self._load(missing))

    def encrypted(self, queue: str) -> bool:
        return self._option(queue, "encryption_enabled") is True

    def lease_s(self, queue: str) -> int:
        value = self._option(queue, "lease_time_s")
        # What another server says may be anything.
        return value if isinstance(value, int) and value > 0 else _DEFAULT_LEASE_S

    def backoff(self, queue: str, usual: BackoffSettings) -> BackoffSettings:
        """How often long polls of the queue are probed; `usual` where it does not say."""
        chosen = self._option(queue, "pop_wait")
        if chosen is None:
            return usual
        base_ms, max_ms, threshold, multiplier = read_pop_wait(chosen).values()
        return BackoffSettings(
            base_s=usual.base_s if base_ms is None else base_ms / 1000,
            threshold=usual.threshold if threshold is None else int(threshold),
            multiplier=usual.multiplier if multiplier is None else multiplier,
            longest_s=usual.longest_s if max_ms is None else max_ms / 1000,
        )

    def _option(self, queue: str, name: str) -> int | bool | str | None:
        options = self._cache.peek(queue)
        return None if options is None else options.get(name)

    async def _load(self, queues: Iterable[str]) -> None:
        for row in await self._read(list(queues)):
            self._cache.loaded(row.queue, row.options, row.version, self._clock.monotonic())

    async def correct(self, queues: list[str]) -> None:
        """What is believed of these queues has turned out to be wrong."""
        rows = await self._read(queues)
        for queue in set(queues).difference(row.queue for row in rows):
            self._cache.forget(queue)
        for row in rows:
            self._cache.corrected(row.queue, row.options, row.version, self._clock.monotonic())

    async def publish(self, queue: str) -> None:
        """The queue was made or changed here: every server is to know."""
        for row in await self._read([queue]):
            self._caches.set_options(row.queue, row.options, row.version)

    async def refresh(self) -> None:
        """Follow the database, whatever other servers said."""
        started = self._clock.monotonic()
        horizon: int = await self._database.fetchval(statement("newest_version"))
        rows = await self._read(None)
        self._cache.replace_all(rows, horizon, started, self._clock.monotonic())

    async def _read(self, queues: list[str] | None) -> list[OptionRow]:
        """As the database has them; all queues without a list."""
        rows = await self._database.fetch(statement("queue_configs"), queues, repeatable=True)
        return [OptionRow(row["name"], _decoder.decode(row["options"]), row["version"]) for row in rows]
