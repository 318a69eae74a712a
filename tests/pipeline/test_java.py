"""Which Java is taken: one of the machine that is new enough, else the one that comes along."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from queenmq.pipeline import java
from queenmq.pipeline.errors import PipelineError


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_the_packaged_one_drops_the_module_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", list)
    chosen = java.prepare()
    told = subprocess.run(
        [chosen, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    assert java.prepare() == chosen, "it is written once"


def test_one_of_the_machine_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2024-01-01' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    chosen = java.prepare()
    assert f'exec "{program}"' in Path(chosen).read_text()
    assert os.environ["JAVA_HOME"] == str(Path(chosen).parent.parent)
    assert java.prepare() == chosen, "it is not wrapped twice"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.1\" 2024-01-01' >&2\n")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert f'exec "{program}"' not in Path(java.prepare()).read_text()


def test_without_any_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", list)
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with pytest.raises(PipelineError, match="needs Java 17 or newer"):
        java.prepare()
