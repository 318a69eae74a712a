"""The wheel: what is in it, what it asks for, and that client and command work without the server's libraries."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from queenmq.cli import extras

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
SERVER = extras.SERVER | extras.MCP | {"queen_bench"}
# A finder before all others: what it names is not installed.
BLOCK = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
QUEEN = "from queenmq.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, because the build leaves files beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", folder, folder], check=True, timeout=240)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(
    installed: Path, code: str, *arguments: str, without: frozenset[str] = SERVER | extras.UNIX
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK % sorted(without) + code, *arguments]
    variables = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run(command, env=variables, cwd=installed, capture_output=True, text=True, timeout=60)


def queen(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(installed, QUEEN, *arguments)


def test_it_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"queenmq", "pyspark_queen"}
    assert {"queenmq/py.typed", "queenmq/dashboard/index.html"} <= names
    assert len([name for name in names if name.endswith(".sql")]) == len(list((ROOT / "src").rglob("*.sql")))
    # `queen bench` says where the benchmark is.
    strange = [name for name in names if "bench" in name or "test_" in name or "conftest" in name]
    assert strange == ["queenmq/cli/commands/bench.py"]


def test_it_asks_only_for_what_client_and_command_need(installed: Path) -> None:
    [folder] = installed.glob("*.dist-info")
    metadata = email.message_from_string((folder / "METADATA").read_text())
    needs = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert {re.split("[<>]", need)[0] for need in needs} == {"aiohttp", "click", "msgspec", "PyYAML", "rich"}
    frameworks = {"celery", "django", "dramatiq", "faststream", "taskiq"}
    extras = {"connect", "delta", "dev", "iceberg", "mcp", "otel", "pipeline", "server"} | frameworks
    assert set(metadata.get_all("Provides-Extra", [])) == extras


def test_the_client_is_imported_without_the_server(installed: Path) -> None:
    done = run(installed, "import queenmq.client; print(queenmq.client.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed)


def test_every_command_is_loaded_without_the_server(installed: Path) -> None:
    load = "from queenmq.cli.main import queen; import click; c = click.Context(queen); "
    done = run(installed, load + "print(*(queen.get_command(c, name).name for name in queen.list_commands(c)))")
    assert done.returncode == 0, done.stderr
    assert {"serve", "push", "bench", "pipeline"} <= set(done.stdout.split())
    assert queen(installed, "--help").returncode == queen(installed, "serve", "--help").returncode == 0


@pytest.mark.parametrize("command", ["serve", "db url", "admin migrations", "journal list"])
def test_a_command_of_the_server_says_what_to_install(installed: Path, command: str) -> None:
    done = queen(installed, *command.split())
    assert done.returncode == 1
    assert done.stderr.startswith("queen: this command needs the server (")
    assert done.stderr.endswith(" is not installed): pip install 'queenmq[server]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["serve", "db url", "journal list", "verify run --faults kill"])
def test_a_command_of_the_server_says_where_it_runs(installed: Path, command: str) -> None:
    """As on Windows, which does not have these modules, and for which some libraries of the server are not made."""
    done = run(installed, QUEEN, *command.split(), without=extras.UNIX)
    assert done.returncode == 1
    told = r"queen: this command needs the server \(.* Linux and macOS; \w+ is not there\): use .* another machine\n"
    assert re.fullmatch(told, done.stderr)


def test_the_command_for_assistants_says_what_to_install(installed: Path) -> None:
    done = queen(installed, "mcp")
    assert (done.returncode, done.stderr) == (
        1,
        "queen: this command needs the SDK of MCP (mcp is not installed): pip install 'queenmq[mcp]'\n",
    )


def test_the_benchmark_says_where_it_is(installed: Path) -> None:
    done = queen(installed, "bench", "--only", "push-1")
    assert done.returncode == 1
    assert done.stderr == f"queen: {extras.BENCH}\n"


def test_the_doctor_skips_what_it_cannot_check(installed: Path) -> None:
    done = queen(installed, "doctor", "--server", "http://127.0.0.1:1", "--json")
    assert "not checked, because asyncpg is not installed" in done.stdout, done.stdout + done.stderr
    assert "pip install 'queenmq[server]'" in done.stdout
    on_windows = run(installed, QUEEN, "doctor", "--server", "http://127.0.0.1:1", "--json", without=extras.UNIX)
    assert "not checked, because the server runs on Linux and macOS" in on_windows.stdout, on_windows.stderr
