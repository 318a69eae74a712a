"""The OpenAPI document says what the server does, and the server survives what the document allows and forbids."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_settings import settings_with

from queenmq.config import Settings
from queenmq.http.app import ROUTES
from queenmq.server import Server

HERE = Path(__file__).parent
LONG = os.environ.get("QUEEN_LONG") == "1"
MAX_ITEMS = 20
METHODS = {"get", "post", "put", "delete", "patch", "head", "options", "trace"}

Json = dict[str, Any]


@pytest.fixture
def settings() -> Settings:
    return settings_with(
        pop={"max_wait_ms": 200},
        limits={"max_items": MAX_ITEMS},
        server={"encryption_key": bytes(32)},
        http={"max_body_bytes": 10**6},
    )


@pytest.fixture
async def document(http: httpx.AsyncClient) -> Json:
    answer = await http.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    document: Json = answer.json()
    return document


async def test_the_document_as_a_page(http: httpx.AsyncClient, document: Json) -> None:
    answer = await http.get("/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert all(f"<code>{path}</code>" in answer.text for path in document["paths"])
    [style] = re.findall(r'rel="stylesheet" href="([^"]+)"', answer.text)
    assert (await http.get(style)).status_code == 200
    again = await http.get("/docs", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


async def test_its_examples_are_for_this_server(http: httpx.AsyncClient) -> None:
    here = (await http.get("/docs")).text
    assert f"curl -s {http.base_url}" in here
    assert "127.0.0.1:6632" not in here
    named = await http.get("/docs", headers={"Host": "queen.internal:8080", "X-Forwarded-Proto": "https"})
    assert "curl -s https://queen.internal:8080/" in named.text
    no_name = await http.get("/docs", headers={"Host": "a'<b>"})
    assert "curl -s http://127.0.0.1:6632/" in no_name.text
    assert "a'" not in no_name.text and "<b>queen" not in no_name.text


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method in METHODS & item.keys():
            yield method.upper(), path, item[method]


def dicts(part: object) -> Iterator[Json]:
    """Every object in the document."""
    if isinstance(part, dict):
        yield part
    if isinstance(part, dict | list):
        for element in part.values() if isinstance(part, dict) else part:
            yield from dicts(element)


def resolve(document: Json, reference: str) -> Json:
    place: Any = document
    for step in reference.removeprefix("#/").split("/"):
        place = place[step]
    assert isinstance(place, dict)
    return place


async def test_the_document_has_every_route_and_no_other(document: Json) -> None:
    served = {(route.method, route.path.replace("...}", "}")) for route in ROUTES}
    assert {(method, path) for method, path, _ in operations(document)} == served
    assert list(document["paths"]) == sorted(document["paths"])


async def test_every_operation_says_what_it_does(document: Json) -> None:
    described = [operation for _, _, operation in operations(document)]
    names = [operation["operationId"] for operation in described]
    assert len(set(names)) == len(names)
    for operation in described:
        assert operation["summary"]
        assert operation["tags"]
        assert any(status < "3" for status in operation["responses"]), "2xx, or 101 of a WebSocket"


async def test_every_path_parameter_is_described(document: Json) -> None:
    for _, path, operation in operations(document):
        described = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert described == re.findall(r"{(\w+)}", path)


async def test_every_reference_leads_somewhere(document: Json) -> None:
    references = [part["$ref"] for part in dicts(document) if "$ref" in part]
    assert references
    for reference in references:
        found = resolve(document, reference)
        assert found.get("type") == "object" or "enum" in found


async def test_every_link_leads_to_an_operation(document: Json) -> None:
    names = {operation["operationId"] for _, _, operation in operations(document)}
    links = [link for part in dicts(document) for link in part.get("links", {}).values()]
    assert links
    assert {link["operationId"] for link in links} <= names


async def test_refusals_share_one_schema(document: Json) -> None:
    own = {
        ("GET", "/health", "503"),
        ("POST", "/api/v1/lease/{leaseId}/extend", "404"),
        ("POST", "/api/v1/lease/{leaseId}/finish", "404"),
        ("POST", "/api/v1/lease/{leaseId}/finish", "409"),
        ("POST", "/streams/v1/queries", "409"),
        ("POST", "/api/v1/push", "409"),
    }
    for method, path, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status >= "400" and (method, path, status) not in own:
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Error"}
    assert resolve(document, "#/components/schemas/Error")["required"] == ["error", "code"]


async def test_names_carry_their_limits(document: Json) -> None:
    limits = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^\\u0000]*$"}
    item = resolve(document, "#/components/schemas/PushItem/properties")
    for name in ("queue", "partition", "transactionId"):
        assert item[name].items() >= limits.items()
    for parameter in document["paths"]["/api/v1/pop/queue/{queue}/partition/{partition}"]["get"]["parameters"][:2]:
        assert parameter["schema"] == limits


async def test_numbers_and_ids_carry_their_limits(document: Json) -> None:
    schemas = document["components"]["schemas"]
    partition_id = schemas["AckBody"]["properties"]["partitionId"]
    assert (partition_id["type"], partition_id["format"]) == ("string", "uuid")
    lease_time = schemas["QueueOptions"]["properties"]["leaseTime"]
    assert (lease_time["minimum"], lease_time["maximum"], lease_time["default"]) == (0, 315_360_000, 300)
    seconds = schemas["ExtendBody"]["properties"]["seconds"]["anyOf"][0]
    assert (seconds["minimum"], seconds["maximum"]) == (1, 315_360_000)


async def test_arrays_carry_the_limit_of_this_server(document: Json) -> None:
    arrays = [part for part in dicts(document) if part.get("type") == "array"]
    # 100 for the names of a trace.
    assert {array["maxItems"] for array in arrays} == {MAX_ITEMS, 100}
    assert resolve(document, "#/components/schemas/PushBody/properties/items")["maxItems"] == MAX_ITEMS


async def test_without_tokens_none_is_demanded(document: Json) -> None:
    for _, _, operation in operations(document):
        assert "security" not in operation
        assert "401" not in operation["responses"]


class TestWithTokens:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": "s" * 32})

    async def test_the_document_demands_them(self, document: Json) -> None:
        [scheme] = document["components"]["securitySchemes"]
        assert document["components"]["securitySchemes"][scheme] == {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
        }
        for _, _, operation in operations(document):
            if operation["x-queen-role"] == "public":
                assert "security" not in operation
            else:
                assert operation["security"] == [{scheme: []}]
                assert {"401", "403"} <= operation["responses"].keys()


@pytest.mark.timeout(3600 if LONG else 600)
async def test_schemathesis_finds_nothing(
    server: Server, http: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = server.address
    report = await run_schemathesis(f"http://{host}:{port}/openapi.json", tmp_path)
    # It does not call the document that it runs on.
    assert f"Tested: {len(ROUTES) - 1}\n" in report
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert (await http.get("/health")).status_code == 200


async def run_schemathesis(url: str, folder: Path) -> str:
    """Its report, if it found nothing."""
    command = f"-m schemathesis.cli --config-file {HERE / 'schemathesis.toml'} run {url}"
    effort = f"--max-examples {1000 if LONG else 15} --seed {random.getrandbits(32)}"
    options = f"{effort} --max-failures 10 --no-color --warnings off"
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        *command.split(),
        *options.split(),
        cwd=folder,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await run.communicate()
    report = output.decode()
    assert run.returncode == 0, report
    return report
