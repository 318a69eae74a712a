"""A standalone Spark cluster of separate processes: a master and workers, each on a loopback address of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
from ports import free_port

from queenmq.pipeline import java


@contextmanager
def cluster(folder: Path, hosts: Sequence[str], environment: dict[str, str], cores: int = 2) -> Iterator[str]:
    """The URL of the master. Executors run in `folder`/host/app-…, with `environment` and no more."""
    java.prepare()
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    base = {"PATH": "/usr/bin:/bin", "JAVA_HOME": os.environ["JAVA_HOME"], "SPARK_LOCAL_DIRS": str(folder)}

    def start(kind: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [program, f"org.apache.spark.deploy.{kind}", "--host", host, "--webui-port", "0", *arguments]
        with (folder / f"{host}.log").open("ab") as log:
            mine = base | environment | {"SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "128m"}
            return subprocess.Popen(command, env=mine, stdout=log, stderr=log, start_new_session=True)

    started = [start("master.Master", "127.0.0.1", "--port", str(port))]
    try:
        for host in hosts:
            work = ["--cores", str(cores), "--memory", "700m", "--work-dir", str(folder / host), master]
            started.append(start("worker.Worker", host, *work))
        yield master
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
