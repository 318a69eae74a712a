"""Histories in EDN, one operation a line: as they are, in the shape of Jepsen's, and as Elle's list-append.

Jepsen's histories have processes that do one thing at a time and nothing after an operation whose outcome nobody knows.
What overlaps another operation of its process, or follows such a one, gets a number of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from queenmq.verify.history import (
    Event,
    Fault,
    Operation,
    Outcome,
    Push,
    Pushed,
    Read,
    Schedule,
    Stored,
    Transact,
    operations,
)


class _Line(NamedTuple):
    time: float
    process: str | int
    kind: str
    verb: str
    value: str
    op: int = -1

    def written(self, index: int) -> str:
        fields = f":index {index}, :type :{self.kind}, :process {self.process}, :f :{self.verb}"
        op = f", :op {self.op}" if self.op >= 0 else ""
        return f"{{{fields}, :time {round(self.time * 1e9)}{op}, :value {self.value}}}"


def to_edn(history: Iterable[Event]) -> Iterator[str]:
    """`{:index 0, :type :invoke, :process 0, :f :push, :time 12, :op 1, :value {…}}`, by time, in nanoseconds.

    Faults are of the process `:nemesis`: one line when they begin and one when they are over.
    """
    events = list(history)
    done = operations(event for event in events if not isinstance(event, Fault))
    lines: list[_Line] = []
    for one, process in zip(done, _processes(done), strict=True):
        verb = _map(one.request).pop("f")
        lines.append(_Line(one.begun, process, "invoke", verb, _without_verb(one.request), one.op))
        if one.ended < float("inf"):
            lines.append(_Line(one.ended, process, one.outcome, verb, _without_verb(one.answer), one.op))
    for fault in events:
        if isinstance(fault, Fault):
            lines.append(_Line(fault.at, ":nemesis", "info", fault.name, ":begin"))
            lines.append(_Line(fault.ended, ":nemesis", "info", fault.name, ":end"))
    return _written(lines)


def to_elle(history: Iterable[Event]) -> Iterator[str]:
    """For Elle's list-append: `:value [[:append "q/p" 1]]` and `[[:r "q/p" [1 2]]]`, with a number for each message.

    A key is a partition. A push, a transaction and a timer append; reading a partition to its end reads. A message has
    one writer: the operation that stored it or, if nobody knows which, the first that may have. What was put into a
    journal or is to be stored later has the outcome `:info`: its place is not that of its answer. Pops,
    acknowledgements and faults are left out.
    """
    done = operations(event for event in history if not isinstance(event, Fault))
    writers = _writers(done)
    numbers: dict[tuple[str, str, str], int] = {}
    chosen: list[tuple[Operation, Outcome, str, str]] = []
    for one in done:
        match one.request:
            case Read(queue=queue, partition=partition):
                key = _edn(f"{queue}/{partition}")
                seen = "nil"
                if isinstance(one.answer, Stored):
                    there = (numbers.setdefault((queue, partition, m.id), len(numbers)) for m in one.answer.messages)
                    seen = f"[{' '.join(map(str, there))}]"
                chosen.append((one, one.outcome, f"[[:r {key} nil]]", f"[[:r {key} {seen}]]"))
            case Push() | Transact() | Schedule():
                own = [copy for copy in _copies(one) if writers[copy] == one.op]
                if own:
                    steps = (
                        f"[:append {_edn('/'.join(copy[:2]))} {numbers.setdefault(copy, len(numbers))}]" for copy in own
                    )
                    value = f"[{' '.join(steps)}]"
                    chosen.append((one, _place(one), value, value))
    lines: list[_Line] = []
    processes = _processes([msgspec.structs.replace(one, outcome=outcome) for one, outcome, _, _ in chosen])
    for (one, outcome, asked, answered), process in zip(chosen, processes, strict=True):
        lines.append(_Line(one.begun, process, "invoke", "txn", asked))
        if one.ended < float("inf"):
            lines.append(_Line(one.ended, process, outcome, "txn", answered))
    return _written(lines)


def _copies(one: Operation) -> list[tuple[str, str, str]]:
    """What it may have stored, in order."""
    match one.request:
        case Schedule(queue=queue, partition=partition, id=name):
            return [(queue, partition, name)]
        case Transact(pushes=pushes):
            return [(push.queue, push.partition, name) for push in pushes for name in push.ids]
        case Push(queue=queue, partition=partition, ids=ids):
            statuses = one.answer.statuses if isinstance(one.answer, Pushed) else ["unknown"] * len(ids)
            pairs = zip(ids, statuses, strict=True)
            return [(queue, partition, name) for name, word in pairs if word not in ("duplicate", "refused")]
        case _:
            return []


def _writers(done: Sequence[Operation]) -> dict[tuple[str, str, str], int]:
    """The operation that stored a message, or the first that may have; one that was refused if there is no other."""
    ranks: dict[tuple[str, str, str], tuple[int, int]] = {}
    for place, one in enumerate(done):
        rank = {"ok": 0, "info": 1, "fail": 2}[_place(one)]
        for copy in _copies(one):
            ranks[copy] = min(ranks.get(copy, (rank, place)), (rank, place))
    return {copy: done[place].op for copy, (_, place) in ranks.items()}


def _place(one: Operation) -> Outcome:
    """`ok` if it took its place before its answer."""
    later = isinstance(one.request, Schedule) or (isinstance(one.answer, Pushed) and "buffered" in one.answer.statuses)
    return "info" if later and one.outcome == "ok" else one.outcome


def _processes(done: Sequence[Operation]) -> list[int]:
    """The number of the process of each operation, in the order of their beginnings."""
    free: dict[str, list[tuple[float, int]]] = {}
    count = 0
    found = []
    for one in done:
        own = free.setdefault(one.process, [])
        place = next((place for place, (until, _) in enumerate(own) if until < one.begun), None)
        if place is None:
            number, count = count, count + 1
        else:
            number = own.pop(place)[1]
        if one.outcome != "info":
            own.append((one.ended, number))
        found.append(number)
    return found


def _written(lines: list[_Line]) -> Iterator[str]:
    lines.sort(key=lambda line: line.time)
    return (line.written(index) for index, line in enumerate(lines))


def _map(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def _without_verb(value: Any) -> str:
    return "nil" if value is None else _edn({key: one for key, one in _map(value).items() if key != "f"})


def _edn(value: Any) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case str():
            # Of a string, EDN knows the escapes of JSON but for that of other planes: these stand for themselves.
            return msgspec.json.encode(value).decode()
        case dict():
            return "{" + ", ".join(f":{key.replace('_', '-')} {_edn(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + " ".join(map(_edn, value)) + "]"
        case _:
            return str(value)
