"""Payloads between Python and JSON. What the server stored is kept as it came, and parsed when asked for."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from queenmq.client.errors import InvalidPayload

T = TypeVar("T")
CONTENT_TYPE: Final = "content-type"
CONTENT_ENCODING: Final = "content-encoding"
_BASE64: Final = "base64"
_MOST_SHOWN: Final = 200


class Dataclass(Protocol):
    """What dataclasses (and those of pydantic) have in common."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes that are the whole payload of a message, and what they are: `push(Content(png, "image/png"))`.

    They are stored as a JSON string in Base64, with the headers `content-type` and `content-encoding: base64`, so that
    clients in other languages can read them.
    """

    data: bytes
    content_type: str

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            raise InvalidPayload(f"content is bytes, not {type(self.data).__name__}")
        if not isinstance(self.content_type, str) or "/" not in self.content_type:
            raise InvalidPayload(f"{self.content_type!r} is no content type, such as application/pdf")


class PydanticModel(Protocol):
    """What is used of a model of pydantic, which need not be installed."""

    def model_dump(self, *, mode: str, by_alias: bool) -> dict[str, Any]: ...


Payload: TypeAlias = (
    Mapping[str, Any]
    | list[Any]
    | tuple[Any, ...]
    | str
    | float
    | Raw
    | Struct
    | Dataclass
    | PydanticModel
    | Decimal
    | date
    | time
    | timedelta
    | UUID
    | Enum
    | None
)
"""What can be pushed. An `int` is a `float` for type checkers, a `bool` an `int`, and a `datetime` a `date`."""


def encode(value: Payload) -> Raw:
    """`value` as JSON; a `msgspec.Raw` is JSON already and goes as it is. Raises InvalidPayload.

    With the standard library's encoder: integers of any size stay exact, NaN is refused instead of becoming null, and
    so are lone surrogates, which no server would take. What JSON has no word for is written as `_plain` says. What
    could be meant in two ways is refused, in models too: keys that are no strings, a datetime without a time zone,
    bytes that are no field of a model, sets.
    """
    if isinstance(value, Raw):
        return value
    try:
        _check_keys(value)
        text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Raw(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"the payload cannot be written as JSON: {error}") from error


def decode(raw: Raw) -> Any:
    """The Python value; integers of any size are exact."""
    return json.loads(bytes(raw))


def decode_as(raw: Raw, kind: type[T]) -> T:
    """The payload as a `kind`: a model of pydantic, or anything that msgspec knows. Raises InvalidPayload."""
    try:
        return msgspec.json.decode(raw, type=kind, dec_hook=_validated)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidPayload(f"the payload is no {getattr(kind, '__name__', kind)}: {error}") from error


def encode_content(content: Content) -> tuple[Raw, dict[str, str]]:
    """The payload and the headers of a message with this content."""
    headers = {CONTENT_TYPE: content.content_type, CONTENT_ENCODING: _BASE64}
    return Raw(b'"' + b64encode(content.data) + b'"'), headers


def decode_content(raw: Raw, headers: Mapping[str, str]) -> Content | None:
    """The content of a message that has been pushed as such; None of another. Raises InvalidPayload."""
    if headers.get(CONTENT_ENCODING) != _BASE64 or CONTENT_TYPE not in headers:
        return None
    try:
        return Content(b64decode(decode(raw), validate=True), headers[CONTENT_TYPE])
    except (TypeError, ValueError) as error:
        raise InvalidPayload(f"the payload is no Base64, although its header says so: {error}") from error


def _check_keys(value: Any) -> None:
    """JSON has only strings for keys: 1 and "1" would become the same."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no string")
            if isinstance(inner, (dict, list, tuple)):
                _check_keys(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            if isinstance(inner, (dict, list, tuple)):
                _check_keys(inner)


def _plain(value: Any) -> Any:
    """What JSON has instead: objects of models, and strings of UUIDs, moments, durations (ISO 8601) and decimals."""
    _check(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError("bytes are no JSON; push Content(…, content_type) as a whole message, or text")
    if isinstance(value, Mapping):
        return dict(value)
    return msgspec.to_builtins(value, enc_hook=_dumped)


def _check(value: Any) -> None:
    """Refuse, at any depth, what msgspec and pydantic would write but change: two keys that become one, for example."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no string")
            _check(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check(inner)
    elif isinstance(value, (set, frozenset)):
        raise TypeError("a set has no order; push a list instead, for example sorted(...)")
    elif isinstance(value, datetime):
        if value.tzinfo is None:
            raise TypeError(f"{value!r} has no time zone; give it one, for example UTC")
    elif isinstance(value, float):
        if not isfinite(value):
            raise TypeError(f"{value!r} is no number that JSON can write")
    elif isinstance(value, Decimal):
        if not value.is_finite():
            raise TypeError(f"{value!r} is no number")
    elif isinstance(value, Content):
        raise TypeError("Content is the whole payload of a message that is pushed, and not a part of one")
    elif isinstance(value, Enum):
        _check(value.value)
    elif hasattr(value, "get_secret_value"):
        raise TypeError(f"{type(value).__name__} would be stored as asterisks; push its value if it may be stored")
    else:
        for name in _fields(type(value)):
            _check(getattr(value, name, None))


def _fields(kind: type) -> Iterable[str]:
    """The fields of a model of msgspec, dataclasses or attrs. What pydantic has is seen when it has been dumped."""
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    if is_dataclass(kind):
        return (field.name for field in fields(kind))
    return (attribute.name for attribute in getattr(kind, "__attrs_attrs__", ()))


def _dumped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if not hasattr(value, "model_dump"):
        raise TypeError(f"{type(value).__name__} is not a type that can be pushed")
    # As JSON, pydantic has made strings of keys, lists of sets and null of NaN: they are found before.
    _check(value.model_dump(mode="python", by_alias=True))
    return value.model_dump(mode="json", by_alias=True)


def _validated(kind: Any, value: Any) -> Any:
    if not hasattr(kind, "model_validate"):
        raise TypeError(f"{kind.__name__} is not a type that a payload can be decoded to")
    # As from JSON, where a date is a string.
    return kind.model_validate_json(json.dumps(value))


def described(message: Any) -> str:
    """A message for people: what of it is set, and the beginning of its payload instead of all of its bytes."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__ if name != "raw"}
    said = [f"{name}={value!r}" for name, value in fields.items() if value not in (None, "", {}, 0, False)]
    raw = bytes(message.raw).decode(errors="replace")
    cut = raw if len(raw) <= _MOST_SHOWN else raw[:_MOST_SHOWN] + "…"
    return f"{type(message).__name__}({', '.join([*said, f'data={cut}'])})"
