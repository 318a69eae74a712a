"""The OpenAPI document of this server, made from its routes and the structs of `schemas`.

Owns what is said about each route beyond its handler's docstring: a route says it with `documented`. The document
describes the server that gives it: its limits, and tokens only where they are demanded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

import queenmq
from queenmq.config import Settings
from queenmq.http.decoding import MAX_INTEGER, MIN_INTEGER
from queenmq.http.descriptions import IN_PATH, described
from queenmq.http.examples import EXAMPLES, Example
from queenmq.http.roles import Role
from queenmq.http.route import Handler, Route
from queenmq.http.schemas import LABEL_SCHEMA, NAME_SCHEMA, Error, Schema

FLAG: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer", "format": "int64", "minimum": MIN_INTEGER, "maximum": MAX_INTEGER}
COUNT: Schema = INTEGER | {"minimum": 0}
NAME: Schema = {"type": "string"} | NAME_SCHEMA
LABEL: Schema = {"type": "string"} | LABEL_SCHEMA
MOMENT: Schema = {"type": "string", "anyOf": [{"format": "date-time"}, {"maxLength": 0}]}
UUID: Schema = {"type": "string", "format": "uuid"}
ANY_STRING: Schema = {"type": "string", "minLength": 1}

_JSON = "application/json"
_REF = "#/components/schemas/{name}"
_ALWAYS = (400, 414, 429, 503)
_WITH_BODY = (413,)
_WITH_TOKEN = (401, 403)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter. `default` is what an absent one counts as."""

    name: str
    schema: Schema
    description: str
    default: object = None
    required: bool = False

    def document(self) -> dict[str, object]:
        schema = self.schema if self.default is None else self.schema | {"default": self.default}
        about = {"name": self.name, "in": "query", "description": self.description, "schema": schema}
        return about | ({"required": True} if self.required else {})


@dataclass(frozen=True, slots=True)
class _About:
    answers: Mapping[int, Any]
    body: Any
    body_required: bool
    query: tuple[Parameter, ...]
    path: Mapping[str, Schema]
    links: Mapping[str, Mapping[str, object]]


_about: WeakKeyDictionary[Handler, _About] = WeakKeyDictionary()
Documented = TypeVar("Documented", bound=Handler)


def documented(
    answers: Mapping[int, Any],
    *,
    body: Any = None,
    body_required: bool = True,
    query: Iterable[Parameter] = (),
    path: Mapping[str, Schema] | None = None,
    links: Mapping[str, Mapping[str, object]] | None = None,
) -> Callable[[Documented], Documented]:
    """Say what a handler takes and answers; its docstring is the summary.

    `answers` maps a status to a type, to `str` for plain text, to a media type, or to None where there is no body;
    refusals that every route may give need not be listed. A path parameter is a name unless `path` says otherwise.
    `links` says, by name of the handler, what of the first answer goes into the next request.
    """

    def remember(handler: Documented) -> Documented:
        _about[handler] = _About(answers, body, body_required, tuple(query), path or {}, links or {})
        return handler

    return remember


def document(routes: Iterable[Route], settings: Settings) -> dict[str, Any]:
    """The whole document. Raises KeyError for a route that is not `documented`."""
    kinds = _Kinds()
    paths: dict[str, dict[str, object]] = {}
    for route in sorted(routes, key=lambda route: (route.path, route.method)):
        operation = _operation(route, _about[route.handler], kinds, settings)
        paths.setdefault(route.path.replace("...}", "}"), {})[route.method.lower()] = operation
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "Queen",
            "version": queenmq.__version__,
            "summary": "A message queue on PostgreSQL",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": described(kinds.components()),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }
    limited: dict[str, Any] = bounded(whole, settings.limits.max_items)
    return limited


