"""Spark Connect: a server of PySpark's own jars in a process of its own, and a program that knows only its address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from ports import free_port

from pipeline.db import Db
from queenmq.pipeline import java

HOME = Path(pyspark.__file__).parent
CLIENT = Path(__file__).with_name("connect_client.py")
PATIENCE_S = 300


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    java.prepare()
    port = free_port()
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "800m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(HOME / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "spark-internal"], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not listens(port):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.timeout(900)
def test_a_program_reads_writes_and_streams(remote: str, db: Db, tmp_path: Path) -> None:
    db.fill("orders", 2, 20)
    done = subprocess.run(
        [sys.executable, str(CLIENT), remote, db.url, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[40, 2 * sum(range(1, 21))], [40], True]
    assert {name: len(found) for name, found in db.partitions("few").items()} == {"p0": 2, "p1": 2}
    assert db.partitions("copied") == db.partitions("orders")
    db.assert_healthy("copied")
