"""What can be pushed beside plain JSON, what is refused, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from pydantic import BaseModel, Field, RootModel, SecretStr, field_serializer

from queenmq.client import Content, InvalidItem, InvalidPayload, Item, Message
from queenmq.client.items import to_push_items
from queenmq.client.payload import decode, encode, encode_content

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
ID = UUID("018f0000-0000-7000-8000-000000000001")
PNG = Content(b"png", "image/png")


class Colour(Enum):
    RED = "red"


class Money(msgspec.Struct, rename="camel"):
    amount_due: Decimal
    seal: bytes = b""


class Address(BaseModel):
    zip_code: str = Field(alias="zipCode")


@dataclass
class Order:
    number: int
    at: datetime
    price: Money
    to: Address
    colours: list[Colour] = field(default_factory=list)


ORDER = Order(2**70, NOON, Money(Decimal("1.50"), b"\x00"), Address(zipCode="8000"), [Colour.RED])


def message(raw: Raw) -> Message:
    return Message(id="", transaction_id="", partition_id="", raw=raw)


def test_models_become_objects_with_exact_values() -> None:
    assert json.loads(bytes(encode(ORDER))) == {
        "number": 2**70,
        "at": "2026-11-18T12:00:00Z",
        "price": {"amountDue": "1.50", "seal": "AA=="},
        "to": {"zipCode": "8000"},
        "colours": ["red"],
    }


@pytest.mark.parametrize("one", [ORDER.price, Address(zipCode="8000"), NOON, ID, Decimal("0.10"), Colour.RED])
def test_what_was_pushed_comes_back_as_its_type(one: Any) -> None:
    assert message(encode(one)).decode(type(one)) == one
    assert message(encode([one])).decode(list[type(one)]) == [one]  # type: ignore[misc]


def test_other_types_are_written_as_iso_8601_and_read_as_such() -> None:
    raw = encode({"day": date(2026, 11, 18), "pause": timedelta(seconds=90), "more": MappingProxyType({"id": ID})})
    assert decode(raw) == {"day": "2026-11-18", "pause": "PT90S", "more": {"id": str(ID)}}


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (datetime(2026, 11, 18), "has no time zone"),
        ([Money(Decimal("NaN"))], "is no number"),
        (b"bytes", "bytes are no JSON"),
        ({1, 2}, "a set has no order"),
        ({1: "one"}, "the key 1 is no string"),
        ([{"a": ({True: 0},)}], "the key True is no string"),
        (MappingProxyType({None: 1}), "the key None is no string"),
        (object(), "object is not a type that can be pushed"),
        ({"a": lambda: None}, "function is not a type that can be pushed"),
        (float("nan"), "not JSON compliant"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_what_could_be_meant_in_two_ways_is_refused(payload: Any, why: str) -> None:
    with pytest.raises(InvalidPayload, match=why):
        encode(payload)


@dataclass
class InDataclass:
    inner: Any


class InStruct(msgspec.Struct):
    inner: Any


class InPydantic(BaseModel):
    inner: Any


class InRoot(RootModel[Any]):
    pass


def in_enum(inner: Any) -> Enum:
    return Enum("Some", {"ONE": inner}).ONE  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(
    "model",
    [
        InDataclass,
        InStruct,
        attrs.make_class("InAttrs", ["inner"]),
        lambda inner: InPydantic(inner=inner),
        InRoot,
        in_enum,
        lambda inner: [InDataclass((InStruct({"a": InPydantic(inner=[inner])}),))],
        lambda inner: InPydantic(inner=InDataclass([inner])),
        lambda inner: MappingProxyType({"a": InStruct(MappingProxyType({"b": inner}))}),
    ],
    ids=["dataclass", "msgspec", "attrs", "pydantic", "root", "enum", "nested", "pydantic of dataclass", "mapping"],
)
@pytest.mark.parametrize(
    ("inner", "why"),
    [
        ({1: "a", "1": "b"}, "the key 1 is no string"),
        ({ID: "a", str(ID): "b"}, "the key UUID.* is no string"),
        ({"a": [{True: 0}]}, "the key True is no string"),
        ({None: 0}, "the key None is no string"),
        ({1.5: 0}, "the key 1.5 is no string"),
        ({1, 2}, "a set has no order"),
        ([frozenset()], "a set has no order"),
        (datetime(2026, 11, 18), "has no time zone"),
        (float("inf"), "is no number"),
        (Decimal("NaN"), "is no number"),
        (SecretStr("key"), "asterisks"),
    ],
    ids=repr,
)
def test_models_refuse_what_is_refused_without_them(model: Any, inner: Any, why: str) -> None:
    with pytest.raises(InvalidPayload, match=why):
        encode(model(inner))


def test_a_model_that_says_how_a_set_is_written_can_be_pushed() -> None:
    class Tagged(BaseModel):
        tags: set[str]

        @field_serializer("tags")
        def sort(self, tags: set[str]) -> list[str]:
            return sorted(tags)

    assert decode(encode(Tagged(tags={"b", "a"}))) == {"tags": ["a", "b"]}


@given(st.binary())
def test_bytes_come_back_with_their_content_type(data: bytes) -> None:
    content = Content(data, "image/png")
    [sent] = to_push_items(Item(content, headers={"country": "IT"}), "q", "p")
    assert sent.headers == {"content-type": "image/png", "content-encoding": "base64", "country": "IT"}
    received = msgspec.json.decode(
        msgspec.json.encode(
            {"id": "1", "transactionId": "1", "partitionId": "1", "data": sent.payload, "headers": sent.headers}
        ),
        type=Message,
    )
    assert received.content == content
    assert received.decode(bytes) == data


def test_what_was_not_pushed_as_content_has_none() -> None:
    assert message(Raw(b'"aGVsbG8="')).content is None
    said = Message(id="1", transaction_id="1", partition_id="1", raw=Raw(b"17"), headers=encode_content(PNG)[1])
    with pytest.raises(InvalidPayload, match="no Base64"):
        assert said.content is None


@pytest.mark.parametrize("payload", [[PNG], {"picture": PNG}, PNG], ids=str)
def test_content_is_no_part_of_a_payload(payload: Any) -> None:
    with pytest.raises(InvalidPayload, match="the whole payload"):
        encode(payload)


@pytest.mark.parametrize("parts", [("text", "text/plain"), (b"bytes", ""), (b"bytes", None), (b"bytes", "png")])
def test_content_is_bytes_of_a_type(parts: Any) -> None:
    with pytest.raises(InvalidPayload):
        Content(*parts)


@pytest.mark.parametrize("name", ["content-type", "Content-Encoding"])
def test_headers_do_not_contradict_the_content(name: str) -> None:
    with pytest.raises(InvalidItem, match="leave these headers out"):
        to_push_items(Item(PNG, headers={name: "text/plain"}), "q", "p")


@pytest.mark.parametrize(("kind", "name"), [(Order, "Order"), (Address, "Address"), (list[int], "list")])
def test_a_payload_of_another_form_is_named(kind: Any, name: str) -> None:
    with pytest.raises(InvalidPayload, match=f"the payload is no {name}: "):
        message(Raw(b'{"number": "x"}')).decode(kind)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_plain_json_keeps_its_value(value: Any) -> None:
    assert decode(encode(value)) == value


@given(st.dictionaries(st.text() | st.integers() | st.booleans(), st.none(), min_size=1))
def test_keys_are_strings_or_refused(value: Mapping[Any, None]) -> None:
    if all(isinstance(key, str) for key in value):
        assert decode(encode(value)) == value
    else:
        with pytest.raises(InvalidPayload):
            encode(value)
