"""Histories in EDN, one operation a line, as Jepsen and Elle read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from queenmq.verify.history import Event, Fault, Invocation


def to_edn(history: Iterable[Event]) -> Iterator[str]:
    """`{:index 0, :type :invoke, :process 0, :f :push, :time 12, :value {…}}`, times in nanoseconds.

    Faults are of the process `:nemesis`.
    """
    processes: dict[str, int] = {}
    begun: dict[int, Invocation] = {}
    for index, event in enumerate(history):
        if isinstance(event, Fault):
            time, ended = round(event.at * 1e9), round(event.ended * 1e9)
            fields = f":index {index}, :type :info, :process :nemesis, :f :{event.name}, :time {time}"
            yield f"{{{fields}, :value {{:ended {ended}}}}}"
            continue
        if isinstance(event, Invocation):
            begun[event.op] = event
            kind, value = "invoke", msgspec.to_builtins(event.request)
        else:
            kind, value = event.outcome, msgspec.to_builtins(event.answer)
        of = begun[event.op]
        process = processes.setdefault(of.process, len(processes))
        verb = msgspec.to_builtins(of.request)["f"]
        if isinstance(value, dict):
            value.pop("f")
        fields = f":index {index}, :type :{kind}, :process {process}, :f :{verb}, :time {round(event.at * 1e9)}"
        yield f"{{{fields}, :op {event.op}, :value {_edn(value)}}}"


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
