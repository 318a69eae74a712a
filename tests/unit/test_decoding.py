"""The sentence about a body that is of the wrong kind."""

from __future__ import annotations

import msgspec
import pytest

from queenmq.core.options import QueueOptions
from queenmq.errors import InvalidRequest
from queenmq.http.decoding import decode

_DECODER = msgspec.json.Decoder(QueueOptions)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[]", "the request body must be an object, not an array"),
        (b'{"leaseTime":"x"}', "leaseTime must be an integer, not a string"),
        (b'{"leaseTime":1.5}', "leaseTime must be an integer, not a decimal number"),
        (b'{"leaseTime":-5}', "leaseTime must be an integer >= 0"),
        (b'{"ttl":"x"}', "ttl must be an integer or null, not a string"),
        (b'{"retentionEnabled":"yes"}', "retentionEnabled must be true or false, not a string"),
    ],
)
def test_a_value_of_the_wrong_kind(body: bytes, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(body, _DECODER)
    assert refused.value.message == sentence
