"""What `make pipeline-soak` relies on, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from pipeline.supervision import SupervisorProcess, differences


def test_drivers_that_are_gone_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor, or its driver, may end while it is looked at."""
    one = object.__new__(SupervisorProcess)
    with subprocess.Popen([sys.executable, "-c", ""]) as one.process:
        pass
    assert one.drivers() == []

    ended = psutil.Process(os.getpid())
    monkeypatch.setattr(psutil.Process, "children", lambda _: [ended])

    def cmdline(process: psutil.Process) -> list[str]:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as one.process:
        assert one.drivers() == []


def test_what_differs_is_said() -> None:
    pushed = {"p0": [("1", "a"), ("2", "b")], "p1": [("1", "c")]}
    assert differences(pushed, pushed) == []
    assert differences(pushed, {"p0": [("2", "b"), ("1", "a")]}) == [
        "p0: 2 messages were pushed and 2 arrived; they differ first at offset 1, where ('1', 'a') was pushed and "
        "('2', 'b') arrived",
        "p1: 1 messages were pushed and 0 arrived; they differ first at offset 1, where ('1', 'c') was pushed and "
        "nothing arrived",
    ]
