"""Reads and writes through a server, with a token over TLS: no database, no password."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from certificates import Authority
from cli.conftest import serving
from integration.test_tenants import SECRET, signed
from server_settings import settings_with

from pipeline.db import Db
from queenmq.pipeline import read, read_stream, write, write_stream
from queenmq.pipeline.errors import BadOption, DataLost, PipelineError, explained
from queenmq.pipeline.options import WriteOptions, parse_read, parse_write
from queenmq.pipeline.over_http import BatchReader, StreamReader, push
from queenmq.pipeline.server import Access

COLUMNS = ["partition", "offset", "value"]


@pytest.fixture
def url(db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server that wants a token and has a certificate of an authority that nobody else knows."""
    authority = Authority(tmp_path)
    files = authority.sign()
    tls = {"certificate": files.certificate, "key": files.key}
    with serving(settings_with(auth={"enabled": True, "secret": SECRET}, tls=tls), db.url) as server:
        monkeypatch.setenv("QUEEN_CA_FILE", str(authority.file))
        monkeypatch.setenv("QUEEN_TOKEN", signed("read-write", queen={"queues": ["orders", "copied", "made"]}))
        yield server.url.replace("http://", "https://")


def batch(url: str, queue: str = "orders", **options: str) -> list[dict[str, Any]]:
    asked = parse_read({"url": url, "subscribe": queue, **options}, streaming=False)
    reader = BatchReader(Access.of(url, {}), asked, COLUMNS)
    found = [row for part in reader.partitions() for one in reader.read(part) for row in one.to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def test_a_read_has_what_is_stored_between_its_bounds(db: Db, url: str) -> None:
    db.fill("orders", 3, 2500)
    found = batch(url)
    assert [(row["partition"], row["offset"]) for row in found] == [
        (f"p{p}", n) for p in range(3) for n in range(1, 2501)
    ]
    assert json.loads(found[1]["value"]) == {"p": 0, "n": 2, "pad": ""}
    some = batch(url, partitions='["p1"]', startingOffsets='{"p1": 2000}', endingOffsets='{"p1": 2010}')
    assert [row["offset"] for row in some] == list(range(2000, 2010))
    db.sql("UPDATE queen.messages SET created_at = created_at - interval '1 hour' WHERE \"offset\" <= 2490")
    newest = db.one("SELECT extract(epoch FROM min(created_at) - interval '1 second') * 1000 FROM queen.messages "
                    "WHERE \"offset\" > 2490")  # fmt: skip
    assert len(batch(url, startingTimestamp=str(int(newest)))) == 30
    with pytest.raises(BadOption, match="has no partition p9"):
        batch(url, partitions="p9")
    with pytest.raises(PipelineError, match="refuses the token"):
        batch(url, queue="secrets")


def test_what_is_gone_is_loss(db: Db, url: str) -> None:
    db.fill("orders", 1, 20)
    reader = StreamReader(Access.of(url, {}), parse_read({"url": url, "subscribe": "orders"}, streaming=True), COLUMNS)
    start = reader.initialOffset()  # latest
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    db.fill("orders", 1, 20)
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    [task] = reader.partitions(start, end)
    db.sql('DELETE FROM queen.messages WHERE "offset" <= 25')
    db.sql("UPDATE queen.partition_lookup SET first_offset = 26")
    with pytest.raises(DataLost, match="were already deleted"):
        list(reader.read(task))
    with pytest.raises(DataLost, match="5 of partition 'p0'"):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    db.sql("DELETE FROM queen.partitions")
    with pytest.raises(DataLost, match="the partition with the id"):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.stop()


def test_an_attempt_that_comes_again_pushes_nothing_new(db: Db, url: str) -> None:
    rows = pa.table({"value": [f'{{"n": {n // 2}}}' for n in range(3000)], "partition": ["p"] * 3000})
    options = WriteOptions(url=url, queue="made")
    for _ in range(2):
        assert push(Access.of(url, {}), options, "batch x", 0, iter(rows.to_batches(1100))).rows == 3000
    assert [one["n"] for one in db.partitions("made")["p"]] == [n // 2 for n in range(3000)]
    push(Access.of(url, {}), options, "batch y", 0, iter(rows.slice(0, 1).to_batches()))
    assert db.one("SELECT count(*) FROM queen.messages") == 3001


def test_options_that_mean_nothing_over_http_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, told in (
        ({"encryptionKey": "0" * 64}, "encryptionKey is for a url of PostgreSQL"),
        ({"url": "ftp://x"}, "or that of a server of Queen"),
        ({"url": "postgresql://x/y", "tokenFile": "/t"}, "tokenFile is for the url of a server"),
    ):
        with pytest.raises(BadOption, match=told):
            parse_read({"url": url, "subscribe": "orders", **given}, streaming=False)
    with pytest.raises(BadOption, match="commitRows is for a url of PostgreSQL"):
        parse_write({"url": url, "queue": "q", "commitRows": "1"})
    with pytest.raises(BadOption, match="takes no user, password or token"):
        Access.of("https://user:secret@host", {})
    with pytest.raises(BadOption, match="cannot be read"):
        Access.of(url, {"tokenFile": "/nowhere/token"})
    assert "secret" not in repr(Access("https://x", "secret", "secret"))
    monkeypatch.delenv("QUEEN_CA_FILE")
    with pytest.raises(PipelineError, match="name the file of its authority in QUEEN_CA_FILE"):
        batch(url)


def test_spark_reads_writes_and_streams(spark: Any, db: Db, url: str, tmp_path: Path) -> None:
    db.fill("orders", 2, 30)
    # Where a session runs already, its environment is that of its start.
    (tmp_path / "token").write_text(f"{os.environ['QUEEN_TOKEN']}\n")
    files = {"tokenFile": tmp_path / "token", "caFile": os.environ["QUEEN_CA_FILE"]}
    found = read(spark, url, "orders", valueSchema="p INT, n INT", **files)
    assert sorted((row["partition"], row["data"]["n"]) for row in found.collect()) == [
        (f"p{p}", n) for p in range(2) for n in range(1, 31)
    ]
    stream = read_stream(spark, url, "orders", startingOffsets="earliest", maxOffsetsPerTrigger=25, **files)
    for more in (0, 5):
        db.fill("orders", 2, more)
        rows = stream.select("value", "partition")
        writer = write_stream(rows, url, "copied", str(tmp_path / "checkpoint"), **files)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    assert db.partitions("copied") == db.partitions("orders")
    write(found.limit(3).select("value"), url, "made", partition="x", **files)
    assert len(db.partitions("made")["x"]) == 3
    with pytest.raises(Exception) as raised:
        read(spark, url, "orders", valueSchema="auto", **files)
    assert "has no schema" in explained(raised.value).message
