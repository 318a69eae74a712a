"""The declaration of a window job: read, and refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from queenmq.pipeline.errors import BadOption
from queenmq.pipeline.window_spec import make, parse

GOOD = {
    "source": "orders",
    "target": "stats",
    "window": {"tumbling": "1 minute"},
    "aggregates": {"orders": "count", "p": "percentile(data.ms, 0.99)"},
}


def test_a_whole_declaration() -> None:
    spec = parse(
        "source: orders\ntarget: stats\nschema: at TIMESTAMP, amount DOUBLE\ntime: data.at\n"
        "window: {sliding: 10 minutes, every: 1 minute}\nlateness: 30 seconds\nlate: orders-late\n"
        "by: [partition, data.customer]\naggregates:\n  orders: count\n  revenue: sum(data.amount)\n"
        "  who: distinct(data.customer)\nemit: updates\npartition: customer\n"
    )
    assert (spec.shape, spec.size, spec.every, spec.delay) == (
        "sliding",
        "10 minutes",
        "1 minute",
        "35000 milliseconds",
    )
    assert spec.by == {"partition": "partition", "customer": "data.customer"}
    assert spec.aggregates == {
        "orders": "count(*)",
        "revenue": "sum(data.amount)",
        "who": "approx_count_distinct(data.customer)",
    }
    assert (spec.updates, spec.partition, spec.late) == (True, "customer", "orders-late")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"colour": 1}, "unknown field colour"),
    ({"window": {"tumbling": "1 fortnight"}}, "span of time"),
    ({"window": {"sliding": "1 minute"}}, "window must be"),
    ({"window": {"tumbling": "1 minute", "every": "1 second"}}, "window must be"),
    ({"window": "1 minute"}, "window must be"),
    ({"aggregates": {}}, "must be a mapping"),
    ({"aggregates": {"a": "median(data.x)"}}, "none of count"),
    ({"aggregates": {"a": "sum"}}, "needs a column"),
    ({"aggregates": {"a": "sum(data.x, 0.5)"}}, "only it, has a share"),
    ({"aggregates": {"a": "percentile(data.x)"}}, "has a share"),
    ({"aggregates": {"a": "sum(secret)"}}, "not partition"),
    ({"aggregates": {"a b": "count"}}, "not a name"),
    ({"time": "timestamp"}, "time must be arrival"),
    ({"emit": "sometimes"}, "final or updates"),
    ({"emit": "updates", "window": {"session": "1 minute"}}, "final results only"),
    ({"source": 5}, "must name a queue"),
    ({"target": ""}, "must not be empty"),
    ({"by": "partition"}, "list of columns"),
    ({"partition": "customer"}, "must be one of"),
    ({"lateness": "soon"}, "span of time"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG)
def test_wrong_declarations(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence):
        make(GOOD | change)


@pytest.mark.parametrize("text", ["- a", "a: [", ""])
def test_what_is_no_declaration(text: str) -> None:
    with pytest.raises(BadOption, match=r"not YAML|must be a mapping"):
        parse(text)
