"""The scenarios that run for long: what they make of their samples, and each for a moment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from queen_bench import plot
from queen_bench.load import now
from queen_bench.options import Options
from queen_bench.processes import Watch
from queen_bench.scenarios import held_beside
from queen_bench.scenarios.held_beside import FREE, PARTS, HeldBeside, Side, _figures
from queen_bench.scenarios.held_horizon import FORMS, PREPARED, HeldHorizon, Rounds
from queen_bench.scenarios.sizes import Sizes
from queen_bench.subject import HttpSubject

LONG = os.environ.get("QUEEN_LONG") == "1"
MOMENT = Options(seconds=1, connections=4, partitions=10, held_seconds=1, rate=1_000_000)


def side(rate: float, blocks: int) -> Side:
    """A hundred messages a part, in turns of that rate; blocks for each message."""
    made = Side(cast(Rounds, None))
    for number, part in enumerate(made.parts):
        for verb in ("push", "pop"):
            part.messages[verb] = 100
            part.seconds[verb] = 100 / rate
            part.latencies[verb] = [1 / rate] * 100
            made.rates[number][verb] = [rate, rate]
    made.so_far = [(number * blocks * 100, number * 0.5) for number in range(PARTS + 1)]
    return made


def test_forms_are_compared_with_the_free_one_part_by_part() -> None:
    free, held = side(1000, 20), side(900, 30)
    found = _figures("session", held, free)
    last = PARTS - 1
    assert found["session_push_rate_share"] == found[f"session_push_rate_share_{last}"] == pytest.approx(0.9)
    assert found[f"session_pop_p99_ratio_{last}"] == pytest.approx(1 / 0.9)
    assert (found["session_blocks_0"], found["session_vacuum_s_0"]) == (30, 0.5)
    assert "free_push_rate_share_0" not in _figures("free", free, free)


def test_a_part_without_a_turn_has_no_figures() -> None:
    free, held = side(1000, 20), side(1000, 20)
    held.parts[3].messages["pop"] = 0
    found = _figures("session", held, free)
    assert "session_blocks_2" in found
    assert "session_blocks_3" not in found


def test_the_largest_size_of_each_quarter() -> None:
    sizes = Sizes(cast(Any, None), began=now())
    sizes.series = {
        "messages": [(float(at), size) for at, size in enumerate((1.0, 5.0, 5.0, 4.0, 5.0, 5.0, 3.0, 5.0))],
        "messages, indexes": [(0.0, 0.1), (1.0, 0.2)],
    }
    found = sizes.largest()
    assert [found[f"messages_mb_{quarter}"] for quarter in (1, 2, 3, 4)] == [5.0, 5.0, 5.0, 5.0]
    assert found["messages_indexes_mb_4"] == 0.2


def test_the_lines_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs it: pip install 'queenmq[bench]'")
    path = tmp_path / "sizes.svg"
    plot.write_series(path, "sizes", {"messages": [(0.0, 1.0), (60.0, 2.0)]})
    assert "<svg" in path.read_text()


def _subject(folder: Path) -> HttpSubject:
    """These scenarios start servers of their own below its folder."""
    return HttpSubject("127.0.0.1", 0, Watch(os.getpid()), folder)


@pytest.mark.slow
async def test_held_horizon_for_a_moment(tmp_path: Path) -> None:
    result = await HeldHorizon("held-horizon").run(_subject(tmp_path), MOMENT)
    assert result.problems == []
    assert {f"{form}_push_rate_share" for form in FORMS} <= result.extra.keys()
    assert result.messages > 0


@pytest.mark.slow
async def test_held_beside_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_beside, "TURN", 40)
    forms = FORMS if LONG else (PREPARED,)
    monkeypatch.setattr(held_beside, "FORMS", forms)
    monkeypatch.setattr(held_beside, "SIDES", (FREE, *forms))
    result = await HeldBeside("held-beside").run(_subject(tmp_path), MOMENT)
    assert result.problems == []
    assert {f"{form}_pop_rate_share" for form in forms} <= result.extra.keys()
    assert result.messages > 0
