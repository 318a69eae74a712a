"""The registry of schemas as Spark sees it: the type of a queue's messages (`valueSchema=auto`), and the check of rows
that are written to queues whose pushes are checked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from queenmq.pipeline.connection import connection, rows
from queenmq.pipeline.errors import BadOption, NoSuchQueue
from queenmq.pipeline.patience import patiently
from queenmq.pipeline.server import Access, Server

if TYPE_CHECKING:
    from queenmq.core.json_schema import Validator

CheckedQueues: TypeAlias = "dict[str, tuple[int, Validator]]"

AUTO: Final = "auto"
_DEEPEST: Final = 32
_FORMATS: Final = {"date-time": "timestamp", "date": "date"}
_SIMPLE: Final = {"integer": "long", "number": "double", "boolean": "boolean", "string": "string"}


def value_schema(url: str, queue: str, access: Access | None = None) -> str:
    """The newest schema of a queue as the JSON of a Spark type, from the server if there is an `access`. Raises
    BadOption if it has none with fields."""
    found = registered_schema(url, queue) if access is None else _asked(access, queue)
    if found is None:
        raise BadOption(
            f"valueSchema is auto, and queue {queue!r} has no schema that names fields of an object: "
            f"queen schema set {queue} FILE"
        )
    return found


def registered_schema(url: str, queue: str) -> str | None:
    """The same; None if there is none with fields."""

    def ask() -> list[tuple[Any, ...]]:
        with connection(url) as opened:
            return rows(opened, "schema_newest", queue)

    return next((_of_fields(json.loads(text)) for _, text in patiently(ask)), None)


def _asked(access: Access, queue: str) -> str | None:
    with closing(Server(access)) as server:
        try:
            return _of_fields(server.get("schemas", queue)["schema"])
        except NoSuchQueue:
            return None  # or it has no schema


def _of_fields(schema: Any) -> str | None:
    kind = spark_kind(schema)
    return json.dumps(kind) if isinstance(kind, dict) and kind["type"] == "struct" else None


def spark_kind(schema: Any) -> Any:
    """A JSON Schema as the JSON of a Spark type. What Spark has no type for is read as the text of its JSON."""
    return _kind(schema, schema, 0)


def _kind(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return "string"
    if "$ref" in schema:
        return _kind(_referenced(schema["$ref"], root), root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and "properties" not in schema:
            return _common([_kind(one, root, depth + 1) for one in schema[keyword] if not _is_null(one)])
    fields = _fields(schema, root, depth)
    types = [one for one in _types(schema) if one != "null"]
    if fields and (not types or types == ["object"]):
        return {"type": "struct", "fields": fields}
    return _common([_of_type(one, schema, root, depth) for one in types])


def _of_type(name: str, schema: Any, root: Any, depth: int) -> Any:
    if name == "array":
        element = _kind(schema.get("items", True), root, depth + 1)
        return {"type": "array", "elementType": element, "containsNull": True}
    if name == "object" and isinstance(schema.get("additionalProperties"), dict):
        value = _kind(schema["additionalProperties"], root, depth + 1)
        return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}
    if name == "string" and schema.get("contentEncoding") == "base64":
        return "binary"
    return _FORMATS.get(str(schema.get("format")), "string") if name == "string" else _SIMPLE.get(name, "string")


def _fields(schema: Any, root: Any, depth: int) -> list[dict[str, Any]]:
    """Those of the schema, and of what it is combined of."""
    found: dict[str, Any] = {}
    for part in schema.get("allOf", ()):
        while isinstance(part, dict) and "$ref" in part:
            part = _referenced(part["$ref"], root)
        if isinstance(part, dict) and depth < _DEEPEST:
            found |= {field["name"]: field for field in _fields(part, root, depth + 1)}
    for name, one in schema.get("properties", {}).items():
        found[name] = {"name": name, "type": _kind(one, root, depth + 1), "nullable": True, "metadata": {}}
    return list(found.values())


def _types(schema: Any) -> Sequence[str]:
    if "type" in schema:
        named = schema["type"]
        return [named] if isinstance(named, str) else named
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return sorted({names.get(type(value), "any") for value in values})


def _common(kinds: list[Any]) -> Any:
    """The type that has all values of these."""
    if kinds and all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    return "double" if kinds and all(kind in ("long", "double") for kind in kinds) else "string"


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _referenced(address: str, root: Any) -> Any:
    """Of a reference within the document; anything else could not be set."""
    found = root
    for part in address.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key, True) if isinstance(found, dict) else True
    return found


def checked_queues(opened: Any) -> CheckedQueues:
    """The queues whose pushes are checked, each with the version of its schema and what it allows."""
    found = rows(opened, "checked_schemas", [], [], [])
    if not found:
        return {}
    from queenmq.core.json_schema import Validator, read_schema

    return {name: (version, Validator(read_schema(text))) for name, _, version, _, text in found}
