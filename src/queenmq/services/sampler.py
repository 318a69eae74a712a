"""Samples how this server is, and stores a summary of the samples at intervals."""

from __future__ import annotations

from typing import Any

import msgspec

from queenmq.broker.broker import Broker
from queenmq.clock import SYSTEM, Clock
from queenmq.config import StatisticsSettings
from queenmq.services.service import Service
from queenmq.storage.statements import statement

_encode = msgspec.json.Encoder().encode

Figures = dict[str, Any]


class Spread:
    """A figure over several samples."""

    __slots__ = ("count", "last", "max", "min", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.min = float("inf")
        self.max = float("-inf")
        self.last = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        self.last = value

    def shown(self) -> dict[str, float]:
        return {"avg": self.sum / self.count, "min": self.min, "max": self.max, "last": self.last}


class Sampler(Service):
    """It has the whole broker, because it samples every part of it. `port`, `worker_id` and `slots` (the most
    connections to the database) describe this server."""

    name = "sampler"

    def __init__(
        self,
        broker: Broker,
        settings: StatisticsSettings,
        clock: Clock = SYSTEM,
        *,
        port: int,
        worker_id: str,
        slots: int,
    ) -> None:
        super().__init__(settings.sample_interval_ms, clock)
        self._broker = broker
        self._store_every_s = settings.aggregate_interval_s
        self._port = port
        self._worker_id = worker_id
        self._slots = slots
        self._spreads: dict[str, Spread] = {}
        self._samples = 0
        self._stored_at: float | None = None
        self._sampled_at = 0.0
        self._processor: tuple[int, int] | None = None

    async def work(self) -> None:
        started = self._clock.monotonic()
        for name, value in self._sample().items():
            self._spreads.setdefault(name, Spread()).add(value)
        self._samples += 1
        if self._stored_at is None:
            self._stored_at = started
        if started - self._stored_at >= self._store_every_s:
            await self.store()
            self._stored_at = started

    async def store(self) -> None:
        """Write what was sampled since the last time."""
        if not self._samples:
            return
        spreads, samples = self._spreads, self._samples
        self._spreads, self._samples = {}, 0
        vitals = self._broker.vitals
        await self._broker.database.fetch(
            statement("add_sample"),
            self._broker.node.server_id,
            vitals.hostname,
            self._port,
            self._worker_id,
            vitals.pid,
            samples,
            _encode(_nested(spreads)).decode(),
        )

    def _sample(self) -> dict[str, float]:
        broker = self._broker
        user, system = broker.vitals.processor_us()
        before_user, before_system = self._processor or (user, system)
        self._processor = user, system
        now = broker.vitals.uptime_s
        before, self._sampled_at = self._sampled_at, now
        memory, lanes = broker.vitals.memory(), broker.lanes.values()
        database = broker.database
        state: dict[str, Any] = broker.shared_state()
        return {
            "cpu.user_us": user - before_user,
            "cpu.system_us": system - before_system,
            "cpu.interval_us": max(1.0, (now - before) * 1e6),
            "memory.rss_bytes": memory.resident,
            "memory.virtual_bytes": memory.virtual,
            "database.pool_size": database.pool_size,
            "database.pool_idle": database.pool_idle,
            "database.pool_active": database.pool_size - database.pool_idle,
            "threadpool.db.pool_size": sum(lane.in_flight for lane in lanes),
            "threadpool.db.queue_size": sum(lane.pending for lane in lanes),
            "threadpool.system.pool_size": 1,
            "threadpool.system.queue_size": 0,
            "registries.response": broker.long_polls.registry.statistics()["waiters"],
            "event_loop.lag_ms": broker.vitals.loop_lag_ms,
            "event_loop.free_slots": database.pool_idle + self._slots - database.pool_size,
            "backoff.groups": broker.long_polls.registry.statistics()["groups_backed_off"],
            "shared_state.queue_config_cache_size": state["queue_config_cache"]["size"],
            "shared_state.servers_alive": state["server_health"]["servers_alive"],
            "shared_state.servers_dead": state["server_health"]["servers_dead"],
        }


def _nested(spreads: dict[str, Spread]) -> Figures:
    nested: Figures = {}
    for name, spread in spreads.items():
        *path, leaf = name.split(".")
        place = nested
        for step in path:
            place = place.setdefault(step, {})
        place[leaf] = spread.shown()
    return nested
