"""A push as parallel arrays, and what became of each message."""

from __future__ import annotations

import pytest

from queenmq.core.message import Message
from queenmq.core.push_call import PushCall

ARRAYS = (
    "queues",
    "partitions",
    "known",
    "target",
    "rank",
    "id",
    "transaction",
    "trace",
    "payload",
    "encrypted",
    "producer",
    "headers",
)


def message(place: str, transaction_id: str, **origin: str | None) -> Message:
    return Message("q", place, transaction_id.encode(), f"id of {place}{transaction_id}", transaction_id, **origin)


def arrays(messages: list[Message], sealed: list[tuple[bytes, bool]] | None = None) -> dict[str, object]:
    return dict(zip(ARRAYS, PushCall.merge(messages).arguments(None, sealed), strict=True))


def test_messages_are_sorted_by_target_and_keep_their_order_within_it() -> None:
    call = PushCall.merge([message("b", "1"), message("a", "1"), message("b", "2"), message("a", "0")])
    assert (call.partitions, call.target, call.rank) == (["b", "a"], [1, 1, 2, 2], [1, 2, 1, 2])
    assert [m.transaction_id for m in call.messages] == ["1", "2", "1", "0"]
    assert (call.order, call.place) == ([0, 2, 1, 3], [0, 2, 1, 3])


def test_a_repeated_transaction_id_is_stored_once_and_is_a_duplicate_of_the_first() -> None:
    call = PushCall.merge([message("a", "1"), message("b", "1"), message("a", "1"), message("a", "2")])
    assert [(m.partition, m.transaction_id) for m in call.messages] == [("a", "1"), ("a", "2"), ("b", "1")]
    outcomes = call.outcomes(["A", "B"], {}, frozenset())
    assert [(o.status, o.message_id, o.partition_id) for o in outcomes] == [
        ("queued", "id of a1", "A"),
        ("queued", "id of b1", "B"),
        ("duplicate", "id of a1", "A"),
        ("queued", "id of a2", "A"),
    ]


def test_outcomes_are_in_the_order_of_the_request() -> None:
    call = PushCall.merge([message("b", "1"), message("a", "1"), message("b", "2")])
    outcomes = call.outcomes(["B", "A"], {}, frozenset())
    assert [(o.message_id, o.partition_id) for o in outcomes] == [
        ("id of b1", "B"),
        ("id of a1", "A"),
        ("id of b2", "B"),
    ]
    outcomes = call.outcomes(["B", "A"], {1: "earlier"}, frozenset({2}))
    assert [(o.status, o.message_id) for o in outcomes] == [
        ("queued", "id of b1"),
        ("failed", "id of a1"),
        ("duplicate", "earlier"),
    ]


def test_arrays_that_say_nothing_are_left_out() -> None:
    plain = arrays([message("a", "1"), message("a", "2")])
    assert [plain[name] for name in ("trace", "encrypted", "producer", "headers")] == [None] * 4
    assert plain["payload"] == [b"1", b"2"]
    assert arrays([message("a", "1")], [(b"x", False)])["encrypted"] is None


@pytest.mark.parametrize("producer", ["somebody", ""])
def test_arrays_that_say_something_are_whole(producer: str) -> None:
    sealed = [(b"x", False), (b"y", True)]
    said = arrays([message("a", "1"), message("a", "2", producer=producer, trace_id="t")], sealed)
    assert said["producer"] == [None, producer]
    assert said["trace"] == [None, "t"]
    assert (said["payload"], said["encrypted"]) == ([b"x", b"y"], [False, True])
