"""What the log looks like: lines for people, or a JSON object a line. Each names the request that caused it."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from queenmq.config import Settings
from queenmq.request_id import current

_encode = msgspec.json.Encoder().encode


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        request = current.get()
        line = super().formatMessage(record)
        return line if request is None else f"{line} [request {request}]"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        request = current.get()
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if request is not None:
            line["request_id"] = str(request)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line).decode()


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def log_to_stderr(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    # A terminal or a pipe that is gone must not fill the log with complaints about the log.
    logging.raiseExceptions = False
    # A database that is away is told in our own words; where the driver was at that moment helps nobody.
    logging.getLogger("asyncpg.pool").addFilter(_without_traceback)
