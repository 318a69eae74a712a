"""A driver with a small cluster of its own whose first attempts dawdle after they have written, so that Spark starts
others.

python speculate.py URL ROWS MARKER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from queenmq.pipeline import write
from queenmq.pipeline.session import session

SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.2",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    "spark.executor.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def dawdle(marker: str) -> Any:
    def slowly(index: int, rows: Any) -> Any:
        yield from rows
        if index == 0 and TaskContext.get().attemptNumber() == 0:
            time.sleep(20)
        elif index == 0:
            Path(marker).touch()

    return slowly


def main(master: str, url: str, count: str, marker: str) -> None:
    spark = session(master, "speculate", SETTINGS)
    frame = spark.range(0, int(count), 1, 4).selectExpr(
        "to_json(struct(id)) AS value", "concat('p', id % 3) AS partition"
    )
    rows = frame.rdd.mapPartitionsWithIndex(dawdle(marker))
    write(spark.createDataFrame(rows, "value string, partition string"), url, "orders")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
