"""The audit: every pushed id is popped exactly once per group, and in order.

An id is "<lane>:<sequence>". A lane is what one producer writes to one partition, one request after the other, so its
order is defined; with at least as many partitions as producers, lane and partition are the same number.

Under leases no message may arrive before an earlier one of its lane. Without leases (autoAck) two answers for one
partition may cross on their way to us; then a late message counts as reordered only if it was asked for after
the message that overtook it had arrived, or if both came in one answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

EXAMPLES: Final = 5
KINDS: Final = {
    "lost": "pushed but never popped",
    "doubled": "popped more than once",
    "reordered": "popped after a later message of the same partition",
    "invented": "popped but never pushed",
}


@dataclass
class Finding:
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, message: str, count: int = 1) -> None:
        self.count += count
        if len(self.examples) < EXAMPLES:
            self.examples.append(message)


class GroupAudit:
    """What one consumer group has received."""

    def __init__(self, sent: dict[int, int], name: str) -> None:
        self.popped = 0
        self._sent = sent
        self._name = name
        self._received: dict[int, int] = {}
        # Messages that were overtaken: when, and by which answer.
        self._overtaken: dict[tuple[int, int], tuple[float, int]] = {}
        self._answers = 0
        self._findings = {kind: Finding() for kind in KINDS}

    def received(self, ids: Iterable[str], asked_at: float, at: float, leased: bool = True) -> None:
        """Note the ids of one answer in their order."""
        self._answers += 1
        for name in ids:
            lane, sequence = parse(name)
            last = self._received.get(lane, 0)
            if sequence == last + 1 and sequence <= self._sent.get(lane, 0):
                self._received[lane] = sequence
                self.popped += 1
            else:
                self._odd(name, lane, sequence, last, asked_at, at, leased)

    def _odd(self, name: str, lane: int, sequence: int, last: int, asked_at: float, at: float, leased: bool) -> None:
        if not 0 < sequence <= self._sent.get(lane, 0):
            self._findings["invented"].add(name)
        elif sequence > last:
            for skipped in range(last + 1, sequence):
                self._overtaken[lane, skipped] = (at, self._answers)
            self._received[lane] = sequence
            self.popped += 1
        elif (overtaken := self._overtaken.pop((lane, sequence), None)) is not None:
            self.popped += 1
            overtaken_at, answer = overtaken
            if leased or answer == self._answers or asked_at > overtaken_at:
                self._findings["reordered"].add(name)
        else:
            self._findings["doubled"].add(name)

    def finish(self) -> list[str]:
        """Say what is wrong when everything should have arrived."""
        lost = Finding()
        for lane, sequence in self._overtaken:
            lost.add(f"{lane}:{sequence}")
        for lane, sent in self._sent.items():
            if (last := self._received.get(lane, 0)) < sent:
                lost.add(f"{lane}:{last + 1}", sent - last)
        findings = self._findings | {"lost": lost}
        return [self._sentence(kind, found) for kind, found in findings.items() if found.count]

    def _sentence(self, kind: str, found: Finding) -> str:
        group = f" in group {self._name}" if self._name else ""
        more = ", …" if found.count > len(found.examples) else ""
        return f"{found.count:,} {kind}{group} ({KINDS[kind]}): {', '.join(found.examples)}{more}"


class Audit:
    """What was sent, and one audit for each group that must receive all of it."""

    def __init__(self, *groups: str) -> None:
        self._sent: dict[int, int] = {}
        self.sent = 0
        self.groups = {name: GroupAudit(self._sent, name) for name in groups or ("",)}

    def send(self, lane: int, count: int) -> int:
        """Give out the next `count` sequences of a lane; the first of them."""
        last = self._sent.get(lane, 0)
        self._sent[lane] = last + count
        self.sent += count
        return last + 1

    @property
    def lanes(self) -> int:
        """How many lanes were written to, counted from 0."""
        return max(self._sent, default=-1) + 1

    @property
    def pending(self) -> int:
        """What the slowest group has still to receive."""
        return max(map(self.pending_of, self.groups))

    def pending_of(self, group: str) -> int:
        return self.sent - self.groups[group].popped

    def finish(self) -> list[str]:
        return [problem for group in self.groups.values() for problem in group.finish()]


def parse(name: str) -> tuple[int, int]:
    """Lane and sequence of an id; an id that is none of ours has sequence 0, which was never sent."""
    lane, _, sequence = name.partition(":")
    try:
        return int(lane), int(sequence)
    except ValueError:
        return -1, 0
