"""Does every corruption to a history of the model, and says which of them the checker has named."""

from __future__ import annotations

import random
from dataclasses import dataclass

from queenmq.verify.check import check
from queenmq.verify.corruptions import CORRUPTIONS, Corruption
from queenmq.verify.history import History
from queenmq.verify.model import ModelQueue
from queenmq.verify.tampering import NotHere, Tampering

STEPS = 300
SEEDS = 40


@dataclass(frozen=True, slots=True)
class Tested:
    """What the checker said of a history that was corrupted in one way."""

    corruption: str
    rule: str
    found: list[str]

    @property
    def is_caught(self) -> bool:
        return self.rule in self.found


def self_test() -> list[Tested]:
    """Corrupt good histories in every way. Raises AssertionError if the checker finds fault with a good one."""
    tested = []
    for corruption, rule in CORRUPTIONS.items():
        name = corruption.__name__.replace("_", " ")
        tested.append(Tested(name, rule, sorted(check(corrupted(corruption)).by_rule())))
    return tested


def corrupted(corruption: Corruption) -> History:
    """The first history of the model that can be broken in this way, broken."""
    for seed in range(SEEDS):
        good = ModelQueue(seed).run(STEPS)
        faults = check(good).violations
        if faults:
            raise AssertionError(f"the checker finds fault with a good history (seed {seed}): {faults[0].text}")
        it = Tampering(good, random.Random(seed))  # noqa: S311
        try:
            corruption(it)
        except NotHere:
            continue
        return it.events
    raise AssertionError(f"none of {SEEDS} histories can be broken so that {corruption.__name__}")
