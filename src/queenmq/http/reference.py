"""The OpenAPI document as a page for people: /docs of a server, and a page of the documentation. Pure: a document in,
HTML out, which needs nothing else from the network.

Examples that the document does not have are made from the schemas: what a field is called says what it is likely to
hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

Part = Mapping[str, Any]

_METHODS: Final = ("get", "post", "put", "delete")
_REF: Final = "#/components/schemas/"
_DEEPEST: Final = 6
_MOST_SHOWN: Final = 4000
SERVER: Final = "http://127.0.0.1:6632"  # the address in the examples
# By the name of a field or parameter: what an example has there.
_LIKELY: Final[Mapping[str, Any]] = {
    "queue": "orders",
    "queueName": "orders",
    "partition": "customer-17",
    "partitionName": "customer-17",
    "consumerGroup": "billing",
    "group": "billing",
    "payload": {"order": 1},
    "data": {"order": 1},
    "namespace": "shop",
    "task": "mail",
    "transactionId": "order-1",
    "headers": {"country": "IT"},
    "status": "completed",
    "key": "customer-17",
    "schedule": "0 9 * * *",
    "filter": "headers.country = 'IT'",
    "leaseId": "0190a4f2-7c3e-7b6a-9d5e-2f1c3b4a5d6e",
    "name": "nightly",
    "role": "read-only",
    "file": "app.js",
    "source_queue": "orders",
}
# Where the fields that must be there would not make a request that does something: by operation, query and body. The
# document itself has examples of the verbs.
_TYPICAL: Final[Mapping[str, tuple[str, Any]]] = {
    "pop_queue": ("consumerGroup=billing&batch=10&wait=true", None),
    "pop_partition": ("consumerGroup=billing&batch=10", None),
    "pop_matching": ("namespace=shop&consumerGroup=billing&batch=10", None),
    "explain": ("consumerGroup=billing", None),
    "seek_effect": ("timestamp=2026-01-02T09:00:00.000Z", None),
    "pause": ("", {"queue": "orders", "consumerGroup": "billing", "reason": "the bank is down"}),
    "resume": ("", {"queue": "orders", "consumerGroup": "billing"}),
    "redrive": ("", {"queue": "orders", "consumerGroup": "billing"}),
    "set_quota": ("", {"namespace": "shop", "maxMessages": 1_000_000}),
    "set_schema": ("", {"schema": {"type": "object", "required": ["order"]}, "check": True}),
    "check_schema": ("", {"payloads": [{"order": 1}]}),
}
_OF_A_MESSAGE: Final = ("partition", "payload")
_BY_FORMAT: Final = {
    "date-time": "2026-01-02T09:00:00.000Z",
    "uuid": "0190a4f2-7c3e-7b6a-9d5e-2f1c3b4a5d6e",
}


def page(document: Part, style: str) -> str:
    """The whole page. `style` is the address of its style sheet."""
    info, schemas = document["info"], document["components"]["schemas"]
    by_subject: dict[str, list[tuple[str, str, Part]]] = {}
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                by_subject.setdefault(item[method]["tags"][0], []).append((method, path, item[method]))
    subjects = sorted(by_subject)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{escape(info["title"])} HTTP API</title><link rel="stylesheet" href="{escape(style)}"></head><body>',
        '<nav aria-label="Subjects"><ul>',
        *(f'<li><a href="#{_anchor(subject)}">{_words(subject)}</a></li>' for subject in subjects),
        '<li><a href="#types">Types</a></li></ul></nav><main>',
        f"<h1>{escape(info['title'])} {escape(info['version'])}: HTTP API</h1>",
        f"<p>{escape(info.get('summary', ''))}. Requests and answers are JSON, and an answer that is not 2xx has "
        "<code>error</code> and <code>code</code>. The same as a document for programs: "
        "<code>/openapi.json</code>. The messages on a consumer connection: <code>/asyncapi.json</code>.</p>",
    ]
    for subject in subjects:
        parts.append(f'<section id="{_anchor(subject)}"><h2>{_words(subject)}</h2>')
        for method, path, operation in by_subject[subject]:
            parts += _operation(method, path, operation, schemas)
        parts.append("</section>")
    parts.append('<section id="types"><h2>Types</h2>')
    for name in sorted(schemas):
        parts += _type(name, schemas[name])
    parts.append("</section></main></body></html>")
    return "\n".join(parts)


def _operation(method: str, path: str, operation: Part, schemas: Part) -> Iterator[str]:
    yield f'<article id="{escape(operation["operationId"])}"><h3><span class="{method}">{method.upper()}</span> '
    yield f"<code>{escape(path)}</code></h3>"
    if role := operation.get("x-queen-role"):
        yield f'<p class="role">{"needs no token" if role == "public" else f"role {escape(role)}"}</p>'
    yield _prose(operation.get("description") or operation["summary"])
    if parameters := operation.get("parameters"):
        yield "<table><thead><tr><th>parameter</th><th>in</th><th>type</th><th></th></tr></thead><tbody>"
        for one in parameters:
            name = f"{escape(one['name'])}{' *' if one.get('required') else ''}"
            about = _inline(one.get("description", "")) + _default(one["schema"])
            yield f"<tr><td><code>{name}</code></td><td>{one['in']}</td><td>{_kind(one['schema'])}</td>"
            yield f"<td>{about}</td></tr>"
        yield "</tbody></table>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        yield f"<p>Body: {_kind(body)}</p>"
    yield f"<pre><code>{escape(request(method, path, operation, schemas))}</code></pre>"
    yield "<ul class=answers>"
    for status, answer in operation["responses"].items():
        content = next(iter(answer.get("content", {}).items()), None)
        kind = "" if content is None else f": {_kind(content[1]['schema'])}"
        yield f"<li><b>{status}</b> {escape(answer['description'])}{kind}</li>"
    yield "</ul>"
    if (told := _answer(operation, schemas)) is not None:
        yield f"<details><summary>An answer</summary><pre><code>{escape(told)}</code></pre></details>"
    yield "</article>"


def request(method: str, path: str, operation: Part, schemas: Part) -> str:
    """The same request with curl."""
    parameters = operation.get("parameters", ())
    for one in parameters:
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", str(_named(one["name"], one["schema"], schemas)))
    asked = [one for one in parameters if one["in"] == "query" and one.get("required")]
    query, typical = _TYPICAL.get(operation["operationId"], ("", None))
    query = query or "&".join(f"{one['name']}={_named(one['name'], one['schema'], schemas)}" for one in asked)
    url = f"{SERVER}{path}{'?' + query if query else ''}"
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema")
    words = ["curl -s", *([] if method == "get" or schema is not None else [f"-X {method.upper()}"])]
    words.append(f"'{url}'" if query else url)
    if schema is not None:
        body = content.get("example", typical)
        body = example(schema, schemas, required_only=True) if body is None else body
        words.append("-d '" + json.dumps(body, ensure_ascii=False).replace("'", "'\\''") + "'")
    return " ".join(words)


def _answer(operation: Part, schemas: Part) -> str | None:
    for status, answer in operation["responses"].items():
        content = answer.get("content", {}).get("application/json", {})
        if status.startswith("2") and (schema := content.get("schema")) is not None:
            told = json.dumps(content.get("example") or example(schema, schemas), indent=2, ensure_ascii=False)
            return told if len(told) <= _MOST_SHOWN else told[:_MOST_SHOWN] + "\n…"
    return None


def example(schema: Part, schemas: Part, depth: int = 0, *, required_only: bool = False) -> Any:
    """A value that fits; with `required_only`, of objects the fields that must be there and those that make sense."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].removeprefix(_REF)], schemas, depth, required_only=required_only)
    for name in ("const", "default"):
        if schema.get(name) is not None:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for choices in ("anyOf", "oneOf"):
        real = [one for one in schema.get(choices, ()) if one.get("type") != "null"]
        if real and "type" not in schema:
            return example(real[0], schemas, depth, required_only=required_only)
    if depth > _DEEPEST:
        return None
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "object" or "properties" in schema:
        return _object(schema, schemas, depth, required_only)
    if kind == "array":
        items = schema.get("items") or (schema.get("prefixItems") or [None])[0]
        return [example(items, schemas, depth + 1, required_only=required_only)] if isinstance(items, Mapping) else []
    return _scalar(kind, schema)


