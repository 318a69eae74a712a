"""What the types of a schema have in common with words in it."""

from __future__ import annotations

import pytest

from queenmq.pipeline.json_values import has_variant, spark_type


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("variant INT, v STRUCT<variant: STRING>", False),
        ("a VARIANT", True),
        ("a ARRAY<STRUCT<b: MAP<STRING, VARIANT>>>", True),
    ],
)
def test_a_field_with_the_name_of_a_type_is_none(schema: str, found: bool) -> None:
    assert has_variant(spark_type(schema)) is found
