"""A driver that runs jobs of `queen pipeline`, of `queen schema`, and scripts, one after the other in one session on a
cluster.

python cluster_jobs.py MASTER URL CONF…, then a line of JSON with the arguments of each job on stdin; the
answer to each is a line of JSON: the status, what was printed and what went to stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from queenmq.cli.main import main


def script(path: str, url: str, work: str) -> None:
    """A script of the documentation, which makes no session if there is one."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    assert session is not None
    os.environ |= {"DATABASE_URL": url, "WORK": work}
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    exec(compile(Path(path).read_text(), path, "exec"), {"__name__": "__main__"})


def run(master: str, url: str, *confs: str) -> None:
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        job = json.loads(line)
        if job[0] == "script":
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                script(*job[1:])
            sys.stdout.write(json.dumps([0, out.getvalue(), err.getvalue()]) + "\n")
            sys.stdout.flush()
            continue
        arguments = [*(job if job[0] == "schema" else ["pipeline", *job]), "--url", url, "--master", master]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([*arguments, *(part for conf in confs for part in ("--conf", conf))])
        sys.stdout.write(json.dumps([status, out.getvalue(), err.getvalue()]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run(*sys.argv[1:])
