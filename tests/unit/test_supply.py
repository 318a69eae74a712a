"""`make verify`, `make sbom` and `make audit`, as far as they can be run without a registry."""

from __future__ import annotations

import csv
import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "supply"


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with tools that the test provides and a folder of its own for what it writes."""
    loader = importlib.machinery.SourceFileLoader("supply", str(SCRIPT))
    spec = importlib.util.spec_from_loader("supply", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    monkeypatch.setattr(module, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "SERVICE", SCRIPT.as_uri())
    return module


def provide(supply: Any, name: str, program: str) -> None:
    """A tool that runs this Python program."""
    path = supply.TOOLS / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport sys\n{program}\n")
    path.chmod(0o755)


def test_the_hashes_are_those_of_the_versions(supply: Any) -> None:
    assert supply.pins() == supply.locked(), "run: .ci/supply lock"
    assert len(supply.pins()) > 50
    lines = supply.LOCK.read_text().splitlines()
    assert all(line.startswith(("#", "    --hash=sha256:")) or line.endswith(" \\") for line in lines)


def test_a_version_without_hashes_is_named(supply: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text(supply.PINS.read_text() + "newcomer==1.0\n")
    monkeypatch.setattr(supply, "PINS", pins)
    with pytest.raises(SystemExit, match=r"does not fit constraints.txt \(newcomer\): run '.ci/supply lock'"):
        supply.verify()


@pytest.mark.parametrize(("status", "said"), [(0, "packages have the hashes"), (1, "cannot get the files")])
def test_what_pip_finds_is_the_outcome(
    supply: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, said: str
) -> None:
    asked: list[list[str]] = []

    def run(command: list[Any], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append([str(part) for part in command])
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(supply.subprocess, "run", run)
    if status:
        with pytest.raises(SystemExit, match=said):
            supply.verify()
    else:
        supply.verify()
        assert said in capsys.readouterr().out
    assert {"--require-hashes", "--ignore-installed"} <= set(asked[0])


def test_the_sbom_and_the_licences(supply: Any, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        {"name": "zeta", "version": "2", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "Alpha", "version": "1", "licenses": [{"expression": "Apache-2.0 OR MIT"}]},
        {"name": "nobody", "version": "3"},
    ]
    program = (
        "open(sys.argv[sys.argv.index('--output-file') + 1], 'w').write("
        + repr(json.dumps({"components": parts}))
        + ")"
    )
    provide(supply, "cyclonedx-py", program)
    supply.sbom()
    assert len(json.loads((supply.BUILD / "sbom.json").read_text())["components"]) == 3
    with (supply.BUILD / "licences.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[1:] == [["Alpha", "1", "Apache-2.0 OR MIT"], ["nobody", "3", ""], ["zeta", "2", "MIT"]]
    assert "without a licence in their metadata: nobody" in capsys.readouterr().out


def test_nothing_is_installed_where_the_service_does_not_answer(
    supply: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    supply.SERVICE = "http://127.0.0.1:9/"
    supply.audit()
    assert not supply.TOOLS.exists()
    assert "nothing was checked: the service that knows vulnerabilities does not answer" in capsys.readouterr().out


def test_a_service_that_cannot_be_reached_is_said_clearly(supply: Any, capsys: pytest.CaptureFixture[str]) -> None:
    provide(supply, "pip-audit", "sys.exit('requests.exceptions.ConnectionError: Max retries exceeded')")
    supply.audit()
    assert "nothing was checked: the service that knows vulnerabilities does not answer" in capsys.readouterr().out


@pytest.mark.parametrize("failure", ["sys.stdout.write('pillow 1.0 GHSA-1'); sys.exit(1)", "sys.exit('bad option')"])
def test_a_finding_and_an_unknown_failure_fail(supply: Any, failure: str) -> None:
    provide(supply, "pip-audit", failure)
    with pytest.raises(SystemExit) as ended:
        supply.audit()
    assert ended.value.code == 1


def test_packages_that_were_not_checked_are_counted(supply: Any, capsys: pytest.CaptureFixture[str]) -> None:
    provide(supply, "pip-audit", "print('a could not be audited'); print('b could not be audited')")
    with pytest.raises(SystemExit) as ended:
        supply.audit()
    assert ended.value.code == 0
    assert f"2 of {len(supply.pins())} packages were not checked" in capsys.readouterr().out
