"""What the scenarios about limits and fairness make of what they have measured."""

from __future__ import annotations

import pytest

from bench.test_command import run_tiny
from queen_bench.scenarios import controls
from queen_bench.scenarios.controls import POLICIES, ratios
from queenmq.server import Server


async def test_short_runs_find_nothing_wrong(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TURNS": 2, "LARGE": 120, "OF_EACH": 15, "DELIVERIES": 100}.items():
        monkeypatch.setattr(controls, name, value)
    host, port = server.address
    results = await run_tiny(f"http://{host}:{port}", "controls", "controls-pop", "fair-share", connections=4)
    assert [result.problems for result in results] == [[], [], []]
    shares = results[2].extra
    assert shares["share_of_small_plain"] == 0  # what is older comes first
    assert {name for name, share in shares.items() if isinstance(share, float) and share > 0.2} == {
        "share_of_small_fairness",
        "share_of_small_fairness_6_consumers_batch_1",
        "share_of_small_fairness_6_consumers_batch_10",
    }


def test_ratios_are_those_of_the_same_turn() -> None:
    """The second turn was on a machine that was busy with something else."""
    found = ratios({"plain": [10.0, 40.0, 20.0], "limits": [11.0, 44.0, 22.0], "one_key": [12.0, 40.0, 30.0]})
    assert found == {
        "cpu_plain": 20.0,
        "cpu_limits": 22.0,
        "cpu_one_key": 30.0,
        "ratio_limits": pytest.approx(1.1),
        "ratio_one_key": pytest.approx(1.2),
    }


def test_without_figures_of_the_processes_there_are_no_ratios() -> None:
    assert ratios({state: [] for state in POLICIES}) == {}


def test_all_partitions_share_the_one_key() -> None:
    assert controls._keys("one_key") == 1
    assert controls._keys("key_limits") == controls.KEYS > 1
