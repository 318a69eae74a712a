"""POST /api/v1/configure and DELETE /api/v1/resources/queues/{queue}"""

from __future__ import annotations

import msgspec

from queenmq.core.names import MAX_NAME, check_name, check_text
from queenmq.core.options import QueueOptions
from queenmq.engine.engine import Engine
from queenmq.errors import InvalidRequest
from queenmq.http.administered import administered
from queenmq.http.decoding import decode
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.openapi import documented
from queenmq.http.roles import Role
from queenmq.http.router import Router
from queenmq.http.schemas import ConfigureBody, Configured, QueueDeleted

_TEXTS = {"queue": "queue is required"}
_decoder = msgspec.json.Decoder(ConfigureBody)


def add_routes(router: Router, engine: Engine) -> None:
    @documented({200: Configured}, body=ConfigureBody)
    async def configure(request: Request) -> Response:
        """Create a queue or replace all of its options."""
        body = decode(request.body, _decoder, _TEXTS)
        check_name(body.queue, "queue")
        namespace = _label(body.namespace, "namespace")
        task = _label(body.task, "task")
        options = body.options or QueueOptions()
        if options.encryption_enabled and not engine.encryption.available:
            raise InvalidRequest(
                "options.encryptionEnabled needs QUEEN_ENCRYPTION_KEY on the server", "options.encryptionEnabled"
            )
        queue_id, partition_id = await engine.administration.configure(body.queue, namespace, task, options)
        configured = Configured(
            configured=True,
            queue_id=queue_id,
            partition_id=partition_id,
            queue=body.queue,
            namespace=namespace,
            task=task,
            options=options.echo(),
        )
        return json_response(200, configured)

    @documented({200: QueueDeleted, 202: QueueDeleted})
    async def delete_queue(request: Request) -> Response:
        """Delete a queue with everything of it; 200 also if there was none."""
        queue = request.params[0]
        check_name(queue, "queue")
        existed, standing = await engine.administration.delete_queue(queue)
        return administered(standing, QueueDeleted(deleted=True, queue=queue, existed=existed))

    router.add("POST", "/api/v1/configure", configure, Role.READ_WRITE)
    router.add("DELETE", "/api/v1/resources/queues/{queue}", delete_queue, Role.ADMIN)


def _label(given: str | None, field: str) -> str:
    label = given or ""
    check_text(label, field)
    if len(label) > MAX_NAME:
        raise InvalidRequest(f"{field} must have at most {MAX_NAME} characters", field)
    return label
