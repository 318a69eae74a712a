"""The project for Spark Declarative Pipelines in docs/declarative: two runs, each message once in table and queue.

A run takes a while, so the second one is for `QUEEN_LONG=1`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pyspark
import pytest

from pipeline.db import Db
from queenmq.pipeline import java

PROJECT = Path(__file__).parents[2] / "docs" / "declarative"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.sql.catalogImplementation": "hive",
    "spark.ui.enabled": "false",
}


def run(folder: Path, url: str) -> None:
    java.prepare()
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "DATABASE_URL": url,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [home / "bin" / "spark-pipelines", "run", *settings],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.timeout(1300)
def test_each_message_is_once_in_table_and_queue(db: Db, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/queen-declarative", str(tmp_path / "storage")))
    for more, total in ((10, 30), (5, 45)) if os.environ.get("QUEEN_LONG") else ((10, 30),):
        db.fill("orders", 3, more)
        db.sql(
            "UPDATE queen.messages SET payload = convert_to(format('{\"amount\": %%s}', \"offset\" * 20), 'UTF8') "
            "WHERE partition_id IN (SELECT p.id FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id "
            "WHERE q.name = 'orders')"
        )
        run(folder, db.url)
        table = pyarrow.parquet.read_table(folder / "spark-warehouse" / "orders")
        assert table.num_rows == total
        large = [n * 20.0 for n in range(5, total // 3 + 1)]
        assert {
            name: [one["amount"] for one in partition] for name, partition in db.partitions("large-orders").items()
        } == {f"p{n}": large for n in range(3)}
    db.assert_healthy("large-orders")
