"""The frame: what was sealed opens, and nothing else does, whatever the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster import frame
from queenmq.cluster.frame import HEADER, MAX_FRAME, MAX_PAYLOAD, Frame, encode_sender, seal
from queenmq.cluster.keys import Key, KeyRing
from queenmq.cluster.messages import MessageType
from queenmq.cluster.refusal import Refusal

CURRENT, PREVIOUS = Key(b"c" * 32), Key(b"p" * 32)
RING = KeyRing(CURRENT, PREVIOUS)
SENDER = encode_sender("queen-1")
RECEIVER = bytes(range(16))
U64 = st.integers(0, 2**64 - 1)
types = st.sampled_from(list(MessageType))
senders = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=32).filter(
    lambda name: len(name.encode()) <= 32
)


def sealed(payload: bytes = b"payload", ring: KeyRing = RING) -> bytes:
    return seal(ring, MessageType.HEARTBEAT, SENDER, RECEIVER, 7, 9, payload)


class TestWhatIsAccepted:
    @given(type=types, sender=senders, epoch=U64, sequence=U64, payload=st.binary(max_size=MAX_PAYLOAD))
    def test_what_was_sealed_opens(self, type: int, sender: str, epoch: int, sequence: int, payload: bytes) -> None:
        datagram = seal(RING, type, encode_sender(sender), RECEIVER, epoch, sequence, payload)
        assert len(datagram) == HEADER + len(payload) <= MAX_FRAME
        assert frame.open(RING, datagram) == Frame(type, sender, RECEIVER, epoch, sequence, payload)

    def test_the_header_is_laid_out_as_documented(self) -> None:
        datagram = sealed(b"xyz")
        assert HEADER == 104
        assert datagram[:4] == bytes([3, 3, 0, 3])
        assert datagram[4:8] == CURRENT.id
        assert datagram[40:72] == b"queen-1".ljust(32, b"\0")
        assert datagram[72:88] == RECEIVER
        assert datagram[88:104] == (7).to_bytes(8, "big") + (9).to_bytes(8, "big")
        assert datagram[104:] == b"xyz"

    def test_a_frame_of_the_previous_key(self) -> None:
        assert isinstance(frame.open(RING, sealed(ring=KeyRing(PREVIOUS))), Frame)

    def test_but_what_is_sealed_bears_the_current_one(self) -> None:
        assert isinstance(frame.open(KeyRing(CURRENT), sealed()), Frame)
        assert frame.open(KeyRing(PREVIOUS), sealed()) is Refusal.UNKNOWN_KEY

    def test_a_payload_over_the_limit_is_not_sealed(self) -> None:
        assert len(sealed(b"x" * MAX_PAYLOAD)) == MAX_FRAME
        with pytest.raises(ValueError, match="at most"):
            sealed(b"x" * (MAX_PAYLOAD + 1))

    @pytest.mark.parametrize("name", ["", "\0", "a\0b", "x" * 33, "ö" * 17])
    def test_a_name_that_does_not_fit_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match="server id"):
            encode_sender(name)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("datagram", "reason"),
        [
            (b"", Refusal.TOO_SHORT),
            (sealed(b"")[:-1], Refusal.TOO_SHORT),
            (sealed(b"x" * MAX_PAYLOAD) + b"x", Refusal.TOO_LONG),
            (b"\x01" + sealed()[1:], Refusal.WRONG_VERSION),
            (sealed() + b"x", Refusal.WRONG_LENGTH),
            (sealed()[:-1], Refusal.WRONG_LENGTH),
            (b"\x03\x63" + sealed()[2:], Refusal.UNKNOWN_TYPE),
            (sealed(ring=KeyRing(Key(b"z" * 32))), Refusal.UNKNOWN_KEY),
            (sealed()[:-1] + b"x", Refusal.BAD_SIGNATURE),
            (sealed()[:4] + PREVIOUS.id + sealed()[8:], Refusal.BAD_SIGNATURE),
            (seal(RING, 1, b"\0" * 32, RECEIVER, 1, 1, b""), Refusal.BAD_SENDER),
            (seal(RING, 1, b"\xff".ljust(32, b"\0"), RECEIVER, 1, 1, b""), Refusal.BAD_SENDER),
            (seal(RING, 1, b"a\0b".ljust(32, b"\0"), RECEIVER, 1, 1, b""), Refusal.BAD_SENDER),
        ],
    )
    def test_each_for_its_reason(self, datagram: bytes, reason: Refusal) -> None:
        assert frame.open(RING, datagram) is reason

    def test_a_frame_with_any_bit_changed(self) -> None:
        datagram = sealed()
        for place in range(len(datagram)):
            for bit in range(8):
                changed = bytearray(datagram)
                changed[place] ^= 1 << bit
                assert isinstance(frame.open(RING, bytes(changed)), Refusal), (place, bit)

    def test_a_frame_cut_short_anywhere(self) -> None:
        datagram = sealed(b"x" * 100)
        assert all(isinstance(frame.open(RING, datagram[:end]), Refusal) for end in range(len(datagram)))

    @given(st.binary(max_size=1600))
    def test_any_bytes(self, datagram: bytes) -> None:
        assert isinstance(frame.open(RING, datagram), Refusal)

    @given(st.binary(max_size=MAX_PAYLOAD), types, st.binary(min_size=96, max_size=96))
    def test_bytes_that_look_like_a_frame(self, payload: bytes, type: int, rest: bytes) -> None:
        start = bytes([3, type]) + len(payload).to_bytes(2, "big") + CURRENT.id
        assert isinstance(frame.open(RING, start + rest + payload), Refusal)

    @given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, HEADER + 200), st.binary(min_size=1))
    def test_extended_and_spliced_frames(self, one: bytes, two: bytes, cut: int, more: bytes) -> None:
        first = seal(RING, 1, SENDER, RECEIVER, 7, 9, one)
        second = seal(RING, 2, SENDER, RECEIVER, 7, 10, two)
        genuine = {first, second}
        for made in (first + more, more + first, first[:cut] + second[cut:], second[:cut] + first[cut:]):
            assert made in genuine or isinstance(frame.open(RING, made), Refusal)


class CountingRing(KeyRing):
    """Hands out keys whose use can be counted."""

    __slots__ = ("found",)

    def __init__(self, current: Key) -> None:
        super().__init__(current)
        self.found = 0

    def find(self, key_id: bytes) -> Key | None:
        key = super().find(key_id)
        self.found += key is not None
        return key


@pytest.mark.parametrize(
    "junk",
    [
        b"x" * 40,
        b"x" * 1500,
        b"\x09" + sealed()[1:],
        sealed() + b"x",
        b"\x03\x63" + sealed()[2:],
        sealed(ring=KeyRing(Key(b"z" * 32))),
    ],
)
def test_junk_is_dropped_before_a_signature_is_computed(junk: bytes) -> None:
    ring = CountingRing(CURRENT)
    for _ in range(100):
        frame.open(ring, junk)
    assert ring.found == 0
    frame.open(ring, sealed())
    assert ring.found == 1
