from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queenmq.errors import HttpError
from queenmq.httpserver.limits import Limits
from queenmq.httpserver.messages import Request
from queenmq.httpserver.reader import RequestReader

SMALL = Limits(max_body_bytes=1000, max_target_bytes=2000, max_header_bytes=8000)


def read(*slices: bytes, limits: Limits = SMALL) -> list[Request]:
    ready: list[Request] = []
    reader = RequestReader(limits, ready)
    for data in slices:
        reader.feed(data)
    return ready


def refused(*slices: bytes) -> HttpError:
    with pytest.raises(HttpError) as caught:
        read(*slices)
    return caught.value


def head(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"", b""])


def test_a_request() -> None:
    (request,) = read(head(b"POST /a/%2F?x=1&y HTTP/1.1", b"Host: h", b"CONTENT-length: 2") + b"{}")
    assert (request.method, request.path, request.query_string) == ("POST", "/a/%2F", b"x=1&y")
    assert request.headers == {b"host": b"h", b"content-length": b"2"}
    assert (request.body, request.keep_alive) == (b"{}", True)
    assert (request.params, request.subject, request.held) == ((), None, False)


@pytest.mark.parametrize(
    ("line", "path", "query"),
    [
        (b"GET http://host:1/p?q HTTP/1.1", "/p", b"q"),
        (b"GET http://host HTTP/1.1", "/", b""),
        (b"OPTIONS * HTTP/1.1", "*", b""),
        (b"PROPFIND /x HTTP/1.1", "/x", b""),
    ],
)
def test_targets(line: bytes, path: str, query: bytes) -> None:
    (request,) = read(head(line))
    assert (request.path, request.query_string) == (path, query)


@pytest.mark.parametrize(
    ("line", "header", "keep_alive"),
    [
        (b"GET / HTTP/1.1", b"A: b", True),
        (b"GET / HTTP/1.1", b"Connection: close", False),
        (b"GET / HTTP/1.0", b"A: b", False),
        (b"GET / HTTP/1.0", b"Connection: keep-alive", True),
    ],
)
def test_keep_alive(line: bytes, header: bytes, keep_alive: bool) -> None:
    (request,) = read(head(line, header))
    assert request.keep_alive is keep_alive


def test_what_follows_the_last_request_is_ignored() -> None:
    ready: list[Request] = []
    reader = RequestReader(SMALL, ready)
    reader.feed(head(b"GET / HTTP/1.1", b"Connection: close") + b"\x00\x01 whatever")
    assert (reader.ended, len(ready)) == (True, 1)


def test_repeated_headers_are_joined() -> None:
    (request,) = read(head(b"GET / HTTP/1.1", b"A: 1", b"a: 2", b"Cookie: x=1", b"cookie: y=2"))
    assert request.headers == {b"a": b"1, 2", b"cookie": b"x=1; y=2"}


@pytest.mark.parametrize("name", [b"Host", b"Authorization", b"Content-Length", b"Content-Type"])
def test_headers_that_may_not_be_repeated(name: bytes) -> None:
    assert refused(head(b"GET / HTTP/1.1", name + b": 1", name + b": 1")).status == 400


def test_joining_headers_is_bounded() -> None:
    assert refused(head(b"GET / HTTP/1.1", *[b"A: 1"] * 200)).status == 431
    many = head(b"GET / HTTP/1.1", *[b"A: 1"] * 60)
    assert len(read(many * 5)) == 5


