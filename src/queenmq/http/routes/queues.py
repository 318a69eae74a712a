"""POST /api/v1/configure and DELETE /api/v1/resources/queues/{queue}"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.administration import Labels
from queenmq.core.names import MAX_NAME, check_name, check_text
from queenmq.core.options import ConfigureRights, QueueOptions
from queenmq.errors import InvalidRequest
from queenmq.http.administered import administered, queue_deleted
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.requests import ConfigureBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Need, Route
from queenmq.http.schemas import Configured, QueueDeleted
from queenmq.http.scopes import permissions_of, queue_in_path
from queenmq.httpserver.messages import Request, Response

_TEXTS = {"queue": "queue is required"}
_decoder = msgspec.json.Decoder(ConfigureBody)


@documented({200: Configured}, body=ConfigureBody)
async def configure(request: Request, context: Context) -> Response:
    """Create a queue, or change the options that are given; with `"mode": "replace"`, all of them.

    With the role read-write, a change of an existing queue is refused (403) if it would delete messages earlier,
    protect them less or move it to another namespace, and every change if the token is restricted and does not allow
    to administer the queue.
    """
    body = decode(request.body, _decoder, _TEXTS)
    check_name(body.queue, "queue")
    namespace = _label(body.namespace, "namespace")
    task = _label(body.task, "task")
    options = body.options or QueueOptions()
    if options.encryption_enabled and not context.broker.encryption.available:
        raise InvalidRequest(
            "options.encryptionEnabled needs QUEEN_ENCRYPTION_KEY on the server", "options.encryptionEnabled"
        )
    administers = _administers(request, body.queue)
    done = await context.broker.configure(
        body.queue,
        Labels(namespace, task),
        options,
        ConfigureRights(may_destroy=administers, may_change=administers or permissions_of(request) is None),
        _given(request) if body.mode == "merge" else None,
    )
    configured = Configured(
        configured=True,
        queue_id=done.queue_id,
        partition_id=done.partition_id,
        queue=body.queue,
        namespace=done.labels.namespace,
        task=done.labels.task,
        options=done.options.echo(),
    )
    return Response(200, configured)


@documented({200: QueueDeleted, 202: QueueDeleted})
async def delete_queue(request: Request, context: Context) -> Response:
    """Delete a queue with its messages, groups and dead letters; 200 also if it does not exist."""
    queue = request.params[0]
    check_name(queue, "queue")
    existed, progress = await context.broker.delete_queue(queue)
    return administered(progress, queue_deleted(queue, existed))


async def _scope(request: Request, _: Context) -> Sequence[Need]:
    return (Need(Verb.PUSH, decode(request.body, _decoder, _TEXTS).queue),)


def _configured(request: Request) -> Sequence[str]:
    return (decode(request.body, _decoder, _TEXTS).queue,)


class _Options(msgspec.Struct):
    options: dict[str, msgspec.Raw] | None = None


def _given(request: Request) -> frozenset[str]:
    """Which options the request names, as fields of QueueOptions."""
    named = msgspec.json.decode(request.body, type=_Options).options or {}
    fields = zip(QueueOptions.__struct_fields__, QueueOptions.__struct_encode_fields__, strict=True)
    return frozenset(field for field, wire in fields if wire in named)


def _administers(request: Request, queue: str) -> bool:
    permissions = permissions_of(request)
    if permissions is None:
        return request.role >= Role.ADMIN
    return permissions.allows(Verb.ADMINISTER, queue) and not permissions.restricts_groups


def _label(given: str | None, field: str) -> str:
    label = given or ""
    check_text(label, field)
    if len(label) > MAX_NAME:
        raise InvalidRequest(f"{field} must have at most {MAX_NAME} characters", field)
    return label


ROUTES = (
    Route("POST", "/api/v1/configure", configure, Role.READ_WRITE, scope=_scope, audited=True, configures=_configured),
    Route(
        "DELETE",
        "/api/v1/resources/queues/{queue}",
        delete_queue,
        Role.ADMIN,
        scope=queue_in_path(Verb.ADMINISTER),
        audited=True,
    ),
)
