"""Members: learned, lost, found again, and where packets go."""

from __future__ import annotations

import pytest

from queenmq.cluster.membership import Change, Membership
from queenmq.cluster.messages import Heartbeat
from queenmq.cluster.settings import ClusterSettings

SETTINGS = ClusterSettings(max_members=2, max_greeted=3)
BEAT = Heartbeat("", 6632, [])
PEER, OTHER = ("10.0.0.1", 6634), ("10.0.0.2", 6634)


@pytest.fixture
def members() -> Membership:
    return Membership(SETTINGS, [PEER, OTHER])


def join(
    members: Membership, server: str = "a", *, epoch: int = 1, source: tuple[str, int] = PEER, now: float = 0
) -> None:
    assert members.heard(server, (epoch, 1), source, now) is None
    assert members.heartbeat(server, (epoch, 1), source, BEAT, now)


def test_a_heartbeat_makes_a_member(members: Membership) -> None:
    assert members.heard("a", (1, 1), PEER, 0) is None
    assert not members.is_alive("a"), "not before its heartbeat"
    join(members)
    assert members.is_alive("a")
    member = members.get("a")
    assert member is not None
    assert member.http_address == ("10.0.0.1", 6632)


def test_silence_is_death_and_a_word_is_return(members: Membership) -> None:
    join(members)
    assert members.check(4.9) == []
    assert members.check(5) == ["a"]
    assert members.check(6) == [], "told once"
    assert not members.is_alive("a")
    assert members.heard("a", (1, 2), PEER, 7) is Change.RETURNED
    assert members.is_alive("a")


def test_any_packet_keeps_a_member_alive(members: Membership) -> None:
    join(members)
    members.heard("a", (1, 2), PEER, 4)
    assert members.check(8) == []


@pytest.mark.parametrize("died", [False, True])
def test_another_epoch_is_a_restart(members: Membership, died: bool) -> None:
    join(members)
    if died:
        members.check(100)
    assert members.heard("a", (2, 1), OTHER, 101) is Change.RESTARTED
    assert members.is_alive("a")
    assert members.addresses(["a"]) == (OTHER,)
    assert members.restarts_detected == 1


def test_the_address_is_that_of_the_newest_packet(members: Membership) -> None:
    join(members)
    members.heard("a", (1, 5), OTHER, 1)
    members.heard("a", (1, 4), PEER, 2)
    assert members.addresses(["a"]) == (OTHER,)


def test_the_load_is_that_of_the_newest_heartbeat(members: Membership) -> None:
    join(members)
    for sequence, load in ((9, 90), (8, 80)):
        members.heard("a", (1, sequence), PEER, 1)
        members.heartbeat("a", (1, sequence), PEER, Heartbeat("h", 1, [], load), 1)
    member = members.get("a")
    assert member is not None
    assert (member.heartbeat.parked_polls, member.http_address) == (90, ("h", 1))


def test_the_long_dead_are_forgotten_but_configured_addresses_are_not(members: Membership) -> None:
    join(members, source=("10.9.9.9", 1))
    members.check(5)
    assert ("10.9.9.9", 1) in members.everyone(), "so that both learn when the network has healed"
    members.check(300)
    assert len(members) == 0
    assert members.everyone() == (PEER, OTHER)


def test_the_dead_are_not_told_but_strangers_are(members: Membership) -> None:
    join(members)
    assert set(members.reachable()) == {PEER, OTHER}
    members.check(5)
    assert members.reachable() == (OTHER,)
    members.heard("a", (1, 2), PEER, 6)
    assert set(members.reachable()) == {PEER, OTHER}


def test_siblings_that_a_living_server_names_are_greeted(members: Membership) -> None:
    members.heartbeat("a", (1, 1), PEER, Heartbeat("", 1, [7001, 7002]), 0)
    assert {("10.0.0.1", 7001), ("10.0.0.1", 7002)} <= set(members.reachable())
    members.heard("a", (1, 2), PEER, 1)
    members.heartbeat("a", (1, 2), PEER, Heartbeat("", 1, [7001]), 1)
    assert ("10.0.0.1", 7002) not in members.reachable()
    assert ("10.0.0.1", 7001) in members.everyone()
    members.check(9)
    assert ("10.0.0.1", 7001) not in members.everyone()


def test_greeted_addresses_are_bounded(members: Membership) -> None:
    members.heartbeat("a", (1, 1), PEER, Heartbeat("", 1, list(range(1, 100))), 0)
    assert len(members.everyone()) == 2 + 3


def test_an_own_address_gets_only_heartbeats(members: Membership) -> None:
    members.own_packet_from(PEER)
    assert members.reachable() == (OTHER,)
    assert set(members.everyone()) == {PEER, OTHER}
    join(members)
    assert set(members.reachable()) == {PEER, OTHER}, "somebody else answers from there"


def test_own_addresses_are_bounded(members: Membership) -> None:
    for port in range(1, 1000):
        members.own_packet_from(("10.0.0.3", port))
    assert len(members._own) == 64


def test_a_full_house_takes_nobody_until_somebody_dies(members: Membership) -> None:
    join(members, "a", now=0)
    join(members, "b", now=1)
    assert not members.heartbeat("c", (1, 1), OTHER, BEAT, 2)
    assert members.get("c") is None
    members.check(5)
    assert members.heartbeat("c", (1, 1), OTHER, BEAT, 5.5)
    assert [member.id for member in members.members()] == ["b", "c"]


def test_peers_can_be_resolved_anew(members: Membership) -> None:
    assert set(members.reachable()) == {PEER, OTHER}
    members.set_peers([("10.0.0.7", 1)])
    assert members.reachable() == (("10.0.0.7", 1),)
