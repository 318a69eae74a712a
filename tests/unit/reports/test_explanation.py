"""The verdict on a queue, judged from typed evidence without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.names import QUEUE_MODE
from queenmq.reports.explanation import (
    Evidence,
    Explanation,
    HeldOperations,
    PlaceRead,
    Question,
    QueueRead,
    ServerState,
    explained,
    likeliest_group,
)
from queenmq.reports.queues import KnownQueue

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ID = UUID(int=1)
QUEUE = KnownQueue(
    id=ID, lease_time_s=60, retry_limit=3, delayed_processing_s=0, window_buffer_s=0, ttl_s=None, now=NOW
)
READ = PlaceRead(  # to the end
    started=True,
    read_upto=5,
    last_offset=5,
    last_message_at=NOW - timedelta(hours=1),
    ready_at=None,
    lease_id=None,
    lease_expires_at=None,
    leased=0,
    retry_at=None,
    last_consumed_at=NOW - timedelta(hours=1),
    unread=0,
    expired=0,
    ready=0,
    next_offset=None,
    next_transaction=None,
    next_created_at=None,
    attempts=0,
    doomed=None,
    partition_id=ID,
    partition="read",
    more=False,
)


def place(partition: str, **changes: Any) -> PlaceRead:
    return PlaceRead(
        **{name: getattr(READ, name) for name in READ.__struct_fields__} | changes | {"partition": partition}
    )


def ready(partition: str = "ready", **changes: Any) -> PlaceRead:
    at = NOW - timedelta(minutes=1)
    return place(partition, **{"unread": 2, "ready": 2, "next_created_at": at, "ready_at": at} | changes)


def leased(partition: str = "leased") -> PlaceRead:
    return ready(partition, lease_id=UUID(int=7), lease_expires_at=NOW + timedelta(seconds=30), leased=2, ready=0)


def judged(
    *places: PlaceRead,
    group: str = "g",
    groups: tuple[str, ...] = ("g",),
    held: tuple[HeldOperations, ...] = (),
    dead_letters: int = 0,
    is_started: bool = True,
    starts_new: bool = False,
    server: ServerState | None = None,
) -> Explanation:
    found = QueueRead(QUEUE, list(places), dead_letters, is_started, starts_new)
    return explained(Question("orders"), Evidence(group, list(groups), list(held), found), server or ServerState())


def queued(partition: str, **changes: Any) -> HeldOperations:
    return HeldOperations(
        **{"partition": partition, "operations": 2, "oldest": NOW, "error": None, "is_blocked": False} | changes
    )


def test_one_partition_speaks_for_the_queue() -> None:
    explanation = judged(leased())
    assert (explanation.verdict.reason, explanation.is_deliverable) == ("leased", False)
    assert explanation.verdict == explanation.places[0].verdict
    assert explanation.verdict.until == NOW + timedelta(seconds=30)


def test_of_several_the_one_that_a_pop_gets_something_from_speaks() -> None:
    explanation = judged(place("a"), leased("b"), ready("c"))
    assert (explanation.verdict.reason, explanation.is_deliverable) == ("deliverable", True)
    assert explanation.verdict.sentence.startswith("Partition 'c' comes next: 2 messages can be popped now.")


def test_of_several_that_give_nothing_the_first_with_something_unread_speaks() -> None:
    verdict = judged(place("a"), leased("b")).verdict
    assert (verdict.reason, verdict.until) == ("leased", NOW + timedelta(seconds=30))
    assert verdict.sentence.startswith("Partition 'b' comes next: Lease ")


def test_that_not_all_were_examined_is_said_unless_something_is_deliverable() -> None:
    assert judged(leased("a"), place("b", more=True)).verdict.sentence.endswith("ask about one of them to be sure.")
    deliverable = judged(ready("a", more=True), leased("b")).verdict.sentence
    assert "Partition 'a' is among those that come next" in deliverable
    assert "to be sure" not in deliverable


def test_everything_is_read() -> None:
    assert judged(place("a"), place("b")).verdict.sentence == "The group has finished every message that is stored."
    given_up = judged(place("a"), dead_letters=2)
    assert (given_up.verdict.reason, given_up.dead_letters) == ("end_reached", 2)
    assert "2 messages became dead letters" in given_up.verdict.sentence


def test_a_queue_without_partitions() -> None:
    assert judged().verdict.sentence == "The queue has no partition: nothing is stored in it."


def test_pushes_that_are_not_stored_yet_are_the_reason_at_the_end() -> None:
    explanation = judged(place("a"), held=(queued("a"), queued("new", operations=1)))
    assert (explanation.verdict.reason, explanation.queued_pushes) == ("backpressure", 3)
    assert [one.held.operations for one in explanation.places] == [2]
    blocked = judged(place("a"), held=(queued("a", error="too large", is_blocked=True),))
    assert "the oldest failed: too large" in blocked.verdict.sentence
    assert "operations cancel" in blocked.verdict.advice


def test_pushes_in_the_journal_are_counted_and_maintenance_is_named() -> None:
    server = ServerState(pushes_paused=True, journalled={"a": 2, "b": 1})
    explanation = judged(place("a"), server=server)
    assert (explanation.verdict.reason, explanation.journalled_pushes) == ("backpressure", 3)
    assert "switched off for maintenance" in explanation.verdict.sentence
    assert explanation.places[0].held.journalled == 2


def test_nothing_is_deliverable_while_pops_are_switched_off() -> None:
    explanation = judged(ready("a"), leased("b"), server=ServerState(pops_paused=True))
    assert (explanation.verdict.reason, explanation.is_deliverable) == ("paused", False)
    assert [one.verdict.reason for one in explanation.places] == ["paused", "leased"]


@pytest.mark.parametrize(
    ("places", "starts_new", "first"),
    [
        ([ready("a")], False, "Its first pop gets something. 2 messages can be popped now."),
        ([leased("a")], False, "Its first pop gets nothing yet. Lease "),
        ([], False, "Its first pop gets nothing: nothing is stored."),
        ([], True, "Its first pop gets nothing: groups start with new messages here"),
    ],
)
def test_a_group_that_never_popped(places: list[PlaceRead], starts_new: bool, first: str) -> None:
    verdict = judged(*places, group="g", groups=("h", "g"), is_started=False, starts_new=starts_new).verdict
    assert verdict.reason == "group_never_started"
    assert verdict.sentence.startswith("Group 'g' has never popped here")
    assert f"Groups that did: h. {first}" in verdict.sentence


def test_a_reader_without_a_group_is_not_called_by_the_name_of_queue_mode() -> None:
    assert judged(group=QUEUE_MODE, is_started=False).verdict.sentence.startswith("A reader without a group")


def test_what_does_not_exist() -> None:
    question = Question("orders", "eu")
    unknown = explained(question, Evidence("g", ["g", "h"], [], "no queue"), ServerState())
    assert (unknown.verdict.reason, unknown.places, unknown.dead_letters) == ("queue_unknown", [], 0)
    assert unknown.verdict.sentence == "There is no queue 'orders'. 2 groups wait for it."
    partition = explained(question, Evidence("g", [], [], "no partition"), ServerState())
    assert partition.verdict.sentence == "Queue 'orders' has no partition 'eu'."
    held = explained(question, Evidence("g", [], [queued("eu")], "no queue"), ServerState())
    assert (held.verdict.reason, held.queued_pushes) == ("backpressure", 2)


def test_the_group_that_is_meant() -> None:
    assert likeliest_group([]) == QUEUE_MODE
    assert likeliest_group(["only"]) == "only"
    assert likeliest_group(["a", "b"]) == QUEUE_MODE


PLACES = st.lists(st.sampled_from([READ, ready("a"), ready("b", more=True), leased("c")]), max_size=4)


@given(PLACES, st.booleans(), st.booleans(), st.integers(0, 2))
def test_the_verdict_agrees_with_what_is_deliverable(
    places: list[PlaceRead], is_started: bool, pops_paused: bool, letters: int
) -> None:
    explanation = judged(
        *places, is_started=is_started, dead_letters=letters, server=ServerState(pops_paused=pops_paused)
    )
    can_be_popped = any(one.ready for one in places) and not pops_paused
    assert explanation.is_deliverable is can_be_popped
    if is_started and not pops_paused:
        assert (explanation.verdict.reason == "deliverable") is can_be_popped
    assert explanation.verdict.sentence.endswith(".")
    assert explanation.verdict.advice.endswith(".")
