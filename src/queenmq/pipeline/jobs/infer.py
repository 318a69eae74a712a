"""infer: a JSON Schema that fits all stored messages of a queue.

Each task folds its messages into one shape, and shapes are merged: the result does not depend on the order. A field is
required if every object of its place has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.frames import read
from queenmq.pipeline.options import key_of_environment
from queenmq.pipeline.runs import Outcome, Run

# With more, the names are taken for data, as in {"customer-1": …, "customer-2": …}.
MOST_FIELDS: Final = 200
_DEEPEST: Final = 32
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})")
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_FORMATS: Final = {"date-time": _MOMENT, "date": _DAY}
_NAMES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str
    queue: str
    sample: int | None = None


@dataclass(kw_only=True)
class Shape:
    """What was seen at one place of messages."""

    types: set[str] = field(default_factory=set)
    formats: set[str] | None = None  # of its texts: those that all of them have; None before the first
    objects: int = 0
    fields: dict[str, Shape] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # in how many objects the field is
    others: Shape | None = None  # of the values, when there are too many fields
    items: Shape | None = None

    def add(self, value: Any, depth: int = 0) -> None:
        if isinstance(value, str):
            found = {name for name, pattern in _FORMATS.items() if pattern.fullmatch(value)}
            self.formats = found if self.formats is None else self.formats & found
        if isinstance(value, dict):
            self.types.add("object")
            self.objects += 1
            for name, one in value.items() if depth < _DEEPEST else ():
                self.seen[name] = self.seen.get(name, 0) + 1
                self._field(name).add(one, depth + 1)
            self._bound()
        elif isinstance(value, list):
            self.types.add("array")
            self.items = self.items or Shape()
            for one in value if depth < _DEEPEST else ():
                self.items.add(one, depth + 1)
        else:
            self.types.add(_NAMES[type(value)])

    def _field(self, name: str) -> Shape:
        return self.others if self.others is not None else self.fields.setdefault(name, Shape())

    def _bound(self) -> None:
        if self.others is None and len(self.fields) > MOST_FIELDS:
            self.others = Shape()
            for one in self.fields.values():
                self.others.merge(one)
            self.fields = {}
        if self.others is not None:
            self.seen = {}

    def merge(self, other: Shape) -> Shape:
        self.types |= other.types
        if other.formats is not None:
            self.formats = other.formats if self.formats is None else self.formats & other.formats
        self.objects += other.objects
        if other.others is not None and self.others is None:
            self.others = Shape()
            for one in self.fields.values():
                self.others.merge(one)
            self.fields = {}
        for name, one in other.fields.items():
            self._field(name).merge(one)
            self.seen[name] = self.seen.get(name, 0) + other.seen.get(name, 0)
        if self.others is not None and other.others is not None:
            self.others.merge(other.others)
        self._bound()
        if other.items is not None:
            self.items = (self.items or Shape()).merge(other.items)
        return self

    def schema(self) -> dict[str, Any]:
        types = sorted(self.types - ({"integer"} if "number" in self.types else set()))
        made: dict[str, Any] = {"type": types[0] if len(types) == 1 else types} if types else {}
        if "string" in self.types and self.formats:
            made["format"] = min(self.formats)
        if "object" in self.types and self.others is not None:
            made["additionalProperties"] = self.others.schema()
        elif "object" in self.types:
            made["properties"] = {name: self.fields[name].schema() for name in sorted(self.fields)}
            made["required"] = sorted(name for name in self.fields if self.seen.get(name) == self.objects)
        if self.items is not None and self.items.types:
            made["items"] = self.items.schema()
        return made


def fold(texts: Iterable[str]) -> Shape:
    """Of messages. Raises PipelineError for one that is no JSON."""
    shape = Shape()
    for text in texts:
        try:
            shape.add(json.loads(text))
        except (ValueError, RecursionError):
            raise PipelineError("a payload cannot be read as JSON") from None
    return shape


def infer(spark: Any, settings: Settings, run: Run) -> Outcome:
    """The summary has the schema as `schema`."""
    options: dict[str, Any] = {"encryptedPayloads": "fail"}
    if key := key_of_environment():
        options["encryptionKey"] = key
    found = read(spark, settings.url, settings.queue, columns="partition string, offset long, value string", **options)
    if settings.sample is not None:
        newest = found.groupBy("partition").agg({"offset": "max"}).withColumnRenamed("max(offset)", "last")
        found = found.join(newest, "partition").where(f"offset > last - {settings.sample}")

    def shapes(rows: Iterator[Any]) -> Iterator[tuple[int, Shape]]:
        count = 0

        def texts() -> Iterator[str]:
            nonlocal count
            for row in rows:
                count += 1
                yield row["value"]

        shape = fold(texts())
        yield count, shape

    count, shape = found.select("value").rdd.mapPartitions(shapes).treeReduce(_both)
    if not count:
        raise PipelineError(f"queue {settings.queue!r} has no messages: there is nothing to infer a schema from")
    outcome = run.outcome
    outcome.rows = count
    outcome.offsets = {"messages": count}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": settings.queue}
    outcome.summary = {"messages": count, "schema": head | shape.schema()}
    return outcome


def _both(one: tuple[int, Shape], other: tuple[int, Shape]) -> tuple[int, Shape]:
    return one[0] + other[0], one[1].merge(other[1])
