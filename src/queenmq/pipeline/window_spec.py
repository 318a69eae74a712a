"""The declaration of a window job: a small YAML file, checked and turned into column expressions. Pure.

source: orders                      # the queue to read
target: order-stats                 # the queue for results
schema: at TIMESTAMP, customer STRING, amount DOUBLE
time: data.at                       # or arrival, the usual
window: {tumbling: 1 minute}        # {sliding: 10 minutes, every: 1 minute} or {session: 5 minutes}
lateness: 30 seconds
late: orders-late                   # a queue; without it late messages are dropped, and counted
badTime: error                      # a message without a time: error, arrival, or {queue: orders-undated}
badValue: error                     # a field that is not of its type: error, or null
by: [partition, data.customer]
aggregates:
  orders: count
  revenue: sum(data.amount)
  slow: percentile(data.amount, 0.99)
emit: final                         # or updates
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from queenmq.core.names import check_name
from queenmq.errors import InvalidRequest
from queenmq.pipeline.errors import BadOption

ARRIVAL: Final = "arrival"
ERROR: Final = "error"
QUEUE: Final = "queue"
KEYS: Final = (
    "source target schema time window lateness slack late badTime badValue by where aggregates emit partition".split()  # noqa: SIM905
)
SHAPES: Final = ("tumbling", "sliding", "session")
FUNCTIONS: Final = {
    "count": "count({column})",
    "sum": "sum({column})",
    "min": "min({column})",
    "max": "max({column})",
    "avg": "avg({column})",
    "percentile": "percentile_approx({column}, {share}, 10000)",
    "distinct": "approx_count_distinct({column})",
}
_UNITS: Final = ("millisecond", "second", "minute", "hour", "day")
_SPAN: Final = re.compile(rf"^(\d+) ({'|'.join(_UNITS)})s?$")
_SECONDS: Final = dict(zip(_UNITS, (0.001, 1, 60, 3600, 86_400), strict=True))
_COLUMN: Final = re.compile(r"^(?:partition|transactionId|data(?:\.[A-Za-z_]\w*)+)$")
_CALL: Final = re.compile(r"^(\w+)(?:\(\s*([\w.]+)\s*(?:,\s*(0?\.\d+|[01])\s*)?\))?$")
_NAME: Final = re.compile(r"^[A-Za-z_]\w*$")


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    source: str
    target: str
    shape: str
    size: str
    every: str | None
    aggregates: dict[str, str]
    schema: str | None = None
    time: str = ARRIVAL
    lateness: str = "10 seconds"
    slack: str = "5 seconds"
    late: str | None = None
    bad_time: str = ERROR  # or ARRIVAL, or QUEUE
    undated: str | None = None  # the queue then
    bad_values: bool = False  # whether a field that is not of its type may become null
    by: dict[str, str] = field(default_factory=dict)
    where: str | None = None
    updates: bool = False
    partition: str | None = None

    @property
    def delay(self) -> str:
        """Spark's watermark: how late a message may be, and a little for what commits while others are read."""
        return f"{round((seconds(self.lateness) + seconds(self.slack)) * 1000)} milliseconds"


