"""The adapters of other brokers, each with its real server where that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from queen_bench.errors import PeerMissing
from queen_bench.options import Options
from queen_bench.peers import daemon, find, nats
from queen_bench.runner import Runner
from queen_bench.scenarios.catalogue import chosen, scenarios

pytestmark = pytest.mark.slow

NAMES = ("push-10", "pop-ack-1", "pop-ack-10", "wakeup", "wakeup-half-load")


@pytest.mark.parametrize("name", ["rabbitmq", "nats", "procrastinate"])
async def test_every_message_arrives_once_and_in_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # An older NATS cannot sync every write, which matters to what is measured but not to what arrives.
    monkeypatch.setattr(nats, "LEAST_VERSION", (2, 2))
    monkeypatch.setattr(nats, "CONFIG", nats.CONFIG.replace("  sync_interval: always\n", ""))
    try:
        peer = find(name, None)
    except PeerMissing as missing:
        pytest.skip(f"{name}: {missing}")
    # On a busy machine nothing may pass in a short time.
    for seconds in (0.3, 2.0, 10.0):
        tiny = Options(seconds=seconds, connections=4, partitions=10, rounds=2)
        results = await Runner([peer], tiny).run(chosen(scenarios(tiny), NAMES), 1, lambda _: None)
        assert [problem for result in results for problem in result.problems] == []
        if all(result.messages > 0 for result in results):
            break
    else:
        pytest.fail(f"{name} passed no message on in ten seconds")
    assert {"version", "durability"} <= peer.facts().keys()


def test_a_library_that_is_not_installed_is_named() -> None:
    with pytest.raises(PeerMissing, match=r"no_such_library is not installed: .*\./bench\[peers\]"):
        daemon.library("no_such_library")


def test_the_program_of_a_package_is_found_without_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho 'nats-server: v2.15.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert find("nats", None).facts()["version"] == "2.15.1"
