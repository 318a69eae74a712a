"""One environment per published version of the `queen-mq` client, and the running of scenarios in it.

The environments lie in `.cache/clients/<version>`, are made once and used again. What belongs into one is in
`clients/<version>.txt`. The client runs as a process of its own; the server is the one of the common fixtures.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from server_settings import settings_with

from queenmq.config import Settings
from queenmq.server import Server

_HERE = Path(__file__).parent
_CACHE = _HERE.parent.parent / ".cache" / "clients"
_STAMP = "ready"
_INSTALL_TIMEOUT_S = 240
_SCENARIO_TIMEOUT_S = 60

Play = Callable[..., Awaitable[dict[str, Any]]]


class Environments:
    """Makes the environments, one at a time even if several test runs share the folder."""

    def __init__(self, cache: Path, pins: Path) -> None:
        self._cache = cache
        self._pins = pins
        self._ready: dict[str, Path] = {}

    def python(self, version: str) -> Path:
        """The interpreter of the environment of `version`; makes or repairs the environment if need be."""
        if version not in self._ready:
            self._cache.mkdir(parents=True, exist_ok=True)
            with (self._cache / f"{version}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._ready[version] = self._ensure(version)
        return self._ready[version]

    def _ensure(self, version: str) -> Path:
        folder, pins = self._cache / version, self._pins / f"{version}.txt"
        python, stamp = folder / "bin" / "python", folder / _STAMP
        wanted = "\n".join((sys.version, str(folder), pins.read_text()))
        if not (python.exists() and stamp.exists() and stamp.read_text() == wanted):
            shutil.rmtree(folder, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(folder))
            # Without dependencies, so that nothing comes in that is not pinned; `check` tells if something lacks.
            pip = (str(python), "-m", "pip", "--disable-pip-version-check")
            _run(*pip, "install", "--quiet", "--no-deps", "--requirement", str(pins))
            _run(*pip, "check")
            stamp.write_text(wanted)
        return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def environments() -> Environments:
    return Environments(_CACHE, _HERE / "clients")


@pytest.fixture
def settings() -> Settings:
    """With a key, so that the clients can have encrypted queues."""
    return settings_with(server={"encryption_key": bytes(range(32))})


@pytest.fixture
def play(environments: Environments, server: Server) -> Play:
    """Run a scenario in the environment of a version: what its checks returned; fails with what their failures said."""
    host, port = server.address

    async def run(version: str, scenario: str, *arguments: str) -> dict[str, Any]:
        python = await asyncio.to_thread(environments.python, version)
        script = _HERE / "scenarios" / f"{scenario}.py"
        process = await asyncio.create_subprocess_exec(
            *(python, script, f"http://{host}:{port}", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), _SCENARIO_TIMEOUT_S)
        except TimeoutError:
            pytest.fail(f"{scenario} with queen-mq {version} did not end in {_SCENARIO_TIMEOUT_S} s", pytrace=False)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return _read(version, output, errors.decode())

    return run


def _environment() -> dict[str, str]:
    """Nothing of the caller's that would change the client: no proxy, no PYTHON*, no QUEEN_*."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "*"}


def _read(version: str, output: bytes, errors: str) -> dict[str, Any]:
    if not output:
        pytest.fail(f"the scenario reported nothing:\n{errors}", pytrace=False)
    report = json.loads(output)
    if report["failures"]:
        told = "\n".join(f"--- {check}\n{text}" for check, text in report["failures"].items())
        pytest.fail(f"queen-mq {version}\n{told}\n{errors}", pytrace=False)
    assert report["client"] == version
    values: dict[str, object] = report["values"]
    assert values, "a scenario without checks"
    return values
