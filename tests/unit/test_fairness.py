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


def age(turns: Turns, count: int, oldest: str) -> Counter[str]:
    """One pop after the other that is left to age while it may be; the others get the key whose turn it is."""
    got: Counter[str] = Counter()
    for _ in range(count):
        is_open = turns.left_to_age(1)
        wanted = None if is_open else turns.next(1)
        key = oldest if wanted is None else wanted
        if is_open:
            turns.closed(1)
        elif wanted is not None:
            turns.kept(wanted, 1)
        turns.got(key, 1)
        got[key] += 1
    return got


@pytest.mark.parametrize("weight", [1.0, 4.0, 0.25])
def test_who_is_served_by_age_alone_gets_little_more_than_the_others(weight: float) -> None:
    fair = turns(b=weight)
    fair.found(["a", "b", "c"])
    for count in (100, 1000, 10_000):
        got = age(fair, count, oldest="a")
        fair_share = count / (2 + weight)
        assert abs(got["a"] - fair_share) <= 0.02 * count + 2
        assert abs(got["b"] - fair_share * weight) <= 0.02 * count + 2 * max(weight, 1 / weight)


def test_while_ages_are_fair_nobody_is_preferred() -> None:
    fair = turns()
    fair.found(["a", "b"])
    assert not fair.left_to_age(1)  # not before it has turned out so
    for number in range(2000):
        if number > 1600:
            assert fair.left_to_age(1)
            fair.closed(1)
        fair.got("ab"[number % 2], 1)
    assert [fair.left_to_age(1) for _ in range(40)].index(False) == 32  # all of them could be of one key
    for _ in range(32):
        fair.closed(1)
    assert fair.left_to_age(1)
    fair.closed(1)
    assert not fair.left_to_age(100)
    fair.found(["a", "b", "c"])
    assert not fair.left_to_age(1)  # who comes has its share from the first message on
    assert fair.next(1) is not None


def test_what_is_only_promised_makes_nobody_even() -> None:
    fair = turns()
    fair.found(["a", "b"])
    assert [fair.next(1) for _ in range(4)] == ["a", "b", "a", "b"]
    assert not fair.left_to_age(1)  # all of it could be of one key, which was promised as much as the other
    fair.got("a", 2)
    fair.kept("a", 2)
    assert not fair.left_to_age(1)


def test_with_a_key_that_is_held_ages_are_not_relied_on() -> None:
    fair = turns()
    fair.found(["a", "b", "c"])
    for number in range(3000):
        fair.got("abc"[number % 3], 1)
    assert fair.left_to_age(1)
    fair.closed(1)
    fair.hold("a", until=10.0)
    assert not fair.left_to_age(1)


def test_a_run_of_turns_is_charged() -> None:
    fair = turns()
    fair.found(["a", "b"])
    got: Counter[str] = Counter()
    for _ in range(100):
        key = fair.next(1)
        for more in range(4):
            wanted = key if more == 0 or key is None else fair.again(key, 1)
            if wanted is not None:
                fair.kept(wanted, 1)
            fair.got(wanted or "a", 1)
            got[wanted or "a"] += 1
    assert abs(got["a"] - got["b"]) <= 4


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
