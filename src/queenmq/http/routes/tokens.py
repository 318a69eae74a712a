"""Tokens that Queen makes: GET and POST /api/v1/tokens, DELETE /api/v1/tokens/{tokenId}"""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from queenmq.access.permissions import MOST_GRANTS, Grant, Verb, check_grants
from queenmq.access.rates import UNLIMITED, Limits
from queenmq.access.tokens import NewToken, Token
from queenmq.clock import SYSTEM
from queenmq.core.names import check_name, iso_millis, optional_iso_millis
from queenmq.core.options import MAX_SECONDS
from queenmq.errors import Forbidden, InvalidRequest, NotFound
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.paging import page, page_parameters
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Error, Moment, Name, Page, Uuid
from queenmq.http.scopes import all_queues, refuse_restricted
from queenmq.httpserver.messages import Request, Response
from queenmq.ids import is_uuid

RoleName = Literal["read-only", "read-write", "admin"]

_LIMIT: Final = 100
_PATH: Final = {"tokenId": {"type": "string", "format": "uuid"}}
_TEXTS: Final = {"name": "name is required", "role": "role must be read-only, read-write or admin"}


class TokenBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`grants` restrict the token; without any it is for every queue and group. It never expires without a time.
    `limits` are counted by each worker of each server for itself."""

    name: Name
    role: RoleName
    grants: Annotated[tuple[Grant, ...], Meta(min_length=1, max_length=MOST_GRANTS)] = ()
    limits: Limits = UNLIMITED
    expires_in_seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] | None = None


class TokenShown(Struct, kw_only=True, rename="camel"):
    """`lastUsedAt` may be an hour old. Of the token itself only a digest is stored."""

    id: Uuid
    name: str
    role: RoleName
    grants: tuple[Grant, ...]
    limits: Limits
    valid: bool
    created_at: Moment
    created_by: str | None
    expires_at: Moment | None
    revoked_at: Moment | None
    last_used_at: Moment | None


class TokenCreated(TokenShown, kw_only=True, rename="camel"):
    """`token` is shown only now."""

    token: str


class TokensListed(Struct, kw_only=True):
    tokens: list[TokenShown]
    pagination: Page


_decoder = msgspec.json.Decoder(TokenBody)


@documented({200: TokensListed}, query=page_parameters(_LIMIT, "tokens"))
async def list_tokens(request: Request, context: Context) -> Response:
    """The tokens that Queen has made, newest first, without their texts."""
    limit, offset = page(request, context.settings, _LIMIT)
    rows = await context.tokens.page(limit, offset)
    return Response(200, TokensListed(tokens=[_shown(row) for row in rows], pagination=Page(limit, offset)))


@documented({201: TokenCreated}, body=TokenBody)
async def create_token(request: Request, context: Context) -> Response:
    """Make a token. The answer is the only place where it is shown."""
    body = decode(request.body, _decoder, _TEXTS)
    check_name(body.name, "name")
    check_grants(body.grants, "grants")
    refuse_restricted(request)
    _refuse_longer(body, request.valid_until)
    wanted = NewToken(
        name=body.name, role=body.role, grants=body.grants, limits=body.limits, expires_in_s=body.expires_in_seconds
    )
    token, text = await context.tokens.create(wanted, request.subject)
    shown = TokenCreated(token=text, **msgspec.structs.asdict(_shown(token)))
    return Response(201, shown)


@documented({200: TokenShown, 404: Error}, path=_PATH)
async def revoke_token(request: Request, context: Context) -> Response:
    """Revoke a token, on every server, within a moment. It stays in the list."""
    refuse_restricted(request)
    token_id = request.params[0]
    if not is_uuid(token_id):
        raise InvalidRequest("tokenId must be a UUID", "tokenId")
    token = await context.tokens.revoke(token_id)
    if token is None:
        raise NotFound("Token not found")
    return Response(200, _shown(token))


def _refuse_longer(body: TokenBody, valid_until: float) -> None:
    """Raises Forbidden if the token would be valid for longer than the one that makes it."""
    left_s = valid_until - SYSTEM.wall()
    if left_s < (body.expires_in_seconds or math.inf):
        raise Forbidden(
            "a token that expires makes only tokens that expire no later: "
            f"expiresInSeconds must be at most {max(0, int(left_s))}"
        )


def _shown(token: Token) -> TokenShown:
    return TokenShown(
        id=str(token.id),
        name=token.name,
        role=token.role_name,  # type: ignore[arg-type]
        grants=token.grants,
        limits=token.limits,
        valid=token.is_valid,
        created_at=iso_millis(token.created_at),
        created_by=token.created_by,
        expires_at=optional_iso_millis(token.expires_at),
        revoked_at=optional_iso_millis(token.revoked_at),
        last_used_at=optional_iso_millis(token.last_used_at),
    )


ROUTES = (
    Route("GET", "/api/v1/tokens", list_tokens, Role.ADMIN, scope=all_queues(Verb.ADMINISTER)),
    Route("POST", "/api/v1/tokens", create_token, Role.ADMIN, scope=all_queues(Verb.ADMINISTER), audited=True),
    Route(
        "DELETE", "/api/v1/tokens/{tokenId}", revoke_token, Role.ADMIN, scope=all_queues(Verb.ADMINISTER), audited=True
    ),
)
