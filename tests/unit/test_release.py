"""`make release`: what is refused, and what a package index gets to see. `tests/wheel` builds one."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
import yaml

import queenmq

ROOT = Path(__file__).parents[2]
ELSEWHERE = "https://git.example/queen"


@pytest.fixture(scope="module")
def release() -> Any:
    loader = SourceFileLoader("release", str(ROOT / ".ci" / "release"))
    spec = spec_from_loader("release", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_this_version_can_be_released(release: Any) -> None:
    assert release.problems(queenmq.__version__, (ROOT / "CHANGELOG.md").read_text()) == []


@pytest.mark.parametrize(
    ("version", "changelog", "told"),
    [
        ("1.0", "", "is not MAJOR.MINOR.PATCH"),
        ("1.0.0", "## [Unreleased]\n\n- something\n", "has no heading"),
        ("1.0.0", "## [1.0.0]\n\n- something\n", "has no heading"),
        ("1.0.0", "## [1.0.0] - 2026-01-02\n\n## [0.9.0] - 2026-01-01\n- old\n", "says nothing"),
    ],
)
def test_what_is_not_ready_is_refused(release: Any, version: str, changelog: str, told: str) -> None:
    [problem] = release.problems(version, changelog)
    assert told in problem


def test_every_link_of_the_readme_works_on_an_index(release: Any) -> None:
    text = release.absolute((ROOT / "README.md").read_text(), ELSEWHERE, "v1.2.3")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert targets
    assert all(target.startswith(("https://", "#")) for target in targets)
    for target in targets:
        if target.startswith(ELSEWHERE):
            path = re.sub(rf"^{ELSEWHERE}/(?:blob|raw)/v1\.2\.3/", "", target).partition("#")[0]
            assert (ROOT / path).exists(), target
    assert release.absolute("![a](docs/a.png)", ELSEWHERE, "v1") == f"![a]({ELSEWHERE}/raw/v1/docs/a.png)"


def test_the_metadata_is_complete(release: Any) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(release.with_urls(text, ELSEWHERE, "v1.2.3"))["project"]
    assert set(project["urls"]) == {"Repository", "Documentation", "Changelog"}
    assert all(url.startswith(ELSEWHERE) for url in project["urls"].values())
    assert project["authors"] and project["keywords"]
    assert any(one.startswith("Programming Language :: Python :: 3.1") for one in project["classifiers"])
    assert not any(one.startswith("License") for one in project["classifiers"]), "the expression says it already"
    assert project["version"] == queenmq.__version__


def test_images_and_charts_have_the_version(release: Any) -> None:
    assert f"image: queen:{queenmq.__version__}\n" in (ROOT / "compose.yaml").read_text()
    chart = yaml.safe_load((ROOT / "deploy/helm/queen/Chart.yaml").read_text())
    assert chart["appVersion"] == queenmq.__version__


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH, to sign with")
def test_the_tag_is_signed(release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet")
    for name, value in {"user.name": "a", "user.email": "a@example.org", "gpg.format": "ssh"}.items():
        git(tmp_path, "config", name, value)
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "one", "--no-gpg-sign")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    git(tmp_path, "config", "user.signingkey", str(tmp_path / "nobody"))
    with pytest.raises(SystemExit, match="could not be signed"):
        release.sign("v1.2.3", "1.2.3")
    assert git(tmp_path, "tag", "--list") == ""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    git(tmp_path, "config", "user.signingkey", str(key))
    release.sign("v1.2.3", "1.2.3")
    assert "BEGIN SSH SIGNATURE" in git(tmp_path, "cat-file", "tag", "v1.2.3")