class _Kinds:
    """The types of bodies, as references into the components."""

    def __init__(self) -> None:
        self._known: list[Any] = []

    def schema(self, kind: Any) -> Schema:
        self._known.append(kind)
        [schema], _ = msgspec.json.schema_components([kind], ref_template=_REF)
        return schema

    def components(self) -> dict[str, Schema]:
        return msgspec.json.schema_components(self._known, ref_template=_REF)[1]


def _operation(route: Route, about: _About, kinds: _Kinds, settings: Settings) -> dict[str, object]:
    role = Role.PUBLIC if route.path in settings.auth.skip_paths else route.role
    demands_token = settings.auth.required and role is not Role.PUBLIC
    operation: dict[str, object] = {
        "operationId": _name(route.handler),
        **_told(cleandoc(route.handler.__doc__ or "")),
        "tags": [route.handler.__module__.rpartition(".")[2]],
        "x-queen-role": role.name.lower().replace("_", "-"),
        "parameters": _path_parameters(route.path, about.path) + [p.document() for p in about.query],
        "responses": _responses(about, kinds, demands_token),
    }
    if demands_token:
        operation["security"] = [{"token": []}]
    if about.body is not None:
        operation["requestBody"] = {"required": about.body_required, "content": _json(kinds.schema(about.body))}
    if (example := EXAMPLES.get(_name(route.handler))) is not None:
        _exemplify(operation, example)
    return operation


def _exemplify(operation: Any, example: Example) -> None:
    """Put the example into the request and into the first good answer."""
    if example.body is not None:
        operation["requestBody"]["content"][_JSON]["example"] = example.body
    good = min(status for status in operation["responses"] if status.startswith("2"))
    operation["responses"][good]["content"][_JSON]["example"] = example.answer


def _told(docstring: str) -> dict[str, str]:
    """Its first paragraph in one line, and all of it if there is more."""
    first, _, more = docstring.partition("\n\n")
    summary = {"summary": " ".join(first.split())}
    return summary | ({"description": docstring} if more else {})


def _name(handler: Handler) -> str:
    name: str = getattr(handler, "__name__")  # noqa: B009 - a Callable need not have one
    return name


def _path_parameters(pattern: str, schemas: Mapping[str, Schema]) -> list[dict[str, object]]:
    names = [segment[1:-1].removesuffix("...") for segment in pattern.split("/") if segment.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "description": IN_PATH[name], "schema": schemas.get(name, NAME)}
        for name in names
    ]


def _responses(about: _About, kinds: _Kinds, demands_token: bool) -> dict[str, dict[str, object]]:
    refusals: tuple[int, ...] = _ALWAYS
    if about.body is not None:
        refusals += _WITH_BODY
    if demands_token:
        refusals += _WITH_TOKEN
    answers = dict.fromkeys(refusals, Error) | dict(about.answers)
    responses = {str(status): _response(status, answers[status], kinds) for status in sorted(answers)}
    if about.links:
        links = {name: {"operationId": name} | dict(link) for name, link in about.links.items()}
        responses[str(min(about.answers))]["links"] = links
    return responses


def _response(status: int, kind: Any, kinds: _Kinds) -> dict[str, object]:
    response: dict[str, object] = {"description": HTTPStatus(status).phrase}
    if kind is str:
        response["content"] = {"text/plain": {"schema": {"type": "string"}}}
    elif isinstance(kind, str):
        response["content"] = {kind: {"schema": {"type": "string"}}}
    elif kind is not None:
        response["content"] = _json(kinds.schema(kind))
    return response


def _json(schema: Schema) -> dict[str, object]:
    return {_JSON: {"schema": schema}}


def bounded(part: Any, max_items: int) -> Any:
    """The same with `maxItems` on every array that has none: nothing is longer, in requests and in answers."""
    if isinstance(part, list):
        return [bounded(element, max_items) for element in part]
    if not isinstance(part, dict):
        return part
    limited = {key: bounded(value, max_items) for key, value in part.items()}
    if limited.get("type") == "array":
        limited.setdefault("maxItems", max_items)
    return limited
