"""A driver in a process of its own: it runs jobs of `queen pipeline` one after the other in one session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("cluster_jobs.py")
SETTINGS = (
    "spark.executor.memory=512m",
    "spark.driver.memory=512m",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.driver.host=127.0.0.1",
    "spark.sql.shuffle.partitions=1",
)


class Driver:
    """Runs jobs of `queen pipeline` in a process of its own, in a folder of its own."""

    def __init__(
        self,
        master: str,
        url: str,
        folder: Path,
        environment: dict[str, str] | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        folder.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
        with (folder / "stderr").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), master, url, *SETTINGS, *settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=kept | (environment or {}) | {"PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=folder,
                text=True,
            )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        status, out, err = json.loads(self._process.stdout.readline())
        return status, out, err

    def summary(self, *arguments: str) -> dict[str, Any]:
        status, out, err = self.run(*arguments, "--json")
        assert status == 0, err
        found: dict[str, Any] = json.loads(out)["summary"]
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()
