"""Turns of keys: each gets its share while it has something."""

from __future__ import annotations

from collections import Counter

import pytest

from queenmq.core.fairness import FairnessPolicy, Turns
from queenmq.errors import InvalidRequest


def turns(**weights: float) -> Turns:
    return Turns(FairnessPolicy(separator=":", weights=weights))


def deliver(
    turns: Turns, count: int, sizes: dict[str, int] | None = None, batch: int = 1, oldest: str = "a"
) -> Counter[str]:
    """One pop after the other; `sizes` says how many messages a partition of a key has. The turns by age are all of
    the key that is the `oldest`."""
    got: Counter[str] = Counter()
    for _ in range(count):
        wanted = turns.next(batch)
        key = oldest if wanted is None else wanted
        messages = min(batch, (sizes or {}).get(key, batch))
        if wanted is not None:
            turns.kept(wanted, batch)
        turns.got(key, messages)
        got[key] += messages
    return got


def test_equal_shares() -> None:
    fair = turns()
    fair.found(["a", "b", "c"])
    assert deliver(fair, 300) == {"a": 100, "b": 100, "c": 100}


def test_by_weight() -> None:
    fair = turns(a=3)
    fair.found(["a", "b"])
    got = deliver(fair, 400)
    assert abs(got["a"] - 300) <= 2


def test_messages_count_and_not_turns() -> None:
    fair = turns()
    fair.found(["small", "large"])
    got = deliver(fair, 1100, {"small": 1}, batch=10, oldest="large")
    assert abs(got["small"] - got["large"]) <= 20


def test_pops_that_run_at_once_share_too() -> None:
    fair = turns()
    fair.found(["a", "b"])
    assert Counter(fair.next(10) for _ in range(15)) == {"a": 8, "b": 7}
    assert fair.next(10) is None  # by age
    assert Counter(fair.next(10) for _ in range(15)) == {"a": 7, "b": 8}


def test_who_is_not_known_is_served_too() -> None:
    """Rows without a key, and keys that nobody has asked for yet, however much the others have."""
    fair = turns()
    fair.found(["a", "b"])
    got = deliver(fair, 1600, oldest="unknown")
    assert got == {"a": 750, "b": 750, "unknown": 100}


def test_who_was_away_does_not_catch_up() -> None:
    fair = turns()
    fair.found(["a", "b"])
    deliver(fair, 100)
    fair.exhausted("b")
    assert fair.next(1) is None  # who is alone needs no turns
    fair.got("a", 1000)
    fair.found(["a", "c"])
    deliver(fair, 2000)
    fair.found(["a", "b", "c"])
    got = deliver(fair, 300)
    assert max(got.values()) - min(got.values()) <= 2


def test_what_was_promised_and_not_delivered_is_not_charged() -> None:
    fair = turns()
    fair.found(["a", "b"])
    for _ in range(50):
        key = fair.next(10)
        if key is not None:
            fair.kept(key, 10)
    assert deliver(fair, 100) == {"a": 50, "b": 50}


def test_whom_a_limit_holds_back_has_no_turns() -> None:
    fair = turns()
    fair.found(["a", "b", "c"])
    fair.hold("a", until=10.0)
    fair.hold("b", until=20.0)
    assert {fair.next(1, now=5.0) for _ in range(10)} == {"c"}
    assert fair.is_held("a", 5.0)
    assert {fair.next(1, now=15.0) for _ in range(5)} == {"a"}  # it has had nothing until now
    assert fair.next(1, now=15.0) is None  # by age
    assert not fair.is_held("a", 15.0)
    fair.release("b")
    assert "b" in {fair.next(1, now=15.0) for _ in range(10)}
    fair.hold("c", until=30.0)
    fair.found(["a", "c"])
    assert {fair.next(1, now=16.0) for _ in range(4)} == {"a"}


def test_who_was_found_full_has_no_turns_before_it_is_found_otherwise() -> None:
    fair = turns()
    fair.found(["a", "b", "c"], {"a": 10.0, "b": 10.0})
    assert Counter(fair.next(1, 5.0) for _ in range(5)) == {"c": 5}
    fair.hold("a", until=7.0)  # a probe says less than a check of all
    assert fair.is_held("a", 8.0)
    fair.release("b")
    assert fair.next(1, 5.0) == "b"
    fair.found(["a", "b", "c"], {"c": 20.0})
    assert {fair.next(1, 8.0) for _ in range(5)} == {"a", "b"}
    assert fair.is_held("c", 19.0)
    fair.found(["a", "b"])
    assert not fair.is_held("c", 19.0)


def test_if_limits_hold_everybody_back_the_oldest_is_asked_for() -> None:
    fair = turns()
    fair.found(["a", "b"])
    fair.hold("a", until=10.0)
    fair.hold("b", until=10.0)
    assert fair.next(1, now=5.0) is None
    assert fair.next(1, now=10.0) is not None


def test_keys_and_what_cannot_be_one() -> None:
    policy = FairnessPolicy(separator="::", weights={"a": 2})
    policy.check()
    assert [policy.key_of(name) for name in ("a::b::c", "a", "::b", "a:b")] == ["a", "a", "", "a:b"]
    with pytest.raises(InvalidRequest, match="has the separator in it"):
        FairnessPolicy(separator=":", weights={"a:b": 2}).check()
    with pytest.raises(InvalidRequest, match="longer than 32768 bytes together"):
        FairnessPolicy(separator=":", weights={f"{number:0200}": 2 for number in range(200)}).check()
    with pytest.raises(InvalidRequest, match="longer than names can be"):
        FairnessPolicy(separator=":", weights={"a" * 256: 2}).check()
