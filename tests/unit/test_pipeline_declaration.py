"""Files of pipelines: what is refused, and with which sentence; what a change does to the state."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from queenmq.pipeline.declaration import BadDeclaration, broken_state, checkpoint, differences, make, read
from queenmq.pipeline.kinds import KINDS

WINDOW = {
    "kind": "window",
    "checkpoint": "/data/stats",
    "window": {
        "source": "orders",
        "target": "stats",
        "window": {"tumbling": "1 minute"},
        "aggregates": {"orders": "count"},
        "late": "orders-late",
    },
}
JOIN = {
    "kind": "join",
    "left": "orders",
    "right": "payments",
    "on": {"data.id": "data.order"},
    "target": "paid",
    "checkpoint": "/data/join",
}
SQL = {"kind": "sql", "query": "SELECT * FROM STREAM(orders)", "target": "large", "checkpoint": "/data/sql"}
UPSERT = {"kind": "upsert", "queue": "orders", "table": "/data/orders", "key": "id", "checkpoint": "/data/upsert"}
COPY = {"kind": "copy", "source": "a", "target": "b", "checkpoint": "s3://bucket/copy"}


def problems(text: str) -> list[str]:
    with pytest.raises(BadDeclaration) as raised:
        read(text, KINDS)
    return raised.value.problems


def problems_of(**given: Any) -> list[str]:
    return problems(yaml.safe_dump({"pipelines": {"one": given}}))


def test_every_kind_can_be_declared() -> None:
    text = yaml.safe_dump(
        {
            "pipelines": {
                "stats": WINDOW | {"trigger": "5 seconds", "start": "latest", "master": "spark://host:7077"},
                "copy": COPY | {"conf": {"spark.driver.memory": "1g", "spark.ui.enabled": True}},
                "some": COPY | {"kind": "filter", "where": "data.n > 1", "schema": "n INT", "checkpoint": "/data/some"},
                "lake": {"kind": "archive", "queue": "orders", "lake": "s3://bucket/lake", "format": "delta"},
                "figures": {"kind": "analytics"},
                "paid": JOIN | {"type": "left", "select": "left.data AS order"},
                "large": SQL | {"prepare": ["CREATE TEMPORARY VIEW x AS SELECT 1"], "updates": True},
                "table": UPSERT | {"key": ["id", "shop"], "format": "iceberg", "delete": "data.gone"},
            }
        }
    )
    found = {one.name: one for one in read(text, KINDS)}
    assert found["stats"].plan.reads == ("orders",)
    assert found["stats"].plan.writes == ("stats", "orders-late")
    assert found["copy"].conf == {"spark.driver.memory": "1g", "spark.ui.enabled": "true"}
    assert found["figures"].plan.reads is None
    assert (found["paid"].plan.reads, found["paid"].plan.writes) == (("orders", "payments"), ("paid",))
    assert (found["large"].plan.reads, found["table"].plan.reads) == (("orders",), ("orders",))
    assert {one.kind for one in found.values()} == set(KINDS)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file must be a mapping with pipelines:"),
        ("pipelines: {}", "the file must be a mapping with pipelines:"),
        ("pipelines: [a]", "the file must be a mapping with pipelines:"),
        ("pipelines:\n  a: {kind: copy", "the file is not YAML: line "),
        ("pipelines:\n  a: {kind: copy}\n  a: {kind: copy}", "the file is not YAML: line 3: a is there twice"),
        ("pipelines: {a: !!python/object:os.system {}}", "the file is not YAML"),
        ("pipelines: {a: 1}\nversion: 2", "unknown field version beside pipelines"),
        ("pipelines: {'a b': {kind: copy}}", "a b: a name has letters"),
        ("pipelines: {a: 1}", "a: it must be a mapping with kind"),
        (
            "pipelines: {a: {kind: dance}}",
            "a: kind must be one of analytics, archive, copy, filter, join, sql, upsert, window, not 'dance'",
        ),
    ],
)
def test_a_bad_file_is_a_sentence(text: str, problem: str) -> None:
    assert any(one.startswith(problem) for one in problems(text)), problems(text)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (COPY | {"checkpoint": "./here"}, "one: checkpoint must be an absolute path or a URI"),
        (COPY | {"target": "a"}, "one: target must be another queue than source"),
        (COPY | {"targett": "a"}, "one: unknown field targett: did you mean target?"),
        (COPY | {"trigger": "often"}, "one: trigger must be a span of time such as '30 seconds', not 'often'"),
        (COPY | {"start": "middle"}, "one: start must be earliest or latest, not 'middle'"),
        (COPY | {"maxOffsetsPerTrigger": 0}, "one: maxOffsetsPerTrigger must be a whole number above 0, not 0"),
        (COPY | {"master": "mesos://x"}, "one: master must be the URL of a Spark master"),
        (COPY | {"conf": ["a"]}, "one: conf must be a mapping of names to values"),
        (COPY | {"conf": {"spark.hadoop.fs.s3a.secret.key": "x"}}, "one: conf: spark.hadoop.fs.s3a.secret.key may be"),
        (COPY | {"kind": "filter"}, "one: where is missing"),
        (WINDOW | {"window": {"source": "a"}}, "one: window must be {tumbling: 1 minute}"),
        ({"kind": "archive", "queue": "q", "lake": "s3://KEY:SECRET@bucket"}, "one: the address of the lake"),
        (JOIN | {"on": {}}, "one: on is missing: the fields that are equal"),
        (JOIN | {"right": "orders"}, "one: right must be another queue than left"),
        (JOIN | {"type": "outer"}, "one: type must be inner or left, not 'outer'"),
        (SQL | {"query": "SELECT 1"}, "one: the query reads no queue: name one as STREAM(orders)"),
        (SQL | {"target": "orders"}, "one: target must be another queue than those that are read"),
        (SQL | {"prepare": "x"}, "one: prepare must be a list of statements"),
        (SQL | {"updates": "yes"}, "one: updates must be true or false, not 'yes'"),
        (UPSERT | {"key": []}, "one: key must be a field of the message, or a list of fields"),
        (UPSERT | {"table": "here"}, "one: table must be an absolute path or a URI"),
        ({"kind": "archive", "queue": 5, "lake": "/lake"}, "one: queue must be a text, not 5"),
    ],
)
def test_a_bad_field_is_a_sentence(given: dict[str, Any], problem: str) -> None:
    assert any(one.startswith(problem) for one in problems_of(**given)), problems_of(**given)


def test_all_problems_are_reported_at_once() -> None:
    text = yaml.safe_dump({"pipelines": {"a": {"kind": "copy"}, "b": {"kind": "dance"}}})
    assert problems(text) == [
        "a: source is missing",
        "a: target is missing",
        "a: checkpoint is missing",
        "b: kind must be one of analytics, archive, copy, filter, join, sql, upsert, window, not 'dance'",
    ]


def test_no_two_pipelines_share_a_checkpoint() -> None:
    text = yaml.safe_dump({"pipelines": {"a": COPY, "b": COPY | {"checkpoint": "s3://bucket/copy/within/"}}})
    assert problems(text) == ["b: checkpoint s3://bucket/copy/within is that of a, or within it: each needs its own"]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"window": {"tumbling": "2 minutes"}}, ["size: 1 minute → 2 minutes"]),
        ({"source": "other"}, ["source: orders → other"]),
        ({"aggregates": {"orders": "count", "all": "count"}}, ["aggregates.all: (not there) → count(*)"]),
        ({"by": ["partition"]}, ["by.partition: (not there) → partition"]),
        ({"emit": "updates"}, ["updates: False → True"]),
        ({"target": "elsewhere"}, []),
        ({"lateness": "1 hour"}, []),
        ({"where": "partition = 'a'"}, []),
        ({"late": None}, []),
    ],
)
def test_what_a_change_does_to_the_state(change: dict[str, Any], broken: list[str]) -> None:
    before = make("one", WINDOW, KINDS).plan
    window: dict[str, Any] = WINDOW["window"]  # type: ignore[assignment]
    after = make("one", WINDOW | {"window": window | change}, KINDS).plan
    assert broken_state(before, after) == broken


def test_another_kind_or_checkpoint_has_another_state() -> None:
    window, copy = make("one", WINDOW, KINDS).plan, make("one", COPY, KINDS).plan
    assert "checkpoint: /data/stats → s3://bucket/copy" in broken_state(window, copy)
    assert broken_state(copy, make("one", COPY | {"kind": "filter", "where": "true"}, KINDS).plan) == []
    archive = make("one", {"kind": "archive", "queue": "q", "lake": "/lake"}, KINDS).plan
    assert broken_state(archive, make("one", {"kind": "archive", "queue": "r", "lake": "/lake"}, KINDS).plan) == []


def test_a_state_that_was_given_up_is_left_alone() -> None:
    plan = make("one", COPY, KINDS).plan
    assert checkpoint(plan, 1) == "s3://bucket/copy"
    assert checkpoint(plan, 3) == "s3://bucket/copy/state-3"


def test_differences_name_the_fields() -> None:
    assert differences({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4}, "e": 5}) == [
        "b.c: 2 → 4",
        "b.d: 3 → (not there)",
        "e: (not there) → 5",
    ]
