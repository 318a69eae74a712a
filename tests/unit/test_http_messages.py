from __future__ import annotations

import asyncio
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.errors import InternalError, InvalidRequest, Overloaded, Unauthenticated
from queenmq.httpserver.messages import Request, Response, head_of
from queenmq.httpserver.refusals import error_response


def query(raw: bytes) -> dict[str, str]:
    return Request("GET", "/", raw).query


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"a=1&b=two", {"a": "1", "b": "two"}),
        (b"a=1&a=2", {"a": "2"}),
        (b"a", {"a": ""}),
        (b"&&a=&=b&", {"a": "", "": "b"}),
        (b"a=x+y%2Bz", {"a": "x y+z"}),
        (b"a+b=1%20", {"a b": "1 "}),
        (b"a=b=c", {"a": "b=c"}),
        (b"a=%C3%A9%00", {"a": "é\0"}),
        (b"a=%zz%4", {"a": "%zz%4"}),
    ],
)
def test_query(raw: bytes, expected: dict[str, str]) -> None:
    assert query(raw) == expected


@pytest.mark.parametrize(("raw", "field"), [(b"ok=1&batch=%ff", "batch"), (b"%ff=1", "%ff")])
def test_a_query_that_is_not_utf8_names_the_parameter(raw: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        query(raw)
    assert caught.value.field == field
    assert field in caught.value.message


def test_the_query_is_decoded_once() -> None:
    request = Request("GET", "/", b"a=1")
    assert request.query is request.query


@given(st.dictionaries(st.text(), st.text()))
def test_every_query_comes_back(parameters: dict[str, str]) -> None:
    assert query(urlencode(parameters).encode()) == parameters


def test_a_half_closed_client_cannot_be_held() -> None:
    request = Request("GET", "/")
    request.hold()
    assert request.held
    with pytest.raises(asyncio.CancelledError):
        Request("GET", "/", half_closed=True).hold()


def test_the_head_of_an_answer() -> None:
    response = Response(201, body=b"[1]", headers=((b"X-One", b"1"), (b"X-Two", b"2")))
    assert head_of(response, True) == (
        b"HTTP/1.1 201 Created\r\n"
        b"Connection: keep-alive\r\n"
        b"Content-Type: application/json\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Cache-Control: no-store\r\n"
        b"Content-Length: 3\r\n"
        b"X-One: 1\r\n"
        b"X-Two: 2\r\n"
        b"\r\n"
    )


def test_no_content_has_neither_type_nor_length() -> None:
    head = head_of(Response(204), False)
    assert head.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert head.endswith(b"\r\nConnection: close\r\n\r\n")
    assert b"\r\nContent-" not in head


def test_a_status_without_a_name() -> None:
    assert head_of(Response(299), True).startswith(b"HTTP/1.1 299 Unknown\r\n")


def test_json() -> None:
    response = Response(200, {"a": [1, None, "é"]})
    assert (response.status, response.encode()) == (200, '{"a":[1,null,"é"]}'.encode())


def test_errors_as_answers() -> None:
    overloaded = error_response(Overloaded("busy", retry_after_s=7))
    assert (overloaded.status, overloaded.headers) == (429, ((b"Retry-After", b"7"),))
    assert overloaded.body == b'{"error":"busy","code":"overloaded"}'
    assert error_response(Unauthenticated("no")).headers == ((b"WWW-Authenticate", b"Bearer"),)
    assert error_response(InternalError()).body == b'{"error":"internal error","code":"internal_error"}'
