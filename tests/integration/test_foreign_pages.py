"""Web pages and a server without tokens: whose requests are served, under which names, and who may read the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from server_settings import settings_with

from integration.wire import Answer, Wire, connect
from queenmq.config import Settings, load
from queenmq.errors import StartupError
from queenmq.httpserver.origins import Origins
from queenmq.server import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PUSH = b'{"items":[{"queue":"q","payload":1}]}'
STATES = ("/api/v1/pop/queue/q", "/api/v1/resources/queues", "/api/v1/live", "/metrics/prometheus", "/health")


@pytest.fixture
async def wire(server: Server) -> AsyncIterator[Wire]:
    async with connect(server.address) as opened:
        yield opened


async def ask(
    wire: Wire, method: str, target: str, *headers: str, host: str | None = None, body: bytes = b""
) -> Answer:
    lines = [f"{method} {target} HTTP/1.1", *headers, f"Content-Length: {len(body)}"]
    if host is not None:
        lines.append(f"Host: {host}")
    wire.write("\r\n".join([*lines, "", ""]).encode() + body)
    return await wire.answer(method)


@pytest.mark.parametrize(
    "headers",
    [
        ["Origin: https://evil.example"],
        ["Origin: null"],
        ["Origin: http://127.0.0.1:1"],
        ["Origin: http://localhost"],
        ["Origin: garbage"],
        ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-site"],
        ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"],
        ["Sec-Fetch-Site: cross-site", "Origin: http://queen:6632"],
        ["Referer: https://evil.example/page"],
    ],
    ids=str,
)
async def test_a_page_of_another_origin_is_refused(wire: Wire, headers: list[str]) -> None:
    answer = await ask(wire, "POST", "/api/v1/push", *headers, host="queen:6632", body=PUSH)
    assert (answer.status, answer.json()["code"]) == (403, "forbidden")
    assert "QUEEN_CORS_ORIGINS" in answer.json()["error"]
    for target in STATES:
        answer = await ask(wire, "GET", target, *headers, host="queen:6632")
        assert answer.status == 403, target
        assert not any(name.startswith(b"access-control-") for name in answer.headers)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["User-Agent: python-httpx/0.27"],
        ["Origin: http://queen:6632"],
        ["Origin: http://QUEEN:6632", "Sec-Fetch-Site: same-origin"],
        ["Origin: https://behind.example", "Sec-Fetch-Site: same-origin"],
        ["Sec-Fetch-Site: same-origin"],
        ["Sec-Fetch-Site: none"],
        ["Referer: http://queen:6632/#/queues"],
    ],
    ids=str,
)
async def test_programs_and_the_servers_own_pages_are_served(wire: Wire, headers: list[str]) -> None:
    assert (await ask(wire, "POST", "/api/v1/push", *headers, host="queen:6632", body=PUSH)).status == 201
    assert (await ask(wire, "GET", "/api/v1/resources/queues", *headers, host="queen:6632")).status == 200


async def test_links_to_the_dashboard_may_stand_anywhere(wire: Wire) -> None:
    headers = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Referer: https://evil.example/")
    assert (await ask(wire, "GET", "/", *headers, host="localhost:6632")).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:6632", 200),
        ("127.9.9.9:80", 200),
        ("[::1]:6632", 200),
        ("192.0.2.7:6632", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("queen.localhost", 200),
        ("queen", 200),
        ("queen.queue.svc.cluster.local:6632", 200),
        (None, 200),
        ("rebound.example:6632", 403),
        ("127.0.0.1.rebound.example", 403),
        ("localhost.rebound.example.", 403),
        ("rebound.example:6632@127.0.0.1", 403),
        ("localhost.com", 403),
        ("1.2.3.4.5", 403),
    ],
)
async def test_names_that_could_be_made_to_point_here(wire: Wire, host: str | None, status: int) -> None:
    """DNS rebinding: the page has a name of its own, and for the browser this server is its server."""
    if host is None:
        wire.write(b"GET /health HTTP/1.0\r\n\r\n")
        assert (await wire.answer()).status == status
        return
    for target in ("/health", "/api/v1/resources/queues", "/"):
        answer = await ask(wire, "GET", target, host=host)
        assert answer.status == status, target
    if status == 403:
        assert "QUEEN_ALLOWED_HOSTS" in answer.json()["error"]


async def test_preflights_get_no_permission(wire: Wire) -> None:
    for target in ("/api/v1/push", "/nowhere"):
        asked = ("Origin: https://evil.example", "Access-Control-Request-Method: POST")
        answer = await ask(wire, "OPTIONS", target, *asked, host="127.0.0.1")
        assert (answer.status, [n for n in answer.headers if n.startswith(b"access-control")]) == (204, [])


class TestConfigured:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(http={"cors_origins": ("https://shop.example",), "allowed_hosts": ("queen.example",)})

    async def test_a_configured_origin_may_ask_and_read(self, wire: Wire) -> None:
        origin = ("Origin: https://shop.example", "Sec-Fetch-Site: cross-site")
        answer = await ask(wire, "POST", "/api/v1/push", *origin, host="127.0.0.1:6632", body=PUSH)
        assert (answer.status, answer.headers[b"access-control-allow-origin"]) == (201, b"https://shop.example")
        assert answer.headers[b"vary"] == b"Origin"
        # Also what it is refused with.
        answer = await ask(wire, "GET", "/nowhere", *origin, host="127.0.0.1:6632")
        assert (answer.status, answer.headers[b"access-control-allow-origin"]) == (404, b"https://shop.example")

    async def test_its_preflights_are_permitted(self, wire: Wire) -> None:
        asked = ("Access-Control-Request-Method: DELETE", "Access-Control-Request-Private-Network: true")
        answer = await ask(wire, "OPTIONS", "/api/v1/push", "Origin: https://shop.example", *asked, host="127.0.0.1")
        assert (answer.status, b"DELETE" in answer.headers[b"access-control-allow-methods"]) == (204, True)
        assert b"Authorization" in answer.headers[b"access-control-allow-headers"]
        assert answer.headers[b"access-control-allow-private-network"] == b"true"
        other = await ask(wire, "OPTIONS", "/api/v1/push", "Origin: https://shop.example.evil", host="127.0.0.1")
        assert not any(name.startswith(b"access-control") for name in other.headers)

    @pytest.mark.parametrize("origin", ["http://shop.example", "https://shop.example:444", "https://a.shop.example"])
    async def test_no_other_origin_is_meant(self, wire: Wire, origin: str) -> None:
        answer = await ask(wire, "POST", "/api/v1/push", f"Origin: {origin}", host="127.0.0.1:6632", body=PUSH)
        assert (answer.status, b"access-control-allow-origin" in answer.headers) == (403, False)

    @pytest.mark.parametrize("host", ["queen.example", "queen.example:6632", "127.0.0.1:6632"])
    async def test_the_dashboard_behind_a_proxy(self, wire: Wire, host: str) -> None:
        """Which may hand the name on or put the address of the server in its place."""
        answer = await ask(wire, "POST", "/api/v1/push", "Origin: https://queen.example", host=host, body=PUSH)
        assert answer.status == 201


class TestWithTokens:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": "s" * 32}, http={"cors_origins": ("*",)})

    async def test_a_page_needs_a_token_and_nothing_else(self, wire: Wire) -> None:
        headers = ("Origin: https://any.example", "Sec-Fetch-Site: cross-site")
        answer = await ask(wire, "GET", "/api/v1/resources/queues", *headers, host="rebound.example")
        assert (answer.status, answer.headers[b"access-control-allow-origin"]) == (401, b"https://any.example")


def test_every_origin_without_tokens_is_refused_at_the_start() -> None:
    with pytest.raises(StartupError, match=r"QUEEN_CORS_ORIGINS is \*"):
        Origins.from_settings(settings_with(http={"cors_origins": ("*",)}))


@pytest.mark.parametrize("raw", ["shop.example", "https://shop.example/", "null", "https://*.example", "https://a b"])
def test_what_is_no_origin_stops_the_start(raw: str) -> None:
    with pytest.raises(StartupError, match="QUEEN_CORS_ORIGINS"):
        load({"QUEEN_CORS_ORIGINS": raw})


def test_hosts_have_no_ports() -> None:
    with pytest.raises(StartupError, match="QUEEN_ALLOWED_HOSTS"):
        load({"QUEEN_ALLOWED_HOSTS": "queen.example:6632"})
    assert load({"QUEEN_ALLOWED_HOSTS": " queen.example, ::1"}).http.allowed_hosts == ("queen.example", "::1")


async def test_a_link_that_says_not_where_it_stands_pops_nothing(wire: Wire) -> None:
    """Over plain HTTP at an address, a browser that follows a link without a referrer sends nothing that tells."""
    await ask(wire, "POST", "/api/v1/push", host="192.0.2.7:6632", body=PUSH)
    browser = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
    target = "/api/v1/pop/queue/q?autoAck=true&batch=100"
    answer = await ask(wire, "GET", target, browser, host="192.0.2.7:6632")
    assert (answer.status, answer.json()["code"]) == (403, "forbidden")
    assert "require tokens (QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true)" in answer.json()["error"]
    for shown in ("/", "/health", "/api/v1/resources/queues"):
        assert (await ask(wire, "GET", shown, browser, host="192.0.2.7:6632")).status == 200
    own = await ask(wire, "GET", target, browser, "Referer: http://192.0.2.7:6632/", host="192.0.2.7:6632")
    assert (own.status, len(own.json()["messages"])) == (200, 1)
    program = await ask(wire, "GET", target, "User-Agent: curl/8.0", host="192.0.2.7:6632")
    assert program.status == 204
