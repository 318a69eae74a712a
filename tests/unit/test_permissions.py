"""What tokens may do with which queues and groups."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.access.permissions import _LONGEST_REMEMBERED, Grant, Permissions, Verb, _like, check_grants
from queenmq.access.rates import Limits
from queenmq.core.roles import Role
from queenmq.errors import InvalidRequest, Unauthenticated
from queenmq.http.roles import RoleClaims

NAMES = st.text("ab.*_%\\", min_size=1, max_size=8)


def allowed(role: Role, *grants: Grant) -> Permissions:
    return Permissions(role, grants)


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("orders", ["orders"], ["orders.eu", "order", "Orders", ""]),
        ("orders.*", ["orders.", "orders.eu", "orders.eu.x"], ["orders", "ordersx", "x.orders.eu"]),
        ("*", ["", "a", "a.b"], []),
        ("*.eu", ["a.eu", ".eu"], ["eu", "a.eu.b"]),
        ("a*b*c", ["abc", "axbyc", "abbc"], ["ab", "ac", "acb", "abcx"]),
        ("aa*aa", ["aaaa", "aaxaa"], ["aaa"]),
        ("a.c", ["a.c"], ["abc"]),
    ],
)
def test_patterns(pattern: str, matches: list[str], others: list[str]) -> None:
    permissions = allowed(Role.READ_ONLY, Grant(queues=(pattern,)))
    assert all(permissions.allows(Verb.READ, name) for name in matches)
    assert not any(permissions.allows(Verb.READ, name) for name in others)


@given(pattern=NAMES, name=NAMES)
def test_a_pattern_means_the_same_here_as_in_a_regular_expression_and_in_sql(pattern: str, name: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
    assert allowed(Role.ADMIN, Grant(queues=(pattern,))).allows(Verb.PUSH, name) is expected
    assert (_as_like(_like(pattern)).fullmatch(name) is not None) is expected


def _as_like(pattern: str) -> re.Pattern[str]:
    """What LIKE takes a pattern for."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    kinds = {"%": ".*", "_": "."}
    return re.compile("".join(re.escape(p[1]) if len(p) == 2 else kinds.get(p, re.escape(p)) for p in parts), re.DOTALL)


def test_the_role_bounds_what_a_grant_allows() -> None:
    everything = Grant(allow=tuple(Verb))
    assert [verb for verb in Verb if allowed(Role.READ_ONLY, everything).allows(verb, "q")] == [Verb.READ]
    assert not allowed(Role.READ_WRITE, everything).allows(Verb.ADMINISTER, "q")
    assert all(allowed(Role.ADMIN, everything).allows(verb, "q") for verb in Verb)
    producer = allowed(Role.READ_WRITE, Grant(queues=("in",), allow=(Verb.PUSH,)))
    assert [verb for verb in Verb if producer.allows(verb, "in")] == [Verb.PUSH]


def test_grants_add_up() -> None:
    both = allowed(
        Role.READ_WRITE, Grant(queues=("in",), allow=(Verb.PUSH,)), Grant(queues=("out.*",), allow=(Verb.POP, Verb.ACK))
    )
    assert both.allows(Verb.PUSH, "in")
    assert both.allows(Verb.POP, "out.a")
    assert not both.allows(Verb.POP, "in")
    assert not both.allows(Verb.PUSH, "out.a")
    assert both.queues(Verb.POP) == ["out.%"]
    assert both.queues(Verb.READ) == []
    assert not both.allows(Verb.READ, None)


def test_groups() -> None:
    one = allowed(Role.READ_WRITE, Grant(queues=("q",), groups=("mail-*",)))
    assert one.allows(Verb.POP, "q", "mail-1")
    assert not one.allows(Verb.POP, "q", "other")
    assert one.allows(Verb.PUSH, "q")
    assert one.queues(Verb.POP, group="other") == []


def test_a_namespace_is_the_queues_below_it() -> None:
    one = allowed(Role.READ_WRITE, Grant(namespaces=("billing",)))
    assert one.allows(Verb.PUSH, "billing.monthly.eu")
    assert one.allows(Verb.PUSH, "billing")
    assert not one.allows(Verb.PUSH, "billings")
    assert one.queues(Verb.READ) == ["billing", "billing.%"]
    assert not one.allows(Verb.READ, None)


def test_queues_with_which_two_things_may_be_done() -> None:
    pops, acks = Grant(queues=("a.*", "b"), allow=(Verb.POP,)), Grant(queues=("a.*", "c"), allow=(Verb.ACK,))
    assert allowed(Role.READ_WRITE, pops, acks).queues(Verb.POP, Verb.ACK) == ["a.%"]
    assert allowed(Role.READ_WRITE, pops, Grant(allow=(Verb.ACK,))).queues(Verb.POP, Verb.ACK) == ["a.%", "b"]
    assert allowed(Role.READ_WRITE, pops).queues(Verb.POP, Verb.ACK) == []
    assert allowed(Role.READ_WRITE, Grant()).queues(Verb.POP, Verb.ACK) is None


def test_all_queues_are_only_for_whoever_has_all() -> None:
    assert allowed(Role.READ_ONLY, Grant()).allows(Verb.READ, None)
    assert allowed(Role.READ_ONLY, Grant()).queues(Verb.READ) is None
    assert not allowed(Role.READ_ONLY, Grant(queues=("a*", "b*"))).allows(Verb.READ, None)


