"""Connections between servers: who is greeted, and what opens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.keys import Key, KeyRing
from queenmq.cluster.peer_session import Ends, Session, answer, greet

KEY = Key(b"a" * 32)
RING = KeyRing(KEY)
ENDS = Ends(b"one", b"two")
forged = st.binary(max_size=200) | st.from_regex(rb"\A[0-9a-f.]{0,200}\Z")


def connected(ring: KeyRing = RING, theirs: KeyRing = RING) -> tuple[Session, Session]:
    greeting = greet(ring, ENDS)
    given_answer = answer(theirs, ENDS, greeting.said)
    assert given_answer is not None
    said, far = given_answer
    near = greeting.answered(said)
    assert near is not None
    return near, far


def test_what_one_seals_the_other_opens_in_order() -> None:
    near, far = connected()
    for number in range(3):
        assert far.open(near.seal(b"asked %d" % number)) == b"asked %d" % number
        assert near.open(far.seal(b"answered %d" % number)) == b"answered %d" % number
    assert far.open(near.seal(b"")) == b""


def test_nothing_can_be_read_and_nothing_is_sealed_alike() -> None:
    near, _ = connected()
    other, _ = connected()
    pieces = [session.seal(b"a secret") for session in (near, near, other)]
    assert len(set(pieces)) == 3
    assert not any(b"secret" in piece for piece in pieces)


def test_pieces_open_once_in_their_order_and_in_their_direction_only() -> None:
    near, far = connected()
    first, second = near.seal(b"first"), near.seal(b"second")
    assert far.open(second) is None, "out of order"
    assert near.open(first) is None, "sent back to its sender"
    assert far.open(first) == b"first"
    assert far.open(first) is None, "twice"
    assert far.open(second) == b"second"
    assert connected()[1].open(first) is None, "on another connection"


def test_a_changed_piece_does_not_open() -> None:
    near, far = connected()
    sealed = near.seal(b"piece")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        assert far.open(bytes(changed)) is None
    assert far.open(sealed[:-1]) is None
    assert far.open(b"") is None
    assert far.open(sealed) == b"piece"


@pytest.mark.parametrize("meant", [Ends(b"one", b"three"), Ends(b"three", b"two"), Ends(b"two", b"one")])
def test_a_greeting_is_for_one_server_and_of_one_server(meant: Ends) -> None:
    """Neither can it be passed on to another one, nor sent back to the one that has said it."""
    assert answer(RING, meant, greet(RING, ENDS).said) is None


def test_an_answer_is_good_for_the_greeting_that_it_answers() -> None:
    first, second = greet(RING, ENDS), greet(RING, ENDS)
    given_answer = answer(RING, ENDS, first.said)
    assert given_answer is not None
    assert second.answered(given_answer[0]) is None
    assert first.answered(given_answer[0]) is not None


def test_a_greeting_that_is_repeated_opens_nothing() -> None:
    """An outsider who has recorded a whole connection gets an answer, but the recorded requests do not open."""
    greeting = greet(RING, ENDS)
    given_answer = answer(RING, ENDS, greeting.said)
    assert given_answer is not None
    near = greeting.answered(given_answer[0])
    assert near is not None
    recorded = near.seal(b"a push")
    again = answer(RING, ENDS, greeting.said)
    assert again is not None
    assert again[0] != given_answer[0]
    assert again[1].open(recorded) is None


def test_another_secret_greets_nobody_and_the_previous_one_does() -> None:
    other = Key(b"b" * 32)
    assert answer(KeyRing(other), ENDS, greet(RING, ENDS).said) is None
    near, far = connected(RING, KeyRing(other, KEY))
    assert far.open(near.seal(b"x")) == b"x"


@pytest.mark.parametrize("part", range(3))
def test_every_part_of_a_greeting_is_signed(part: int) -> None:
    parts = greet(RING, ENDS).said.split(b".")
    parts[part] = parts[part][:-1] + (b"1" if parts[part][-1:] != b"1" else b"2")
    assert answer(RING, ENDS, b".".join(parts)) is None


@pytest.mark.parametrize("part", range(2))
def test_every_part_of_an_answer_is_signed(part: int) -> None:
    greeting = greet(RING, ENDS)
    given_answer = answer(RING, ENDS, greeting.said)
    assert given_answer is not None
    parts = given_answer[0].split(b".")
    parts[part] = parts[part][:-1] + (b"1" if parts[part][-1:] != b"1" else b"2")
    assert greeting.answered(b".".join(parts)) is None


@given(forged)
def test_no_bytes_whatever_are_a_greeting_or_an_answer(said: bytes) -> None:
    assert answer(RING, ENDS, said) is None
    assert greet(RING, ENDS).answered(said) is None


def test_a_greeting_is_no_answer() -> None:
    """Somebody who sends back what it has heard."""
    greeting = greet(RING, ENDS)
    assert greeting.answered(greeting.said) is None
    assert greeting.answered(greeting.said.partition(b".")[2]) is None
