"""From bytes to checked values: JSON bodies, query parameters, and the sentence when they are wrong.

Payloads are carried as raw JSON (`msgspec.Raw`), never decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from queenmq.core.names import check_name, parse_timestamp
from queenmq.errors import InvalidJson, InvalidRequest
from queenmq.httpserver.messages import Request
from queenmq.ids import is_uuid

Body = TypeVar("Body")

_COMPLAINT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_MISTYPED = re.compile(r"Expected `(?P<kind>[^`]+)`(?P<bound> [<>]=? \S+)?(?:, got `(?P<got>[^`]+)`)?")
_INDEX = re.compile(r"\[\d+\]")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_KINDS = {
    "int": "an integer",
    "float": "a decimal number",
    "bool": "true or false",
    "str": "a string",
    "array": "an array",
    "object": "an object",
}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}

_BINARY = (b"QPB1", b"QTB1")  # of published clients with `binary_push`

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1


def decode(
    body: bytes, decoder: msgspec.json.Decoder[Body], texts: Mapping[str, str] | None = None, *, empty: bytes = b""
) -> Body:
    """Decode a body, or raise the error that names the field.

    `texts` has the sentence for a field, with `[]` for any index. `empty` stands in for an empty body.
    """
    if not body:
        if not empty:
            raise InvalidJson("Empty request body")
        body = empty
    _check_utf8(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error), texts or {}) from None
    except msgspec.DecodeError as error:
        raise _not_json(body, str(error)) from None
    except RecursionError:
        raise InvalidJson("Invalid JSON: nested too deeply") from None


def _check_utf8(body: bytes) -> None:
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError:
        raise _not_json(body, "the body is not valid UTF-8") from None


def _not_json(body: bytes, why: str) -> InvalidJson:
    if body.startswith(_BINARY):
        return InvalidJson("binary bodies are not supported: send JSON (binary_push and push_compression off)")
    return InvalidJson(f"Invalid JSON: {why}")


def _explain(complaint: str, texts: Mapping[str, str]) -> InvalidRequest:
    match = _COMPLAINT.match(complaint)
    what, path = (match["what"], match["path"]) if match else (complaint, None)
    field = (path or "$").removeprefix("$").removeprefix(".")
    missing = _MISSING.search(what)
    if missing:
        field = f"{field}.{missing['name']}".removeprefix(".")
        what = "is required"
    text = texts.get(_INDEX.sub("[]", field))
    if text is None:
        where = field or "the request body"
        mistyped = _MISTYPED.fullmatch(what)
        if mistyped:
            got = f", not {_kinds(mistyped['got'])}" if mistyped["got"] else ""
            text = f"{where} must be {_kinds(mistyped['kind'])}{mistyped['bound'] or ''}{got}"
        else:
            text = f"{where}: {what[:1].lower()}{what[1:]}".replace("`", "'")
    return InvalidRequest(text, field or None)


def _kinds(names: str) -> str:
    """Kinds of JSON in words; several are separated as msgspec does it."""
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))


def query_flag(query: Mapping[str, str], name: str, default: bool = False) -> bool:
    """A flag in any case; empty counts as absent. Raises InvalidRequest for anything else."""
    value = query.get(name)
    if not value:
        return default
    flag = _FLAGS.get(value.lower())
    if flag is None:
        raise InvalidRequest(f"{name} must be true or false", name)
    return flag


def query_integer(query: Mapping[str, str], name: str, default: int) -> int:
    """An integer parameter of 64 bits; empty counts as absent. Raises InvalidRequest for anything else."""
    value = query.get(name)
    if not value:
        return default
    if not _INTEGER.fullmatch(value) or not MIN_INTEGER <= int(value) <= MAX_INTEGER:
        raise InvalidRequest(f"{name} must be an integer of 64 bits", name)
    return int(value)


def query_count(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A whole number from 0 on, cut to `most`. Raises InvalidRequest for a negative one."""
    value = query_integer(query, name, default)
    if value < 0:
        raise InvalidRequest(f"{name} must not be negative", name)
    return min(value, most)


def query_name(query: Mapping[str, str], name: str) -> str | None:
    """An optional parameter that names something; empty counts as absent."""
    value = query.get(name)
    if not value:
        return None
    check_name(value, name)
    return value


def query_group(query: Mapping[str, str]) -> str | None:
    """The parameter `consumerGroup`. Raises InvalidRequest for one called `group`, which can only mean the same."""
    if "group" in query:
        raise InvalidRequest("group is not a parameter here: name the group as consumerGroup", "group")
    return query_name(query, "consumerGroup")


def query_word(query: Mapping[str, str], name: str, words: tuple[Any, ...]) -> Any:
    """One of the words, or None if the parameter is absent or empty."""
    given = query.get(name) or None
    if given is not None and given not in words:
        raise InvalidRequest(f"{name} must be one of {', '.join(words)}", name)
    return given


def query_time(query: Mapping[str, str], name: str) -> datetime | None:
    """An optional timestamp."""
    value = query.get(name)
    return parse_timestamp(value, name) if value else None


def message_key(request: Request) -> tuple[str, str]:
    """The partition id and transaction id of a path. Raises InvalidRequest if they cannot be ones."""
    partition_id, transaction_id = request.params
    if not is_uuid(partition_id):
        raise InvalidRequest("partitionId must be a UUID", "partitionId")
    check_name(transaction_id, "transactionId")
    return partition_id, transaction_id
