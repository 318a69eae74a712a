"""Histories in EDN: what a reader of EDN gets has the shape that Jepsen and Elle demand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from queenmq.verify.edn import to_edn, to_elle
from queenmq.verify.history import (
    Completion,
    Delivered,
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
    Schedule,
    Stored,
    Transact,
)
from queenmq.verify.model import ModelQueue

TOKEN = re.compile(r'[\s,]*("(?:\\.|[^"\\])*"|[\[\]{}]|[^\s,\[\]{}"]+)')


def parsed(text: str) -> Any:
    """One form of EDN: maps, vectors, strings, keywords (with their colon), numbers, true, false and nil."""
    tokens = [found[1] for found in TOKEN.finditer(text)]
    assert "".join(TOKEN.sub("", text).split()) == ""
    form, rest = _form(tokens)
    assert not rest
    return form


def _form(tokens: Sequence[str]) -> tuple[Any, Sequence[str]]:
    token, rest = tokens[0], tokens[1:]
    if token in "[{":
        inside = []
        while rest[0] not in "]}":
            form, rest = _form(rest)
            inside.append(form)
        assert rest[0] == {"[": "]", "{": "}"}[token]
        if token == "[":
            return inside, rest[1:]
        assert len(inside) % 2 == 0
        return dict(zip(inside[::2], inside[1::2], strict=True)), rest[1:]
    if token.startswith(('"', "-")) or token[0].isdigit():
        return json.loads(token), rest
    assert token.startswith(":") or token in ("nil", "true", "false"), token
    return {"nil": None, "true": True, "false": False}.get(token, token), rest


def is_shaped_as_jepsen_demands(lines: Sequence[dict[str, Any]]) -> None:
    """Indexes and times grow. A process does one thing at a time, and nothing more after one of which nobody knows."""
    assert [line[":index"] for line in lines] == list(range(len(lines)))
    times = [line[":time"] for line in lines]
    assert times == sorted(times)
    under_way: dict[object, dict[str, Any] | None] = {}
    for line in lines:
        process, kind = line[":process"], line[":type"]
        if process == ":nemesis":
            assert kind == ":info"
            continue
        begun = under_way.get(process)
        if kind == ":invoke":
            assert begun is None, (process, line)
            under_way[process] = line
        else:
            assert begun is not None, (process, line)
            assert begun[":f"] == line[":f"]
            # Of one whose outcome nobody knows, the process is never free again.
            if kind in (":ok", ":fail"):
                under_way[process] = None
            else:
                assert kind == ":info"


def _done(op: int, process: str, begun: float, ended: float, request: Any, answer: Any) -> list[Event]:
    """`answer` may be an outcome."""
    outcome: Outcome = answer if answer in ("fail", "info") else "ok"
    return [
        Invocation(op, process, begun, request),
        Completion(op, ended, outcome, None if outcome != "ok" else answer),
    ]


def test_what_overlaps_or_follows_the_unknown_has_a_process_of_its_own() -> None:
    """As the end of a workload does, whose drain has pops in it, and producers that go on after a lost answer."""
    history = [
        *_done(1, "end", 0.0, 9.0, Drain("q", "g"), Stored([])),
        *_done(2, "end", 1.0, 2.0, Pop("q", "g"), Popped("", [])),
        *_done(3, "producer", 0.5, 3.0, Push("q", "p", ["a"]), "info"),
        *_done(4, "producer", 4.0, 5.0, Push("q", "p", ["b"]), "fail"),
        *_done(5, "producer", 6.0, 7.0, Push("q", "p", ['c"\n']), Pushed(["stored"])),
        Fault("kill", 1.5, 6.5),
    ]
    lines = [parsed(line) for line in to_edn(history)]
    is_shaped_as_jepsen_demands(lines)
    assert [(line[":process"], line[":type"], line[":f"]) for line in lines] == [
        (0, ":invoke", ":drain"),
        (1, ":invoke", ":push"),
        (2, ":invoke", ":pop"),
        (":nemesis", ":info", ":kill"),
        (2, ":ok", ":pop"),
        (1, ":info", ":push"),
        (3, ":invoke", ":push"),
        (3, ":fail", ":push"),
        (3, ":invoke", ":push"),
        (":nemesis", ":info", ":kill"),
        (3, ":ok", ":push"),
        (0, ":ok", ":drain"),
    ]
    assert [line[":value"] for line in lines if line[":process"] == ":nemesis"] == [":begin", ":end"]
    assert lines[8][":value"] == {":queue": "q", ":partition": "p", ":ids": ['c"\n']}
    assert lines[8][":time"] == 6_000_000_000


@pytest.mark.parametrize("seed", range(10))
def test_every_history_has_the_shape(seed: int) -> None:
    history = [*ModelQueue(seed).run(100), Fault("pause", 0.5, 1.5)]
    lines = [parsed(line) for line in to_edn(history)]
    is_shaped_as_jepsen_demands(lines)
    assert len(lines) == len(history) + 1
    appends = [parsed(line) for line in to_elle(history)]
    is_shaped_as_jepsen_demands(appends)
    is_list_append(appends)


def is_list_append(lines: Sequence[dict[str, Any]]) -> None:
    """Each value of a key is appended by one transaction, and what is read was appended by one that did not fail."""
    written: dict[tuple[str, int], str] = {}
    for line in lines:
        assert line[":f"] == ":txn"
        if line[":type"] == ":invoke":
            for verb, key, value in line[":value"]:
                if verb == ":append":
                    assert (key, value) not in written, "a value has one writer"
                    written[key, value] = line[":type"]
                else:
                    assert (verb, value) == (":r", None)
    for line in lines:
        for verb, key, value in line[":value"]:
            if line[":type"] == ":fail" and verb == ":append":
                written[key, value] = ":fail"
    reads = [step for line in lines if line[":type"] == ":ok" for step in line[":value"] if step[0] == ":r"]
    assert reads
    for _, key, values in reads:
        assert len(set(values)) == len(values)
        assert all(written[key, value] != ":fail" for value in values)


def test_a_message_has_one_writer() -> None:
    history = [
        *_done(1, "a", 0.0, 1.0, Push("q", "p", ["x", "y"]), "info"),
        *_done(2, "a", 2.0, 3.0, Push("q", "p", ["x", "z"]), Pushed(["duplicate", "stored"])),
        *_done(3, "a", 4.0, 5.0, Push("q", "p", ["w"]), Pushed(["buffered"])),
        *_done(4, "a", 6.0, 7.0, Transact([Push("q", "p", ["v"]), Push("q", "o", ["u"])]), "fail"),
        *_done(5, "a", 8.0, 8.1, Schedule("q", "p", "t", 1.0), Stored([])),
        *_done(6, "a", 9.0, 9.5, Pop("q", "g"), Popped("", [])),
        *_done(7, "a", 10.0, 11.0, Read("q", "p"), Stored([Delivered("p", 1, "x"), Delivered("p", 2, "z")])),
    ]
    lines = [parsed(line) for line in to_elle(history)]
    is_shaped_as_jepsen_demands(lines)
    is_list_append(lines)
    assert [(line[":process"], line[":type"], line[":value"]) for line in lines] == [
        (0, ":invoke", [[":append", "q/p", 0], [":append", "q/p", 1]]),
        (0, ":info", [[":append", "q/p", 0], [":append", "q/p", 1]]),
        (1, ":invoke", [[":append", "q/p", 2]]),
        (1, ":ok", [[":append", "q/p", 2]]),
        (1, ":invoke", [[":append", "q/p", 3]]),
        (1, ":info", [[":append", "q/p", 3]]),
        (2, ":invoke", [[":append", "q/p", 4], [":append", "q/o", 5]]),
        (2, ":fail", [[":append", "q/p", 4], [":append", "q/o", 5]]),
        (2, ":invoke", [[":append", "q/p", 6]]),
        (2, ":info", [[":append", "q/p", 6]]),
        (3, ":invoke", [[":r", "q/p", None]]),
        (3, ":ok", [[":r", "q/p", [0, 2]]]),
    ]
