"""Members: learned, lost, found again, and where packets go."""

from __future__ import annotations

import pytest

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.membership import Change, Meeting, Membership, Recipient
from queenmq.cluster.messages import Heartbeat

BOUNDS = ClusterBounds(max_members=2, max_greeted=3)
BEAT = Heartbeat("", 6632, [])
PEER, OTHER = ("10.0.0.1", 6634), ("10.0.0.2", 6634)


@pytest.fixture
def members() -> Membership:
    return Membership(BOUNDS, [PEER, OTHER])


def join(
    members: Membership, server: str = "a", *, epoch: int = 1, source: tuple[str, int] = PEER, now: float = 0
) -> None:
    assert members.met(Meeting(server, source, life(epoch), True), (epoch, 1), BEAT, now) is Change.JOINED


def life(epoch: int = 1) -> bytes:
    return bytes([epoch]) * 16


def test_whoever_meets_a_challenge_is_a_member(members: Membership) -> None:
    assert not members.is_alive("a")
    join(members)
    assert members.is_alive("a")
    member = members.get("a")
    assert member is not None
    assert member.http_address == ("10.0.0.1", 6632)
    assert members.reachable() == (Recipient(PEER, life()),)


def test_silence_is_death_and_a_word_is_return(members: Membership) -> None:
    join(members)
    assert members.check(4.9) == []
    assert [member.id for member in members.check(5)] == ["a"]
    assert members.check(6) == [], "told once"
    assert not members.is_alive("a")
    assert members.receive("a", (1, 2), 7) is Change.RETURNED
    assert members.is_alive("a")


def test_any_packet_keeps_a_member_alive(members: Membership) -> None:
    join(members)
    members.receive("a", (1, 2), 4)
    assert members.check(8) == []


@pytest.mark.parametrize("died", [False, True])
def test_another_life_is_a_restart(members: Membership, died: bool) -> None:
    join(members)
    if died:
        members.check(100)
    assert members.met(Meeting("a", OTHER, life(2), True), (2, 1), BEAT, 101) is Change.RESTARTED
    assert members.is_alive("a")
    assert members.recipients(["a"]) == (Recipient(OTHER, life(2)),)
    assert members.restarts_detected == 1


def test_the_address_stays_while_packets_come_from_there(members: Membership) -> None:
    join(members)
    assert members.met(Meeting("a", OTHER, life(), True), (1, 5), BEAT, 1) is None
    assert members.recipients(["a"]) == (Recipient(PEER, life()),)
    assert members.met(Meeting("a", OTHER, life(), True), (1, 6), BEAT, 4.5) is None
    assert members.recipients(["a"]) == (Recipient(OTHER, life()),), "nothing was heard for a while"


def test_a_configured_address_is_better_than_one_that_was_told(members: Membership) -> None:
    join(members, source=("10.9.9.9", 1))
    members.met(Meeting("a", PEER, life(), True), (1, 2), BEAT, 1)
    assert members.recipients(["a"]) == (Recipient(PEER, life()),)
    members.met(Meeting("a", ("10.9.9.9", 1), life(), True), (1, 3), BEAT, 1)
    assert members.recipients(["a"]) == (Recipient(PEER, life()),)


def test_the_load_is_that_of_the_newest_heartbeat(members: Membership) -> None:
    join(members)
    for sequence, load in ((9, 90), (8, 80)):
        members.receive("a", (1, sequence), 1)
        members.heartbeat("a", (1, sequence), Heartbeat("h", 1, [], load), 1)
    member = members.get("a")
    assert member is not None
    assert (member.heartbeat.parked_polls, member.http_address) == (90, ("h", 1))


def test_the_long_dead_are_forgotten_but_configured_addresses_are_not(members: Membership) -> None:
    join(members, source=("10.9.9.9", 1))
    members.check(5)
    assert ("10.9.9.9", 1) in members.to_greet(5), "so that both learn when the network has healed"
    assert members.everyone() == (Recipient(("10.9.9.9", 1), life()),)
    members.check(300)
    assert len(members) == 0
    assert members.to_greet(300) == (PEER, OTHER)


def test_only_the_living_are_told_and_only_strangers_and_the_silent_are_greeted(members: Membership) -> None:
    assert (members.reachable(), members.to_greet(0)) == ((), (PEER, OTHER))
    join(members)
    assert members.to_greet(1) == (OTHER,)
    assert members.to_greet(3) == (PEER, OTHER), "it may have restarted"
    members.check(5)
    assert members.reachable() == ()
    members.receive("a", (1, 2), 6)
    assert members.reachable() == (Recipient(PEER, life()),)


def test_further_addresses_of_a_member_are_not_greeted_for_ever(members: Membership) -> None:
    join(members)
    members.met(Meeting("a", OTHER, life(), True), (1, 2), BEAT, 1)
    assert members.to_greet(2) == ()
    assert members.is_known_at(OTHER, life(), 2)
    assert not members.is_known_at(OTHER, life(2), 2)
    assert members.to_greet(9) == (PEER, OTHER)


def test_siblings_that_a_living_server_names_are_greeted(members: Membership) -> None:
    members.met(Meeting("a", PEER, life(), True), (1, 1), Heartbeat("", 1, [7001, 7002]), 0)
    assert {("10.0.0.1", 7001), ("10.0.0.1", 7002)} <= set(members.to_greet(0))
    assert members.is_named(("10.0.0.1", 7002))
    members.receive("a", (1, 2), 1)
    members.heartbeat("a", (1, 2), Heartbeat("", 1, [7001]), 1)
    assert ("10.0.0.1", 7002) not in members.to_greet(1)
    assert not members.is_named(("10.0.0.1", 7002))
    assert ("10.0.0.1", 7001) in members.to_greet(1)
    members.check(9)
    assert ("10.0.0.1", 7001) not in members.to_greet(9)


def test_greeted_addresses_are_bounded(members: Membership) -> None:
    members.met(Meeting("a", PEER, life(), True), (1, 1), Heartbeat("", 1, list(range(1, 100))), 0)
    assert len(members.to_greet(0)) == 1 + 3


def test_a_full_house_takes_nobody_until_somebody_dies(members: Membership) -> None:
    join(members, "a", now=0)
    join(members, "b", now=1)
    assert members.met(Meeting("c", OTHER, life(), True), (1, 1), BEAT, 2) is Change.REFUSED
    assert members.get("c") is None
    members.check(5)
    assert members.met(Meeting("c", OTHER, life(), True), (1, 1), BEAT, 5.5) is Change.JOINED
    assert [member.id for member in members.members()] == ["b", "c"]


def test_peers_can_be_resolved_anew(members: Membership) -> None:
    assert members.to_greet(0) == (PEER, OTHER)
    members.set_peers([("10.0.0.7", 1)])
    assert members.to_greet(0) == (("10.0.0.7", 1),)


def test_an_address_that_the_server_names_itself_is_better_than_a_configured_one(members: Membership) -> None:
    members.met(Meeting("a", PEER, life(), False), (1, 1), BEAT, 0)
    members.met(Meeting("a", OTHER, life(), True), (1, 2), BEAT, 1)
    assert members.recipients(["a"]) == (Recipient(OTHER, life()),)
    members.met(Meeting("a", PEER, life(), False), (1, 3), BEAT, 1)
    assert members.recipients(["a"]) == (Recipient(OTHER, life()),)
    members.met(Meeting("a", PEER, life(), False), (1, 4), BEAT, 4.5)
    assert members.recipients(["a"]) == (Recipient(PEER, life()),), "nothing was heard for a while"
