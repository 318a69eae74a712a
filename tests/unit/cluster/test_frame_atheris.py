"""A short run of the coverage-guided fuzzer, where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "fuzz" / "frame.py"


def test_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed")
    command = [sys.executable, str(SCRIPT), "-runs=20000", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
