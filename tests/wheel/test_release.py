"""`make release CHECK=1` from beginning to end, of what is here now: a release that cannot be made is found before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import queenmq

ROOT = Path(__file__).parents[2]
ELSEWHERE = "https://git.example/queen"
SOMEBODY = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def run(folder: Path, *command: str | Path) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "GIT_"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables | {"REPOSITORY": ELSEWHERE, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own with the files as they are here, committed."""
    if shutil.which("make") is None or not (ROOT / ".git").exists():
        pytest.skip("needs make and a checkout")
    folder = tmp_path_factory.mktemp("release")
    for name in filter(None, run(ROOT, "git", "ls-files", "-z").split("\0")):
        if (ROOT / name).is_file():  # and not deleted just now
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    run(folder, "git", "init", "--quiet")
    run(folder, "git", "add", "--all")
    run(folder, "git", *SOMEBODY, "commit", "--quiet", "--message", "all")
    return folder


def make_release(checkout: Path) -> str:
    """As `make release CHECK=1`, with the environment of developers left as it is."""
    return run(checkout, "make", "--old-file=setup", "release", "CHECK=1")


def test_a_release_is_built_and_checked(checkout: Path) -> None:
    told = make_release(checkout)
    name = f"queenmq-{queenmq.__version__}"
    files = f"{name}-py3-none-any.whl, {name}.tar.gz"
    assert told.splitlines()[-1] == (f"release: {queenmq.__version__} can be released ({files} in build/release/dist)")
    assert told.count("PASSED") == 2, told  # the word of twine, in whichever colour
    built = {file.name: file for file in (checkout / "build/release/dist").iterdir()}
    assert ", ".join(sorted(built)) == files
    assert run(checkout, "git", "tag", "--list") == run(checkout, "git", "status", "--porcelain") == ""

    with zipfile.ZipFile(built[f"{name}-py3-none-any.whl"]) as wheel:
        metadata = HeaderParser().parsestr(wheel.read(f"{name}.dist-info/METADATA").decode())
    assert metadata["Version"] == queenmq.__version__
    assert f"Repository, {ELSEWHERE}" in metadata.get_all("Project-URL", [])
    for link in re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload())):
        assert link.startswith(("https://", "#")), link
    with tarfile.open(built[f"{name}.tar.gz"]) as sources:
        members = {member.name.removeprefix(f"{name}/") for member in sources.getmembers()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/queenmq/py.typed"} <= members

    before = built[f"{name}-py3-none-any.whl"].read_bytes()
    make_release(checkout)
    assert built[f"{name}-py3-none-any.whl"].read_bytes() == before, "the same commit makes another wheel"
