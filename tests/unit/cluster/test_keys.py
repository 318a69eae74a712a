"""Secrets: what is accepted, and that none is ever shown."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.cluster.keys import Key, KeyRing, derive, parse_secret

SECRET = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "text", ["", "ab", SECRET[:-1], SECRET + "0", SECRET[:-1] + "g", " " + SECRET[1:], SECRET + "\n"]
)
def test_a_malformed_secret_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits") as refused:
        parse_secret(text)
    assert len(text) < 4 or text not in str(refused.value)
    assert refused.value.__cause__ is None


def test_no_secret_shows() -> None:
    ring = KeyRing(parse_secret(SECRET), parse_secret("ff" * 32))
    for shown in (repr(ring), str(ring), repr(ring.current), f"{ring.current}"):
        assert SECRET not in shown.lower()
        assert "ff" * 32 not in shown
        assert repr(bytes.fromhex(SECRET)) not in shown


def test_case_does_not_matter() -> None:
    assert parse_secret(SECRET.upper()).id == parse_secret(SECRET).id


@given(secret=st.binary(min_size=32, max_size=32), before=st.binary(), after=st.binary())
def test_the_signature_is_hmac_sha256_of_both_parts(secret: bytes, before: bytes, after: bytes) -> None:
    key = Key(secret)
    assert key.sign(before, after) == hmac.digest(derive(secret, b"packets"), before + after, hashlib.sha256)
    assert key.verifies(key.sign(before, after), before, after)
    assert not key.verifies(key.sign(before, after + b"x"), before, after)


def test_a_key_is_derived_as_rfc_5869_says() -> None:
    secret, salt = b"s" * 32, b"salt"
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    expanded = hmac.digest(extracted, b"queen cluster, packets\x01", hashlib.sha256)
    assert derive(secret, b"packets", salt) == expanded
    assert derive(secret, b"packets", salt, 16) == expanded[:16]


def test_each_purpose_has_a_key_of_its_own() -> None:
    key = Key(b"1" * 32)
    made = {key.sign(b"", b"said"), key.sign_greeting(b"said"), hmac.digest(b"1" * 32, b"said", hashlib.sha256)}
    made |= {hmac.digest(key.connections, b"said", hashlib.sha256)}
    assert len(made) == 4


def test_the_ring_finds_both_keys_and_no_other() -> None:
    current, previous, other = Key(b"1" * 32), Key(b"2" * 32), Key(b"3" * 32)
    ring = KeyRing(current, previous)
    assert [ring.find(key.id) for key in (current, previous, other)] == [current, previous, None]
    assert len({current.id, previous.id, other.id}) == 3
