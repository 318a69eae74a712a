"""`queen verify` against a real server, and on histories that were recorded before."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from cli.conftest import Run
from queenmq.cli.commands import verify as command
from queenmq.client import OperationTimeout, Unavailable
from queenmq.client.queue import Queue
from queenmq.errors import StartupError
from queenmq.faults.injection import FAULTS
from queenmq.verify.clients import Clients, Load
from queenmq.verify.corruptions import a_partition_is_leased_twice
from queenmq.verify.history import write_history
from queenmq.verify.self_test import corrupted
from queenmq.verify.workload import OWN_CLUSTER_ONLY, WORKLOADS

SVG = "{http://www.w3.org/2000/svg}"


def test_a_server_keeps_its_promises(queen: Run, tmp_path: Path) -> None:
    ran = queen("verify", "run", "--seconds", "1", "--lease", "1", "--histories", str(tmp_path), "--json")
    assert ran.status == 0, ran.err
    names = [name for name in WORKLOADS if name not in OWN_CLUSTER_ONLY]
    assert [one["name"] for one in ran.json] == names
    judged: dict[str, int] = {}
    for one in ran.json:
        assert one["valid"], one["violations"]
        for rule, times in one["checked"].items():
            judged[rule] = judged.get(rule, 0) + times
    assert [rule for rule, times in judged.items() if not times] == []
    left = queen("queues", "list", "--json").json
    assert [one["name"] for one in left if one["name"].startswith("verify.")] == []
    again = queen("verify", "check", *(str(tmp_path / f"{name}.jsonl") for name in names))
    assert (again.status, again.out.splitlines()[-1]) == (0, "every promise was kept")


def test_faults_on_a_cluster_of_its_own(queen: Run, tmp_path: Path) -> None:
    """Those that need no standby; failover is tested in tests/chaos."""
    faults = "kill,restart,cut,forge,clock,horizon,full-disk,slow-disk"
    ran = queen(
        *(
            "verify",
            "run",
            "--faults",
            faults,
            "--workload",
            "journal",
            "--seconds",
            "5",
            "--lease",
            "1",
            "--seed",
            "3",
        ),
        *("--partitions", "3", "--histories", str(tmp_path), "--json"),
    )
    assert ran.status == 0, (ran.err, ran.out)
    [one] = ran.json
    assert one["valid"]
    assert {fault["name"] for fault in one["faults"]} <= set(faults.split(","))
    assert one["faults"]
    assert one["outcomes"]["ok"] > 50
    # Whatever was done, it is in the history and in the plot.
    kept = (tmp_path / "journal.jsonl").read_text()
    assert kept.count('"type":"fault"') == len(one["faults"])
    drawn = ElementTree.fromstring((tmp_path / "journal.svg").read_text())
    assert {fault["name"] for fault in one["faults"]} <= {text.text for text in drawn.iter(f"{SVG}text")}


async def _stuck(clients: Clients) -> None:
    await clients.push("producer", "p0", ["a"])
    raise OperationTimeout("an accepted operation has not been done", "1")


@pytest.mark.parametrize("faults", [(), ("--faults", "none")])
def test_a_workload_that_cannot_be_judged_leaves_the_others(
    queen: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: tuple[str, ...]
) -> None:
    monkeypatch.setitem(WORKLOADS, "lease", _stuck)
    named = ("--workload", "log", "--workload", "lease", "--workload", "seek")
    short = ("--seconds", "1", "--lease", "1", "--partitions", "1", "--histories", str(tmp_path))
    ran = queen("verify", "run", *named, *short, *faults)
    assert ran.status == 1, ran.out
    rows = [line.split() for line in ran.out.splitlines() if line.endswith(("0", "1"))]
    assert [(row[0], row[-2:]) for row in rows] == [
        ("log", ["0", "0"]),
        ("lease", ["0", "1"]),
        ("seek", ["0", "0"]),
    ]
    assert "lease could not be judged: an accepted operation has not been done\n" in ran.out
    assert "every promise was kept" not in ran.out
    assert ran.err.endswith("\ncould not be judged: lease\n")
    again = queen("verify", "check", *(str(tmp_path / f"{name}.jsonl") for name in ("log", "seek")))
    assert again.out.endswith("every promise was kept\n")
    # What there was is kept, too.
    assert '"f":"push"' in (tmp_path / "lease.jsonl").read_text()
    assert (tmp_path / "lease.svg").exists()


def test_a_cluster_that_is_not_mended_costs_the_other_workloads_nothing(
    queen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get another cluster. If there can be none, they are not judged."""
    clusters: list[SimpleNamespace] = []
    seen: list[tuple[str, int]] = []

    @asynccontextmanager
    async def started(**_: object) -> AsyncIterator[SimpleNamespace]:
        if len(clusters) == 2:
            raise StartupError("no room for a third one")
        clusters.append(SimpleNamespace(urls=["http://127.0.0.1:1"], number=len(clusters) + 1))
        yield clusters[-1]

    async def harm(cluster: SimpleNamespace, *_: object) -> None:
        seen.append((running[-1], cluster.number))
        if running[-1] in ("lease", "timers"):
            raise StartupError(f"the server of {running[-1]} is not well")

    running: list[str] = []

    async def run(servers: object, name: str, *_: object, beside: Any, recorder: Any, **__: object) -> None:
        running.append(name)
        await beside(recorder)

    monkeypatch.setattr("queenmq.faults.cluster.started", started)
    monkeypatch.setattr("queenmq.faults.injection.harm", harm)
    monkeypatch.setattr("queenmq.verify.workload.run", run)
    named = ("log", "lease", "pipeline", "timers", "seek")
    ran = queen("verify", "run", "--faults", "kill", "--json", *(f"--workload={name}" for name in named))
    assert seen == [("log", 1), ("lease", 1), ("pipeline", 2), ("timers", 2)]
    assert ran.status == 1
    assert {one["name"]: one["unjudged"] for one in ran.json} == {
        "log": [],
        "lease": ["the server of lease is not well"],
        "pipeline": [],
        "timers": ["the server of timers is not well"],
        "seek": ["no room for a third one"],
    }


