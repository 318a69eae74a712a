"""Lakes on an object store, against a server that speaks S3: Parquet, Delta Lake and Iceberg, without Hadoop's jars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pyarrow.fs
import pytest
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer
from ports import free_port
from pyiceberg.table import StaticTable

from pipeline.db import Db
from pipeline.driver import Driver
from pipeline.test_tables import checksum, rows_of, stored

SECRET = "not-to-be-shown"


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """That of a process which may use the store; it has a bucket `lake`."""
    port = free_port()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{port}"
    keys = {"aws_access_key_id": "queen", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="lake")
    yield {
        "AWS_ACCESS_KEY_ID": "queen",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    server.stop()


@pytest.mark.timeout(600)
def test_lakes_on_an_object_store(
    db: Db, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.fill("orders", 3, 40)
    driver = Driver("local[2]", db.url, tmp_path / "driver", environment)
    lakes = {"parquet": "s3://lake/plain", "delta": "s3a://lake/delta", "iceberg": "s3://lake/iceberg"}
    try:
        for kind, lake in lakes.items():
            given = ("--queue", "orders", "--lake", lake)
            assert driver.summary("archive", *given, "--format", kind, "--schema", "n INT")["messages"] == 120
        db.fill("orders", 3, 2)
        for lake in lakes.values():
            given = ("--queue", "orders", "--lake", lake)
            assert driver.summary("archive", *given, "--schema", "n INT, p INT")["messages"] == 6
            verdict = driver.summary("audit", *given)
            assert (verdict["findings"], verdict["archived messages"]) == ([], 126)
        into = ("--into", "again", "--where", "data.n > 0")
        assert (
            driver.summary("replay", "--queue", "orders", "--lake", lakes["parquet"], *into)["messages written"] == 126
        )
        status, out, err = driver.run("archive", "--queue", "orders", "--lake", "s3://elsewhere/lake")
        assert (status, "cannot be written to" in err) == (1, True), err
    finally:
        driver.stop()
    db.assert_copied("orders", "again")
    log = (tmp_path / "driver" / "stderr").read_text()
    assert SECRET not in out + err + log + str(db.sql("SELECT * FROM queen.pipeline_runs"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    wanted = checksum(stored(db))
    assert checksum(rows_of(DeltaTable("s3://lake/delta/queue=orders").to_pyarrow_table())) == wanted
    folder = "lake/iceberg/queue=orders/metadata"
    files, _ = pyarrow.fs.FileSystem.from_uri("s3://lake")
    with files.open_input_stream(f"{folder}/version-hint.text") as opened:
        newest = f"s3://{folder}/{opened.read().decode()}.metadata.json"
    store = {"s3.endpoint": environment["AWS_ENDPOINT_URL"], "s3.region": "us-east-1"}
    assert checksum(rows_of(StaticTable.from_metadata(newest, store).scan().to_arrow())) == wanted
