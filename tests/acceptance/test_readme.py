"""The README is true: its commands are run as they stand, on another port and in a folder of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ports import free_port

from queenmq import config

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
PATIENCE_S = 240


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[str]:
    """`make serve`, as the README says it; the URL it listens on."""
    command = next(block for block in blocks("sh") if "serve" in block).strip()
    assert command == "make serve"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PG_HOST")}
    environment |= {"PORT": str(port), "QUEEN_DATA_DIR": str(tmp_path / "data")}
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command.split(), cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            await _until_it_answers(url, process, tmp_path / "log")
            yield url
        finally:
            # As Ctrl-C does: to everything that the terminal has in the foreground.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            await asyncio.wait_for(process.wait(), PATIENCE_S)
    said = (tmp_path / "log").read_text()
    assert url in said
    assert str(tmp_path / "data") in said


async def _until_it_answers(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            assert process.returncode is None, _read(log)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(lambda: urllib.request.urlopen(url + "/health", timeout=5).read())
                return
            await asyncio.sleep(0.1)


def _read(log: Path) -> str:
    return log.read_text()


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_the_commands_of_the_readme_work(served: str, environments) -> None:  # type: ignore[no-untyped-def]
    shell = next(block for block in blocks("sh") if "curl" in block).replace("http://127.0.0.1:6632", served)
    pushed_and_popped = await run("bash", "-euc", shell)
    assert '"order": 1' in pushed_and_popped
    assert pushed_and_popped.index('"order": 1') < pushed_and_popped.index('"order": 2')

    [session] = blocks("console")
    commands = [line.removeprefix("$ ") for line in session.splitlines() if line.startswith("$ ")]
    said = [line for line in session.splitlines() if not line.startswith("$ ")]
    prepared = f"export QUEEN_URL={served} PATH={ROOT}/.venv/bin:$PATH"
    lines = (await run("bash", "-euc", "\n".join([prepared, *commands]))).splitlines()
    # The time and the id of the message are others each time.
    assert [line.split("  ")[-1] for line in lines] == [line.split("  ")[-1] for line in said]

    own, published = blocks("python")
    printed = await run(sys.executable, "-W", "error", "-c", own.replace("http://127.0.0.1:6632", served))
    assert printed.splitlines() == ["{'order': 1}", "{'order': 2}"]

    client = environments.python("2.6.0")
    printed = await run(str(client), "-c", published.replace("http://127.0.0.1:6632", served))
    # The client prints lines of its own when it closes.
    assert printed.splitlines()[:3] == ["{'order': 1}", "{'order': 2}", "{'order': 3}"]


def test_both_commands_are_named_and_ci_runs_the_second() -> None:
    assert [block.strip() for block in blocks("sh")[:2]] == ["make serve", "make test"]
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_every_file_that_the_readme_points_to_exists() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target.partition("#")[0]).exists(), target


def test_the_variables_of_the_readme_exist() -> None:
    known = {name.split("`")[1] for name in config.markdown_tables().splitlines() if name.startswith("| `")}
    for name in re.findall(r"`([A-Z][A-Z_]{3,})`", README):
        assert name in known, name
