"""`queenmq.testing`, as a user has it: what its guide shows runs in a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "testing.md"


def files() -> dict[str, str]:
    """The first version of each file that the guide shows."""
    shown: dict[str, str] = {}
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE):
        shown.setdefault(name, code)
    return shown


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without any other plugin: users may have none."""
    command = [sys.executable, "-m", "pytest", "--quiet", *arguments]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, timeout=240)


def test_the_guide_runs(tmp_path: Path) -> None:
    for name, code in files().items():
        (tmp_path / name).write_text(code)
    done = run_pytest(tmp_path, "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^3 passed", done.stdout, re.MULTILINE)


def test_variables_reach_the_server(tmp_path: Path) -> None:
    last = re.findall(r"^```python\n# conftest\.py\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)[-1]
    (tmp_path / "conftest.py").write_text(last.replace("{", '{"QUEEN_ENCRYPTION_KEY": "no key", ', 1))
    (tmp_path / "test_one.py").write_text("def test_one(queen): pass\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "the server did not start: " in done.stdout
    assert "QUEEN_ENCRYPTION_KEY" in done.stdout


def test_without_the_server_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'asyncpg' else found(name, *rest)\n"
        + files()["conftest.py"]
    )
    (tmp_path / "test_one.py").write_text("def test_one(queen): pass\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "queenmq.testing needs the server, which is not installed: pip install 'queenmq[server]'" in done.stdout
    assert "Traceback" not in done.stdout