def test_the_load_on_servers_of_others_is_bounded(queen: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    async def run(servers: object, name: str, queue: str, load: Load, **_: object) -> None:
        rates.append(load.rate)

    monkeypatch.setattr("queenmq.verify.workload.run", run)
    for arguments in ((), ("--rate", "7"), ("--rate", "0")):
        assert queen("verify", "run", "--workload", "log", *arguments).status == 0
    assert rates == [200, 7, 0]
    assert queen("verify", "run", "--rate", "-1").status == 2


def test_a_queue_that_cannot_be_deleted_costs_no_history(
    queen: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Any) -> None:
        raise Unavailable(503, "not now")

    monkeypatch.setattr(Queue, "delete", fail)
    named = ("--workload", "log", "--seconds", "1", "--prefix", "undeleted")
    ran = queen("verify", "run", *named, "--json", "--histories", str(tmp_path))
    assert ran.status == 1
    [one] = ran.json
    assert (one["valid"], one["unjudged"]) == (True, ["the queue could not be deleted: not now"])
    assert one["checked"]["everything-delivered"] > 0
    assert (tmp_path / "log.jsonl").exists()


def test_no_server_is_said_at_once(queen: Run) -> None:
    ran = queen("verify", "run", "--server", "http://127.0.0.1:1")
    assert (ran.status, ran.out) == (6, "")


def test_what_is_refused(queen: Run) -> None:
    for arguments, why in (
        (("--faults", "earthquake"), "'earthquake' is not a fault; there are kill, pause, "),
        (("--faults", ""), "'' is not a fault"),
        (("--workload", "overload"), "overload would disturb other users of the servers"),
        (("--faults", "none", "--server", "http://127.0.0.1:1"), "leave out --server"),
    ):
        ran = queen("verify", "run", *arguments)
        assert (ran.status, why in ran.err) == (2, True), ran.err


def test_the_command_knows_all_workloads_and_faults() -> None:
    """It has lists of its own, because it must not load the rest to show its help."""
    assert (*command._NAMES, *command._OWN) == tuple(WORKLOADS)
    assert command._OWN == OWN_CLUSTER_ONLY
    assert tuple(FAULTS) == command._FAULTS


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
    appends = queen("verify", "export", "--elle", str(file)).out.splitlines()
    assert 0 < len(appends) < len(lines)
    assert all(":f :txn" in line for line in appends)


def test_the_checker_is_checked(queen: Run) -> None:
    ran = queen("verify", "self-test")
    assert ran.status == 0
    assert ran.out.endswith("29 of 29 corruptions were caught\n")
    assert all(one["caught"] for one in queen("verify", "self-test", "--json").json)


@pytest.mark.parametrize("arguments", [("check",), ("export",)])
def test_what_is_no_history(queen: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = tmp_path / "none.jsonl"
    file.write_text(json.dumps({"type": "invoke"}) + "\n")
    ran = queen("verify", *arguments, str(file))
    assert ran.status == 2
    assert "line 1: Object missing required field" in ran.err
