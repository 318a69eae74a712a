"""POST /api/v1/lease/{leaseId}/extend"""

from __future__ import annotations

import msgspec

from queenmq.core.names import iso_millis
from queenmq.http.decoding import decode
from queenmq.http.openapi import ANY_STRING, documented
from queenmq.http.requests import ExtendBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import LeaseLost, LeaseRenewed
from queenmq.http.scopes import leased
from queenmq.httpserver.messages import Request, Response
from queenmq.ids import is_uuid

_DEFAULT_SECONDS = 60
_decoder = msgspec.json.Decoder(ExtendBody | None)


@documented(
    {200: LeaseRenewed, 404: LeaseLost},
    body=ExtendBody | None,
    body_required=False,
    path={"leaseId": ANY_STRING},
)
async def extend_lease(request: Request, context: Context) -> Response:
    """Renew a lease for every partition that it covers; 404 if it has ended."""
    body = decode(request.body, _decoder, empty=b"{}") or ExtendBody()
    seconds = _DEFAULT_SECONDS if body.seconds is None else body.seconds
    lease_id = request.params[0]
    expiry = await context.broker.renew(lease_id.lower(), seconds) if is_uuid(lease_id) else None
    if expiry is None:
        lost = LeaseLost(
            lease_id=lease_id, success=False, renewed=False, error="Lease not found", code="lease_not_found"
        )
        return Response(404, lost)
    until = iso_millis(expiry)
    renewed = LeaseRenewed(
        lease_id=lease_id,
        success=True,
        renewed=True,
        error=None,
        new_expires_at=until,
        expires_at=until,
        lease_expires_at=until,
    )
    return Response(200, renewed)


ROUTES = (Route("POST", "/api/v1/lease/{leaseId}/extend", extend_lease, Role.READ_WRITE, scope=leased),)
