"""JSON Schemas of messages: what a schema allows, and whether one may follow another. No I/O.

References to other documents are never fetched, patterns are matched in linear time, and how much work a payload may
be is known before it is compared, so that neither a schema nor a payload can keep a server busy. Whether one schema may
follow another is another matter: that may take any time, so servers leave it to a process (`broker/schemas.py`).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import jsonschema_rs
import msgspec

from queenmq.core.schema_cost import SchemaCost, TooCostly, levels_of

Schema: TypeAlias = dict[str, Any] | bool
MOST_BYTES: Final = 65_536
MOST_EVALUATIONS: Final = 50_000_000  # for one payload: about half a second
_MOST_TO_EXPLAIN: Final = 20_000  # errors cost a thousand times as much
_MOST_PATTERNS: Final = 200
_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=512 * 1024)
_MOST_TEXT: Final = 300
_MASK: Final = "the value"
# Where these are, other parts of a schema may name further fields.
_COMBINED: Final = frozenset(("allOf", "not", "if", "$dynamicRef", "$recursiveRef", "unevaluatedProperties"))
_BESIDE: Final = frozenset(("anyOf", "oneOf", "$ref", "dependentSchemas", "dependencies", "patternProperties"))
_UNPROVED: Final = (jsonschema_rs.canonical.CanonicalizationError, jsonschema_rs.ReferencingError, ValueError)
_decoder = msgspec.json.Decoder()


class BadSchema(ValueError):
    """What was given is no JSON Schema that can be used."""


class Validator:
    """A schema that payloads are compared with."""

    def __init__(self, schema: Schema) -> None:
        """Raises BadSchema."""
        if not isinstance(schema, dict | bool):
            raise BadSchema("a JSON Schema is an object")
        if _patterns_in(schema) > _MOST_PATTERNS:
            raise BadSchema(f"it has more than {_MOST_PATTERNS} patterns")
        try:
            self._cost = SchemaCost(schema if isinstance(schema, dict) else {})
            self._compiled = jsonschema_rs.validator_for(schema, offline=True, mask=_MASK, pattern_options=_PATTERNS)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, TooCostly, ValueError) as error:
            raise BadSchema(_shortened(getattr(error, "message", str(error)))) from None

    def cost(self, payload: bytes) -> int:
        """How much work it may be to compare a payload, at most MOST_EVALUATIONS: those beyond are not compared."""
        return min(self._cost.of(payload), MOST_EVALUATIONS)

    def misfit(self, payload: bytes) -> str | None:
        """Why a payload is not allowed; None if it is. The sentence has no values of the payload."""
        try:
            value = _decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return "the payload cannot be read as JSON"
        cost = self._cost.of(payload)
        if cost > MOST_EVALUATIONS and (cost := self._cost.of(payload, levels_of(value))) > MOST_EVALUATIONS:
            return "the payload is too large, or nested too deeply, to be compared with this schema in time"
        return None if self._compiled.is_valid(value) else self._sentence(value, cost)

    def _sentence(self, value: object, cost: int) -> str:
        if cost > _MOST_TO_EXPLAIN and not self._cost.is_plain:
            return "the payload does not fit"  # finding out where would take long
        try:
            self._compiled.validate(value)
        except jsonschema_rs.ValidationError as found:
            error = found
        else:
            return "the payload does not fit"
        where = "".join(f"/{part}" for part in error.instance_path)
        return _shortened(f"{where}: {error.message}" if where else error.message)


def read_schema(text: str | bytes) -> Any:
    """Raises BadSchema unless it is JSON."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSchema(f"not JSON: {error}") from None


def incompatibility(old: Schema, new: Schema, rule: str) -> str | None:
    """Why `new` may not follow `old`; None if it may.

    backward: whatever `old` allows, `new` allows, so that who reads with `new` can read what is stored. forward: the
    reverse, so that who reads with `old` can read what comes. Fields that a schema does not name are taken for absent,
    as otherwise no field could ever be added. What cannot be proved is refused, too.
    """
    if rule in ("backward", "full") and not _covers(new, old):
        return _told("messages that the schema before allows may not be allowed by the new one", new, old)
    if rule in ("forward", "full") and not _covers(old, new):
        return _told("messages that the new schema allows may not be allowed by the one before", old, new)
    return None


def _covers(wide: Schema, narrow: Schema) -> bool:
    try:
        return _canonical(wide).covers(_closed(narrow)) is jsonschema_rs.canonical.Containment.YES
    except _UNPROVED:
        return False


def _canonical(schema: Schema) -> jsonschema_rs.CanonicalSchema:
    return jsonschema_rs.canonicalize(schema, offline=True, pattern_options=_PATTERNS)


def _closed(schema: Schema) -> jsonschema_rs.CanonicalSchema:
    whole = _canonical(schema)
    if _is_combined(schema):
        return whole
    closed = _canonical(_without_others(schema))
    return whole if closed.satisfiability() is jsonschema_rs.canonical.Satisfiability.NO else closed


def _patterns_in(schema: Schema) -> int:
    """How many there are at most: what is called a pattern may also be a value, or the name of a field."""
    found, waiting = 0, [schema]
    while waiting:
        one: Any = waiting.pop()
        if isinstance(one, dict):
            by_name = one.get("patternProperties")
            found += isinstance(one.get("pattern"), str) + (len(by_name) if isinstance(by_name, dict) else 0)
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found


def _is_combined(schema: object) -> bool:
    if isinstance(schema, dict):
        return not _COMBINED.isdisjoint(schema) or any(map(_is_combined, schema.values()))
    return isinstance(schema, list) and any(map(_is_combined, schema))


def _without_others(schema: Any) -> Any:
    """The same for objects that have only the fields which the schema names."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for keyword in ("properties", "$defs", "definitions"):
        if keyword in closed:
            closed[keyword] = {name: _without_others(value) for name, value in closed[keyword].items()}
    if "properties" in closed and _BESIDE.isdisjoint(closed):
        closed.setdefault("additionalProperties", False)
    for keyword in ("items", "additionalProperties"):
        if keyword in closed:
            closed[keyword] = _without_others(closed[keyword])
    return closed


def _told(what: str, wide: Schema, narrow: Schema) -> str:
    """With the fields at fault, as far as they can be seen at the top."""
    if not (isinstance(wide, dict) and isinstance(narrow, dict)):
        return what
    added = sorted(set(wide.get("required", ())) - set(narrow.get("required", ())))
    there, here = wide.get("properties", {}), narrow.get("properties", {})
    differ = [name for name in here if name in there and name not in added and not _covers(there[name], here[name])]
    fields = [*(f"{name} (required)" for name in added), *(f"{name} (type or limits)" for name in differ)]
    return _shortened(f"{what}: {', '.join(fields)}") if fields else what


def _shortened(text: str) -> str:
    first = text.partition("\n")[0]
    return first if len(first) <= _MOST_TEXT else f"{first[: _MOST_TEXT - 1]}…"
