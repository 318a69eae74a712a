"""Settings of the process and of what it exports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from queenmq.config import parse
from queenmq.config.setting import setting


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The server: its workers, its log, its data folder, its key."""

    workers: int = setting(
        "NUM_WORKERS",
        1,
        "Number of worker processes. Set it to about the number of cores that Queen may use; the workers share the "
        "port and `DB_POOL_SIZE`.",
        parse.worker_count,
    )
    worker_id: str = setting("WORKER_ID", "worker-1", "Name of this server in answers and metrics.")
    log_level: str = setting(
        "LOG_LEVEL",
        "info",
        "Lowest level that is logged: `debug`, `info`, `warning` or `error`.",
        parse.choice("debug", "info", "warning", "error"),
    )
    log_format: str = setting(
        "LOG_FORMAT",
        "text",
        "Format of log lines: `text`, or `json` for one JSON object a line.",
        parse.choice("text", "json"),
    )
    data_dir: Path | None = setting(
        "QUEEN_DATA_DIR",
        None,
        "Data folder, for the bundled PostgreSQL and the journal. Default: `/var/lib/queen` for root, else "
        "`$XDG_DATA_HOME/queen` or `~/.local/share/queen`.",
        parse.path,
    )
    encryption_key: bytes | None = setting(
        "QUEEN_ENCRYPTION_KEY",
        None,
        "Key for payloads of queues with `encryptionEnabled`, as 64 hexadecimal digits (`openssl rand -hex 32`). Use "
        "the same key on every server, and keep it: payloads cannot be read without it.",
        parse.encryption_key,
        secret=True,
    )
    encryption_keys_previous: tuple[bytes, ...] = setting(
        "QUEEN_ENCRYPTION_KEYS_PREVIOUS",
        (),
        "Further keys with which payloads and journals can be read and nothing is encrypted, separated by commas: "
        "those in use before the key was changed, or the next one before it is used. `queen admin reencrypt` makes "
        "them superfluous.",
        parse.encryption_keys,
        secret=True,
    )

    @property
    def encryption_keys(self) -> tuple[bytes, ...]:
        """All keys, first the one that encrypts; none without that one."""
        return () if self.encryption_key is None else (self.encryption_key, *self.encryption_keys_previous)


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings:
    """OpenTelemetry: where traces and metrics are exported to."""

    endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "URL to which OpenTelemetry traces and metrics are sent, over HTTP; needs the extra `otel`. The other `OTEL_` "
        "variables of its SDK apply too.",
    )
    traces_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "URL for traces alone, with its whole path."
    )
    metrics_endpoint: str = setting(
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "", "URL for metrics alone, with its whole path."
    )
    metric_interval_ms: int = setting(
        "OTEL_METRIC_EXPORT_INTERVAL", 60_000, "Time between two exports of metrics, in ms.", parse.positive
    )
    disabled: bool = setting("OTEL_SDK_DISABLED", False, "Export nothing, whatever else is set.", parse.flag)
