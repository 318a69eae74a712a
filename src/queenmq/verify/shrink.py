"""The smallest part of a history that still breaks a rule: what a person has to read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from queenmq.verify.check import check
from queenmq.verify.history import Drain, Event, Fault, History, Invocation, ListDead, Popped, Seek
from queenmq.verify.verdict import Violation

_EXAMINED = 3  # times the length of the history, so that a long one costs no more than reading it so often
_AND_THEN = 20_000


def minimal(history: Sequence[Event], violation: Violation) -> History:
    """Leave out operations, in ever smaller portions, as long as the violation is there without them."""
    shrinking = _Shrinking(history, violation)
    kept = next((ops for ops in shrinking.beginnings() if shrinking.is_shown_by(ops)), shrinking.ops)
    portion = (len(kept) + 1) // 2
    while portion:
        begin = 0
        while begin < len(kept):
            without = kept[:begin] + kept[begin + portion :]
            if shrinking.is_shown_by(without):
                kept = without
            else:
                begin += portion
        portion = portion // 2 if portion > 1 else 0
    return shrinking.part(kept)


class _Shrinking:
    def __init__(self, history: Sequence[Event], violation: Violation) -> None:
        self._events = [event for event in history if not isinstance(event, Fault)]
        self._faults = [event for event in history if isinstance(event, Fault)]
        self._violation = violation
        self.ops = list(dict.fromkeys(event.op for event in self._events))
        self._left = _EXAMINED * len(self.ops) + _AND_THEN

    def beginnings(self) -> Iterator[list[int]]:
        """Parts that may do: the operations that the rule has named, all about the same messages, or partitions."""
        named = set(self._violation.ops)
        yield [op for op in self.ops if op in named]
        words = self._violation.text.split()
        yield self._about({word for word in words if "/" not in word})
        yield self._about({word.rpartition("/")[2] for word in words if "/" in word})

    def _about(self, names: Collection[str]) -> list[int]:
        """The operations with these names in them, those under the same leases, and those that are about everything."""
        found = set(self._violation.ops)
        words = {msgspec.json.encode(name) for name in names}
        for event in self._events:
            if isinstance(event, Invocation) and isinstance(event.request, Drain | ListDead | Seek):
                found.add(event.op)
            elif any(word in msgspec.json.encode(event) for word in words):
                found.add(event.op)
                if isinstance(answer := getattr(event, "answer", None), Popped):
                    words.add(msgspec.json.encode(answer.lease))
        return [op for op in self.ops if op in found]

    def part(self, ops: Collection[int]) -> History:
        wanted = frozenset(ops)
        return [event for event in self._events if event.op in wanted]

    def is_shown_by(self, ops: Sequence[int]) -> bool:
        if not ops or self._left < 0:
            return False
        self._left -= len(ops)
        of = self._violation
        return any(
            one.rule == of.rule and one.text == of.text for one in check([*self.part(ops), *self._faults]).violations
        )
