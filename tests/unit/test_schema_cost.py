"""How much work payloads may be for a schema: an upper bound, and nothing is compared that is beyond it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.json_schema import BadSchema, Validator
from queenmq.core.schema_cost import SchemaCost, TooCostly, levels_of

Json = dict[str, Any]


def doubling(levels: int) -> Json:
    """Two ways to each part: 2 to the power of the levels."""
    parts: Json = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]}]}
        for n in range(levels)
    }
    return {"$defs": parts | {f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


NESTED: Json = {"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}, {"type": "null"}]}
TREE: Json = {
    "$id": "https://example.org/tree",
    "type": "object",
    "properties": {
        "left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        "right": {"$ref": "tree"},
        "value": {"type": "integer"},
    },
}


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (doubling(100), b"1"),
        (NESTED, b"[" * 60 + b"1" + b"]" * 60),
        ({"items": {"oneOf": [{"const": n} for n in range(2000)]}}, json.dumps(["x"] * 100_000).encode()),
    ],
    ids=["references", "levels of the payload", "alternatives"],
)
def test_what_could_take_too_long_is_not_compared(schema: Json, payload: bytes) -> None:
    began = time.process_time()
    assert "to be compared with this schema in time" in str(Validator(schema).misfit(payload))
    assert time.process_time() - began < 5


def test_one_error_is_told_however_many_there_are() -> None:
    """Each took 10 us: a payload of 600 kB held up a server for three seconds."""
    payload = json.dumps(["x"] * 300_000).encode()
    validator = Validator({"items": {"type": "integer"}})
    began = time.process_time()
    assert validator.misfit(payload) == '/0: the value is not of type "integer"'
    assert time.process_time() - began < 1
    assert Validator({"anyOf": [{"items": {"type": kind}} for kind in ("null", "boolean")]}).misfit(payload) == (
        "the payload does not fit"
    )
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("schema", "payload", "why"),
    [
        (TREE, {"left": {"left": None, "right": {"value": 1}}}, None),
        (TREE, {"right": {"value": "x"}}, '/right/value: the value is not of type "integer"'),
        (NESTED, [[[]], None, []], None),
        (doubling(4), "text", None),
        (doubling(14), 1, "the payload does not fit"),
        ({"$defs": {"a": {"$anchor": "here", "type": "null"}}, "$ref": "#here"}, None, None),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": True}}, {"a": 1}, None),
        ({"const": {"$ref": "#/nothing"}}, {"$ref": "#/nothing"}, None),
        ({"properties": {"$ref": {"type": "string"}, "allOf": {"type": "null"}}}, {"$ref": "x", "allOf": None}, None),
        (True, 1, None),
    ],
)
def test_ordinary_schemas_are_compared(schema: Any, payload: Any, why: str | None) -> None:
    assert Validator(schema).misfit(json.dumps(payload).encode()) == why


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"$ref": "#"}, "refers to itself for the same value"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#"}}}}, "refers to itself"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "no reference to a part of this schema"),
        ({"$ref": "#/$defs/none"}, "no reference to a part of this schema"),
        ({"allOf": [{"minimum": n} for n in range(6000)]}, "more than 5000 parts"),
        ({"allOf": [{"pattern": f"a{n}"} for n in range(300)]}, "more than 200 patterns"),
        ({"pattern": ".{1,5000}" * 10}, "regex"),
    ],
)
def test_schemas_that_could_not_be_bounded_are_refused(schema: Json, sentence: str) -> None:
    with pytest.raises(BadSchema, match=sentence):
        Validator(schema)


VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=10,
)
SCHEMAS = st.recursive(
    st.sampled_from([{}, {"type": "string"}, {"type": "integer"}, {"enum": [1, 2]}, {"$ref": "#/$defs/leaf"}]),
    lambda inner: (
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=3), "not": inner})
        | st.fixed_dictionaries({"properties": st.fixed_dictionaries({"a": inner, "b": inner})})
        | st.fixed_dictionaries({"properties": st.just({"a": {"$ref": "#"}}), "items": inner})
        | st.fixed_dictionaries({"items": inner, "additionalProperties": inner})
        | st.fixed_dictionaries({"if": inner, "then": inner, "else": inner})
    ),
    max_leaves=8,
)


@given(SCHEMAS, VALUES)
def test_it_is_an_upper_bound(schema: Json, value: Any) -> None:
    """Of what a validator does that leaves nothing out."""
    root = schema | {"$defs": {"leaf": {"type": "null"}}}
    payload = json.dumps(value, separators=(",", ":")).encode()
    counted = evaluations(root, root, value)
    cost = SchemaCost(root)
    assert counted <= cost.of(payload, levels_of(value)) <= cost.of(payload)
    padded = payload + b" " * 20_000  # so that it is not estimated roughly
    assert counted <= cost.of(padded, levels_of(value)) <= cost.of(padded)


def evaluations(root: Json, schema: Json, value: Any) -> int:
    count = 1
    for name in ("anyOf", "allOf"):
        count += sum(evaluations(root, one, value) for one in schema.get(name, ()))
    for name in ("not", "if", "then", "else"):
        if name in schema:
            count += evaluations(root, schema[name], value)
    if "$ref" in schema:
        target = root if schema["$ref"] == "#" else root["$defs"]["leaf"]
        count += evaluations(root, target, value)
    if isinstance(value, dict):
        for name, field in value.items():
            if name in schema.get("properties", {}):
                count += evaluations(root, schema["properties"][name], field)
            elif "additionalProperties" in schema:
                count += evaluations(root, schema["additionalProperties"], field)
    if isinstance(value, list) and "items" in schema:
        count += sum(evaluations(root, schema["items"], item) for item in value)
    return count


def test_references_whose_end_depends_on_the_way_are_refused() -> None:
    """Each level of a payload would be compared ten times with the whole of it."""
    inner = {"$id": "http://x/t", "$dynamicAnchor": "n", "additionalProperties": {"$dynamicRef": "#n"}}
    outer = {"$id": "http://x/r", "$dynamicAnchor": "n", "allOf": [{"$ref": "t"}] * 10, "$defs": {"t": inner}}
    with pytest.raises(TooCostly, match="dynamicRef"):
        SchemaCost(outer)
    SchemaCost({"$dynamicAnchor": "n", "additionalProperties": {"$dynamicRef": "#n"}})
