"""The format of the log: lines for people, or a JSON object a line. Each names the request that caused it."""

from __future__ import annotations

import logging
import re
import sys
import textwrap
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Any

import msgspec

from queenmq.clock import SYSTEM, Clock
from queenmq.config import Settings
from queenmq.request_id import current

_encode = msgspec.json.Encoder().encode

# What every request can cause must not fill the disk when every request does.
_SAME_LINES = 20
_SAME_LINES_WITHIN_S = 60.0
_MOST_KINDS = 1000

_CONTROLS = re.compile("[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f\u2028\u2029]")


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        request = current.get()
        # One line, whatever names and errors are in it: nobody shall forge another, or talk to a terminal.
        record.message = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], record.message)
        line = super().formatMessage(record)
        return line if request is None else f"{line} [request {request}]"

    def formatException(self, ei: Any) -> str:
        # What an error says may have lines of its own.
        return textwrap.indent(super().formatException(ei), "  ")


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


class RepeatFilter(logging.Filter):
    """Lets so many lines of a kind through in a minute; the first of the next says how many were left out.

    Lines are of a kind if one statement made them, and the same exception, if any.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[Hashable, tuple[float, int]] = {}  # when its minute began, and lines since

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        kind = (record.name, record.levelno, record.msg, record.exc_info and record.exc_info[0])
        now = self._clock.monotonic()
        began, lines = self._kinds.get(kind, (now, 0))
        if now - began < _SAME_LINES_WITHIN_S:
            self._note(kind, began, lines + 1)
            return lines < _SAME_LINES
        self._note(kind, now, 1)
        if lines > _SAME_LINES:
            record.msg, record.args = f"{record.getMessage()} (and {lines - _SAME_LINES} more like this before)", ()
        return True

    def _note(self, kind: Hashable, began: float, lines: int) -> None:
        if len(self._kinds) >= _MOST_KINDS and kind not in self._kinds:
            self._kinds.clear()
        self._kinds[kind] = began, lines


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def log_to_stderr(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.server.log_format == "json" else TextFormatter())
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=settings.server.log_level.upper(), handlers=[handler])
    # A terminal or a pipe that is gone must not fill the log with complaints about the log.
    logging.raiseExceptions = False
    # That the database is away is logged in our own words; the traceback of the driver would not help.
    logging.getLogger("asyncpg.pool").addFilter(_without_traceback)
