"""All settings of a server: one frozen object of frozen groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any

from queenmq.config.cluster import CacheSettings, ClusterSettings, CoordinatorSettings
from queenmq.config.http import AuditSettings, AuthSettings, HttpSettings, TlsSettings
from queenmq.config.lanes import ConcurrencySettings, LanesSettings
from queenmq.config.requests import (
    ConsumerSettings,
    LimitSettings,
    OperationSettings,
    OutboxSettings,
    OverloadSettings,
    PopSettings,
    TimerSettings,
)
from queenmq.config.server import ServerSettings, TelemetrySettings
from queenmq.config.storage import DatabaseSettings, JournalSettings, RetentionSettings, StatisticsSettings


@dataclass(frozen=True, kw_only=True)
class Settings:
    server: ServerSettings = ServerSettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    audit: AuditSettings = AuditSettings()
    database: DatabaseSettings = DatabaseSettings()
    limits: LimitSettings = LimitSettings()
    pop: PopSettings = PopSettings()
    consumers: ConsumerSettings = ConsumerSettings()
    lanes: LanesSettings = LanesSettings()
    concurrency: ConcurrencySettings = ConcurrencySettings()
    overload: OverloadSettings = OverloadSettings()
    operations: OperationSettings = OperationSettings()
    timers: TimerSettings = TimerSettings()
    outbox: OutboxSettings = OutboxSettings()
    journal: JournalSettings = JournalSettings()
    retention: RetentionSettings = RetentionSettings()
    statistics: StatisticsSettings = StatisticsSettings()
    cluster: ClusterSettings = ClusterSettings()
    cache: CacheSettings = CacheSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    telemetry: TelemetrySettings = TelemetrySettings()


def declared(group: Any = Settings) -> Iterator[Field[Any]]:
    """The fields that a variable sets, in `group` and in the groups within it, in the order of their declaration."""
    for item in fields(group):
        if "env" in item.metadata:
            yield item
        elif is_dataclass(item.default):
            yield from declared(item.default)
