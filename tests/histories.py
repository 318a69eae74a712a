"""A long history that keeps every promise, made one event after the other: `python -m histories --operations 1000000`.

It has what a checker could take too long for: many leases, seeks, renewals, transactions, faults, queues and groups.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from queenmq.clock import SYSTEM, process_cpu_s
from queenmq.verify import check, read_history, write_history
from queenmq.verify.history import (
    Ack,
    Acked,
    Answer,
    Completion,
    Delivered,
    Done,
    Drain,
    Event,
    Fault,
    Invocation,
    Outcome,
    Pop,
    Popped,
    Push,
    Pushed,
    Read,
    Renew,
    Renewed,
    Request,
    Seek,
    Stored,
    Transact,
)

BATCH = 5
PARTITIONS = 8
LEASE_S = 2.0
GROUPS = ("first", "second")


class _Making:
    def __init__(self) -> None:
        self._now = 0.0
        self._numbers = count(1)
        self.stored: dict[tuple[str, str], list[Delivered]] = {}

    def call(self, process: str, request: Request, answer: Answer | None, outcome: Outcome = "ok") -> Iterator[Event]:
        op = next(self._numbers)
        yield Invocation(op, process, self._tick(), request)
        yield Completion(op, self._tick(), outcome, answer)

    def fault(self) -> Iterator[Event]:
        yield Fault("restart", self._tick(), self._tick())

    def store(self, queue: str, partition: str) -> list[Delivered]:
        there = self.stored.setdefault((queue, partition), [])
        new = [
            Delivered(partition, len(there) + 1 + place, f"{partition}-{len(there) + 1 + place}")
            for place in range(BATCH)
        ]
        there += new
        return new

    def read(self, queue: str, group: str, messages: list[Delivered], number: int) -> Iterator[Event]:
        """A batch, under a lease that is sometimes renewed, and sometimes finished in a transaction that gets lost."""
        lease, names = f"{queue}-{group}-{number}-{next(self._numbers)}", [one.id for one in messages]
        yield from self.call(group, Pop(queue, group, LEASE_S), Popped(lease, messages))
        if number % 10 == 0:
            yield from self.call(group, Renew(lease, LEASE_S), Renewed(True))
        if number % 50 == 0:
            yield from self.call(group, Transact([], [Ack(lease, names)]), None, "info")
        else:
            yield from self.call(group, Ack(lease, names), Acked([True] * len(names)))

    def _tick(self) -> float:
        self._now = round(self._now + 0.001, 3)
        return self._now


def generated(operations: int, small: int = 40) -> Iterator[Event]:
    """So many operations, and those with which a workload ends.

    After `small` rounds, a group goes back to the beginning of a small queue, and another queue follows.
    """
    making = _Making()
    made = 0
    for number in count(1):
        for event in _round(making, number, f"small-{(number - 1) // small}", number % small == 0):
            made += isinstance(event, Invocation)
            yield event
        if made >= operations:
            break
    yield from _end(making)


def _round(making: _Making, number: int, small: str, is_last: bool) -> Iterator[Event]:
    """Two batches for two groups of a queue that grows, and one for a group of a queue that is read three times."""
    for process in ("one", "two"):
        partition = f"p{number % PARTITIONS}"
        messages = making.store("long", partition)
        names = [one.id for one in messages]
        yield from making.call(process, Push("long", partition, names, process), Pushed(["stored"] * BATCH))
        for group in GROUPS:
            yield from making.read("long", group, messages, number)
    messages = making.store(small, "p")
    yield from making.call("one", Push(small, "p", [one.id for one in messages], "one"), Pushed(["stored"] * BATCH))
    yield from making.read(small, "back", messages, number)
    if is_last:
        for _ in range(2):
            yield from making.call("one", Seek(small, "back"), Done())
            there = making.stored[small, "p"]
            for place in range(0, len(there), BATCH):
                yield from making.read(small, "back", there[place : place + BATCH], 1)
        yield from making.fault()


def _end(making: _Making) -> Iterator[Event]:
    for queue in dict.fromkeys(queue for queue, _ in making.stored):
        for group in GROUPS if queue == "long" else ("back",):
            yield from making.call("end", Drain(queue, group), Done())
    for (queue, partition), messages in making.stored.items():
        yield from making.call("end", Read(queue, partition), Stored(messages))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    options = parser.parse_args()
    say = sys.stdout.write
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        write_history(path, generated(options.operations))
        say(f"{path.stat().st_size / 1e9:.2f} GB\n")
        cpu, begun = process_cpu_s(), SYSTEM.monotonic()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        verdict = check(read_history(path))
        cpu, seconds = process_cpu_s() - cpu, SYSTEM.monotonic() - begun
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    say(
        f"{verdict.operations} operations, {sum(verdict.checked.values())} checks, {len(verdict.violations)} "
        f"violations: {cpu:.0f} s of CPU, {seconds:.0f} s, {most / 1e6:.2f} GB (before: {before / 1e6:.2f} GB)\n"
    )
    return not verdict.is_valid


if __name__ == "__main__":
    sys.exit(main())