def _object(schema: Part, schemas: Part, depth: int, required_only: bool) -> dict[str, Any]:
    required = schema.get("required", ())
    return {
        name: _named(name, field, schemas, depth + 1, required_only)
        for name, field in schema.get("properties", {}).items()
        if not required_only or name in required or ("payload" in schema["properties"] and name in _OF_A_MESSAGE)
    }


def _named(name: str, schema: Part, schemas: Part, depth: int = 0, required_only: bool = False) -> Any:
    likely = _LIKELY.get(name)
    if likely is not None and not _refuses(schema, likely):
        return likely
    return example(schema, schemas, depth, required_only=required_only)


def _refuses(schema: Part, value: Any) -> bool:
    """Whether the likely value is plainly none of these: another type, or not one of those that are listed."""
    kinds = [one.get("type", "") for one in (schema, *schema.get("anyOf", ()))]
    if "enum" in schema:
        return value not in schema["enum"]
    if schema.get("format") or any("$ref" in one for one in (schema, *schema.get("anyOf", ()))):
        return True
    wanted = "string" if isinstance(value, str) else "object"
    return any(kinds) and wanted not in kinds


def _scalar(kind: str | None, schema: Part) -> Any:
    if kind == "string":
        return _BY_FORMAT.get(schema.get("format", ""), "…" if not schema.get("format") else "")
    if kind in ("integer", "number"):
        return max(schema.get("minimum", 0), 1) if schema.get("maximum", 1) >= 1 else schema["maximum"]
    return {"boolean": True, "null": None}.get(kind or "", {})


