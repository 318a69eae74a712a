"""A payload comes back as it was pushed, byte for byte up to whitespace outside strings, on every way out."""

from __future__ import annotations

import json
import re

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from server_settings import settings_with

from integration.queen import Queen
from queenmq.config import Settings

_OUTSIDE = re.compile(rb'("(?:[^"\\]|\\.)*+")|[ \t\r\n]+', re.DOTALL)


class Shown(msgspec.Struct):
    data: msgspec.Raw


class Messages(msgspec.Struct):
    messages: list[Shown]


def squeeze(text: bytes) -> bytes:
    """JSON text without the whitespace outside its strings."""
    return _OUTSIDE.sub(lambda match: match[1] or b"", text)


@pytest.fixture
def settings() -> Settings:
    return settings_with(server={"encryption_key": bytes(range(32))})


# JSON text, not values: what a value is spelled like is what this is about.

SPACE = st.sampled_from(["", "", " ", "\n", "\t", "\r\n", "  "])
HEX = "0123456789abcdefABCDEF"
ESCAPES = st.one_of(
    st.sampled_from(['\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\u0000", "\\u001F", "\\u00e9"]),
    st.text(HEX, min_size=4, max_size=4).filter(lambda h: h[0] not in "dD").map(lambda h: "\\u" + h),
    st.sampled_from(["\\ud83d\\ude00", "\\uD834\\uDD1E", "\\udbff\\udfff"]),
)
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters='"\\', min_codepoint=0x20)
STRINGS = st.lists(st.one_of(CHARACTERS, ESCAPES), max_size=20).map(lambda parts: '"' + "".join(parts) + '"')
DIGITS = st.text("0123456789", min_size=1, max_size=40)
INTEGERS = st.one_of(st.just("0"), st.tuples(st.sampled_from("123456789"), DIGITS).map("".join))
FRACTIONS = st.one_of(st.just(""), DIGITS.map(lambda d: "." + d))
EXPONENTS = st.one_of(
    st.just(""), st.tuples(st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), DIGITS).map("".join)
)
NUMBERS = st.tuples(st.sampled_from(["", "-"]), INTEGERS, FRACTIONS, EXPONENTS).map("".join)
SCALARS = st.one_of(STRINGS, NUMBERS, st.sampled_from(["null", "true", "false", "1e400", "-0", "1.0", "{}", "[]"]))


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    spaced = st.tuples(SPACE, inner, SPACE).map("".join)
    arrays = st.lists(spaced, max_size=5).map(lambda items: "[" + ",".join(items) + "]")
    # Keys come from few, so that they repeat.
    keys = st.one_of(st.sampled_from(['"a"', '"b"', '""', '"__proto__"', '"encrypted"']), STRINGS)
    members = st.tuples(SPACE, keys, SPACE, st.just(":"), spaced).map("".join)
    return st.one_of(arrays, st.lists(members, max_size=5).map(lambda items: "{" + ",".join(items) + "}"))


DOCUMENTS = st.recursive(SCALARS, containers, max_leaves=20).map(str.encode)
PROPERTY = hypothesis_settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

NASTY = [
    b"null",
    b"0",
    b"-0",
    b"-0.0e-0",
    b"1e400",
    b"-1E+400",
    b"0.1000000000000000055511151231257827021181583404541015625",
    b"9" * 4000,
    b"123456789012345678901234567890",
    b'""',
    b'"\\u0000"',
    b'{"\\u0000":"a\\u0000b"}',
    b'{"a":1,"a":2,"a":{"a":1,"a":1}}',
    b'{"encrypted":"x","iv":"y","authTag":"z"}',
    b'{"z":1,"a":2,"m":3}',
    b'"\\ud83d\\ude00 \\/ / \\u00e9 \xc3\xa9 \xf0\x9f\x98\x80 \xe2\x80\xa8 \x7f"',
    b'"' + "".join(chr(c) for c in range(0x80, 0x3000)).encode() + b'"',
    b'"' + "".join(chr(c) for c in range(0x10000, 0x10400)).encode() + b'"',
    b' \t\r\n[ 1 , 2 , { "a b" : " c  d " } ]\n',
    b"[" * 500 + b"]" * 500,
    b'{"a":' * 400 + b"null" + b"}" * 400,
    b'"' + b"x" * 2_000_000 + b'"',
    b"[" + b",".join(b'{"n":%d}' % n for n in range(150_000)) + b"]",
    b'"\\"' + b"\\\\" * 50_000 + b'"',
    b"[" + b"null," * 10_000 + b"1e400]",
]


async def push(http: httpx.AsyncClient, queue: str, payloads: list[bytes]) -> None:
    items = b",".join(b'{"queue":"%b","payload":%b}' % (queue.encode(), payload) for payload in payloads)
    answer = await http.post("/api/v1/push", content=b'{"items":[' + items + b"]}")
    assert answer.status_code == 201, answer.text


async def payloads_of(http: httpx.AsyncClient, target: str) -> list[bytes]:
    answer = await http.get(target)
    assert answer.status_code == 200, answer.text
    return [bytes(message.data) for message in msgspec.json.decode(answer.content, type=Messages).messages]


@PROPERTY
@given(payloads=st.lists(DOCUMENTS, min_size=1, max_size=20))
async def test_any_payload_round_trips(http: httpx.AsyncClient, payloads: list[bytes]) -> None:
    await push(http, "q", payloads)
    popped = await payloads_of(http, "/api/v1/pop/queue/q?batch=100&autoAck=true")
    assert [squeeze(payload) for payload in popped] == [squeeze(payload) for payload in payloads]


@PROPERTY
@given(payload=DOCUMENTS)
async def test_the_generated_documents_are_json(payload: bytes) -> None:
    json.loads(payload)
    assert json.loads(squeeze(payload)) == json.loads(payload)


@pytest.mark.parametrize("options", [{}, {"encryptionEnabled": True}], ids=["plain", "encrypted"])
async def test_nasty_payloads_survive_pop_and_dead_letters(
    queen: Queen, http: httpx.AsyncClient, options: dict[str, bool]
) -> None:
    await queen.configure("q", retryLimit=0, **options)
    wanted = [squeeze(payload) for payload in NASTY]
    for payload in NASTY:
        await push(http, "q", [payload])
    assert [squeeze(p) for p in await payloads_of(http, "/api/v1/pop/queue/q?batch=100&consumerGroup=a")] == wanted
    messages = await queen.pop("q", batch=100)
    await queen.ack_batch(messages, "dlq")
    dead = await payloads_of(http, "/api/v1/dlq?consumerGroup=__QUEUE_MODE__")
    assert sorted(squeeze(payload) for payload in dead) == sorted(wanted)


async def test_nasty_payloads_survive_a_transaction(http: httpx.AsyncClient) -> None:
    small = [payload for payload in NASTY if len(payload) < 1_000_000]
    items = b",".join(b'{"queue":"q","payload":%b}' % payload for payload in small)
    body = b'{"operations":[{"type":"push","items":[' + items + b"]}]}"
    assert (await http.post("/api/v1/transaction", content=body)).json()["success"] is True
    popped = await payloads_of(http, "/api/v1/pop/queue/q?batch=100")
    assert [squeeze(payload) for payload in popped] == [squeeze(payload) for payload in small]
