"""The checker finds nothing in good histories, and everything in those that were corrupted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from queenmq.client import NetworkError, Overloaded, ServerFailed, TransactionFailed
from queenmq.verify import BadHistory, check, offending, read_history, write_history
from queenmq.verify.corruptions import CORRUPTIONS, Corruption, corrupted
from queenmq.verify.edn import to_edn
from queenmq.verify.history import Ack, Completion, Event, Invocation, Pop, Popped, Push, Pushed, Seek
from queenmq.verify.model import ModelQueue
from queenmq.verify.recorder import outcome_of


@pytest.mark.parametrize("seed", [*range(20), *(random.randrange(20, 2**31) for _ in range(20))])
def test_good_histories_are_valid(seed: int) -> None:
    verdict = check(ModelQueue(seed).run(150))
    assert verdict.violations == []


def test_every_rule_has_something_to_judge() -> None:
    verdict = check(ModelQueue(0).run(2000))
    assert [rule for rule, times in verdict.checked.items() if not times] == []


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.__name__)
def test_each_corruption_is_named(corruption: Corruption) -> None:
    history = corrupted(corruption)
    violations = [one for one in check(history).violations if one.rule == CORRUPTIONS[corruption]]
    assert violations
    # What is shown of it is a history by itself.
    assert all(offending(history, violation) for violation in violations)


def test_every_rule_can_be_broken() -> None:
    assert set(CORRUPTIONS.values()) == set(check([]).checked)


def test_an_unknown_push_may_be_there_or_not() -> None:
    push: list[Event] = [Invocation(1, "a", 0, Push("q", "p", ["x"])), Completion(1, 1, "info")]
    pop: list[Event] = [Invocation(2, "a", 2, Pop("q", "g", 1))]
    for messages in ([], [("p", 1, "x")]):
        answer = {"type": "complete", "op": 2, "at": 3, "outcome": "ok"}
        answer["answer"] = {"f": "popped", "lease": "l" if messages else "", "messages": messages}
        assert check([*push, *pop, _event(answer)]).is_valid


def _event(given: object) -> Event:
    import msgspec

    return msgspec.convert(given, Event)  # type: ignore[no-any-return]


def test_it_can_be_written_and_read(tmp_path: Path) -> None:
    history = ModelQueue(1).run(50)
    write_history(tmp_path / "history.jsonl", history)
    assert list(read_history(tmp_path / "history.jsonl")) == history


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (['{"type": "invoke"}'], "line 1: Object missing required field"),
        (["nonsense"], "line 1: JSON is malformed"),
        (['{"type":"complete","op":1,"at":0,"outcome":"ok"}'], "operation 1 is completed twice, or before"),
        (
            ['{"type":"invoke","op":1,"process":"a","at":0,"request":{"f":"seek","queue":"q","group":"g"}}'] * 2,
            "invoked twice",
        ),
    ],
)
def test_a_bad_history_is_refused(tmp_path: Path, lines: list[str], why: str) -> None:
    (tmp_path / "bad.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(BadHistory, match=why):
        check(read_history(tmp_path / "bad.jsonl"))


def test_edn_has_an_operation_a_line() -> None:
    history: list[Event] = [
        Invocation(1, "a", 0.5, Push("q", 'p"\n', ["x"])),
        Completion(1, 1, "ok", Pushed(["stored"])),
        Invocation(2, "b", 2, Pop("q", "g", 1)),
        Completion(2, 3, "ok", Popped("", [])),
        Invocation(3, "b", 4, Ack("l", ["x"])),
        Completion(3, 5, "info"),
    ]
    assert list(to_edn(history)) == [
        '{:index 0, :type :invoke, :process 0, :f :push, :time 500000000, :op 1, :value {:queue "q", '
        ':partition "p\\"\\n", :ids ["x"]}}',
        '{:index 1, :type :ok, :process 0, :f :push, :time 1000000000, :op 1, :value {:statuses ["stored"]}}',
        '{:index 2, :type :invoke, :process 1, :f :pop, :time 2000000000, :op 2, :value {:queue "q", :group "g", '
        ":lease-s 1}}",
        '{:index 3, :type :ok, :process 1, :f :pop, :time 3000000000, :op 2, :value {:lease "", :messages []}}',
        '{:index 4, :type :invoke, :process 1, :f :ack, :time 4000000000, :op 3, :value {:lease "l", :ids ["x"], '
        ':status "completed"}}',
        "{:index 5, :type :info, :process 1, :f :ack, :time 5000000000, :op 3, :value nil}",
    ]


def test_what_an_error_says_about_the_outcome() -> None:
    push, ack = Push("q", "p", ["x"]), Ack("l", ["x"])
    assert outcome_of(push, Overloaded(429, "full")) == "fail"
    assert outcome_of(push, ServerFailed(503, "away")) == "fail"
    assert outcome_of(ack, ServerFailed(503, "unknown")) == "info"
    assert outcome_of(Seek("q", "g"), ServerFailed(503, "unknown")) == "info"
    assert outcome_of(push, ServerFailed(500, "broken")) == "info"
    assert outcome_of(push, NetworkError("cut", sent=True)) == "info"
    assert outcome_of(push, NetworkError("refused", sent=False)) == "fail"
    assert outcome_of(ack, TransactionFailed("refused", uncertain=False)) == "fail"
    assert outcome_of(ack, TransactionFailed("refused", uncertain=True)) == "info"
