"""The types of `queen.admin`: client/answers.py is made from the OpenAPI document, so what type checkers know of an
answer is what the server sends; and each method says the type of the call that it makes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from textwrap import indent
from typing import Any, NotRequired, get_args, get_origin, is_typeddict

import pytest

from queenmq.client import answers
from queenmq.client.admin import Administration
from queenmq.config import Settings
from queenmq.http.app import ROUTES
from queenmq.http.openapi import document

Schema = Mapping[str, Any]

MODULE = Path(str(answers.__file__))
DOCUMENT = document(ROUTES, Settings())
SCHEMAS: Mapping[str, Schema] = DOCUMENT["components"]["schemas"]
METHODS = [name for name, _ in inspect.getmembers(Administration, inspect.isfunction) if not name.startswith("_")]
BEGINNING = '''\
"""What the server answers to the calls of `queen.admin`, for type checkers: answers are plain dicts and lists.

Made from the server's OpenAPI document by tests/unit/test_client_answers.py; do not edit. A field that is
`NotRequired` is left out of some answers. A server of a newer version may send more.
"""

from typing import Any, Literal, NotRequired, TypedDict
'''
_WORDS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_WIDTH = 120


def asked(name: str) -> tuple[str, str]:
    """The method and path of the request that a method of `admin` makes."""
    seen: list[tuple[str, str]] = []
    admin = Administration(lambda method, path, body, params: seen.append((method, path)))
    parameters = list(inspect.signature(getattr(admin, name)).parameters.values())
    needed = ["x" for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty]
    getattr(admin, name)(*needed)
    [request] = seen
    return request


def answer_to(method: str, path: str) -> Schema:
    """Of all its good statuses: none of these calls has two kinds."""
    fitting = [
        template
        for template, item in DOCUMENT["paths"].items()
        if method.lower() in item and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path)
    ]
    template = min(fitting, key=lambda template: template.count("{"))
    responses = DOCUMENT["paths"][template][method.lower()]["responses"]
    kinds: list[Schema] = [
        response["content"]["application/json"]["schema"]
        for status, response in responses.items()
        if status.startswith("2")
    ]
    assert all(kind == kinds[0] for kind in kinds)
    return kinds[0]


def named(schema: Any) -> Iterator[str]:
    """The types that a schema names itself."""
    if isinstance(schema, Mapping):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.rpartition("/")[2]
        schema = schema.values()
    if not isinstance(schema, str | int | float | None):
        for part in schema:
            yield from named(part)


def source(schema: Schema, module: str = "") -> str:
    """A schema as Python writes the type; types of `answers` with that module before them."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return source(SCHEMAS[name]) if "enum" in SCHEMAS[name] else module + name
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(source(one, module) for one in schema["anyOf"]))
    if "enum" in schema:
        return f"Literal[{', '.join('None' if word is None else json.dumps(word) for word in schema['enum'])}]"
    match schema.get("type"):
        case "array":
            return f"list[{source(schema['items'], module) if schema.get('items') else 'Any'}]"
        case "object":
            values = schema.get("additionalProperties")
            return f"dict[str, {source(values, module) if isinstance(values, Mapping) else 'Any'}]"
        case str(word):
            return _WORDS[word]
    return "Any"


def typed(name: str) -> str:
    """A type of the document as a TypedDict. Answers have what has a default, too: nothing in them is left out for
    being the default."""
    schema = SCHEMAS[name]
    properties: Mapping[str, Schema] = schema["properties"]
    lines = [f"class {name}(TypedDict):"]
    if about := schema.get("description", ""):
        told = indent(inspect.cleandoc(about), "    ").lstrip()
        lines.append(f'    """{told}{chr(10) + "    " if chr(10) in told else ""}"""\n')
    for field, kind in properties.items():
        if iskeyword(field):  # a class cannot have it; programs read it with `get`
            continue
        always = field in schema.get("required", ()) or "default" in kind
        line = f"    {field}: {source(kind) if always else f'NotRequired[{source(kind)}]'}"
        lines.append(line if len(line) <= _WIDTH else broken(line))
    return "\n".join(lines)


def broken(line: str) -> str:
    """With each word of the literal in a line of its own, None among them."""
    found = re.fullmatch(r"(.*Literal\[)(.*?)\]( \| None)?(.*)", line)
    assert found, line
    before, words, none, behind = found.groups()
    listed = words.split(", ") + (["None"] if none else [])
    return "\n".join([before, *(f"        {word}," for word in listed), f"    ]{behind}"])


def made() -> str:
    """The whole module: every type behind those that it names, because `NotRequired` counts only if it is read."""
    written: dict[str, str] = {}

    def write(name: str) -> None:
        if name not in written and "properties" in SCHEMAS[name]:
            for other in sorted(set(named(SCHEMAS[name]["properties"]))):
                write(other)
            written[name] = typed(name)

    for name in sorted({name for method in METHODS for name in named(answer_to(*asked(method)))}):
        write(name)
    return "\n\n".join([BEGINNING, *(text + "\n" for text in written.values())])


def test_the_module_is_up_to_date() -> None:
    assert MODULE.read_text(encoding="utf-8") == made(), "run: python tests/unit/test_client_answers.py"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_the_server_answers(name: str) -> None:
    kind = source(answer_to(*asked(name)), "answers.").replace("dict[str, Any]", "Json")
    assert getattr(Administration, name).__annotations__["return"] == f"Answer[{kind}]"


def test_fields_that_may_be_missing_are_known_when_a_program_runs() -> None:
    for kind in vars(answers).values():
        if is_typeddict(kind):
            missing = {field for field, told in kind.__annotations__.items() if get_origin(told) is NotRequired}
            assert kind.__optional_keys__ == missing
            assert all(get_args(kind.__annotations__[field]) for field in missing)


if __name__ == "__main__":
    MODULE.write_text(made(), encoding="utf-8")
