"""Three models in Promela, each searched through by Spin; and their broken twins, in which it must find the fault.

docs/proof.md says which code each of them stands for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).parent
PATIENCE_S = 300
TWINS = {
    "sleeping": ("BROKEN",),
    "fencing": ("BROKEN=1", "BROKEN=2"),
    "journal": ("BROKEN=1", "BROKEN=2", "BROKEN=3"),
}

pytestmark = pytest.mark.skipif(
    not (os.environ.get("QUEEN_REQUIRE_MODELS") or (shutil.which("spin") and shutil.which("gcc"))),
    reason="needs Debian's packages spin and gcc",
)


def searched(folder: Path, model: str, *definitions: str) -> str:
    """What Spin says after it has visited every state, or has found one that must not be."""
    source = [f"-D{definition}" for definition in definitions]
    for command in (
        ["spin", "-a", *source, str(MODELS / f"{model}.pml")],
        ["gcc", "-O1", "-DSAFETY", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)
    found = subprocess.run(["./pan", "-m100000"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "Search not completed" not in found.stdout or "assertion violated" in found.stdout, found.stdout
    return found.stdout


@pytest.mark.parametrize("model", TWINS)
def test_the_model_holds(tmp_path: Path, model: str) -> None:
    said = searched(tmp_path, model)
    assert "errors: 0" in said, said
    assert "max search depth too small" not in said


@pytest.mark.parametrize(("model", "twin"), [(model, twin) for model, twins in TWINS.items() for twin in twins])
def test_its_broken_twin_does_not(tmp_path: Path, model: str, twin: str) -> None:
    said = searched(tmp_path, model, twin)
    assert "assertion violated" in said, said


def test_no_model_is_left_out() -> None:
    assert {path.stem for path in MODELS.glob("*.pml")} == set(TWINS)
