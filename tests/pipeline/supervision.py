"""Supervisors in processes of their own, as tests start, kill and pause them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from ports import free_port

PATIENCE_S = 180
MARK = "QUEEN_TEST_SUPERVISORS"
# Small JVMs that start fast.
CONF = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": 1,
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss16m",
}


def until(found: Callable[[], Any], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + patience_s
    while not (answer := found()):
        assert time.monotonic() < deadline, f"not in time: {what if isinstance(what, str) else what()}"
        time.sleep(0.05)
    return answer


class SupervisorProcess:
    """`queen pipeline run`."""

    def __init__(self, url: str, log: Path, *options: str) -> None:
        self.port = free_port()
        arguments = ["pipeline", "run", "--url", url, "--listen", f"127.0.0.1:{self.port}", "--lease", "3", *options]
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("queen")), *arguments],
                stdout=file,
                stderr=file,
                start_new_session=True,
                env=os.environ | {MARK: str(log)},
            )

    def drivers(self) -> list[psutil.Process]:
        """The Python processes of the drivers."""
        return [
            child
            for child in psutil.Process(self.process.pid).children()
            if any("queenmq.pipeline.driver" in part for part in child.cmdline())
        ]

    def kill(self) -> None:
        """Only the supervisor: its drivers are left alone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def end(process: psutil.Process) -> None:
    """With its group, if it still runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgid(process.pid), signal.SIGKILL)


def end_all(mark: str) -> None:
    """Whatever supervisors of this mark have left: drivers, JVMs, workers."""
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get(MARK) == mark:
                end(one)
