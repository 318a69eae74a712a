"""Payloads at rest: bound to their message, by one of several keys; and records from before that."""

from __future__ import annotations

import base64
import json
import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.encryption import DecryptionFailed, PayloadKeys, Place, fingerprint, is_bound
from queenmq.errors import QueenError

KEY, OTHER = bytes(range(32)), bytes(32)
KEYS = PayloadKeys([KEY])
HERE = Place("orders", "customer-1", "t-1")
keys = st.binary(min_size=32, max_size=32)
places = st.builds(Place, st.text(), st.text(), st.text())


def unbound(key: bytes, payload: bytes) -> bytes:
    """A record as they were made before."""
    iv = os.urandom(16)
    sealed = AESGCM(key).encrypt(iv, payload, None)
    parts = {"encrypted": sealed[:-16], "iv": iv, "authTag": sealed[-16:]}
    return json.dumps({name: base64.b64encode(part).decode() for name, part in parts.items()}).encode()


@given(key=keys, payload=st.binary(), place=places)
def test_round_trip_is_byte_exact(key: bytes, payload: bytes, place: Place) -> None:
    assert PayloadKeys([key]).decrypt(PayloadKeys([key]).encrypt(payload, place), place) == payload


def test_a_large_payload_survives() -> None:
    payload = os.urandom(5_000_000)
    assert KEYS.decrypt(KEYS.encrypt(payload, HERE), HERE) == payload


def test_record_has_its_key_and_three_fields_in_base64() -> None:
    stored = KEYS.encrypt(b'{"n":1}', HERE)
    record = json.loads(stored)
    assert list(record) == ["key", "encrypted", "iv", "authTag"]
    assert record.pop("key") == fingerprint(KEY)
    sizes = {name: len(base64.b64decode(text, validate=True)) for name, text in record.items()}
    assert sizes == {"encrypted": 7, "iv": 16, "authTag": 16}
    assert stored.startswith(KEYS.beginning)


@given(payload=st.binary(), place=places, other=places)
def test_a_record_opens_at_its_place_only(payload: bytes, place: Place, other: Place) -> None:
    stored = KEYS.encrypt(payload, place)
    assert is_bound(stored)
    if other == place:
        return
    with pytest.raises(DecryptionFailed, match="belongs to another message"):
        KEYS.decrypt(stored, other)


def test_names_do_not_run_into_each_other() -> None:
    stored = KEYS.encrypt(b"1", Place("ab", "c", "d"))
    for other in (Place("a", "bc", "d"), Place("abc", "", "d"), Place("ab", "cd", "")):
        with pytest.raises(DecryptionFailed):
            KEYS.decrypt(stored, other)


def test_a_bound_record_cannot_be_made_an_unbound_one() -> None:
    record = json.loads(KEYS.encrypt(b"1", HERE))
    del record["key"]
    with pytest.raises(DecryptionFailed):
        KEYS.decrypt(json.dumps(record).encode(), HERE)


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    both, swapped = PayloadKeys([OTHER, KEY]), PayloadKeys([KEY, OTHER])
    old, new = KEYS.encrypt(b"old", HERE), both.encrypt(b"new", HERE)
    assert [json.loads(one)["key"] for one in (old, new)] == [fingerprint(KEY), fingerprint(OTHER)]
    for ring in (both, swapped):
        assert (ring.decrypt(old, HERE), ring.decrypt(new, HERE)) == (b"old", b"new")
    with pytest.raises(DecryptionFailed, match=fingerprint(OTHER)):
        KEYS.decrypt(new, HERE)


def test_records_from_before_are_read_with_each_key() -> None:
    for key in (KEY, OTHER):
        stored = unbound(key, b"hello")
        assert not is_bound(stored)
        assert PayloadKeys([OTHER, KEY]).decrypt(stored, HERE) == b"hello"
    with pytest.raises(DecryptionFailed, match="wrong key"):
        KEYS.decrypt(unbound(OTHER, b"hello"), HERE)


def test_equal_payloads_give_different_records() -> None:
    assert KEYS.encrypt(b"x", HERE) != KEYS.encrypt(b"x", HERE)


@given(payload=st.binary(), other=keys.filter(lambda key: key != KEY))
def test_a_wrong_key_is_refused(payload: bytes, other: bytes) -> None:
    with pytest.raises(DecryptionFailed) as caught:
        PayloadKeys([other]).decrypt(KEYS.encrypt(payload, HERE), HERE)
    assert isinstance(caught.value, QueenError)
    assert caught.value.code == "decryption_failed"


@given(payload=st.binary(), field=st.sampled_from(["encrypted", "iv", "authTag"]), data=st.data())
def test_a_changed_bit_of_any_part_is_refused(payload: bytes, field: str, data: st.DataObject) -> None:
    record = json.loads(KEYS.encrypt(payload, HERE))
    part = bytearray(base64.b64decode(record[field]))
    if not part:
        part = bytearray(1)
    else:
        part[data.draw(st.integers(0, len(part) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    record[field] = base64.b64encode(part).decode()
    with pytest.raises(DecryptionFailed):
        KEYS.decrypt(json.dumps(record).encode(), HERE)


@given(payload=st.binary(), data=st.data())
def test_a_changed_byte_of_the_record_never_changes_the_payload(payload: bytes, data: st.DataObject) -> None:
    stored = bytearray(KEYS.encrypt(payload, HERE))
    stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert KEYS.decrypt(bytes(stored), HERE) == payload
    except DecryptionFailed as error:
        assert error.message.startswith("payload cannot be decrypted")


def test_bytes_cannot_move_from_the_payload_to_the_tag() -> None:
    record = json.loads(KEYS.encrypt(b"hello", HERE))
    sealed = base64.b64decode(record["encrypted"]) + base64.b64decode(record["authTag"])
    record["encrypted"] = base64.b64encode(sealed[:4]).decode()
    record["authTag"] = base64.b64encode(sealed[4:]).decode()
    with pytest.raises(DecryptionFailed):
        KEYS.decrypt(json.dumps(record).encode(), HERE)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"null",
        b"[]",
        b"not json",
        b"\xff\xfe",
        b'{"encrypted":"","iv":""}',
        b'{"encrypted":"","iv":"","authTag":""}',
        b'{"encrypted":"","iv":"","authTag":"AAAAAAAAAAAAAAAAAAAAAA=="}',
        b'{"encrypted":"","iv":"AAAAAAAAAAAAAAAAAAAAAA==","authTag":""}',
        b'{"encrypted":1,"iv":2,"authTag":3}',
        b'{"key":1,"encrypted":"","iv":"","authTag":""}',
        b'{"encrypted":"!!!!","iv":"!!!!","authTag":"!!!!"}',
        '{"encrypted":"é","iv":"é","authTag":"é"}'.encode(),
    ],
)
def test_what_is_no_record_is_refused(stored: bytes) -> None:
    with pytest.raises(DecryptionFailed, match="not an encrypted record"):
        KEYS.decrypt(stored, HERE)


@pytest.mark.parametrize("field", ["encrypted", "iv", "authTag"])
def test_base64_with_foreign_characters_is_refused(field: str) -> None:
    record = json.loads(KEYS.encrypt(b"hello", HERE))
    record[field] = "\n" + record[field]
    with pytest.raises(DecryptionFailed, match="not an encrypted record"):
        KEYS.decrypt(json.dumps(record).encode(), HERE)


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
def test_only_256_bit_keys_are_taken(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        PayloadKeys([bytes(size)])
    with pytest.raises(ValueError, match="no encryption key"):
        PayloadKeys([])
