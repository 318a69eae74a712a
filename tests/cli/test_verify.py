"""`queen verify` against a real server, and on histories that were recorded before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Run
from queenmq.verify.corruptions import a_partition_is_leased_twice, corrupted
from queenmq.verify.history import write_history
from queenmq.verify.workload import WORKLOADS


def test_a_server_keeps_its_promises(queen: Run, tmp_path: Path) -> None:
    ran = queen("verify", "run", "--seconds", "1", "--lease", "1", "--histories", str(tmp_path), "--json")
    assert ran.status == 0, ran.err
    assert [one["name"] for one in ran.json] == list(WORKLOADS)
    judged: dict[str, int] = {}
    for one in ran.json:
        assert one["valid"], one["violations"]
        for rule, times in one["checked"].items():
            judged[rule] = judged.get(rule, 0) + times
    # A transaction has an unknown outcome only if an answer is lost.
    assert [rule for rule, times in judged.items() if not times] == ["all-or-nothing"]
    left = queen("queues", "list", "--json").json
    assert [one["name"] for one in left if one["name"].startswith("verify.")] == []
    again = queen("verify", "check", *(str(tmp_path / f"{name}.jsonl") for name in WORKLOADS))
    assert (again.status, again.out.splitlines()[-1]) == (0, "every promise was kept")


def test_a_broken_promise_is_shown(queen: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    write_history(file, corrupted(a_partition_is_leased_twice))
    ran = queen("verify", "check", str(file))
    assert ran.status == 1
    assert "breaks one-lease-at-a-time: " in ran.out
    assert '"process":"intruder"' in ran.out
    assert ran.err == "promises were broken: bad.jsonl\n"


def test_histories_can_be_exported(queen: Run, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    write_history(file, corrupted(a_partition_is_leased_twice))
    lines = queen("verify", "export", str(file)).out.splitlines()
    assert len(lines) == len(file.read_text().splitlines())
    assert all(line.startswith("{:index ") for line in lines)


def test_the_checker_is_checked(queen: Run) -> None:
    ran = queen("verify", "self-test")
    assert ran.status == 0
    assert ran.out.endswith("25 of 25 corruptions were caught\n")
    assert all(one["caught"] for one in queen("verify", "self-test", "--json").json)


@pytest.mark.parametrize("arguments", [("check",), ("export",)])
def test_what_is_no_history(queen: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = tmp_path / "none.jsonl"
    file.write_text(json.dumps({"type": "invoke"}) + "\n")
    ran = queen("verify", *arguments, str(file))
    assert ran.status == 2
    assert "line 1: Object missing required field" in ran.err
