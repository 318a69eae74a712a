"""Options of reads and writes: what they mean, and a sentence for what means nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from queenmq.pipeline.bounds import EARLIEST, LATEST, Bound
from queenmq.pipeline.errors import BadOption, DataLost, PipelineError, explained
from queenmq.pipeline.options import parse_read, parse_write

URL = "postgresql://u:secret@h/d"
BASE = {"url": URL, "subscribe": "orders"}


def test_the_usual_read() -> None:
    options = parse_read(BASE, streaming=False)
    assert (options.start, options.end, options.fail_on_data_loss) == (Bound(EARLIEST), Bound(LATEST), True)
    assert "secret" not in repr(options)
    assert parse_read(BASE, streaming=True).start == Bound(LATEST)


def test_places_follow_kafka() -> None:
    options = parse_read(
        BASE | {"startingoffsets": '{"orders": {"a": 5, "b": -2}}', "endingOffsets": '{"a": -1, "b": 9}'},
        streaming=False,
    )
    assert options.start == Bound(EARLIEST, {"a": 5, "b": EARLIEST})
    assert options.end == Bound(LATEST, {"a": LATEST, "b": 9})


@pytest.mark.parametrize("raw", ["1767225600000", "2026-01-01T00:00:00Z", "2026-01-01 00:00"])
def test_moments(raw: str) -> None:
    options = parse_read(BASE | {"startingTimestamp": raw}, streaming=False)
    assert options.start == Bound(datetime(2026, 1, 1, tzinfo=UTC))


WRONG_READS = [
    ({"url": URL}, "subscribe is missing"),
    ({"subscribe": "q"}, "url is missing"),
    ({"url": "mysql://h/d", "subscribe": "q"}, "must be a PostgreSQL connection URL"),
    (BASE | {"startingOffset": "latest"}, "did you mean startingOffsets"),
    (BASE | {"colour": "red"}, "a read knows url, subscribe"),
    (BASE | {"startingOffsets": "latest"}, "nothing to read"),
    (BASE | {"endingOffsets": "earliest"}, "nothing to read"),
    (BASE | {"startingOffsets": "{"}, "not valid JSON"),
    (BASE | {"startingOffsets": '{"other": {"a": 1}}'}, "must be earliest, latest or JSON"),
    (BASE | {"startingOffsets": '{"a": 1.5}'}, "whole number"),
    (BASE | {"startingOffsets": '{"a": -3}'}, "whole number"),
    (BASE | {"startingTimestamp": "yesterday"}, "ISO-8601"),
    (BASE | {"startingTimestamp": "1", "startingOffsets": "earliest"}, "contradict"),
    (BASE | {"minPartitions": "0"}, "above 0"),
    (BASE | {"maxOffsetsPerTrigger": "many"}, "above 0"),
    (BASE | {"failOnDataLoss": "maybe"}, "true or false"),
    (BASE | {"partitions": "[1]"}, "JSON list of names"),
    (BASE | {"encryptionKey": "abc"}, "64 hexadecimal digits"),
    (BASE | {"encryptedPayloads": "guess"}, "fail, null or raw"),
    (BASE | {"subscribe": "x" * 256}, "at most 255"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG_READS)
def test_wrong_reads(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence) as raised:
        parse_read(options, streaming=False)
    assert "secret" not in str(raised.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(BadOption, match="has no end"):
        parse_read(BASE | {"endingOffsets": "latest"}, streaming=True)


def test_writes() -> None:
    options = parse_write({"url": URL, "queue": "q", "writeId": "w", "checkpointLocation": "/c"})
    assert (options.queue, options.partition, options.write_id) == ("q", "Default", "w")
    with pytest.raises(BadOption, match="did you mean partition"):
        parse_write({"url": URL, "partitions": "q"})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"batchId": "7"}, "writes of a writeId, which is missing"),
        ({"writeId": "w", "batchId": "-1"}, "must be a whole number"),
        ({"writeId": "w", "batchId": "many"}, "must be a whole number"),
    ],
)
def test_a_batch_has_a_number_and_its_write_a_name(given: dict[str, str], sentence: str) -> None:
    assert parse_write({"url": URL, "writeId": "w", "batchId": "0"}).batch_id == 0
    with pytest.raises(BadOption, match=f"batchId .*{sentence}"):
        parse_write({"url": URL} | given)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({}, 5000),
        ({"rowsPerSecond": "5"}, 5),
        ({"rowsPerSecond": "0.1"}, 1),
        ({"rowsPerSecond": "100000"}, 5000),
        ({"rowsPerSecond": "50", "commitRows": "7"}, 7),
        ({"rowsPerSecond": "50", "commitRows": "700"}, 50),
    ],
)
def test_a_commit_has_what_may_come_in_a_second(given: dict[str, str], rows: int) -> None:
    assert parse_write({"url": URL} | given).commit_rows == rows


def test_our_sentence_is_found_in_sparks_text() -> None:
    text = 'Traceback …\n  File "x"\nqueenmq.pipeline.errors.DataLost: 3 messages are gone\n\nat org.apache.spark'
    told = explained(RuntimeError(text))
    assert (type(told), told.message) == (DataLost, "3 messages are gone")
    assert explained(ValueError("\n  strange\nmore")).message == "strange"
    assert type(explained(PipelineError("x"))) is PipelineError