def _type(name: str, schema: Part) -> Iterator[str]:
    yield f'<article id="type-{escape(name)}"><h3>{escape(name)}</h3>'
    if about := schema.get("description"):
        yield _prose(about)
    if properties := schema.get("properties"):
        yield "<table><thead><tr><th>field</th><th>type</th><th></th></tr></thead><tbody>"
        for field, kind in properties.items():
            mark = " *" if field in schema.get("required", ()) else ""
            yield f"<tr><td><code>{escape(field)}{mark}</code></td><td>{_kind(kind)}</td>"
            yield f"<td>{_inline(kind.get('description', ''))}{_default(kind)}</td></tr>"
        yield "</tbody></table>"
    else:
        yield f"<p>{_kind(schema)}</p>"
    yield "</article>"


def _kind(schema: Part) -> str:
    """The type of a value in words, linked where it has a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REF))
        return f'<a href="#type-{name}">{name}</a>'
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if isinstance(schema.get("items"), Mapping) else "list"
    for choices in ("anyOf", "oneOf"):
        if choices in schema and "type" not in schema:
            return " or ".join(dict.fromkeys(_kind(one) for one in schema[choices]))
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_kind(schema['additionalProperties'])}"
    kind = schema.get("format") if schema.get("format") in _BY_FORMAT else schema.get("type", "any JSON")
    return escape(" or ".join(kind) if isinstance(kind, list) else str(kind))


def _default(schema: Part) -> str:
    given = schema.get("default")
    return "" if given is None or given == {} else f' <span class="default">default {escape(json.dumps(given))}</span>'


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(' '.join(part.split()))}</p>" for part in re.split(r"\n\s*\n", text) if part.strip())


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _words(subject: str) -> str:
    return escape(subject.replace("_", " ").capitalize())


def _anchor(subject: str) -> str:
    return f"subject-{escape(subject)}"
