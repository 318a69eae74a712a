"""The AsyncAPI document of consumer connections, made from the structs that `routes.consume` decodes and encodes.

The parameters are those that the OpenAPI document has for the route. Close codes and promises are in
docs/consumer-connection.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

import queenmq
from queenmq.config import Settings
from queenmq.http.openapi import Parameter, bounded
from queenmq.http.requests import ConsumerFrame
from queenmq.http.schemas import Schema, ServerFrame

_REF: Final = "#/components/schemas/{name}"
_CHANNEL: Final = "#/channels/consume"
# By the name of the message: what it is, and who sends it.
_MESSAGES: Final[Mapping[str, tuple[Any, str, str]]] = {
    "fromServer": (ServerFrame, "send", "What the server has for the client at one moment."),
    "fromClient": (ConsumerFrame, "receive", "What the client says at one moment."),
}


def document(path: str, parameters: Sequence[Parameter], settings: Settings) -> dict[str, Any]:
    """`path` is that of the route, whose only parameter in braces is the queue; `parameters` are those of its query."""
    kinds = [kind for kind, _, _ in _MESSAGES.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    query = {"type": "object", "properties": {one.name: _shown(one) for one in parameters}}
    demands_token = settings.auth.required
    channel: dict[str, Any] = {
        "address": path,
        "description": "A WebSocket of JSON texts, on which batches are delivered and finished. The server closes it "
        "with 1001 when it stops; then the leases stay with the client. See docs/consumer-connection.md.",
        "parameters": {"queue": {"description": "The name of the queue, encoded as a part of a URL."}},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _MESSAGES},
        "bindings": {"ws": {"method": "GET", "query": query, "bindingVersion": "0.1.0"}},
    }
    whole = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Queen: consumer connections",
            "version": queenmq.__version__,
            "description": "Everything else that the server does is in its OpenAPI document, /openapi.json.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {"consume": channel},
        "operations": {
            name: {
                "action": action,
                "channel": {"$ref": _CHANNEL},
                "summary": summary,
                "messages": [{"$ref": f"{_CHANNEL}/messages/{name}"}],
            }
            | ({"security": [{"$ref": "#/components/securitySchemes/token"}]} if demands_token else {})
            for name, (_, action, summary) in _MESSAGES.items()
        },
        "components": {
            "messages": {
                name: {"name": name, "summary": summary, "payload": schema}
                for (name, (_, _, summary)), schema in zip(_MESSAGES.items(), schemas, strict=True)
            },
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }
    limited: dict[str, Any] = bounded(whole, settings.limits.max_items)
    return limited


def _shown(parameter: Parameter) -> Schema:
    about = {"description": parameter.description}
    return parameter.schema | about | ({} if parameter.default is None else {"default": parameter.default})
