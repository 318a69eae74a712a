"""Rows on their way into a queue: defaults, checks, encryption, order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from queenmq.core.encryption import PayloadKeys, Place
from queenmq.pipeline.errors import PipelineError
from queenmq.pipeline.json_values import arrow_type, parser
from queenmq.pipeline.options import WriteOptions
from queenmq.pipeline.staging import Stager

KEY = bytes(32)


def stager(key: bytes | None = None, encrypted: set[str] | None = None, queue: str | None = "q") -> Stager:
    return Stager(
        WriteOptions(url="postgresql://h/d", queue=queue, keys=(key,) if key else ()),
        encrypted or set(),
    )


def batch(**columns: Any) -> pa.RecordBatch:
    kinds = {"encrypted": pa.bool_()}
    return pa.RecordBatch.from_pydict({k: pa.array(v, kinds.get(k, pa.string())) for k, v in columns.items()})


def test_rows_keep_their_order_and_get_defaults() -> None:
    made = stager()
    first = made.make(batch(value=["1", '{"a": [2]}'], partition=["x", None]))
    second = made.make(batch(value=["null"], partition=["y"]))
    assert second.column("partition").to_pylist() == ["y"]
    assert first.column("partition").to_pylist() == ["x", "Default"]
    assert first.column("queue").to_pylist() == ["q", "q"]
    assert first.column("payload").to_pylist() == [b"1", b'{"a": [2]}']
    assert made.rows == 3


WRONG = [
    ({"value": ["{"]}, "not JSON"),
    ({"value": [None]}, "value is null"),
    ({"value": ["1"], "partition": ["x" * 256]}, "at most 255"),
    ({"value": ["1"], "partition": [""]}, "must not be empty"),
    ({"value": ["1"], "transactionId": ["a\0b"]}, "NUL"),
    ({"value": ["1"], "traceId": ["no"]}, "must be a UUID"),
]


@pytest.mark.parametrize(("columns", "sentence"), WRONG)
def test_rows_that_no_queue_can_take(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PipelineError, match=sentence):
        stager().make(batch(**columns))


def test_a_row_without_a_queue() -> None:
    with pytest.raises(PipelineError, match="queue must not be empty"):
        stager(queue=None).make(batch(value=["1"], queue=[None]))


def test_payloads_of_encrypted_queues_are_sealed() -> None:
    made = stager(KEY, {"secret"}).make(batch(value=["1", "2"], queue=["secret", "open"]))
    assert made.column("is_encrypted").to_pylist() == [True, False]
    [first, _] = made.to_pylist()
    place = Place("secret", first["partition"], first["message_id"])
    assert PayloadKeys([KEY]).decrypt(first["payload"], place) == b"1"
    with pytest.raises(PipelineError, match="give the option encryptionKey"):
        stager(None, {"q"}).make(batch(value=["1"]))


def test_what_was_sealed_for_another_queue_is_sealed_anew() -> None:
    keys = PayloadKeys([KEY])
    stored = keys.encrypt(b"1", Place("source", "p", "t")).decode()
    row = {"value": [stored], "partition": ["p"], "transactionId": ["t"], "encrypted": [True]}
    options = WriteOptions(url="postgresql://h/d", queue="q", keys=(KEY,), encrypted_for="source")
    [made] = Stager(options, {"q"}).make(batch(**row)).to_pylist()
    assert keys.decrypt(made["payload"], Place("q", "p", "t")) == b"1"
    with pytest.raises(PipelineError, match="can be read in no other one"):
        Stager(replace(options, keys=()), {"q"}).make(batch(**row))
    with pytest.raises(PipelineError, match="belongs to another message"):
        Stager(replace(options, encrypted_for=None), {"q"}).make(batch(**row))
    [same] = stager(KEY, {"source"}, "source").make(batch(**row)).to_pylist()
    assert same["payload"] == stored.encode()


def test_what_is_sealed_already_stays_as_it_is() -> None:
    made = stager(None, {"q"}).make(batch(value=['{"encrypted":"x"}'], encrypted=[True]))
    assert made.column("payload").to_pylist() == [b'{"encrypted":"x"}']
    assert made.column("is_encrypted").to_pylist() == [True]


def test_values_are_parsed_as_from_json_does() -> None:
    schema = "n INT, s STRING, list ARRAY<DOUBLE>, inner STRUCT<flag: BOOLEAN>, at TIMESTAMP"
    texts = pa.array(['{"n": 1, "s": {"x": 2}, "list": [1, "no"], "inner": {"flag": true}}', "[]", "{", None])
    parsed, _ = parser(schema)(texts)
    assert parsed.type == arrow_type(schema)
    assert parsed.to_pylist() == [
        {"n": 1, "s": '{"x":2}', "list": [1.0, None], "inner": {"flag": True}, "at": None},
        None,
        None,
        None,
    ]


def test_the_checksum_does_not_depend_on_order_batches_or_encryption() -> None:
    rows = [(f'{{"n": {n}}}', f"p{n % 3}", f"t{n}" if n % 2 else None) for n in range(50)]

    def summed(*parts: list[tuple[str, str, str | None]], key: bytes | None = None) -> int:
        made = stager(key, {"q"} if key else None)
        for part in parts:
            value, partition, transaction = (list(column) for column in zip(*part, strict=True))
            made.make(batch(value=value, partition=partition, transactionId=transaction))
        return made.checksum

    assert summed(rows) == summed(rows[30:], rows[:30]) == summed(rows[::2], rows[1::2], key=KEY)
    assert summed(rows) != summed(rows[:-1])
    moved = [*rows[:-1], (rows[-1][0], "elsewhere", rows[-1][2])]
    assert summed(rows) != summed(moved)


def test_what_does_not_fit_is_null_and_told() -> None:
    texts = pa.array(['{"a": 1, "b": {"c": "x"}}', '{"a": "1", "b": {"c": true}}', '{"a": null}', None], pa.string())
    schema = "a BIGINT, b STRUCT<c: BOOLEAN>"
    found, misfits = parser(schema, frozenset())(texts)
    assert parser(schema)(texts) == (found, [None] * 4)
    assert found.to_pylist() == [
        {"a": 1, "b": {"c": None}},
        {"a": None, "b": {"c": True}},
        {"a": None, "b": None},
        None,
    ]
    assert misfits == ["b.c should be boolean and is 'x'", "a should be long and is '1'", None, None]
    assert parser(schema, frozenset({"b.c"}))(texts) == (found, [None, "a should be long and is '1'", None, None])
    assert parser(schema, frozenset())(pa.array(["[1]"]))[1] == ["the value should be struct and is '[1]'"]
