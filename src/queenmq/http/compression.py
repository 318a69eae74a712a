"""Long answers in fewer bytes, for clients that accept it: listings, the OpenAPI document and metrics.

They are packed with Brotli if its library is there (`pip install brotli`), which is smaller and takes less time, else
with gzip. What pushes, pops or acknowledges is never compressed: somebody who works waits for it. No page of somebody
else can try out what is in an answer by its length: browsers do not add bearer tokens to requests by themselves.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from queenmq.httpserver.messages import Request, Response, StreamedResponse

BY_ENCODING: Final = (b"Vary", b"Accept-Encoding")
# Below that it saves no packet worth having.
_LEAST_BYTES: Final = 4096
# More is compressed in a thread: it takes half a millisecond for each 100 KB.
_MOST_HERE: Final = 128 * 1024
# The fastest. Of the OpenAPI document gzip makes 53 KB of 319 in 1.3 ms (40 KB in 4 ms at the usual level 6), Brotli
# 45 KB in 0.5 ms.
_LEVEL: Final = 1
_GZIP: Final = 31
# Of files that are packed once: 11, the usual one, takes half a second for those of the dashboard.
_THOROUGH: Final = 9

Pack = Callable[[bytes], bytes]


class Coding(NamedTuple):
    """How to pack what is sent once, and what is sent often."""

    fast: Pack
    thorough: Pack


def _known() -> dict[bytes, Coding]:
    """Those that this machine can pack, the best first."""
    found = {
        b"gzip": Coding(lambda body: zlib.compress(body, _LEVEL, _GZIP), lambda body: gzip.compress(body, mtime=0))
    }
    if find_spec("brotli") is None:
        return found
    brotli: Any = import_module("brotli")
    best = Coding(
        lambda body: brotli.compress(body, quality=_LEVEL), lambda body: brotli.compress(body, quality=_THOROUGH)
    )
    return {b"br": best} | found


CODINGS: Final[Mapping[bytes, Coding]] = _known()


def chosen(request: Request, codings: Mapping[bytes, Coding] = CODINGS) -> bytes | None:
    """The coding that the client likes best, and of those that it likes as much, the best; None if it accepts none."""
    weights: dict[bytes, float] = {}
    for part in request.headers.get(b"accept-encoding", b"").lower().replace(b" ", b"").split(b","):
        name, _, weight = part.partition(b";q=")
        if name in codings:
            weights[name] = _weight(weight)
    likes = [name for name in codings if weights.get(name, 0.0) > 0]
    return max(likes, key=lambda name: weights[name], default=None)


def packed_as(coding: bytes) -> tuple[bytes, bytes]:
    """The header that says so."""
    return b"Content-Encoding", coding


async def compressed(request: Request, response: Response) -> Response:
    """The same answer, in fewer bytes if it is long and the client accepts them."""
    if response.status != 200 or isinstance(response, StreamedResponse) or BY_ENCODING in response.headers:
        return response
    body = response.encode()
    if len(body) < _LEAST_BYTES:
        return response
    response.headers = (*response.headers, BY_ENCODING)
    coding = chosen(request)
    if coding is not None:
        pack = CODINGS[coding].fast
        response.body = pack(body) if len(body) <= _MOST_HERE else await asyncio.to_thread(pack, body)
        response.headers = (*response.headers, packed_as(coding))
    return response


def _weight(text: bytes) -> float:
    """1 if nothing is said; 0, as a refusal, if nobody can read it."""
    try:
        return float(text) if text else 1.0
    except ValueError:
        return 0.0
