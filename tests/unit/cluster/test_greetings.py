"""Outsiders who record, repeat and relay packets: nobody believes them, and nobody is believed to be where they are."""

from __future__ import annotations

import pytest

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.events import MemberRestarted, Wake
from queenmq.cluster.greetings import Greetings
from queenmq.cluster.membership import Address
from queenmq.cluster.outbox import Outgoing
from queenmq.cluster.refusal import Refusal
from queenmq.cluster.state import SharedState
from unit.cluster.pair import AT_ONCE, RING, Street

OUTSIDER = ("192.0.2.66", 6634)


@pytest.fixture
def street() -> Street:
    return Street("a", "b", "c").meet()


def recorded(street: Street, sender: str, seconds: float = 3.0) -> list[Outgoing]:
    """Everything that a server sends for a while, with all the others silent."""
    kept = []
    for step in range(round(seconds * 4)):
        kept += street[sender].tick(street.now + step * 0.25).outgoing
    return kept + street[sender].pushed([("q", [])]) + street[sender].consumer_registered("q")


def addresses(server: SharedState) -> dict[str, Address]:
    return {member.id: member.address for member in server.members.members()}


def test_packets_for_one_server_mean_nothing_to_another(street: Street) -> None:
    before = addresses(street["c"])
    packets = [datagram for address, datagram in recorded(street, "a") if address == street.door("b")]
    assert packets
    for datagram in packets:
        assert street["c"].receive(datagram, OUTSIDER, street.now) == []
    assert addresses(street["c"]) == before
    assert street["c"].traffic.dropped[Refusal.WRONG_RECEIVER] > 0


def test_the_address_of_a_datagram_is_not_believed(street: Street) -> None:
    """Packets for this very server, held back and sent on from elsewhere: they are genuine, their source is not."""
    before = addresses(street["c"])
    for address, datagram in recorded(street, "a"):
        if address == street.door("c"):
            street["c"].receive(datagram, OUTSIDER, street.now)
    assert addresses(street["c"]) == before
    assert {address for address, _ in street["c"].tick(street.now + 1).outgoing}.isdisjoint({OUTSIDER})


def test_a_recorded_session_is_not_believed_after_a_restart(street: Street) -> None:
    """The sender is silent, so that nothing newer of it is known."""
    packets = recorded(street, "a", 20)
    fresh = street.restart("b", 2)
    for _, datagram in packets:
        events = fresh.receive(datagram, OUTSIDER, street.now)
        assert not any(isinstance(event, Wake) for event in events)
    assert len(fresh.members) == 0
    replies = fresh.tick(street.now).outgoing
    assert OUTSIDER not in {address for address, _ in replies}, "whoever repeats a greeting gets no answer"


def stranger(peer: Address, here: Address, epoch: int = 1) -> SharedState:
    return SharedState(AT_ONCE, RING, "d", epoch, random=lambda: 0, peers=[peer], own_address=lambda _: here)


def exchange(one: SharedState, here: Address, two: SharedState, there: Address, now: float) -> None:
    """All that the two send to each other arrives, until they have nothing more to say."""
    for _ in range(4):
        for sender, receiver, source, target in ((one, two, here, there), (two, one, there, here)):
            for address, datagram in sender.tick(now).outgoing:
                if address == target:
                    receiver.receive(datagram, source, now)


def test_a_relayed_challenge_does_not_make_a_relay_the_address(street: Street) -> None:
    """The outsider has got the address that a server had, and passes everything on to where the server is now."""
    here, moved = street.door("a"), ("10.0.0.77", 1)
    exchange(stranger(here, OUTSIDER), OUTSIDER, street["a"], here, street.now)
    assert addresses(street["a"])["d"] == OUTSIDER
    server = stranger(("10.0.0.1", 1), moved, epoch=2)  # it does not know of anybody here
    street.pass_time(3)
    asked = [packet for packet in street["a"].tick(street.now + 1).outgoing if packet.address == OUTSIDER]
    for _, datagram in asked:
        server.receive(datagram, OUTSIDER, street.now + 1)
    for _, datagram in server.tick(street.now + 1).outgoing:
        street["a"].receive(datagram, OUTSIDER, street.now + 1)
    member = street["a"].members.get("d")
    assert member is not None
    assert member.stamp[0] == 1, "its new life is not believed"
    exchange(street["a"], here, server, moved, street.now + 1)
    assert addresses(street["a"])["d"] == moved, "but asked for where it says that it is"
    assert member.stamp[0] == 2


def test_a_challenge_for_one_peer_is_passed_on_to_another(street: Street) -> None:
    """Both addresses are configured: the one that the answering server names as its own is where it is."""
    here, fresh = street.door("a"), street.restart("a", 2)
    [asked] = [packet for packet in fresh.tick(street.now).outgoing if packet.address == street.door("c")]
    street["b"].receive(asked.datagram, here, street.now)
    [answer] = [packet for packet in street["b"].tick(street.now).outgoing if packet.address == here]
    fresh.receive(answer.datagram, street.door("c"), street.now)
    assert fresh.members.get("b") is None
    exchange(fresh, here, street["b"], street.door("b"), street.now)
    assert addresses(fresh) == {"b": street.door("b")}


