"""A driver that runs jobs of `queen pipeline`, and of `queen schema`, one after the other in one session on a cluster.

python cluster_jobs.py MASTER URL CONF…, then a line of JSON with the arguments of each job on stdin; the
answer to each is a line of JSON: the status, what was printed and what went to stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from queenmq.cli.main import main


def run(master: str, url: str, *confs: str) -> None:
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        job = json.loads(line)
        arguments = [*(job if job[0] == "schema" else ["pipeline", *job]), "--url", url, "--master", master]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([*arguments, *(part for conf in confs for part in ("--conf", conf))])
        sys.stdout.write(json.dumps([status, out.getvalue(), err.getvalue()]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run(*sys.argv[1:])
