from __future__ import annotations

import base64
import json
import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.encryption import DecryptionFailed, decrypt, encrypt
from queenmq.errors import QueenError

KEY = bytes(range(32))
keys = st.binary(min_size=32, max_size=32)


@given(key=keys, payload=st.binary())
def test_round_trip_is_byte_exact(key: bytes, payload: bytes) -> None:
    assert decrypt(key, encrypt(key, payload)) == payload


def test_a_large_payload_survives() -> None:
    payload = os.urandom(5_000_000)
    assert decrypt(KEY, encrypt(KEY, payload)) == payload


def test_record_has_the_three_fields_in_base64() -> None:
    record = json.loads(encrypt(KEY, b'{"n":1}'))
    assert list(record) == ["encrypted", "iv", "authTag"]
    sizes = {name: len(base64.b64decode(text, validate=True)) for name, text in record.items()}
    assert sizes == {"encrypted": 7, "iv": 16, "authTag": 16}


def test_record_is_plain_aes_256_gcm() -> None:
    """Records of other writers of the same format can be read, whatever their JSON looks like."""
    iv = os.urandom(16)
    sealed = AESGCM(KEY).encrypt(iv, b"hello", None)
    parts = {"authTag": sealed[-16:], "iv": iv, "encrypted": sealed[:-16]}
    stored = json.dumps({name: base64.b64encode(part).decode() for name, part in parts.items()}, indent=2)
    assert decrypt(KEY, stored.encode()) == b"hello"


def test_equal_payloads_give_different_records() -> None:
    assert encrypt(KEY, b"x") != encrypt(KEY, b"x")


@given(payload=st.binary(), other=keys.filter(lambda key: key != KEY))
def test_a_wrong_key_is_refused(payload: bytes, other: bytes) -> None:
    with pytest.raises(DecryptionFailed) as caught:
        decrypt(other, encrypt(KEY, payload))
    assert isinstance(caught.value, QueenError)
    assert caught.value.code == "decryption_failed"


@given(payload=st.binary(), field=st.sampled_from(["encrypted", "iv", "authTag"]), data=st.data())
def test_a_changed_bit_of_any_part_is_refused(payload: bytes, field: str, data: st.DataObject) -> None:
    record = json.loads(encrypt(KEY, payload))
    part = bytearray(base64.b64decode(record[field]))
    if not part:
        part = bytearray(1)
    else:
        part[data.draw(st.integers(0, len(part) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    record[field] = base64.b64encode(part).decode()
    with pytest.raises(DecryptionFailed):
        decrypt(KEY, json.dumps(record).encode())


@given(payload=st.binary(), data=st.data())
def test_a_changed_byte_of_the_record_never_changes_the_payload(payload: bytes, data: st.DataObject) -> None:
    stored = bytearray(encrypt(KEY, payload))
    stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert decrypt(KEY, bytes(stored)) == payload
    except DecryptionFailed as error:
        assert error.message.startswith("payload cannot be decrypted")


def test_bytes_cannot_move_from_the_payload_to_the_tag() -> None:
    record = json.loads(encrypt(KEY, b"hello"))
    sealed = base64.b64decode(record["encrypted"]) + base64.b64decode(record["authTag"])
    record["encrypted"] = base64.b64encode(sealed[:4]).decode()
    record["authTag"] = base64.b64encode(sealed[4:]).decode()
    with pytest.raises(DecryptionFailed):
        decrypt(KEY, json.dumps(record).encode())


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
        b'{"encrypted":"!!!!","iv":"!!!!","authTag":"!!!!"}',
        '{"encrypted":"é","iv":"é","authTag":"é"}'.encode(),
    ],
)
def test_what_is_no_record_is_refused(stored: bytes) -> None:
    with pytest.raises(DecryptionFailed, match="not an encrypted record"):
        decrypt(KEY, stored)


@pytest.mark.parametrize("field", ["encrypted", "iv", "authTag"])
def test_base64_with_foreign_characters_is_refused(field: str) -> None:
    record = json.loads(encrypt(KEY, b"hello"))
    record[field] = "\n" + record[field]
    with pytest.raises(DecryptionFailed, match="not an encrypted record"):
        decrypt(KEY, json.dumps(record).encode())


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33])
def test_only_256_bit_keys_are_taken(size: int) -> None:
    stored = encrypt(KEY, b"x")
    with pytest.raises(ValueError, match="32 bytes"):
        encrypt(bytes(size), b"x")
    with pytest.raises(ValueError, match="32 bytes"):
        decrypt(bytes(size), stored)
