"""Long answers that only read are compressed for whom accepts it; what pushes, pops or acknowledges never is."""

from __future__ import annotations

import zlib
from typing import Any

import httpx
import pytest

GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture
async def many(http: httpx.AsyncClient) -> None:
    """Messages whose listing is long, in a queue "q"."""
    items = [{"queue": "q", "partition": f"p{number}", "payload": {"text": "x" * 200}} for number in range(100)]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201


async def raw(http: httpx.AsyncClient, path: str, headers: dict[str, str]) -> tuple[httpx.Response, bytes]:
    async with http.stream("GET", path, headers=headers) as answer:
        return answer, b"".join([part async for part in answer.aiter_raw()])


@pytest.mark.parametrize(
    "path", ["/openapi.json", "/metrics/prometheus", "/api/v1/messages?queue=q", "/api/v1/resources/partitions?queue=q"]
)
async def test_long_answers_are_compressed(http: httpx.AsyncClient, many: None, path: str) -> None:
    answer, body = await raw(http, path, GZIP)
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) == len(body)
    told = zlib.decompress(body, 31)
    assert len(body) < len(told) / 2
    plain, whole = await raw(http, path, PLAIN)
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == "Accept-Encoding"
    assert plain.headers["content-type"] == answer.headers["content-type"]
    if path != "/metrics/prometheus":
        assert whole == told
    await http.request("HEAD", path, headers=GZIP)
    assert (await http.get("/health", headers=GZIP)).status_code == 200, "the connection is still usable"


async def test_short_answers_and_refusals_are_not(http: httpx.AsyncClient) -> None:
    for path in ("/health", "/api/v1/resources/queues/nothing", "/api/v1/resources/queues?limit=" + "x" * 5000):
        answer = await http.get(path, headers=GZIP)
        assert "content-encoding" not in answer.headers
        assert "vary" not in answer.headers


async def test_what_pops_pushes_and_acknowledges_is_not(http: httpx.AsyncClient, many: None) -> None:
    pushed: list[dict[str, Any]] = [{"queue": "q", "partition": "p", "payload": "x" * 100}] * 200
    answers = [await http.post("/api/v1/push", json={"items": pushed}, headers=GZIP)]
    answers.append(await http.get("/api/v1/pop/queue/q/partition/p?batch=200", headers=GZIP))
    acks = [
        {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": "completed"}
        for message in answers[-1].json()["messages"]
    ]
    assert len(acks) == 200
    answers.append(await http.post("/api/v1/ack/batch", json={"acknowledgments": acks}, headers=GZIP))
    for answer in answers:
        assert answer.is_success
        assert int(answer.headers["content-length"]) > 4096
        assert "content-encoding" not in answer.headers
