"""POST /api/v1/lease/{leaseId}/extend"""

from __future__ import annotations

import msgspec

from queenmq.core.names import iso_millis
from queenmq.core.options import MAX_SECONDS
from queenmq.engine.engine import Engine
from queenmq.errors import InvalidRequest
from queenmq.http.auth import Role
from queenmq.http.decoding import decode
from queenmq.http.messages import Request, Response, json_response
from queenmq.http.router import Router
from queenmq.http.schemas import ExtendBody
from queenmq.ids import is_uuid

_DEFAULT_SECONDS = 60
_decoder = msgspec.json.Decoder(ExtendBody | None)


def add_routes(router: Router, engine: Engine) -> None:
    async def extend(request: Request) -> Response:
        """Extend a lease, for every partition it covers; 404 if it is not live any more."""
        body = decode(request.body, _decoder, empty=b"{}") or ExtendBody()
        seconds = _DEFAULT_SECONDS if body.seconds is None else body.seconds
        if not 1 <= seconds <= MAX_SECONDS:
            raise InvalidRequest(f"seconds must be between 1 and {MAX_SECONDS}", "seconds")
        lease_id = request.params[0]
        expiry = await engine.leases.renew(lease_id.lower(), seconds) if is_uuid(lease_id) else None
        if expiry is None:
            lost = {"leaseId": lease_id, "success": False, "renewed": False}
            return json_response(404, lost | {"error": "Lease not found", "code": "lease_not_found"})
        until = iso_millis(expiry)
        renewed = {"leaseId": lease_id, "success": True, "renewed": True, "error": None}
        return json_response(200, renewed | {"newExpiresAt": until, "expiresAt": until, "lease_expires_at": until})

    router.add("POST", "/api/v1/lease/{leaseId}/extend", extend, Role.READ_WRITE)
