"""Completion: scripts for three shells, and that of bash sourced and used in a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import PATIENCE_S, QUEEN, Run, Running

BASH = shutil.which("bash")


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("bash", ["complete -o nosort -F _queen_completion queen", "_QUEEN_COMPLETE=bash_complete"]),
        ("zsh", ["#compdef queen", "_QUEEN_COMPLETE=zsh_complete"]),
        ("fish", ["complete --no-files --command queen", "_QUEEN_COMPLETE=fish_complete"]),
    ],
)
def test_the_script_of_each_shell(queen: Run, shell: str, words: list[str]) -> None:
    told = queen("completion", shell)
    assert told.status == 0
    assert all(word in told.out for word in words)


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "wanted", "unwanted"),
    [
        ("queen pu", ["push"], ["pop"]),
        ("queen ", ["serve", "doctor", "top", "completion"], []),
        ("queen dlq re", ["redrive"], ["purge"]),
        ("queen seek --t", ["--to"], ["--group"]),
        ("queen ack --status f", ["failed"], ["completed"]),
        ("queen pop {}", ["{}"], []),
        ("queen tail nothing-like-it", [], ["{}"]),
    ],
)
def test_bash_completes(
    running: Running, queen: Run, name: str, tmp_path: Path, line: str, wanted: list[str], unwanted: list[str]
) -> None:
    queen("push", name, "1")
    command = tmp_path / "queen"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{QUEEN}' \"$@\"\n")
    command.chmod(0o755)
    words = line.format(name[:8]).split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        'eval "$(queen completion bash)"\n'
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        f"_queen_completion queen '{words[-1]}' '{words[-2]}'\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    variables = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "QUEEN_URL": running.url}
    assert BASH is not None
    done = subprocess.run(
        [BASH, "--norc", "-euc", script], env=variables, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    offered = done.stdout.split("\n")
    for word in wanted:
        assert word.format(name) in offered
    for word in unwanted:
        assert word.format(name) not in offered


def test_without_a_server_there_are_no_names_and_no_complaints(environment: pytest.MonkeyPatch) -> None:
    variables = os.environ | {
        "QUEEN_URL": "http://127.0.0.1:1",
        "_QUEEN_COMPLETE": "bash_complete",
        "COMP_WORDS": "queen pop x",
        "COMP_CWORD": "2",
    }
    done = subprocess.run([sys.executable, "-c", QUEEN], env=variables, capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"", b"")
