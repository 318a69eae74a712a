"""Payloads: they survive the way, and what is no payload of its type is told apart."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.frame import MAX_PAYLOAD
from queenmq.cluster.messages import (
    MAX_HASH,
    PAYLOADS,
    TYPE_OF,
    ConsumerRegistered,
    Heartbeat,
    LeaseHintAcquired,
    MaintenanceSet,
    MessageAvailable,
    MessageType,
    Payload,
    PresenceSnapshot,
    QueueConfigDelete,
    QueueConfigSet,
    decode,
    encode,
)
from queenmq.cluster.packing import name_hash, pack, pack_snapshot
from queenmq.core.maintenance import Switch

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=255)
EXAMPLES: list[Payload] = [
    MessageAvailable([("orders", ["a", "b"]), ("ö", [])]),
    Heartbeat("", 6632, [6634, 6635], 1, 2, 3, 4),
    QueueConfigSet("orders", {"leaseTime": 300, "encryptionEnabled": True, "task": "t", "ttl": None}, 42),
    QueueConfigDelete([("orders", 2**63 - 1)]),
    ConsumerRegistered([]),
    PresenceSnapshot(0, MAX_HASH, ["orders"]),
    LeaseHintAcquired([("orders", "p", "g", 60_000)]),
    MaintenanceSet(Switch.POP, True, 1),
]


@pytest.mark.parametrize("payload", EXAMPLES, ids=lambda payload: type(payload).__name__)
def test_a_payload_survives_the_way(payload: Payload) -> None:
    assert decode(TYPE_OF[type(payload)], encode(payload)) == payload


def test_the_numbers_are_the_published_ones() -> None:
    assert {t.name: int(t) for t in MessageType} == {
        "MESSAGE_AVAILABLE": 1,
        "HEARTBEAT": 3,
        "GREETING": 4,
        "GOODBYE": 5,
        "QUEUE_CONFIG_SET": 10,
        "QUEUE_CONFIG_DELETE": 11,
        "CONSUMER_REGISTERED": 20,
        "CONSUMER_DEREGISTERED": 21,
        "PRESENCE_SNAPSHOT": 22,
        "PARTITION_DELETED": 25,
        "LEASE_HINT_ACQUIRED": 30,
        "LEASE_HINT_RELEASED": 31,
        "MAINTENANCE_SET": 40,
    }
    assert set(PAYLOADS) == set(MessageType)


@pytest.mark.parametrize(
    ("type", "nonsense"),
    [
        (1, [[["", 1]]]),
        (1, [[["q" * 256, 1]]]),
        (1, [[["q", -1]]]),
        (1, [[["q", 2**40]]]),
        (1, [[["q", 1.5]]]),
        (1, [[["q", 1, 1]]]),
        (1, [[], "more"]),
        (1, {"queues": []}),
        (1, None),
        (3, ["", 70_000, []]),
        (3, ["", 1, [0]]),
        (3, ["", 1, [1] * 129]),
        (10, ["q", {"a": [1]}, 1]),
        (10, ["q", {1: 1}, 1]),
        (10, ["q", {"a": "x" * 256}, 1]),
        (10, ["q", {}, 2**63]),
        (22, [0, 2**32 + 1, []]),
        (30, [[["q", "p", "g"]]]),
        (40, ["both", True, 1]),
        (40, ["push\n", True, 1]),
        (40, ["push", 1, 1]),
    ],
)
def test_nonsense_is_told_apart(type: int, nonsense: object) -> None:
    assert decode(type, msgspec.msgpack.encode(nonsense)) is None


@given(st.sampled_from(list(MessageType)), st.binary(max_size=MAX_PAYLOAD))
def test_no_bytes_raise(type: MessageType, payload: bytes) -> None:
    decoded = decode(type, payload)
    assert decoded is None or isinstance(decoded, PAYLOADS[type])


@pytest.mark.parametrize("type", list(MessageType))
@pytest.mark.parametrize(
    "bomb", [b"\x91" * MAX_PAYLOAD, b"\x81" * MAX_PAYLOAD, b"\xdd\xff\xff\xff\xff", b"\x91\xa4\xff\xfe\xff\xff"]
)
def test_deep_and_lying_lengths_raise_nothing(type: MessageType, bomb: bytes) -> None:
    assert decode(type, bomb) is None


class TestPacking:
    @given(
        st.lists(st.tuples(names, st.lists(st.text(max_size=50, min_size=1, alphabet="aé漢"), max_size=2)), max_size=60)
    )
    def test_all_entries_arrive_in_order(self, entries: list[tuple[str, list[str]]]) -> None:
        packed = pack(entries)
        assert packed.dropped == 0
        assert all(len(payload) <= MAX_PAYLOAD for payload in packed.payloads)
        told = [decode(1, payload) for payload in packed.payloads]
        assert [
            entry for message in told if isinstance(message, MessageAvailable) for entry in message.queues
        ] == entries

    @given(st.lists(st.tuples(names, st.integers(0, 9)), min_size=1, max_size=60))
    def test_no_two_neighbours_would_have_fitted_one_frame(self, entries: list[tuple[str, int]]) -> None:
        lists = [msgspec.msgpack.decode(payload)[0] for payload in pack(entries).payloads]
        for one, two in itertools.pairwise(lists):
            assert len(encode([[*one, two[0]]])) + 3 > MAX_PAYLOAD

    def test_what_fits_no_frame_is_left_out_and_counted(self) -> None:
        huge = ("ö" * 255, "ö" * 255, "ö" * 255, 1)
        small = ("q", "p", "g", 1)
        packed = pack([small, huge, small, huge])
        assert packed.dropped == 2
        assert [decode(30, payload) for payload in packed.payloads] == [LeaseHintAcquired([small, small])]

    def test_a_large_entry_goes_alone(self) -> None:
        large = ("\U0001f451" * 255, "p", "g", 1)
        packed = pack([large, large])
        assert (len(packed.payloads), packed.dropped) == (2, 0)

    def test_nothing_makes_no_payload(self) -> None:
        assert pack([]).payloads == []

    @given(st.sets(names, max_size=80))
    def test_the_parts_of_a_snapshot_cover_every_hash_once(self, queues: set[str]) -> None:
        packed = pack_snapshot(queues)
        parts = [part for payload in packed.payloads if isinstance(part := decode(22, payload), PresenceSnapshot)]
        assert len(parts) == len(packed.payloads) >= 1
        assert parts[0].low == 0
        assert parts[-1].high == MAX_HASH
        assert all(one.high == two.low for one, two in itertools.pairwise(parts))
        assert all(part.low <= name_hash(queue) < part.high for part in parts for queue in part.queues)
        assert {queue for part in parts for queue in part.queues} == queues
        assert packed.dropped == 0
