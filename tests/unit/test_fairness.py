"""Turns of keys: each gets its share while it has something."""

from __future__ import annotations

from collections import Counter

import pytest

from queenmq.core.fairness import FairnessPolicy, Turns
from queenmq.errors import InvalidRequest


def turns(**weights: float) -> Turns:
    return Turns(FairnessPolicy(separator=":", weights=weights))


def deliver(turns: Turns, count: int, sizes: dict[str, int] | None = None, batch: int = 1) -> Counter[str]:
    """One pop after the other; `sizes` says how many messages a partition of a key has."""
    got: Counter[str] = Counter()
    for _ in range(count):
        key = turns.next(batch)
        assert key is not None
        messages = min(batch, (sizes or {}).get(key, batch))
        turns.kept(key, batch)
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
    got = deliver(fair, 1100, {"small": 1}, batch=10)
    assert abs(got["small"] - got["large"]) <= 20


def test_pops_that_run_at_once_share_too() -> None:
    fair = turns()
    fair.found(["a", "b"])
    assert Counter(fair.next(10) for _ in range(20)) == {"a": 10, "b": 10}


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
        assert key is not None
        fair.kept(key, 10)
    assert deliver(fair, 100) == {"a": 50, "b": 50}


def test_keys_and_what_cannot_be_one() -> None:
    policy = FairnessPolicy(separator="::", weights={"a": 2})
    policy.check()
    assert [policy.key_of(name) for name in ("a::b::c", "a", "::b", "a:b")] == ["a", "a", "", "a:b"]
    with pytest.raises(InvalidRequest, match="has the separator in it"):
        FairnessPolicy(separator=":", weights={"a:b": 2}).check()
    with pytest.raises(InvalidRequest, match="longer than names can be"):
        FairnessPolicy(separator=":", weights={"a" * 256: 2}).check()
