"""The option `valueSchema`: a type in Spark's DDL or JSON form, and JSON texts parsed into Arrow arrays of it.

What does not fit becomes null, as in Spark's own `from_json`, and is reported with the reason.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Final

import msgspec

from queenmq.pipeline.errors import BadOption

_SIMPLE: Final = {
    "string": "StringType",
    "boolean": "BooleanType",
    "tinyint": "ByteType",
    "byte": "ByteType",
    "smallint": "ShortType",
    "short": "ShortType",
    "int": "IntegerType",
    "integer": "IntegerType",
    "bigint": "LongType",
    "long": "LongType",
    "double": "DoubleType",
    "float": "DoubleType",
    "timestamp": "TimestampType",
    "date": "DateType",
    "binary": "BinaryType",
    "variant": "VariantType",
}
_DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.IGNORECASE)
_MOST_DIGITS: Final = 38
# Numbers as times: seconds since 1970 up to the first, milliseconds up to the second, microseconds from there on.
_MILLISECONDS: Final = 10**11
_MICROSECONDS: Final = 10**14
_FIELD: Final = re.compile(r"^(?:`([^`]+)`|([A-Za-z_]\w*))\s*[:\s]\s*(.+)$", re.DOTALL)

_SHOWN: Final = 80

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
    if decimal := _DECIMAL.fullmatch(text):
        return _decimal(int(decimal[1] or 10), int(decimal[2] or 0))
    for word, make in (("array", _array), ("struct", _struct), ("map", _map)):
        if lowered.startswith(f"{word}<") and text.endswith(">"):
            return make(text[len(word) + 1 : -1])
    raise BadOption(f"valueSchema: {text!r} is none of {', '.join(_SIMPLE)}, decimal, array<…>, map<…>, struct<…>")


def _decimal(digits: int, places: int) -> Any:
    from pyspark.sql.types import DecimalType

    if not 1 <= digits <= _MOST_DIGITS or places > digits:
        raise BadOption(f"valueSchema: decimal({digits}, {places}) must have 1 to {_MOST_DIGITS} digits in all")
    return DecimalType(digits, places)


def _map(text: str) -> Any:
    from pyspark.sql.types import MapType

    parts = _split(text)
    if len(parts) != 2 or parts[0].strip().lower() != "string":
        raise BadOption(f"valueSchema: map<{text}> must be map<string, …>, as an object of JSON is")
    return MapType(_type("string"), _type(parts[1].strip()))


def _array(text: str) -> Any:
    from pyspark.sql.types import ArrayType

    return ArrayType(_type(text.strip()))


def _split(text: str) -> list[str]:
    """At the commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def arrow_type(text: str) -> Any:
    return arrow_of(spark_type(text))


