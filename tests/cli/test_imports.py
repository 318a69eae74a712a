"""What a command does not need it does not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIST = "; print(*sorted(sys.modules))"


def imported(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; " + code + LIST], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "from queenmq.cli.main import queen; from queenmq.cli.group import Context; "
        "queen.get_command(Context(queen), 'serve'); import queenmq.cli.serve",
        "import queenmq.cli.workers",
    ],
    ids=["serve", "workers"],
)
def test_a_server_starts_without_the_rest(code: str) -> None:
    found = imported(code)
    assert not found & {"rich", "aiohttp", "queenmq.client", "queenmq.cli.remote", "queenmq.cli.show", "queen_bench"}


def test_a_worker_starts_without_the_command() -> None:
    assert not imported("import queenmq.cli.workers, queenmq.cli.serve") & {"click", "queenmq.cli.main"}


def test_the_list_of_commands_loads_none_of_them() -> None:
    code = "from queenmq.cli.main import main; main(['--help'])"
    found = imported(code)
    assert not [name for name in found if name.startswith("queenmq.cli.commands.")]
    assert "queenmq.server" not in found
