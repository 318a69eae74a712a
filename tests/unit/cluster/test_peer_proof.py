"""Proofs of requests that servers pass on, and of their answers: nothing else is accepted, and nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.keys import Key, KeyRing
from queenmq.cluster.peer_proof import (
    WINDOW_MS,
    Answer,
    Envelope,
    ProofChecker,
    Proven,
    is_proven_answer,
    prove,
    prove_answer,
)

RING = KeyRing(Key(b"a" * 32))
NOW_MS = 1_700_000_000_000
SENT = Envelope(b"one", b"two", b"POST", b"/api/v1/push?x=1", b"Bearer t")
BODY = b'{"items":[]}'
GIVEN = Answer(201, b"application/json", ((b"retry-after", b"1"), (b"x-served-by", b"two")), b"[]")


def proof(origin: str = "o", at_ms: int = NOW_MS, ring: KeyRing = RING) -> bytes:
    return prove(ring, SENT, BODY, origin, at_ms)


def origin(found: Proven | None) -> str | None:
    return None if found is None else found.origin


def test_a_proven_request_is_accepted_once() -> None:
    checker = ProofChecker(RING)
    assert origin(checker.check(proof(), SENT, NOW_MS + 5)) == "o"
    assert checker.check(proof(), SENT, NOW_MS + 6) is None
    assert origin(checker.check(proof("p"), SENT, NOW_MS + 6)) == "p"


@pytest.mark.parametrize("field", Envelope._fields)
def test_every_part_of_the_request_is_covered(field: str) -> None:
    changed = SENT._replace(**{field: getattr(SENT, field) + b"x"})
    assert ProofChecker(RING).check(proof(), changed, NOW_MS) is None


def test_the_body_is_covered_although_it_is_not_there_yet() -> None:
    proven = ProofChecker(RING).check(proof(), SENT, NOW_MS)
    assert proven is not None
    assert proven.covers(BODY)
    assert not proven.covers(BODY + b" ")
    assert not proven.covers(b"")


@pytest.mark.parametrize("part", range(5))
def test_every_part_of_the_proof_is_covered(part: int) -> None:
    parts = proof().split(b".")
    parts[part] = parts[part][:-1] + (b"1" if parts[part][-1:] != b"1" else b"2")
    assert ProofChecker(RING).check(b".".join(parts), SENT, NOW_MS) is None


def test_it_ends() -> None:
    assert origin(ProofChecker(RING).check(proof(), SENT, NOW_MS + WINDOW_MS)) == "o"
    assert ProofChecker(RING).check(proof(), SENT, NOW_MS + WINDOW_MS + 1) is None
    assert ProofChecker(RING).check(proof(), SENT, NOW_MS - WINDOW_MS - 1) is None


def test_another_secret_proves_nothing_and_the_previous_one_does() -> None:
    other = Key(b"b" * 32)
    assert ProofChecker(KeyRing(other)).check(proof(), SENT, NOW_MS) is None
    assert origin(ProofChecker(KeyRing(other, Key(b"a" * 32))).check(proof(), SENT, NOW_MS)) == "o"


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
    assert origin(checker.check(proof("new", later), SENT, later)) == "new"
    assert len(checker) == 1


# Answers


def test_an_answer_is_proven_to_the_request_that_it_answers() -> None:
    asked = proof()
    given_proof = prove_answer(RING, GIVEN, asked)
    assert is_proven_answer(RING, given_proof, GIVEN, asked)
    # Headers come in any order.
    turned = GIVEN._replace(headers=tuple(reversed(tuple(GIVEN.headers))))
    assert is_proven_answer(RING, given_proof, turned, asked)
    assert not is_proven_answer(RING, given_proof, GIVEN, proof("another"))
    assert not is_proven_answer(KeyRing(Key(b"b" * 32)), given_proof, GIVEN, asked)
    assert not is_proven_answer(RING, asked, GIVEN, asked)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": 200},
        {"content_type": b"text/plain"},
        {"headers": ()},
        {"headers": ((b"retry-after", b"2"), (b"x-served-by", b"two"))},
        {"body": b"[1]"},
    ],
    ids=str,
)
def test_every_part_of_an_answer_is_covered(changes: dict[str, object]) -> None:
    assert not is_proven_answer(RING, prove_answer(RING, GIVEN, proof()), GIVEN._replace(**changes), proof())


@given(st.binary(max_size=200) | st.from_regex(rb"\A[0-9a-f.]{0,120}\Z"))
def test_no_bytes_whatever_prove_an_answer(forged: bytes) -> None:
    assert not is_proven_answer(RING, forged, GIVEN, proof())
