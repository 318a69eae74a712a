"""JSON Schemas as types of Spark, and the shapes that a schema is inferred from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.json_schema import Validator
from queenmq.pipeline.jobs.infer import MOST_FIELDS, Shape, fold
from queenmq.pipeline.registry import spark_kind

ARRAY = {"type": "array", "elementType": "long", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "long"),
        ({"type": ["integer", "null"]}, "long"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["integer", "string"]}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"enum": [1, 2]}, "long"),
        ({"const": "a"}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "long"),
        ({"type": "array", "items": {"type": "integer"}}, ARRAY),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, MAP),
        ({"type": "object"}, "string"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "boolean"}}}, "boolean"),
        ({"$ref": "#"}, "string"),
        (True, "string"),
    ],
)
def test_a_schema_is_a_type_of_spark(schema: Any, kind: Any) -> None:
    assert spark_kind(schema) == kind


def test_fields_of_combined_schemas_are_fields() -> None:
    schema = {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"$ref": "#/$defs/b"}],
              "$defs": {"b": {"properties": {"b": {"type": "string"}}}}, "properties": {"c": {}}}  # fmt: skip
    assert [(one["name"], one["type"]) for one in spark_kind(schema)["fields"]] == [
        ("a", "long"), ("b", "string"), ("c", "string"),
    ]  # fmt: skip


def test_too_many_fields_are_data() -> None:
    shape = fold(json.dumps({f"customer-{n}": n}) for n in range(MOST_FIELDS + 5))
    assert shape.schema() == {"type": "object", "additionalProperties": {"type": "integer"}}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "2026-01-01", "2026-01-01T00:00:00Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(values, min_size=1, max_size=6), st.integers(0, 6))
def test_what_was_seen_fits_in_whichever_parts_it_was_folded(seen: list[Any], cut: int) -> None:
    texts = [json.dumps(one) for one in seen]
    whole = fold(texts).schema()
    assert fold(texts[:cut]).merge(fold(texts[cut:])).schema() == whole
    assert Shape().merge(fold(texts)).schema() == whole
    validator = Validator(whole)
    assert [validator.misfit(text.encode()) for text in texts] == [None] * len(texts)
