"""pyright, the type checker that editors run. Fetched once by its name from npm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

VERSION = "1.1.414"
_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / ".cache" / f"pyright-{VERSION}"


def _fetched() -> Path:
    """Skips, or fails where it is required, if there is no npm or no Node."""
    for program in ("npm", "node"):
        if shutil.which(program) is None:
            reason = f"there is no {program}, which pyright needs: apt-get install npm"
            if os.environ.get("QUEEN_REQUIRE_PYRIGHT") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
    if not _PACKAGE.exists():
        _PACKAGE.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=_PACKAGE.parent) as folder:
            subprocess.run(["npm", "pack", "--silent", f"pyright@{VERSION}"], cwd=folder, check=True, timeout=300)
            with tarfile.open(Path(folder) / f"pyright-{VERSION}.tgz") as packed:
                packed.extractall(folder, filter="data")
            try:
                (Path(folder) / "package").rename(_PACKAGE)
            except OSError:
                assert _PACKAGE.exists()  # another process was faster
    return _PACKAGE / "index.js"


def complaints(program: Path) -> dict[int, str]:
    """What it says of a program in strict mode, by number of the line."""
    script = _fetched()
    configuration = program.with_name("pyrightconfig.json")
    configuration.write_text(
        json.dumps(
            {
                "include": [program.name],
                "extraPaths": [str(_ROOT / "src")],
                "pythonVersion": "3.11",
                "typeCheckingMode": "strict",
            }
        )
    )
    command = ["node", str(script), "--outputjson", "--pythonpath", sys.executable, "--project", str(configuration)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert found["version"] == VERSION
    assert found["summary"]["filesAnalyzed"] == 1, run.stdout
    return {
        said["range"]["start"]["line"] + 1: said["message"]
        for said in found["generalDiagnostics"]
        if said["severity"] == "error"
    }