def test_chunks_and_trailers() -> None:
    data = head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked") + (
        b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nAuthorization: evil\r\n\r\n"
    )
    first, second = read(data + head(b"GET /next HTTP/1.1", b"A: b"))
    assert first.body == b"abcde"
    assert first.headers == {b"transfer-encoding": b"chunked"}
    assert (second.path, second.body, second.headers) == ("/next", b"", {b"a": b"b"})


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        head(b"GET / HTTP/1.1", b"no colon"),
        head(b"GET /\xff HTTP/1.1"),
        head(b"POST / HTTP/1.1", b"Content-Length: -1"),
        head(b"POST / HTTP/1.1", b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked") + b"zz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_http(data: bytes) -> None:
    error = refused(data)
    assert (error.status, error.code) == (400, "bad_http")


def test_a_body_that_is_announced_too_large_is_refused_before_it_comes() -> None:
    assert refused(head(b"POST / HTTP/1.1", b"Content-Length: 1001")).status == 413
    assert refused(head(b"POST / HTTP/1.1", b"Content-Length: 1001") + b"x" * 1001).status == 413
    assert len(read(head(b"POST / HTTP/1.1", b"Content-Length: 1000") + b"x" * 1000)) == 1


def test_a_chunked_body_is_refused_while_it_grows() -> None:
    chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
    start = head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked")
    assert len(read(start, *[chunk] * 10, b"0\r\n\r\n")) == 1
    assert refused(start, *[chunk] * 11).status == 413
    assert refused(start + chunk * 11 + b"0\r\n\r\n").status == 413


def test_targets_and_headers_that_are_too_long() -> None:
    assert refused(head(b"GET /" + b"x" * 2000 + b" HTTP/1.1")).status == 414
    parts = [b"GET / HTTP/1.1\r\nA: ", *[b"x" * 4000] * 4]
    assert refused(*parts).status == 431
    assert refused(*parts[:-1], b"y\r\n\r\n").status == 431
    assert refused(b"GET /", *parts[1:]).status in (414, 431)


def test_requests_before_a_partial_head_do_not_count_for_it() -> None:
    before = head(b"GET / HTTP/1.1") * 400
    assert len(read(before + b"GET / HT", b"TP/1.1\r\nA: " + b"x" * 2000, b"\r\n\r\n")) == 401


@pytest.mark.parametrize("endless", [b"1;" + b"e" * 4000, b"0\r\nT: " + b"t" * 4000])
def test_chunk_extensions_and_trailers_are_bounded(endless: bytes) -> None:
    start = head(b"POST / HTTP/1.1", b"Transfer-Encoding: chunked")
    assert refused(start, endless, *[b"x" * 4000] * 4).status == 400


def test_expect_continue() -> None:
    reader = RequestReader(SMALL, [])
    states = []
    start = head(b"POST / HTTP/1.1", b"Expect: 100-Continue", b"Content-Length: 3")
    for data in (start, b"abc", start + b"a"):
        reader.feed(data)
        states.append(reader.expects_continue)
    assert states == [True, False, False]


def test_partial_tells_whether_a_request_is_on_its_way() -> None:
    reader = RequestReader(SMALL, [])
    states = []
    for data in (b"GET /", b"x HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n1", b"2"):
        reader.feed(data)
        states.append((reader.partial, reader.body_bytes))
    assert states == [(True, 0), (False, 0), (True, 1), (False, 0)]


@pytest.mark.parametrize(
    ("framing", "body"),
    [(b"Content-Length: 3", b"abc"), (b"Transfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n")],
)
def test_an_upgrade_is_ignored(framing: bytes, body: bytes) -> None:
    upgrade = head(b"POST /x?y HTTP/1.1", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"A: b", framing)
    for data in ([upgrade + body + head(b"GET /next HTTP/1.1")], [upgrade, body, head(b"GET /next HTTP/1.1")]):
        first, second = read(*data)
        assert (first.method, first.path, first.query_string, first.body) == ("POST", "/x", b"y", b"abc")
        assert first.headers[b"a"] == b"b"
        assert b"upgrade" not in first.headers
        assert first.keep_alive
        assert second.path == "/next"


def test_many_upgrades_in_one_slice() -> None:
    assert len(read(head(b"GET / HTTP/1.1", b"Connection: upgrade", b"Upgrade: x") * 700)) == 700


def test_connect_is_refused() -> None:
    assert refused(head(b"CONNECT host:80 HTTP/1.1")).status == 405


STREAM = (
    head(b"GET /1?a=b HTTP/1.1", b"Host: h")
    + head(b"POST /2 HTTP/1.1", b"Content-Length: 5")
    + b"12345"
    + head(b"POST /3 HTTP/1.1", b"Transfer-Encoding: chunked", b"A: 1", b"A: 2")
    + b"1\r\nx\r\nA\r\n0123456789\r\n0\r\nT: t\r\n\r\n"
    + head(b"PUT /4 HTTP/1.1", b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 2")
    + b"ok"
    + b"\r\n"
    + head(b"GET /5 HTTP/1.1", b"Connection: close")
)


def summary(requests: list[Request]) -> list[tuple[object, ...]]:
    return [(r.method, r.path, r.query_string, r.headers, r.body, r.keep_alive) for r in requests]


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
@example(list(range(len(STREAM))))
def test_the_slicing_makes_no_difference(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    slices = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    assert summary(read(*slices)) == summary(read(STREAM))
    assert [r.path for r in read(STREAM)] == ["/1", "/2", "/3", "/4", "/5"]
    assert [r.body for r in read(STREAM)] == [b"", b"12345", b"x0123456789", b"ok", b""]
