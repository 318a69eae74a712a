"""Whether this server exports to OpenTelemetry. Nothing of it is loaded unless an endpoint is configured."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from queenmq.http.route import Context

if TYPE_CHECKING:
    from queenmq.http.otel import OpenTelemetry

log = logging.getLogger(__name__)


def telemetry(context: Context) -> OpenTelemetry | None:
    """What exports, if the settings name a place to export to and the packages are there."""
    settings = context.settings
    traces = settings.telemetry.traces_endpoint or _below(settings.telemetry.endpoint, "v1/traces")
    metrics = settings.telemetry.metrics_endpoint or _below(settings.telemetry.endpoint, "v1/metrics")
    if settings.telemetry.disabled or not (traces or metrics):
        return None
    try:
        from queenmq.http.otel import OpenTelemetry
    except ImportError:
        log.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the OpenTelemetry SDK is not installed: nothing is exported; "
            "install it with pip install 'queenmq[otel]'"
        )
        return None
    return OpenTelemetry(context, traces, metrics)


def _below(endpoint: str, path: str) -> str:
    return f"{endpoint.rstrip('/')}/{path}" if endpoint else ""
