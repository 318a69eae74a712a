"""What the checker says of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from queenmq.verify.history import Event


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a history breaks: the rule, what happened, and the operations that show it."""

    rule: str
    text: str
    ops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a history keeps every rule. `checked` has how often each rule had something to judge, and `unjudged` what
    could not be judged, because it did not come to its end."""

    operations: int
    outcomes: dict[str, int]
    checked: dict[str, int]
    violations: list[Violation] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        return not self.violations

    def by_rule(self) -> Counter[str]:
        return Counter(violation.rule for violation in self.violations)


def lines(history: Iterable[Event]) -> list[str]:
    """The lines of a history, to be read."""
    return [msgspec.json.encode(event).decode() for event in history]
