"""The audit of the benchmark finds what was lost, doubled, reordered or invented, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_bench.ages import Ages
from queen_bench.audit import Audit, parse


def audit_of(sent: int, *answers: Iterable[str], leased: bool = True) -> list[str]:
    """What the audit says after one lane was sent and these answers came, each asked for after the one before."""
    audit = Audit()
    audit.send(0, sent)
    for number, ids in enumerate(answers):
        audit.groups[""].received(ids, number, number + 0.5, leased)
    return audit.finish()


def ids(*sequences: int, lane: int = 0) -> list[str]:
    return [f"{lane}:{sequence}" for sequence in sequences]


def test_everything_once_and_in_order_is_fine() -> None:
    assert audit_of(5, ids(1, 2), ids(3), ids(4, 5)) == []


def test_sequences_of_a_lane_continue() -> None:
    audit = Audit()
    assert [audit.send(7, 3), audit.send(7, 2), audit.send(8, 1)] == [1, 4, 1]
    assert (audit.sent, audit.lanes) == (6, 9)


def test_a_message_that_never_comes_is_lost() -> None:
    [problem] = audit_of(3, ids(1, 2))
    assert problem == "1 lost (pushed but never popped): 0:3"


def test_a_message_left_out_in_the_middle_is_lost() -> None:
    [problem] = audit_of(3, ids(1, 3))
    assert problem.startswith("1 lost") and problem.endswith(": 0:2")


def test_all_messages_of_a_silent_lane_are_lost() -> None:
    [problem] = audit_of(1000)
    assert problem == "1,000 lost (pushed but never popped): 0:1, …"


def test_a_message_that_comes_twice_is_doubled() -> None:
    [problem] = audit_of(2, ids(1, 2), ids(2))
    assert problem.startswith("1 doubled") and problem.endswith(": 0:2")


def test_a_message_twice_in_one_answer_is_doubled() -> None:
    [problem] = audit_of(2, ids(1, 1, 2))
    assert problem.startswith("1 doubled")


def test_a_late_message_under_leases_is_reordered() -> None:
    [problem] = audit_of(3, ids(1, 3), ids(2))
    assert problem.startswith("1 reordered") and problem.endswith(": 0:2")


def test_messages_out_of_order_in_one_answer_are_reordered_without_leases_too() -> None:
    [problem] = audit_of(2, ids(2, 1), leased=False)
    assert problem.startswith("1 reordered")


def test_answers_without_leases_may_cross_on_the_way() -> None:
    audit = Audit()
    audit.send(0, 4)
    group = audit.groups[""]
    group.received(ids(3, 4), asked_at=1, at=5, leased=False)
    group.received(ids(1, 2), asked_at=2, at=6, leased=False)
    assert audit.finish() == []


def test_a_message_asked_for_after_it_was_overtaken_is_reordered() -> None:
    audit = Audit()
    audit.send(0, 2)
    group = audit.groups[""]
    group.received(ids(2), asked_at=1, at=2, leased=False)
    group.received(ids(1), asked_at=3, at=4, leased=False)
    [problem] = audit.finish()
    assert problem.startswith("1 reordered")


@pytest.mark.parametrize("name", ["0:4", "1:1", "0:0", "0:-1", "hello", "", ":", "a:1"])
def test_what_was_never_pushed_is_invented(name: str) -> None:
    [problem] = audit_of(3, ids(1, 2, 3), [name])
    assert problem.startswith("1 invented")


def test_every_group_is_audited_for_itself() -> None:
    audit = Audit("a", "b")
    audit.send(0, 2)
    audit.groups["a"].received(ids(1, 2), 0, 1)
    audit.groups["b"].received(ids(1), 0, 1)
    assert (audit.pending, audit.pending_of("a")) == (1, 0)
    [problem] = audit.finish()
    assert problem.startswith("1 lost in group b")


def test_only_a_few_examples_are_shown() -> None:
    [problem] = audit_of(20, ids(*range(1, 21)), ids(*range(1, 11)))
    assert problem.startswith("10 doubled") and problem.endswith("0:1, 0:2, 0:3, 0:4, 0:5, …")


@given(
    lanes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 7), min_size=1),
    data=st.data(),
)
def test_any_interleaving_of_lanes_in_order_is_fine_and_any_single_fault_is_found(
    lanes: list[int], cuts: list[int], data: st.DataObject
) -> None:
    audit = Audit()
    for lane, count in enumerate(lanes):
        audit.send(lane, count)
    order = data.draw(st.permutations([lane for lane, count in enumerate(lanes) for _ in range(count)]))
    seen = dict.fromkeys(range(len(lanes)), 0)
    names = []
    for lane in order:
        seen[lane] += 1
        names.append(f"{lane}:{seen[lane]}")
    faulty = list(names)
    kind = data.draw(st.sampled_from(["none", "lose", "double"])) if names else "none"
    if kind != "none":
        place = data.draw(st.integers(0, len(names) - 1))
        faulty[place : place + 1] = [] if kind == "lose" else [names[place]] * 2
    start = 0
    for number, size in enumerate(cuts * (len(faulty) + 1)):
        audit.groups[""].received(faulty[start : start + size], number, number + 0.5)
        start += size
    expected = {"none": [], "lose": ["1 lost"], "double": ["1 doubled"]}[kind]
    assert [problem.partition(" (")[0] for problem in audit.finish()] == expected


def test_an_id_is_taken_apart() -> None:
    assert parse("12:345") == (12, 345)
    assert parse("nothing of ours")[1] == 0


def test_ages_count_from_when_the_request_was_due() -> None:
    ages = Ages(per_request=2)
    ages.sent(0, first=3, at=10.0)
    ages.sent(0, first=5, at=20.0)
    for name, at in (("0:3", 11.0), ("0:4", 12.0), ("0:5", 20.5), ("0:6", 21.0)):
        ages.received([name], at)
    assert ages.seen_s == [1.0, 2.0, 0.5, 1.0]


def test_what_was_sent_before_ages_were_kept_has_none() -> None:
    ages = Ages(per_request=1)
    ages.sent(0, first=2, at=10.0)
    ages.received(["0:1"], 11.0)
    ages.received(["5:1"], 11.0)
    assert ages.seen_s == []
