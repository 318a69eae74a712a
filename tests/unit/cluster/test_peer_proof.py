"""Proofs of requests that servers pass on: nothing else is accepted, and nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.keys import Key, KeyRing
from queenmq.cluster.peer_proof import WINDOW_MS, Envelope, ProofChecker, prove

RING = KeyRing(Key(b"a" * 32))
NOW_MS = 1_700_000_000_000
SENT = Envelope(b"one", b"two", b"POST", b"/api/v1/push?x=1", b"Bearer t", b'{"items":[]}')


def proof(origin: str = "o", at_ms: int = NOW_MS, ring: KeyRing = RING) -> bytes:
    return prove(ring, SENT, origin, at_ms)


def test_a_proven_request_is_accepted_once() -> None:
    checker = ProofChecker(RING)
    assert checker.check(proof(), SENT, NOW_MS + 5) == "o"
    assert checker.check(proof(), SENT, NOW_MS + 6) is None
    assert checker.check(proof("p"), SENT, NOW_MS + 6) == "p"


@pytest.mark.parametrize("field", Envelope._fields)
def test_every_part_of_the_request_is_covered(field: str) -> None:
    changed = SENT._replace(**{field: getattr(SENT, field) + b"x"})
    assert ProofChecker(RING).check(proof(), changed, NOW_MS) is None


@pytest.mark.parametrize("part", range(4))
def test_every_part_of_the_proof_is_covered(part: int) -> None:
    parts = proof().split(b".")
    parts[part] = parts[part][:-1] + (b"1" if parts[part][-1:] != b"1" else b"2")
    assert ProofChecker(RING).check(b".".join(parts), SENT, NOW_MS) is None


def test_it_ends() -> None:
    assert ProofChecker(RING).check(proof(), SENT, NOW_MS + WINDOW_MS) == "o"
    assert ProofChecker(RING).check(proof(), SENT, NOW_MS + WINDOW_MS + 1) is None
    assert ProofChecker(RING).check(proof(), SENT, NOW_MS - WINDOW_MS - 1) is None


def test_another_secret_proves_nothing_and_the_previous_one_does() -> None:
    other = Key(b"b" * 32)
    assert ProofChecker(KeyRing(other)).check(proof(), SENT, NOW_MS) is None
    assert ProofChecker(KeyRing(other, Key(b"a" * 32))).check(proof(), SENT, NOW_MS) == "o"


@given(st.binary(max_size=200) | st.from_regex(rb"\A[0-9a-f.]{0,120}\Z"))
def test_no_bytes_whatever_are_a_proof(forged: bytes) -> None:
    assert ProofChecker(RING).check(forged, SENT, NOW_MS) is None


def test_memory_is_bounded_and_nothing_forgotten_is_accepted_again() -> None:
    checker = ProofChecker(RING, max_remembered=10)
    proofs = [proof(f"o{number}", NOW_MS + number) for number in range(30)]
    for each in proofs:
        assert checker.check(each, SENT, NOW_MS + 30) is not None
    assert len(checker) == 10
    assert [checker.check(each, SENT, NOW_MS + 31) for each in proofs] == [None] * 30


def test_what_has_ended_is_forgotten() -> None:
    checker = ProofChecker(RING)
    checker.check(proof("old"), SENT, NOW_MS)
    later = NOW_MS + WINDOW_MS + 1
    assert checker.check(proof("new", later), SENT, later) == "new"
    assert len(checker) == 1
