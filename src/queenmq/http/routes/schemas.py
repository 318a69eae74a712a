"""Schemas of the messages of queues: /api/v1/schemas"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from queenmq.access.permissions import Verb
from queenmq.broker.schemas import Comparison, Rules, schema_text
from queenmq.core.names import check_name, iso_millis
from queenmq.errors import InvalidRequest, NotFound
from queenmq.http.decoding import decode, query_count, query_name
from queenmq.http.openapi import COUNT, NAME, Parameter, documented
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.routes.push import check_count
from queenmq.http.schemas import Error
from queenmq.http.scopes import listing, queue_in_path, visible
from queenmq.httpserver.messages import Request, Response
from queenmq.reports import schemas

_MOST = 1000
_PAGE = (
    Parameter("after", NAME, "Only queues whose name comes behind this one."),
    Parameter("limit", COUNT, f"Most queues in the answer, up to {_MOST}.", 100),
)
_VERSION = Parameter("version", COUNT, "The version to show; absent or 0 is the newest.", 0)


class SchemaBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Without `schema`, only the rules change."""

    schema: dict[str, Any] | None = None
    compatibility: Literal["none", "backward", "forward", "full"] | None = None
    check: bool | None = None


class CheckBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Payloads for the newest schema, or for `schema`, which is compared with the newest one."""

    schema: dict[str, Any] | None = None
    payloads: list[msgspec.Raw] = []


class SchemaSetAnswer(Struct, kw_only=True):
    queue: str
    version: int
    compatibility: str
    check: bool
    changed: bool


class SchemaShown(Struct, kw_only=True, rename="camel"):
    queue: str
    version: int
    compatibility: str
    check: bool
    changed_at: str


class SchemasListed(Struct, kw_only=True, rename="camel"):
    schemas: list[SchemaShown]
    next_after: str | None


class VersionShown(Struct, kw_only=True, rename="camel"):
    version: int
    created_at: str
    created_by: str | None


class SchemaFound(Struct, kw_only=True, rename="camel"):
    queue: str
    version: int
    newest: int
    compatibility: str
    check: bool
    created_at: str
    created_by: str | None
    schema: msgspec.Raw
    versions: list[VersionShown]


class SchemaRemoved(Struct, kw_only=True):
    queue: str
    removed: bool


class CheckResult(Struct, kw_only=True):
    index: int
    fits: bool
    error: str | None


class SchemaChecked(Struct, kw_only=True):
    """`incompatible`: why the schema of the request may not follow the newest; null if it may, or if there is none."""

    queue: str
    version: int | None
    incompatible: str | None
    results: list[CheckResult]


_body = msgspec.json.Decoder(SchemaBody)
_check = msgspec.json.Decoder(CheckBody)


@documented({200: SchemasListed}, query=_PAGE)
async def list_schemas(request: Request, context: Context) -> Response:
    """The queues that have a schema, by name."""
    limit = max(1, query_count(request.query, "limit", 100, _MOST))
    after = query_name(request.query, "after") or ""
    rows = await schemas.page(context.reports, visible(request), after, limit + 1)
    shown = [
        SchemaShown(
            queue=row.queue,
            version=row.version,
            compatibility=row.compatibility,
            check=row.check,
            changed_at=iso_millis(row.changed_at),
        )
        for row in rows[:limit]
    ]
    return Response(200, SchemasListed(schemas=shown, next_after=shown[-1].queue if len(rows) > limit else None))


@documented({200: SchemaFound, 404: Error}, query=(_VERSION,))
async def get_schema(request: Request, context: Context) -> Response:
    """The schema of a queue, and which versions it has."""
    queue = _queue(request)
    found = await _find(context, queue, query_count(request.query, "version", 0, 2**31 - 1) or None)
    versions = await schemas.versions(context.reports, queue, _MOST)
    answer = SchemaFound(
        queue=queue,
        version=found.version,
        newest=found.newest,
        compatibility=found.compatibility,
        check=found.check,
        created_at=iso_millis(found.created_at),
        created_by=found.created_by,
        schema=msgspec.Raw(found.schema.encode()),
        versions=[
            VersionShown(version=one.version, created_at=iso_millis(one.created_at), created_by=one.created_by)
            for one in versions
        ],
    )
    return Response(200, answer)


@documented({200: SchemaSetAnswer, 404: Error, 409: Error}, body=SchemaBody)
async def set_schema(request: Request, context: Context) -> Response:
    """Give a queue a new version of its schema, or change the rules; 409 if it may not follow the one before."""
    queue, body = _queue(request), decode(request.body, _body)
    rules = Rules(body.compatibility, body.check)
    done = await context.broker.schemas.set(queue, body.schema, rules, request.subject)
    answer = SchemaSetAnswer(
        queue=queue, version=done.version, compatibility=done.compatibility, check=done.check, changed=done.is_new
    )
    return Response(200, answer)


@documented({200: SchemaChecked, 404: Error}, body=CheckBody)
async def check_schema(request: Request, context: Context) -> Response:
    """Whether payloads fit the schema of a queue, and whether another schema may follow it. Nothing is changed."""
    from queenmq.core import json_schema

    queue, body = _queue(request), decode(request.body, _check)
    check_count(len(body.payloads), context.settings, "payloads")
    found = await schemas.find(context.reports, queue, None)
    if found is None and body.schema is None:
        raise NotFound(f"queue {queue!r} has no schema")
    newest: Any = None if found is None else json_schema.read_schema(found.schema)
    if body.schema is not None:
        schema_text(body.schema)
    try:
        validator = json_schema.Validator(newest if body.schema is None else body.schema)
    except json_schema.BadSchema as error:
        raise InvalidRequest(f"schema: {error}", "schema") from None
    why = None
    if found is not None and body.schema is not None:
        why = await context.broker.schemas.incompatibility(newest, body.schema, found.compatibility)
    comparison = Comparison()
    errors = [await comparison.misfit(validator, bytes(payload)) for payload in body.payloads]
    results = [CheckResult(index=index, fits=error is None, error=error) for index, error in enumerate(errors)]
    version = None if found is None else found.version
    return Response(200, SchemaChecked(queue=queue, version=version, incompatible=why, results=results))


@documented({200: SchemaRemoved, 404: Error})
async def remove_schema(request: Request, context: Context) -> Response:
    """Remove the schema of a queue with all of its versions; nothing is checked any more."""
    queue = _queue(request)
    if not await context.broker.schemas.remove(queue):
        raise NotFound(f"queue {queue!r} has no schema")
    return Response(200, SchemaRemoved(queue=queue, removed=True))


async def _find(context: Context, queue: str, version: int | None) -> schemas.SchemaRead:
    found = await schemas.find(context.reports, queue, version)
    if found is None:
        raise NotFound(f"queue {queue!r} has no schema" + ("" if version is None else f" of version {version}"))
    return found


def _queue(request: Request) -> str:
    queue = request.params[0]
    check_name(queue, "queue")
    return queue


_PATH = "/api/v1/schemas"
_ONE = _PATH + "/{queue}"
_READ, _ADMINISTER = queue_in_path(Verb.READ), queue_in_path(Verb.ADMINISTER)

ROUTES = (
    Route("GET", _PATH, list_schemas, Role.READ_ONLY, scope=listing),
    Route("GET", _ONE, get_schema, Role.READ_ONLY, scope=_READ),
    Route("POST", _ONE, set_schema, Role.ADMIN, scope=_ADMINISTER, audited=True),
    Route("POST", _ONE + "/check", check_schema, Role.READ_ONLY, scope=_READ),
    Route("DELETE", _ONE, remove_schema, Role.ADMIN, scope=_ADMINISTER, audited=True),
)
