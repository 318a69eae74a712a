"""/docs: every route with an example that the server would take, and nothing that a browser would have to fetch."""

from __future__ import annotations

import html
import json
import re
import shlex
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from queenmq.config import Settings
from queenmq.http import reference
from queenmq.http.app import ROUTES
from queenmq.http.descriptions import IN_PATH, OF_TYPES
from queenmq.http.examples import EXAMPLES
from queenmq.http.openapi import document

DOCUMENT = document(ROUTES, Settings())
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = [
    (method, path, operation) for path, item in DOCUMENT["paths"].items() for method, operation in item.items()
]
PAGE = reference.page(DOCUMENT, "reference.css")


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_an_example_is_a_request_that_the_document_allows(method: str, path: str, operation: dict[str, Any]) -> None:
    words = shlex.split(reference.request(method, path, operation, SCHEMAS))
    assert words[:2] == ["curl", "-s"]
    [url] = [word for word in words if word.startswith("http://")]
    assert "{" not in url
    named = {pair.partition("=")[0] for pair in url.partition("?")[2].split("&") if pair}
    parameters = operation["parameters"]
    assert named <= {one["name"] for one in parameters}
    assert {one["name"] for one in parameters if one["in"] == "query" and one.get("required")} <= named
    body = operation.get("requestBody")
    assert ("-d" in words) == (body is not None)
    if body is not None:
        schema = body["content"]["application/json"]["schema"] | {"components": DOCUMENT["components"]}
        given = json.loads(words[words.index("-d") + 1])
        jsonschema_rs.validator_for(schema).validate(given)


def reached(part: Any) -> set[str]:
    """The types that a part of the document names, and those that they name."""
    found: set[str] = set()
    waiting = [part]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                waiting.append(SCHEMAS[name])
        if isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one
    return found


def is_whole(text: str) -> bool:
    """Whether it can be read alone: a phrase with a beginning and an end."""
    return bool(re.match("[A-Z`]", text)) and text.rstrip().endswith(".")


VERBS = {operation["operationId"]: operation for _, _, operation in OPERATIONS if operation["operationId"] in EXAMPLES}
TYPES_OF_VERBS = reached([[one.get("requestBody"), one["responses"]] for one in VERBS.values()])


def test_every_verb_has_an_example() -> None:
    modules = ("push", "pop", "ack", "transaction", "leases", "configure", "fetch")
    verbs = {operation["operationId"] for _, _, operation in OPERATIONS if operation["tags"][0] in modules}
    verbs |= {"configure", "seek", "seek_partition", "change_timers", "keys", "locks"}
    assert verbs - {"delete_queue"} == EXAMPLES.keys()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_of_a_verb_is_what_its_types_say(name: str) -> None:
    operation = VERBS[name]
    good = min(status for status in operation["responses"] if status.startswith("2"))
    parts = [operation["responses"][good], *([operation["requestBody"]] if "requestBody" in operation else [])]
    for part in parts:
        content = part["content"]["application/json"]
        validator = jsonschema_rs.validator_for(content["schema"] | {"components": DOCUMENT["components"]})
        validator.validate(content["example"])
    if "requestBody" in operation:
        assert json.dumps(EXAMPLES[name].body, ensure_ascii=False) in html.unescape(PAGE)


@pytest.mark.parametrize(
    "operation", [operation for _, _, operation in OPERATIONS], ids=lambda operation: operation["operationId"]
)
def test_every_parameter_is_described(operation: dict[str, Any]) -> None:
    for one in operation["parameters"]:
        assert is_whole(one.get("description", "")), f"say in openapi or descriptions what {one['name']} is"


@pytest.mark.parametrize("name", sorted(TYPES_OF_VERBS))
def test_types_of_verbs_and_their_fields_are_described(name: str) -> None:
    schema = SCHEMAS[name]
    if "enum" in schema:
        return
    assert is_whole(schema.get("description", "")), f"{name} needs a docstring, or a text in descriptions"
    for field, kind in schema["properties"].items():
        assert is_whole(kind.get("description", "")), f"say in descriptions what {field} of {name} is"


def test_only_what_is_in_the_document_is_described() -> None:
    for name, fields in OF_TYPES.items():
        assert fields.keys() - {""} <= SCHEMAS[name]["properties"].keys(), name
    in_paths = {one["name"] for _, _, operation in OPERATIONS for one in operation["parameters"] if one["in"] == "path"}
    assert in_paths == IN_PATH.keys()


def test_typical_requests_are_of_operations_that_exist() -> None:
    assert reference._TYPICAL.keys() <= {operation["operationId"] for _, _, operation in OPERATIONS}


def test_every_route_and_type_is_on_the_page() -> None:
    for method, path, operation in OPERATIONS:
        assert f'id="{operation["operationId"]}"' in PAGE
        assert f'<span class="{method}">{method.upper()}</span>' in PAGE
        assert f"<code>{path}</code>" in PAGE
    targets = set(re.findall(r'href="#([^"]+)"', PAGE))
    assert targets <= set(re.findall(r'id="([^"]+)"', PAGE))
    assert all(f'id="type-{name}"' in PAGE for name in SCHEMAS)


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert set(re.findall(r'(?:href|src)="([^"#]+)"', PAGE)) == {"reference.css"}
    assert "<script" not in PAGE and "style=" not in PAGE


def test_what_a_document_says_is_text() -> None:
    evil = "<script>alert(1)</script>"
    operation = {"operationId": "a", "summary": evil, "tags": [evil], "responses": {"200": {"description": evil}}}
    page = reference.page(
        {"info": {"title": evil, "version": "1"}, "paths": {"/": {"get": operation}}, "components": {"schemas": {}}},
        "s",
    )
    assert "<script" not in page


def test_the_site_has_it(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "docs" / "http_reference.py"
    spec = spec_from_file_location("http_reference", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"http-reference.html", "reference.css"}
    assert (tmp_path / "http-reference.html").read_text() == PAGE
