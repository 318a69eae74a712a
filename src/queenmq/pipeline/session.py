"""The Spark session of a job: Java, Python, loopback, and the settings that the jobs rely on."""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Final

from queenmq.pipeline import java

LOCAL: Final = "local[*]"
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The URL has a password, options may hold a key: neither is shown in plans and logs.
    "spark.sql.redaction.options.regex": "(?i)url|key",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark looks through the error of an interrupted batch with an expression that recurses for every character.
    "spark.driver.extraJavaOptions": "-Xss16m",
    # What goes wrong is told in a sentence; --conf spark.log.level=WARN shows what Spark thinks of it.
    "spark.log.level": "OFF",
}
# Each of them costs a window time in every micro-batch (docs/pipeline.md): not more than can run at once.
MOST_LOCAL_SHUFFLE_PARTITIONS: Final = 8
LOCAL_SETTINGS: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def session(master: str = LOCAL, name: str = "queen", settings: dict[str, str] | None = None) -> Any:
    """A Spark session with `format("queen")` registered. One that already runs is used as it is.

    Raises PipelineError if there is no Java for it.
    """
    from pyspark.sql import SparkSession

    from queenmq.pipeline import register

    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        return running
    java.prepare()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = dict(SETTINGS)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= LOCAL_SETTINGS
        chosen["spark.sql.shuffle.partitions"] = str(min(MOST_LOCAL_SHUFFLE_PARTITIONS, local_cores(master)))
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in (chosen | (settings or {})).items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    register(started)
    return started


def local_cores(master: str) -> int:
    """How many tasks a local master runs at once: local, local[2], local[2,4], local[*]."""
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return int(found[1]) if found[1] != "*" else os.cpu_count() or 1
