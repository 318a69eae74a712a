"""Servers that share state: what each hears, from whom, and what it does with it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster import frame
from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.events import (
    IdentityConflict,
    MemberDied,
    MemberJoined,
    MemberRestarted,
    MemberReturned,
    OtherVersion,
    Wake,
)
from queenmq.cluster.inbox import REPORT_VERSION_S
from queenmq.cluster.membership import Address
from queenmq.cluster.messages import (
    PAYLOADS,
    TYPE_OF,
    ConsumerRegistered,
    Heartbeat,
    MaintenanceSet,
    MessageAvailable,
    MessageType,
    QueueConfigDelete,
    QueueConfigSet,
    encode,
)
from queenmq.cluster.outbox import Outgoing
from queenmq.cluster.port import Advice
from queenmq.cluster.refusal import Refusal
from queenmq.cluster.state import SharedState
from queenmq.core.maintenance import Switch
from unit.cluster.pair import AT_ONCE, RING, Street

WALL = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def street() -> Street:
    return Street("a", "b", "c").meet()


def receivers(street: Street, outgoing: list[Outgoing]) -> set[str]:
    return {street.servers[address].server_id for address, _ in outgoing}


class TestMembers:
    def test_all_find_each_other_and_not_themselves(self) -> None:
        street = Street("a", "b", "c")
        street.pass_time(0.5)
        for server in street.servers.values():
            assert {m.id for m in server.members.members()} == {"a", "b", "c"} - {server.server_id}
            assert {to.address[1] for to in server.members.reachable()} == {1, 2, 3} - {
                street.door(server.server_id)[1]
            }
        assert set(street.events["a"]) == {MemberJoined("b"), MemberJoined("c")}

    def test_a_newcomer_learns_the_presence_at_once(self, street: Street) -> None:
        street.carry("a", street["a"].consumer_registered("q"))
        newcomer = street.restart("c", 2)
        street.pass_time(0.25)
        street.pass_time(0.25)
        assert newcomer.presence.servers_for("q") == ["a"]

    def test_the_dead_take_hints_and_presence_along(self, street: Street) -> None:
        street.carry("b", street["b"].consumer_registered("q"))
        street.carry("b", street["b"].lease_acquired([("q", "p", "g", 300)]))
        assert street["a"].lease_hints.advice("q", "p", "g", street.now) is Advice.SKIP
        street.pass_time(6, silent=["b"])
        assert MemberDied("b") in street.events["a"]
        assert street["a"].presence.servers_for("q") is None
        assert len(street["a"].lease_hints) == 0
        assert receivers(street, street["a"].pushed([("q", [])])) == {"c"}

    def test_the_dead_return(self, street: Street) -> None:
        street.carry("b", street["b"].consumer_registered("q"))
        street.pass_time(6, silent=["b"])
        street.pass_time(0.5)
        assert MemberReturned("b") in street.events["a"]
        assert street["a"].presence.servers_for("q") == ["b"]

    def test_a_restart_is_believed_at_once_and_the_former_life_no_more(self, street: Street) -> None:
        recorded = street["b"].consumer_registered("former") + street["b"].tick(street.now + 5).outgoing
        street.carry("b", street["b"].consumer_registered("q"))
        street.restart("b", 2)
        street.pass_time(0.25)
        assert MemberRestarted("b") in street.events["a"]
        assert street["a"].presence.queues_of("b") == set()
        street.carry("b", recorded)
        assert street["a"].presence.queues_of("b") == set()
        assert street["a"].traffic.dropped[Refusal.OLD_EPOCH] > 0

    def test_epochs_of_the_database_guard_a_server_that_has_just_started(self, street: Street) -> None:
        """A server of a former life that still runs is not believed, although it meets the challenge."""
        fresh = street.restart("a", 2)
        fresh.epochs_refreshed({"a": 1, "b": 2}, street.now)
        street.pass_time(2)
        assert not fresh.members.is_alive("b")
        assert fresh.traffic.dropped[Refusal.OLD_EPOCH] > 0

    def test_who_starts_later_under_our_name_is_reported_once(self, street: Street) -> None:
        rival = SharedState(AT_ONCE, RING, "a", 5, random=lambda: 0, peers=[street.door("a")])
        for step in range(3):
            for _, datagram in rival.tick(street.now + step).outgoing:
                street.events["a"] += street["a"].receive(datagram, ("elsewhere", 1), street.now)
        assert street.events["a"] == [IdentityConflict("a", ("elsewhere", 1))]
        assert street["a"].traffic.conflicts == 1
        assert street["a"].members.get("a") is None

    def test_a_server_of_another_version_is_reported_now_and_then(self, street: Street) -> None:
        """Only at the host of a peer; it is no member, and nothing that it says has an effect."""
        a, (host, port) = street["a"], street.door("b")
        for version in (frame.VERSION - 1, frame.VERSION + 1):
            [packet, *_] = [d for at, d in street["b"].tick(street.now + version).outgoing if at == street.door("a")]
            packet = bytes([version]) + packet[1:]
            street.now += REPORT_VERSION_S
            assert a.receive(packet, (host, port), street.now) == [OtherVersion((host, port), version)]
            assert a.receive(packet, (host, port), street.now) == []
            assert a.receive(packet, ("192.0.2.66", port), street.now) == []
            assert a.receive(b"\0" + packet[1:], (host, port), street.now + REPORT_VERSION_S) == []
        assert a.traffic.dropped[Refusal.WRONG_VERSION] == 8
        assert not a.has_replies

    def test_siblings_need_no_configuration(self) -> None:
        one, two = ("10.0.0.1", 1), ("10.0.0.2", 9)
        first = SharedState(AT_ONCE, RING, "first", 1, random=lambda: 0, own_address=lambda _: one)
        other = SharedState(AT_ONCE, RING, "other", 1, random=lambda: 0, peers=[one], own_address=lambda _: two)
        first.own_heartbeat = Heartbeat("", 6632, [2])
        talk(first, one, other, two)
        assert other.members.is_alive("first")
        assert first.members.is_alive("other"), "it has told where it is"
        assert ("10.0.0.1", 2) in {address for address, _ in other.tick(1).outgoing}


def talk(one: SharedState, here: Address, two: SharedState, there: Address, now: float = 0, rounds: int = 4) -> None:
    """Two servers hand each other what they send to each other."""
    for _ in range(rounds):
        for sender, receiver, source, target in ((one, two, here, there), (two, one, there, here)):
            for address, datagram in sender.tick(now).outgoing:
                if address == target:
                    receiver.receive(datagram, source, now)


class TestNotifications:
    def test_only_servers_with_consumers_are_told(self, street: Street) -> None:
        street.carry("b", street["b"].consumer_registered("q"))
        outgoing = street["a"].pushed([("q", [])])
        street.carry("a", outgoing)
        assert receivers(street, outgoing) == {"b"}
        assert street.events["b"] == [Wake("q", None)]
        outbox = street["a"].outbox
        assert (outbox.targeted, outbox.broadcast, outbox.saved) == (1, 0, 1)

    def test_all_are_told_when_nothing_is_known(self, street: Street) -> None:
        assert receivers(street, street["a"].pushed([("q", [])])) == {"b", "c"}
        assert street["a"].outbox.broadcast == 2

    def test_nobody_is_told_when_the_last_consumer_went(self, street: Street) -> None:
        street.carry("b", street["b"].consumer_registered("q"))
        street.carry("b", street["b"].consumer_deregistered("q", street.now))
        assert street["a"].pushed([("q", [])]) == []

    def test_a_frame_is_signed_for_each_receiver(self, street: Street) -> None:
        before = street["a"].traffic.signed
        outgoing = street["a"].pushed([(f"q{number}", []) for number in range(10)])
        assert len(outgoing) == len({datagram for _, datagram in outgoing}) == 2
        assert street["a"].traffic.signed == before + 2

    def test_queues_with_different_consumers_go_apart(self, street: Street) -> None:
        street.carry("b", street["b"].consumer_registered("q"))
        street.carry("c", street["c"].consumer_registered("r"))
        street.carry("a", street["a"].pushed([("q", []), ("r", [])]))
        assert (street.events["b"], street.events["c"]) == ([Wake("q", None)], [Wake("r", None)])

    def test_a_consumer_that_polls_again_at_once_is_told_once(self) -> None:
        street = Street("a", "b", bounds=ClusterBounds(deregister_after_s=1)).meet()
        assert len(street["b"].consumer_registered("q")) == 1
        for _ in range(5):
            assert street["b"].consumer_deregistered("q", street.now) == []
            assert street["b"].consumer_registered("q") == []
        street["b"].consumer_deregistered("q", street.now)
        street.pass_time(6.5)
        assert street["a"].presence.queues_of("b") == set()


class TestWhatIsTold:
    def test_a_hint_lasts_a_fifth_of_the_lease(self, street: Street) -> None:
        street.carry("b", street["b"].lease_acquired([("q", "p", "g", 300)]))
        hints = street["a"].lease_hints
        assert hints.advice("q", "p", "g", street.now + 0.9) is Advice.SKIP
        assert hints.advice("q", "p", "g", street.now + 59) is Advice.VERIFY
        assert hints.advice("q", "p", "g", street.now + 60) is Advice.TRY

    def test_a_release_reaches_the_others(self, street: Street) -> None:
        street.carry("b", street["b"].lease_acquired([("q", "p", "g", 300)]))
        street.carry("b", street["b"].lease_released([("q", "p", "g")]))
        assert street["a"].lease_hints.advice("q", "p", "g", street.now) is Advice.TRY

    def test_a_lease_that_we_get_ends_the_hint_of_another(self, street: Street) -> None:
        street.carry("b", street["b"].lease_acquired([("q", "p", "g", 300)]))
        street["a"].lease_acquired([("q", "p", "g", 300)])
        assert street["a"].lease_hints.advice("q", "p", "g", street.now) is Advice.TRY

    def test_a_configuration_is_used_everywhere(self, street: Street) -> None:
        street.carry("a", street["a"].config_set("q", {"leaseTime": 7}, 3))
        for name in "bc":
            assert street.caches[name].options.get("q") == {"leaseTime": 7}
        assert street.events["b"] == [QueueConfigSet("q", {"leaseTime": 7}, 3)]

    def test_deleting_a_queue_cascades_everywhere(self, street: Street) -> None:
        street.carry("a", street["a"].config_set("q", {}, 3))
        street.carry("b", street["b"].consumer_registered("q"))
        street.carry("b", street["b"].lease_acquired([("q", "p", "g", 300)]))
        for name in "bc":
            street.caches[name].partition_ids.put("q", "p", "id", street.now)
        street.carry("a", street["a"].config_deleted([("q", 4)]))
        for name in "bc":
            assert street.caches[name].options.get("q") is None
            assert len(street.caches[name].partition_ids) == 0
        for name in "abc":
            assert street[name].presence.servers_for("q") is None
            assert len(street[name].lease_hints) == 0
        assert street.events["c"][-1] == QueueConfigDelete([("q", 4)])

    def test_deleting_a_partition(self, street: Street) -> None:
        street.carry("b", street["b"].lease_acquired([("q", "p", "g", 300)]))
        street.caches["c"].partition_ids.put("q", "p", "id", street.now)
        street.carry("a", street["a"].partition_deleted([("q", "p")]))
        assert len(street.caches["c"].partition_ids) == 0
        assert len(street["a"].lease_hints) == len(street["c"].lease_hints) == 0

    def test_maintenance_reaches_everybody(self, street: Street) -> None:
        street.carry("a", street["a"].maintenance_set(Switch.POP, True, 1))
        assert street.events["c"] == [MaintenanceSet(Switch.POP, True, 1)]
        assert street.caches["c"].statistics()["pop_maintenance_mode"] is True

    def test_what_fits_no_frame_is_left_to_the_database(self, street: Street) -> None:
        name = "\U0001f451" * 255
        assert street["a"].lease_acquired([(name, name, name, 300)]) == []
        assert street["a"].config_set("q", {str(n): "x" * 255 for n in range(10)}, 1) == []
        assert street["a"].traffic.entries_too_large == 2


class TestWhatComesIn:
    def test_a_stranger_says_nothing(self, street: Street) -> None:
        """Not even to this life of this server: it has to meet a challenge first."""
        for sender, epoch, reason in (("d", 1, Refusal.UNKNOWN_SENDER), ("b", 9, Refusal.UNKNOWN_SENDER)):
            for payload in (MessageAvailable([("q", [])]), ConsumerRegistered(["q"]), Heartbeat("", 1, [])):
                type = TYPE_OF[payload.__class__]
                to = street["a"]._life
                datagram = frame.seal(RING, type, frame.encode_sender(sender), to, epoch, 99, encode(payload))
                assert street["a"].receive(datagram, ("10.0.0.9", 2), street.now) == []
            assert street["a"].traffic.dropped[reason] > 0
        assert street["a"].traffic.dropped[Refusal.UNKNOWN_SENDER] == 6
        assert street["a"].presence.servers_for("q") is None

    def test_a_repeated_packet_does_nothing(self, street: Street) -> None:
        outgoing = street["a"].pushed([("q", [])])
        street.carry("a", [*outgoing, *outgoing])
        assert street.events["b"] == [Wake("q", None)]
        assert street["b"].traffic.dropped[Refusal.REPLAYED] == 1

    def test_a_full_house_is_counted(self) -> None:
        street = Street("a", "b", "c", bounds=ClusterBounds(max_members=1)).meet()
        assert all(len(server.members) == 1 for server in street.servers.values())
        assert street["a"].traffic.dropped[Refusal.TOO_MANY_MEMBERS] > 0

    @given(st.binary(max_size=1500))
    def test_junk_does_nothing(self, datagram: bytes) -> None:
        state = SharedState(AT_ONCE, RING, "a", 1, random=lambda: 0)
        assert state.receive(datagram, ("host", 2), 0) == []
        assert state.traffic.dropped.total() == 1

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(list(MessageType)),
                st.sampled_from(["a", "b", "c"]),
                st.integers(0, 3) | st.just(2**64 - 1),
                st.integers(0, 30) | st.just(2**64 - 1),
                st.binary(max_size=60) | st.deferred(lambda: nonsense),  # type: ignore[has-type]
            ),
            max_size=30,
        )
    )
    def test_signed_nonsense_never_raises(self, packets: list[tuple[MessageType, str, int, int, bytes]]) -> None:
        state = SharedState(ClusterBounds(max_members=2, max_senders=2), RING, "a", 1, random=lambda: 0)
        for now, (type, sender, epoch, sequence, payload) in enumerate(packets):
            datagram = frame.seal(RING, type, frame.encode_sender(sender), state._life, epoch, sequence, payload)
            state.receive(datagram, ("host", 2), now)
            state.tick(now)
            state.pushed([("q", [])])
            state.lease_hints.advice("q", "q", "q", now)
        state.statistics(0, WALL)


nonsense = st.one_of(
    *(
        st.builds(lambda *values: encode(values), *columns)
        for columns in (
            [st.lists(st.tuples(st.sampled_from(["q", "r"]), st.integers(0, 2**31 - 1)), max_size=3)],
            [st.lists(st.sampled_from(["q", "r"]), max_size=3)],
            [
                st.sampled_from(["", "10.0.0.1", "::1"]),
                st.integers(0, 65535),
                st.just(b"l" * 16),
                st.sampled_from([b"", b"c" * 16]),
                st.sampled_from([b"", b"m" * 16]),
                st.just(Heartbeat("", 1, [])),
            ],
            [st.just(""), st.integers(0, 65535), st.lists(st.integers(1, 65535), max_size=3)],
            [st.integers(0, 2**32), st.integers(0, 2**32), st.lists(st.sampled_from(["q", "r"]), max_size=3)],
            [st.lists(st.tuples(*[st.sampled_from(["q", "r"])] * 3, st.integers(0, 2**31 - 1)), max_size=3)],
            [st.lists(st.tuples(*[st.sampled_from(["q", "r"])] * 3), max_size=3)],
            [st.lists(st.tuples(*[st.sampled_from(["q", "r"])] * 2), max_size=3)],
            [
                st.just("q"),
                st.dictionaries(st.text(min_size=1, max_size=5), st.integers(-(2**63), 2**63 - 1)),
                st.integers(0, 2**63 - 1),
            ],
            [st.sampled_from(["push", "pop", "push\n"]), st.booleans(), st.integers(0, 2**63 - 1)],
        )
    )
)


def test_the_statistics_have_every_documented_counter(street: Street) -> None:
    street.carry("b", street["b"].lease_acquired([("q", "p", "g", 300)]))
    street.pass_time(6, silent=["c"])
    shown = street["a"].statistics(street.now, WALL) | street.caches["a"].statistics()
    expected = {
        "queue_config_cache": {"size", "hits", "misses", "hit_rate"},
        "consumer_presence": {
            "queues_tracked",
            "servers_tracked",
            "notifications_targeted",
            "notifications_broadcast",
            "notifications_saved",
        },
        "partition_id_cache": {"size", "max_size", "hits", "misses", "evictions"},
        "lease_hints": {"size", "hints_used", "hints_wrong", "accuracy"},
        "server_health": {
            "servers_tracked",
            "servers_alive",
            "servers_dead",
            "heartbeats_received",
            "restarts_detected",
            "last_heartbeat",
        },
        "transport": {"packets_sent", "packets_received", "bytes_sent", "bytes_received", "dropped", "conflicts"},
    }
    for section, keys in expected.items():
        part = shown[section]
        assert isinstance(part, dict)
        assert keys <= part.keys()
    health = shown["server_health"]
    assert isinstance(health, dict)
    assert (health["servers_alive"], health["servers_dead"]) == (1, 1)
    assert set(health["last_heartbeat"]) == {"b", "c"}
    assert (
        health["last_heartbeat"]["b"].startswith("2025-12-31T23:59:59")
        or health["last_heartbeat"]["b"] == "2026-01-01T00:00:00.000Z"
    )
    transport = shown["transport"]
    assert isinstance(transport, dict)
    assert set(transport["dropped"]) == {refusal.value for refusal in Refusal}


def test_every_type_has_a_payload_and_is_acted_on() -> None:
    assert set(PAYLOADS) == set(MessageType)


def test_a_server_that_says_goodbye_is_dead_at_once() -> None:
    street = Street("a", "b", "c").meet()
    street.carry("b", street["b"].consumer_registered("q"))
    street.carry("b", street["b"].goodbye())
    street.pass_time(0.25, silent=["b"])
    assert street.events["a"] == [MemberDied("b", has_left=True)]
    assert street["a"].presence.queues_of("b") == set()
    assert street["a"].members.is_alive("c")
    street.restart("b", 2)
    street.pass_time(1.5)
    assert street["a"].members.is_alive("b")


def test_registrations_are_counted() -> None:
    street = Street("a", "b").meet()
    for queue in ("q", "r"):
        street.carry("a", street["a"].consumer_registered(queue))
    street.carry("a", street["a"].consumer_deregistered("q", street.now))
    sent = street["a"].statistics(street.now, datetime.now(UTC))["consumer_presence"]
    told = street["b"].statistics(street.now, datetime.now(UTC))["consumer_presence"]
    assert (sent["registrations_sent"], sent["deregistrations_sent"]) == (2, 1)  # type: ignore[index]
    assert (told["registrations_received"], told["deregistrations_received"]) == (2, 1)  # type: ignore[index]