@pytest.mark.parametrize(
    "grant", [Grant(queues=("",)), Grant(groups=("a\0",)), Grant(queues=("*" * 9,)), Grant(namespaces=("x",) * 101)]
)
def test_grants_that_are_none(grant: Grant) -> None:
    with pytest.raises(InvalidRequest):
        check_grants((grant,), "grants")


# The claim of a JWT


@pytest.mark.parametrize(
    "claim", [{"queues": ["orders.*"]}, [{"queues": ["orders.*"]}], [{"namespaces": ["orders"], "allow": ["push"]}]]
)
def test_a_claim_restricts_a_token(claim: object) -> None:
    found = RoleClaims("role", "roles", {}).permissions({"queen": claim}, Role.READ_WRITE)
    assert found is not None
    assert found.allows(Verb.PUSH, "orders.eu")
    assert not found.allows(Verb.PUSH, "other")


@pytest.mark.parametrize(
    "claim", ["orders.*", 7, {"queue": ["orders"]}, {"queues": "orders"}, {"allow": ["everything"]}, {"queues": [""]}]
)
def test_a_claim_that_cannot_be_read_lets_nobody_in(claim: object) -> None:
    with pytest.raises(Unauthenticated, match="Invalid token claim queen"):
        RoleClaims("role", "roles", {}).permissions({"queen": claim}, Role.ADMIN)


def test_an_empty_list_allows_nothing() -> None:
    found = RoleClaims("role", "roles", {}).permissions({"queen": []}, Role.ADMIN)
    assert found is not None
    assert not any(found.allows(verb, "q") for verb in Verb)
    assert RoleClaims("role", "roles", {}).permissions({}, Role.ADMIN) is None


def test_a_claim_limits_a_token() -> None:
    claims = RoleClaims("role", "roles", {})
    assert claims.limits({}) is None
    assert claims.limits({"queenLimits": {"longPolls": 3}}) == Limits(long_polls=3)
    for wrong in ({"longPolls": 0}, {"polls": 3}, 7):
        with pytest.raises(Unauthenticated, match="Invalid token claim queenLimits"):
            claims.limits({"queenLimits": wrong})


def test_names_that_are_too_long_are_not_remembered() -> None:
    permissions = allowed(Role.READ_WRITE, Grant(queues=("a*",)))
    for name in ("a" * (_LONGEST_REMEMBERED + 1), "b" * 1_000_000):
        assert permissions.allows(Verb.PUSH, name) is name.startswith("a")
        assert permissions.allows(Verb.POP, "a", name)
    assert not permissions._remembered
    assert permissions.allows(Verb.POP, "a" * _LONGEST_REMEMBERED, "g" * _LONGEST_REMEMBERED)
    assert len(permissions._remembered) == 1


def test_what_many_tokens_ask_for_does_not_fill_the_memory() -> None:
    tokens = [allowed(Role.READ_WRITE, Grant(queues=("a*",))) for _ in range(40)]
    for token in tokens:
        for number in range(1000):
            assert token.allows(Verb.READ, f"a{number}")
    assert sum(len(token._remembered) for token in tokens) <= 20_000
    assert len(tokens[-1]._remembered) == 1000, "the newest is not the one that forgets"
    assert not tokens[0]._remembered
    for number in range(30_000):
        assert tokens[0].allows(Verb.READ, f"a{number}") is tokens[0].allows(Verb.READ, f"a{number}")
    assert sum(len(token._remembered) for token in tokens) <= 20_000


@pytest.mark.parametrize(
    ("pattern", "namespaces"),
    [
        ("a.*", {"a"}),
        ("a.b*", {"a"}),
        ("a.b.*", {"a.b"}),
        ("a.b", {"a.b"}),
        ("a*", set()),
        ("*", set()),
        ("*.a", set()),
    ],
)
def test_what_every_queue_of_a_token_is_in(pattern: str, namespaces: set[str]) -> None:
    assert allowed(Role.READ_WRITE, Grant(queues=(pattern,))).namespaces == namespaces


@pytest.mark.parametrize("claim", [{"queues": []}, [{"queues": ["q"], "groups": []}], {"allow": []}])
def test_a_claim_with_an_empty_list_lets_nobody_in(claim: object) -> None:
    with pytest.raises(Unauthenticated):
        RoleClaims("role", "roles", {}).permissions({"queen": claim}, Role.ADMIN)


def test_a_claim_that_restricts_nothing_is_refused() -> None:
    for claim in ({}, [{}], [{"queues": ["a"]}, {}]):
        with pytest.raises(Unauthenticated, match="a grant is empty"):
            RoleClaims("role", "roles", {}).permissions({"queen": claim}, Role.READ_WRITE)


def test_scopes_may_be_required() -> None:
    claims = RoleClaims("role", "roles", {}, requires_scopes=True)
    for without in ({}, {"queen": None}):
        with pytest.raises(Unauthenticated, match="Missing token claim queen"):
            claims.permissions(without, Role.ADMIN)
    found = claims.permissions({"queen": {"queues": ["a"]}}, Role.READ_ONLY)
    assert found is not None
    assert found.allows(Verb.READ, "a") and not found.allows(Verb.READ, "b")
