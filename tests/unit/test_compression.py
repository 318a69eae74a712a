"""Which coding an answer gets, with and without the library of Brotli."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from queenmq.http import compression
from queenmq.http.compression import Coding, chosen, compressed
from queenmq.http.routes.dashboard import PageFile, served
from queenmq.httpserver.messages import Request, Response

BOTH = dict.fromkeys((b"br", b"gzip"), Coding(bytes, bytes))
ONE = {b"gzip": BOTH[b"gzip"]}


def asking(accepted: str) -> Request:
    return Request("GET", "/", headers={b"accept-encoding": accepted.encode()})


@pytest.fixture
def brotli(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library, or a stand-in whose work can be told from gzip's."""
    module = ModuleType("brotli")
    module.__spec__ = ModuleSpec("brotli", None)
    module.__dict__["compress"] = lambda body, quality: b"%d:" % quality + body[:10]
    monkeypatch.setitem(sys.modules, "brotli", module)
    monkeypatch.setattr(compression, "CODINGS", codings := compression._known())
    monkeypatch.setattr("queenmq.http.routes.dashboard.CODINGS", codings)
    monkeypatch.setattr(chosen, "__defaults__", (codings,))


@pytest.mark.parametrize(
    ("accepted", "both", "one"),
    [
        ("gzip, deflate, br", b"br", b"gzip"),
        ("br;q=0.5, gzip", b"gzip", b"gzip"),
        ("br;q=0.5, gzip;q=0.50", b"br", b"gzip"),
        ("BR ; q=1.0", b"br", None),
        ("br;q=0, gzip;q=0.1", b"gzip", b"gzip"),
        ("br;q=much", None, None),
        ("identity, zstd", None, None),
        ("", None, None),
    ],
)
def test_the_coding_that_the_client_likes_best(accepted: str, both: bytes | None, one: bytes | None) -> None:
    assert (chosen(asking(accepted), BOTH), chosen(asking(accepted), ONE)) == (both, one)


async def test_answers_are_packed_with_the_library(brotli: None) -> None:
    long: dict[str, Any] = {"rows": ["x" * 100] * 100}
    answer = await compressed(asking("gzip, br"), Response(200, long))
    assert (b"Content-Encoding", b"br") in answer.headers
    assert answer.body == b'1:{"rows":["'
    assert (await compressed(asking("gzip"), Response(200, long))).encode()[:2] == b"\x1f\x8b"


def test_files_are_packed_with_the_library(brotli: None) -> None:
    file = PageFile.of(b"text/css", b"body {}" * 100)
    forms = {accepted: served(asking(accepted), file) for accepted in ("br", "gzip", "")}
    assert forms["br"].encode() == b"9:body {}bod"
    tags = {dict(form.headers)[b"ETag"] for form in forms.values()}
    assert len(tags) == 3, "each form has a tag of its own"
    again = Request("GET", "/", headers={b"accept-encoding": b"br", b"if-none-match": file.tag(b"br")})
    assert served(again, file).status == 304


async def test_what_the_library_makes_can_be_read() -> None:
    brotli = pytest.importorskip("brotli")
    answer = await compressed(asking("br"), Response(200, {"rows": ["x" * 100] * 100}))
    assert brotli.decompress(answer.body).startswith(b'{"rows":["xxx')
