"""`queen pipeline bench --growth`: its trials, and when it says that costs grow more than linearly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from queen_bench.pipeline import growth
from queen_bench.pipeline.jobs import Measured, Settings
from queenmq.pipeline.runs import Outcome, Run


def test_trials_and_what_a_message_costs_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[tuple[int, int, str]] = []

    class Trial:
        def __init__(self, _: object, settings: Settings) -> None:
            self.settings = settings
            self.results: dict[str, Measured] = {}

        def run(self) -> None:
            count = self.settings.messages
            trials.append((count, self.settings.partitions, "run"))
            # Linear, and with the square of the messages. The first trial is slow, because it is the first.
            for name, cpu in (("read", count / 1e6), ("window", count**2 / 4e9)):
                cpu *= 10 if len(trials) == 1 else 1
                one = Measured(name, count, seconds=[1.0], cpu=[cpu / 2], postgres_cpu=[cpu / 2], peak_kb=count)
                self.results[name] = one

        def close(self) -> None:
            trials.append((self.settings.messages, self.settings.partitions, "close"))

    monkeypatch.setattr(growth, "Bench", Trial)
    run = cast(Run, SimpleNamespace(outcome=Outcome()))
    settings = Settings(url="", messages=4096 * 4, partitions=400, growth=True, rounds=9)
    found: dict[str, Any] = growth.growth(None, settings, run).summary
    sizes = [(4096, 100), (4096, 100), (8192, 200), (16384, 400)]
    assert trials == [(*size, verb) for size in sizes for verb in ("run", "close")]
    assert "\u00b5s of CPU a message 1.0 → 1.0 → 1.0 (1.00, linear); memory MB 4 → 8 → 16" in found["read"]
    assert "a message 1.0 → 2.0 → 4.1 (4.00, MORE THAN LINEAR)" in found["window"]