def test_a_greeting_is_answered_once_and_never_after_a_newer_one(street: Street) -> None:
    formerly = stranger(street.door("a"), OUTSIDER)
    greetings = [formerly.tick(street.now + step).outgoing[0].datagram for step in range(5)]
    answered = 0
    for datagram in [*greetings, *greetings, *reversed(greetings)]:
        street["a"].receive(datagram, OUTSIDER, street.now)
        answered += sum(address == OUTSIDER for address, _ in street["a"].tick(street.now).outgoing)
    assert answered == len(greetings)


def test_an_answer_that_was_not_asked_for(street: Street) -> None:
    """Neither one to somebody else, nor one that comes twice or late."""
    street.restart("b", 2)
    greetings = [packet for packet in street["b"].tick(street.now).outgoing if packet.address == street.door("a")]
    street["a"].receive(greetings[0].datagram, street.door("b"), street.now)
    [answer] = [packet for packet in street["a"].tick(street.now).outgoing if packet.address == street.door("b")][:1]
    late = street.now + ClusterBounds().challenge_s + 1
    assert street["c"].receive(answer.datagram, street.door("a"), street.now) == []
    assert street["b"].receive(answer.datagram, street.door("a"), late) == []
    assert street["b"].members.get("a") is None
    assert street["b"].traffic.dropped[Refusal.NOT_ASKED] == street["c"].traffic.dropped[Refusal.NOT_ASKED] == 1


def test_a_restart_is_believed_as_soon_as_it_is_proven(street: Street) -> None:
    street.restart("b", 2)
    street.pass_time(0.25)
    assert MemberRestarted("b") in street.events["a"]
    assert MemberRestarted("b") in street.events["c"]


def test_servers_that_do_not_know_their_own_address(street: Street) -> None:
    """They are reached where they are configured."""
    names = Street("a", "b")
    for door, server in list(names.servers.items()):
        names.servers[door] = SharedState(
            AT_ONCE, RING, server.server_id, 1, random=lambda: 0.5, peers=[("10.0.0.9", 1), ("10.0.0.9", 2)]
        )
    names.pass_time(1)
    assert addresses(names["a"]) == {"b": names.door("b")}
    assert addresses(names["b"]) == {"a": names.door("a")}


def test_memory_is_bounded() -> None:
    numbers = iter(range(10**9))
    greetings = Greetings(ClusterBounds(max_challenges=10, max_senders=5), lambda: next(numbers).to_bytes(16, "big"))
    challenges = [greetings.challenge(("10.0.0.1", number + 1), 0.0) for number in range(100)]
    for number in range(100):
        assert greetings.is_newest(f"s{number}", (1, 1))
    assert len(greetings) == 15
    assert [greetings.met(challenge, 1.0) for challenge in challenges[:90]] == [None] * 90
    assert greetings.met(challenges[-1], 1.0) == ("10.0.0.1", 100)
    assert greetings.met(challenges[-1], 1.0) is None
    assert greetings.met(challenges[-2], 6.0) is None


def apart(name: str, here: Address, *peers: Address) -> SharedState:
    return SharedState(AT_ONCE, RING, name, 1, random=lambda: 0.5, peers=peers, own_address=lambda _: here)


def test_a_challenge_for_a_dead_peer_does_not_move_another_server_there() -> None:
    """The address of a peer that is gone is configured, and an outsider has it now. What it is sent there it passes on
    to a server that is reached elsewhere, and that is not configured."""
    here, gone, there = ("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)
    a, c = apart("a", here, gone), apart("c", there, here)
    exchange(a, here, c, there, 1000.0)
    assert addresses(a) == {"c": there}
    passed_on = 0
    for step in range(1, 40):
        now = 1000.0 + step / 4
        for address, datagram in a.tick(now).outgoing:
            passed_on += address == gone
            c.receive(datagram, here, now)  # from wherever
        for address, datagram in c.tick(now).outgoing:
            if address == here:
                a.receive(datagram, there, now)
        assert addresses(a) == {"c": there}
    assert passed_on


def test_a_newcomer_that_an_outsider_has_led_astray_is_found() -> None:
    """As above, and nobody has heard of the server before: it is believed to be at the configured address, because it
    might not know its own. It hears nothing there, says so, and is found where it says that it is."""
    here, gone, there = ("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)
    a, c = apart("a", here, gone), apart("c", there)
    places = []
    for step in range(60):
        now = 1000.0 + step / 4
        for address, datagram in a.tick(now).outgoing:
            if address == there or (address == gone and len(a.members) == 0):
                c.receive(datagram, OUTSIDER, now)
        for address, datagram in c.tick(now).outgoing:
            if address == here:
                a.receive(datagram, there, now)
        places.append(addresses(a))
    assert {"c": gone} in places
    assert places[-1] == {"c": there}
    assert addresses(c) == {"a": here}