def arrow_of(kind: Any) -> Any:
    import pyarrow as pa

    name = kind.typeName()
    if name == "struct":
        return pa.struct([(f.name, arrow_of(f.dataType)) for f in kind.fields])
    if name == "array":
        return pa.list_(arrow_of(kind.elementType))
    if name == "map":
        return pa.map_(arrow_of(kind.keyType), arrow_of(kind.valueType))
    if name == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if name == "variant":
        # As Spark has it in Arrow, where the mark tells it from any other struct.
        mark = pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})
        return pa.struct([pa.field("value", pa.binary(), nullable=False), mark])
    simple = {
        "string": pa.string(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "date": pa.date32(),
    }
    if name not in simple:
        raise BadOption(f"valueSchema: {name} is not supported; use {', '.join(_SIMPLE)}, decimal, array, map, struct")
    return simple[name]


def has_variant(kind: Any) -> bool:
    """Whether a Spark type is VARIANT, or has one somewhere in it."""
    parts = {
        "struct": lambda: [field.dataType for field in kind.fields],
        "array": lambda: [kind.elementType],
        "map": lambda: [kind.valueType],
    }
    name = kind.typeName()
    return name == "variant" or any(map(has_variant, parts[name]() if name in parts else []))


def spark_of(kind: Any) -> Any:
    """The Spark type of one in Arrow, as tables of other formats have it."""
    import pyarrow.types as arrow
    from pyspark.sql import types

    if arrow.is_struct(kind):
        return types.StructType([types.StructField(field.name, spark_of(field.type)) for field in kind])
    if arrow.is_list(kind) or arrow.is_large_list(kind) or arrow.is_list_view(kind):
        return types.ArrayType(spark_of(kind.value_type))
    if arrow.is_map(kind):
        return types.MapType(spark_of(kind.key_type), spark_of(kind.item_type))
    if arrow.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    if arrow.is_timestamp(kind):
        return types.TimestampType()
    names = {
        "large_string": "string",
        "string_view": "string",
        "bool": "boolean",
        "large_binary": "binary",
        "binary_view": "binary",
        "int8": "byte",
        "int16": "short",
        "int32": "integer",
        "int64": "long",
        "date32[day]": "date",
    }
    return getattr(types, _SIMPLE[names.get(str(kind), str(kind))])()


class Misfit(Exception):
    """A value that is not of its type; the text says which and what it is."""


def parser(text: str, lenient: frozenset[str] | None = None) -> Callable[[Any], tuple[Any, list[str | None]]]:
    """From an Arrow array of JSON texts to one of the schema's type, and for each text what did not fit, or None.

    What does not fit becomes null. A field that is absent or null fits, and so does anything in the fields that
    `lenient` names (paths such as `at` or `a.b`); without `lenient` nothing is reported.
    """
    import pyarrow as pa

    kind = spark_type(text)
    target, convert, check = arrow_of(kind), _converter(kind, "", None), _converter(kind, "", lenient)

    def parse(values: Any) -> tuple[Any, list[str | None]]:
        found: list[Any] = []
        misfits: list[str | None] = [None] * len(values)
        for place, raw in enumerate(values.to_pylist()):
            try:
                decoded = None if raw is None else msgspec.json.decode(raw)
            except msgspec.DecodeError:
                decoded = None  # encrypted and read raw: it is not JSON
            try:
                found.append(None if decoded is None else check(decoded))
            except Misfit as error:
                found.append(convert(decoded))
                misfits[place] = str(error)
        return pa.array(found, target), misfits

    return parse


def _converter(kind: Any, path: str, lenient: frozenset[str] | None) -> Convert:
    name = kind.typeName()
    if name == "struct":
        dot = f"{path}." if path else ""
        fields = [(f.name, _converter(f.dataType, dot + f.name, lenient)) for f in kind.fields]
        convert: Convert = lambda found: (  # noqa: E731
            {key: convert(found.get(key)) for key, convert in fields} if isinstance(found, dict) else None
        )
    elif name == "array":
        element = _converter(kind.elementType, f"{path}[]", lenient)
        convert = lambda found: [element(one) for one in found] if isinstance(found, list) else None  # noqa: E731
    elif name == "map":
        value = _converter(kind.valueType, f"{path}[]", lenient)
        convert = lambda found: (  # noqa: E731
            [(key, value(one)) for key, one in found.items()] if isinstance(found, dict) else None
        )
    elif name == "decimal":
        convert = lambda found: _exact(found, kind.precision, kind.scale)  # noqa: E731
    else:
        convert = {
            "string": _text,
            "binary": _bytes,
            "variant": _variant,
            "byte": lambda found: _whole(found, 7),
            "short": lambda found: _whole(found, 15),
            "boolean": lambda found: found if isinstance(found, bool) else None,
            "integer": lambda found: _whole(found, 31),
            "long": lambda found: _whole(found, 63),
            "double": lambda found: (
                float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
            ),
            "timestamp": _moment,
            "date": _day,
        }[name]
    if lenient is None or path in lenient:
        return convert

    def fitting(found: Any) -> Any:
        made = convert(found)
        if made is None and found is not None:
            raise Misfit(f"{path or 'the value'} should be {name} and is {str(found)[:_SHOWN]!r}")
        return made

    return fitting


def _text(found: Any) -> str | None:
    if found is None or isinstance(found, str):
        return found
    return msgspec.json.encode(found).decode()


def _whole(found: Any, bits: int) -> int | None:
    if isinstance(found, bool) or not isinstance(found, int) or not -(2**bits) <= found < 2**bits:
        return None
    return found


def _exact(found: Any, digits: int, places: int) -> Decimal | None:
    """A number, or a text with one, rounded to the places; None if it has too many digits before the point."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        with localcontext(prec=2 * _MOST_DIGITS):
            made = Decimal(str(found)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    except ArithmeticError:
        return None
    return made if made.is_finite() and made.adjusted() < digits - places else None


def _variant(found: Any) -> dict[str, bytes] | None:
    """Anything fits but null, which is none. Too deep or too large for a variant: null."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import VariantVal

    try:
        made = None if found is None else VariantVal.parseJson(msgspec.json.encode(found).decode())
    except (PySparkException, OverflowError, RecursionError, ValueError):
        return None
    return None if made is None else {"value": bytes(made.value), "metadata": bytes(made.metadata)}


def _bytes(found: Any) -> bytes | None:
    """Base64, as Spark's own JSON has it."""
    try:
        return b64decode(found, validate=True) if isinstance(found, str) else None
    except ValueError:
        return None


def _moment(found: Any) -> datetime | None:
    if isinstance(found, int | float) and not isinstance(found, bool):
        unit = 1 if abs(found) < _MILLISECONDS else 1_000 if abs(found) < _MICROSECONDS else 1_000_000
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=round(found * (1_000_000 / unit)))
        except (OverflowError, ValueError):
            return None
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
