"""The Spark session of a job: Java, Python, loopback, and the settings that the jobs rely on."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
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
}
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Spark searches the error of an interrupted batch with a pattern that recurses for every character.
STACK: Final = "-Xss16m"
# Errors are reported in one sentence; --conf spark.log.level=WARN shows those of Spark.
LOGGING: Final = f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties")}"'
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
    chosen |= settings or {}
    chosen[JAVA_OPTIONS] = f"{chosen.get(JAVA_OPTIONS, STACK)} {LOGGING}"
    if python := chosen.get("spark.pyspark.python"):
        # Spark itself reads this setting only in spark-submit.
        os.environ["PYSPARK_PYTHON"] = python
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    register(started)
    return started


def use_this_python(spark: Any) -> None:
    """Let the workers of a local session run on this interpreter, which has the package, unless another one was chosen.

    Otherwise Spark takes the first `python3` of the path. On a cluster this path may not exist: there it is left alone.
    """
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none: its workers are elsewhere
    if context is None or os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python"):
        return
    if context.master.startswith("local"):
        context.pythonExec = sys.executable


def local_cores(master: str) -> int:
    """How many tasks a local master runs at once: local, local[2], local[2,4], local[*]."""
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return int(found[1]) if found[1] != "*" else os.cpu_count() or 1