def parse(text: str) -> WindowSpec:
    """Raises BadOption with a sentence that names the field."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadOption(f"the window file is not YAML: {str(error).splitlines()[0]}") from None
    return make(found)


def make(found: Any) -> WindowSpec:
    """The same from a mapping, for those who declare it in Python."""
    if not isinstance(found, dict):
        raise BadOption("the window file must be a mapping with source, target, window and aggregates")
    if unknown := [str(key) for key in found if key not in KEYS]:
        raise BadOption(f"window: unknown field {unknown[0]}; known are {', '.join(KEYS)}")
    shape, size, every = _window(found.get("window"))
    updates = _emit(found.get("emit", "final"))
    if updates and shape == "session":
        raise BadOption("window: sessions have final results only (emit: final)")
    by = _by(found.get("by", []))
    partition = found.get("partition", next(iter(by), None))
    if partition is not None and partition not in by:
        raise BadOption(f"window: partition must be one of {', '.join(by) or 'the fields of by'}")
    late = found.get("late")
    bad_time, undated = _bad_time(found.get("badTime", ERROR))
    return WindowSpec(
        source=_queue(found.get("source"), "source"),
        target=_queue(found.get("target"), "target"),
        shape=shape,
        size=size,
        every=every,
        aggregates=_aggregates(found.get("aggregates")),
        schema=found.get("schema"),
        time=_time(found.get("time", ARRIVAL)),
        lateness=_span(found.get("lateness", "10 seconds"), "lateness"),
        slack=_span(found.get("slack", "5 seconds"), "slack"),
        late=None if late is None else _queue(late, "late"),
        bad_time=bad_time,
        undated=undated,
        bad_values=_bad_value(found.get("badValue", ERROR)),
        by=by,
        where=found.get("where"),
        updates=updates,
        partition=partition,
    )


def seconds(span: str) -> float:
    match = _SPAN.match(span)
    if match is None:
        raise BadOption(f"{span!r} is not a span of time such as '30 seconds'")
    return int(match[1]) * _SECONDS[match[2]]


def _queue(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadOption(f"window: {name} must name a queue")
    try:
        check_name(value, name)
    except InvalidRequest as error:
        raise BadOption(f"window: {error.message}") from None
    return value


def _span(value: Any, name: str) -> str:
    if not isinstance(value, str) or _SPAN.match(value) is None:
        raise BadOption(f"window: {name} must be a span of time such as '30 seconds', not {value!r}")
    return value


def _window(value: Any) -> tuple[str, str, str | None]:
    shapes = [key for key in value if key in SHAPES] if isinstance(value, dict) else []
    if len(shapes) != 1 or set(value) - {shapes[0], "every"} or ("every" in value) != (shapes[0] == "sliding"):
        raise BadOption(
            "window must be {tumbling: 1 minute}, {sliding: 10 minutes, every: 1 minute} or {session: 5 minutes}"
        )
    every = _span(value["every"], "every") if "every" in value else None
    return shapes[0], _span(value[shapes[0]], shapes[0]), every


def _bad_time(value: Any) -> tuple[str, str | None]:
    if isinstance(value, dict) and list(value) == [QUEUE]:
        return QUEUE, _queue(value[QUEUE], "badTime")
    if value not in (ERROR, ARRIVAL):
        raise BadOption(f"window: badTime must be error, arrival or {{queue: NAME}}, not {value!r}")
    return value, None


def _bad_value(value: Any) -> bool:
    # YAML reads a bare null as nothing.
    if value not in (ERROR, "null", None):
        raise BadOption(f"window: badValue must be error or null, not {value!r}")
    return bool(value != ERROR)


def _emit(value: Any) -> bool:
    if value not in ("final", "updates"):
        raise BadOption(f"window: emit must be final or updates, not {value!r}")
    return bool(value == "updates")


def _time(value: Any) -> str:
    if value != ARRIVAL and (not isinstance(value, str) or not value.startswith("data.") or not _COLUMN.match(value)):
        raise BadOption(f"window: time must be arrival or a field such as data.at, not {value!r}")
    return str(value)


def _column(value: Any, name: str) -> str:
    if not isinstance(value, str) or not _COLUMN.match(value):
        raise BadOption(f"window: {name}: {value!r} is not partition, transactionId or a field such as data.amount")
    return value


def _by(value: Any) -> dict[str, str]:
    """Names of the result and the columns they come from."""
    if not isinstance(value, list):
        raise BadOption("window: by must be a list of columns")
    return {_column(one, "by").rsplit(".", 1)[-1]: one for one in value}


def _aggregates(value: Any) -> dict[str, str]:
    """Names of the result and Spark expressions."""
    if not isinstance(value, dict) or not value:
        raise BadOption("window: aggregates must be a mapping such as {orders: count, revenue: sum(data.amount)}")
    return {_field(name): _expression(name, str(call)) for name, call in value.items()}


def _field(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise BadOption(f"window: {name!r} is not a name for a result")
    return name


def _expression(name: str, call: str) -> str:
    match = _CALL.match(call.strip())
    if match is None or match[1] not in FUNCTIONS:
        raise BadOption(f"window: {name}: {call!r} is none of {', '.join(FUNCTIONS)} of a column")
    function, column, share = match[1], match[2], match[3]
    if column is None and function != "count":
        raise BadOption(f"window: {name}: {function} needs a column")
    if (share is not None) != (function == "percentile"):
        raise BadOption(f"window: {name}: percentile, and only it, has a share: percentile(data.ms, 0.99)")
    return FUNCTIONS[function].format(column=_column(column, name) if column else "*", share=share)
