"""The option `valueSchema`: a type in Spark's DDL or JSON form, and JSON texts parsed into Arrow arrays of it.

What does not fit becomes null, as in Spark's own `from_json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, Final

import msgspec

from queenmq.pipeline.errors import BadOption

_SIMPLE: Final = {
    "string": "StringType",
    "boolean": "BooleanType",
    "int": "IntegerType",
    "integer": "IntegerType",
    "bigint": "LongType",
    "long": "LongType",
    "double": "DoubleType",
    "float": "DoubleType",
    "timestamp": "TimestampType",
    "date": "DateType",
}
_FIELD: Final = re.compile(r"^(?:`([^`]+)`|([A-Za-z_]\w*))\s*[:\s]\s*(.+)$", re.DOTALL)

Convert = Callable[[Any], Any]


def spark_type(text: str) -> Any:
    """The Spark type of `a INT, b STRUCT<c: STRING>` or of what `df.schema.json()` gave."""
    from pyspark.sql.types import StructType

    if text.lstrip().startswith("{"):
        try:
            return StructType.fromJson(json.loads(text))
        except (ValueError, KeyError, TypeError):
            raise BadOption("valueSchema is not the JSON of a Spark schema") from None
    return _struct(text)


def _struct(text: str) -> Any:
    from pyspark.sql.types import StructField, StructType

    fields = []
    for part in _split(text):
        match = _FIELD.match(part.strip())
        if match is None:
            raise BadOption(f"valueSchema: {part.strip()!r} is not a name and a type")
        fields.append(StructField(match[1] or match[2], _type(match[3].strip())))
    return StructType(fields)


def _type(text: str) -> Any:
    from pyspark.sql import types

    lowered = text.lower()
    if lowered in _SIMPLE:
        return getattr(types, _SIMPLE[lowered])()
    for word, make in (("array", _array), ("struct", _struct)):
        if lowered.startswith(f"{word}<") and text.endswith(">"):
            return make(text[len(word) + 1 : -1])
    raise BadOption(f"valueSchema: {text!r} is none of {', '.join(_SIMPLE)}, array<…>, struct<…>")


def _array(text: str) -> Any:
    from pyspark.sql.types import ArrayType

    return ArrayType(_type(text.strip()))


def _split(text: str) -> list[str]:
    """At the commas that are not inside angle brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def arrow_type(text: str) -> Any:
    return _arrow(spark_type(text))


def _arrow(kind: Any) -> Any:
    import pyarrow as pa

    name = kind.typeName()
    if name == "struct":
        return pa.struct([(f.name, _arrow(f.dataType)) for f in kind.fields])
    if name == "array":
        return pa.list_(_arrow(kind.elementType))
    simple = {
        "string": pa.string(),
        "boolean": pa.bool_(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "date": pa.date32(),
    }
    if name not in simple:
        raise BadOption(f"valueSchema: {name} is not supported; use {', '.join(_SIMPLE)}, array, struct")
    return simple[name]


def parser(text: str) -> Callable[[Any], Any]:
    """From an Arrow array of JSON texts to one of the schema's type."""
    import pyarrow as pa

    kind = spark_type(text)
    target, convert = _arrow(kind), _converter(kind)

    def parse(values: Any) -> Any:
        return pa.array([None if raw is None else _parsed(raw, convert) for raw in values.to_pylist()], target)

    return parse


def _parsed(raw: str, convert: Convert) -> Any:
    try:
        return convert(msgspec.json.decode(raw))
    except msgspec.DecodeError:
        return None


def _converter(kind: Any) -> Convert:
    name = kind.typeName()
    if name == "struct":
        fields = [(f.name, _converter(f.dataType)) for f in kind.fields]
        return lambda found: (
            {key: convert(found.get(key)) for key, convert in fields} if isinstance(found, dict) else None
        )
    if name == "array":
        element = _converter(kind.elementType)
        return lambda found: [element(one) for one in found] if isinstance(found, list) else None
    return {
        "string": _text,
        "boolean": lambda found: found if isinstance(found, bool) else None,
        "integer": lambda found: _whole(found, 31),
        "long": lambda found: _whole(found, 63),
        "double": lambda found: (
            float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
        ),
        "timestamp": _moment,
        "date": _day,
    }[name]


def _text(found: Any) -> str | None:
    if found is None or isinstance(found, str):
        return found
    return msgspec.json.encode(found).decode()


def _whole(found: Any, bits: int) -> int | None:
    if isinstance(found, bool) or not isinstance(found, int) or not -(2**bits) <= found < 2**bits:
        return None
    return found


def _moment(found: Any) -> datetime | None:
    if not isinstance(found, str):
        return None
    try:
        parsed = datetime.fromisoformat(found)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _day(found: Any) -> date | None:
    try:
        return date.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        return None
