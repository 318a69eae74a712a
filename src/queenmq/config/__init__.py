"""Settings: frozen groups, filled from defaults, then the environment, then command-line flags.

Each field carries its environment variable and one sentence for the tables in `docs/configuration.md`.
A variable that is set to something unusable stops the start with a sentence that names it.
An object takes the group that it needs, `Limits.of(settings.http)`, and the whole only if it needs several.
"""

from queenmq.config.cluster import CacheSettings, ClusterSettings, CoordinatorSettings
from queenmq.config.document import markdown_tables
from queenmq.config.environment import NOT_SETTINGS, WITHOUT_EFFECT, load, unknown_variables
from queenmq.config.http import AuditSettings, AuthSettings, HttpSettings, TlsSettings, is_here, is_protected
from queenmq.config.lanes import ConcurrencySettings, LaneSettings, LanesSettings
from queenmq.config.parse import MAX_SERVER_ID_BYTES, MOST_WORKERS
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
from queenmq.config.settings import Settings, declared
from queenmq.config.storage import DatabaseSettings, JournalSettings, RetentionSettings, StatisticsSettings

__all__ = [
    "MAX_SERVER_ID_BYTES",
    "MOST_WORKERS",
    "NOT_SETTINGS",
    "WITHOUT_EFFECT",
    "AuditSettings",
    "AuthSettings",
    "CacheSettings",
    "ClusterSettings",
    "ConcurrencySettings",
    "ConsumerSettings",
    "CoordinatorSettings",
    "DatabaseSettings",
    "HttpSettings",
    "JournalSettings",
    "LaneSettings",
    "LanesSettings",
    "LimitSettings",
    "OperationSettings",
    "OutboxSettings",
    "OverloadSettings",
    "PopSettings",
    "RetentionSettings",
    "ServerSettings",
    "Settings",
    "StatisticsSettings",
    "TelemetrySettings",
    "TimerSettings",
    "TlsSettings",
    "declared",
    "is_here",
    "is_protected",
    "load",
    "markdown_tables",
    "unknown_variables",
]
