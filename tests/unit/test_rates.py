"""Rates and quotas of tokens and namespaces."""

from __future__ import annotations

import pytest

from queenmq.access.rates import Limits, Rates, namespace_of
from queenmq.clock import ManualClock
from queenmq.errors import Overloaded


def asked(rates: Rates, limits: Limits, times: int, messages: int = 0, who: str = "a") -> int:
    """How many of so many requests are let through."""
    passed = 0
    for _ in range(times):
        try:
            rates.take_request(who, limits)
            rates.take_messages(who, limits, messages)
        except Overloaded:
            continue
        passed += 1
    return passed


def test_requests_a_second() -> None:
    clock = ManualClock()
    rates, limits = Rates(clock), Limits(requests_per_second=10)
    assert asked(rates, limits, 25) == 10
    assert asked(rates, limits, 25, who="b") == 10, "everybody has their own"
    clock.advance(0.5)
    assert asked(rates, limits, 25) == 5
    clock.advance(3600)
    assert asked(rates, limits, 25) == 10, "what was not used is not saved up"
    assert rates.refused["requests"] == 15 + 15 + 20 + 15


def test_a_large_push_is_let_through_and_paid_for_later() -> None:
    clock = ManualClock()
    rates, limits = Rates(clock), Limits(messages_per_second=100)
    assert asked(rates, limits, 1, messages=1000) == 1
    with pytest.raises(Overloaded) as refused:
        rates.take_messages("a", limits, 1)
    assert refused.value.retry_after_s == 9
    assert "at most 100 a second" in refused.value.message
    assert {"connection", "(ECONNREFUSED)"} <= set(refused.value.message.split())
    clock.advance(8.9)
    assert asked(rates, limits, 1, messages=1) == 0
    clock.advance(0.2)
    assert asked(rates, limits, 1, messages=1) == 1
    assert asked(rates, limits, 50) == 50, "what pushes nothing is not counted"


def test_namespaces_that_somebody_makes_up_do_not_renew_the_share_of_a_token() -> None:
    clock = ManualClock()
    rates, limits = Rates(clock), Limits(messages_per_second=1)
    assert asked(rates, limits, 1, messages=1_000_000) == 1
    for number in range(10_001):
        rates.take_namespaces({f"made-up-{number}": (1, 5)})
    assert asked(rates, limits, 1, messages=1) == 0


def test_what_timers_push_is_paid_for_by_what_is_pushed_next() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    rates.charge_namespaces({"a": (50, 10)})
    with pytest.raises(Overloaded) as refused:
        rates.take_namespaces({"a": (1, 10)})
    assert refused.value.retry_after_s == 4
    clock.advance(4.1)
    rates.take_namespaces({"a": (1, 10)})


def test_long_polls_at_a_time() -> None:
    rates, limits = Rates(ManualClock()), Limits(long_polls=2)
    with rates.polling("a", limits), rates.polling("a", limits):
        with pytest.raises(Overloaded), rates.polling("a", limits):
            pass
        with rates.polling("b", limits):
            pass
    with rates.polling("a", limits):
        pass
    assert not rates._polls


def test_namespaces_are_counted_together_or_not_at_all() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    rates.take_namespaces({"a": (15, 10)})
    with pytest.raises(Overloaded, match="'a'"):
        rates.take_namespaces({"b": (10, 10), "a": (1, 10)})
    rates.take_namespaces({"b": (10, 10)})
    clock.advance(1)
    rates.take_namespaces({"b": (1, 10), "a": (1, 10)})
    assert [namespace_of(name) for name in ("a.b.c", "a", ".x")] == ["a", "a", ""]


def test_a_request_counts_for_all_its_namespaces_or_for_none() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    for _ in range(2):
        rates.take_namespace_requests({"a": 2, "a.b": 5})
    with pytest.raises(Overloaded, match="'a'"):
        rates.take_namespace_requests({"a.b": 5, "a": 2})
    for _ in range(3):
        rates.take_namespace_requests({"a.b": 5})
    with pytest.raises(Overloaded):
        rates.take_namespace_requests({"a.b": 5})
    clock.advance(1)
    rates.take_namespace_requests({"a": 2, "a.b": 5})
    assert rates.refused["namespace_requests"] == 2


def test_long_polls_of_namespaces() -> None:
    rates = Rates(ManualClock())
    with rates.polling_namespaces({"a": 1}):
        with pytest.raises(Overloaded, match="'a'"), rates.polling_namespaces({"b": 1, "a": 1}):
            pass
        with rates.polling_namespaces({"b": 1}):
            assert (rates.polls_of("a"), rates.polls_of("b")) == (1, 1)
    assert rates.polls_of("a") == 0
    assert not rates._namespace_polls


def test_several_long_polls_of_a_namespace() -> None:
    rates = Rates(ManualClock())
    for _ in range(3):
        with rates.polling_namespaces({"a": 2}), rates.polling_namespaces({"a": 2}):
            assert rates.polls_of("a") == 2
            with pytest.raises(Overloaded), rates.polling_namespaces({"a": 2}):
                pass
    assert not rates._namespace_polls


def test_there_are_not_more_buckets_than_the_bound() -> None:
    rates, limits = Rates(ManualClock()), Limits(requests_per_second=1)
    for number in range(10_050):
        rates.take_request(str(number), limits)
    assert len(rates._buckets["requests"]) == 10_000
