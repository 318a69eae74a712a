"""The OpenID provider at which people sign in to the dashboard. The dashboard speaks with it; Queen only verifies the
tokens that come of it, as it does with all others."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from queenmq.config import AuthSettings, is_protected
from queenmq.errors import StartupError

# What may stand in a Content-Security-Policy without ending its source or its directive.
_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")


def origin_of(issuer: str) -> str:
    """Scheme, host and port. Raises ValueError if it is no address of a provider."""
    parts = urlsplit(issuer)
    host = parts.netloc.rpartition(":")[0] if parts.port is not None else parts.netloc
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or parts.query or parts.fragment:
        raise ValueError
    return f"{parts.scheme}://{parts.netloc}"


def check_login(auth: AuthSettings) -> None:
    """Raises StartupError if people could sign in, but not with what comes of it."""
    if auth.oidc_issuer is None and auth.oidc_client_id is None:
        return
    if auth.oidc_issuer is None or auth.oidc_client_id is None:
        raise StartupError("QUEEN_OIDC_ISSUER and QUEEN_OIDC_CLIENT_ID need each other: set both, or none.")
    try:
        origin_of(auth.oidc_issuer)
    except ValueError:
        raise StartupError(
            "QUEEN_OIDC_ISSUER must be an http:// or https:// address without a password or a query."
        ) from None
    if not is_protected(auth.oidc_issuer):
        raise StartupError(
            "QUEEN_OIDC_ISSUER must begin with https://, unless the provider is on this machine: over http:// an "
            "attacker on the network gets the tokens of those who sign in."
        )
    if not (auth.enabled and auth.jwks_url):
        raise StartupError(
            "QUEEN_OIDC_ISSUER needs JWT_ENABLED=true and JWT_JWKS_URL, with which the tokens of the provider are "
            "verified; its address is jwks_uri in /.well-known/openid-configuration of the provider."
        )
    if auth.algorithm == "HS256":
        raise StartupError("QUEEN_OIDC_ISSUER needs JWT_ALGORITHM RS256, EdDSA or auto: HS256 has no published keys.")
    if not auth.audience:
        raise StartupError(
            "QUEEN_OIDC_ISSUER needs JWT_AUDIENCE (for ID tokens, the client id): without it, tokens that the provider "
            "has made for any other application would be accepted."
        )
    if not auth.issuer:
        raise StartupError(
            "QUEEN_OIDC_ISSUER needs JWT_ISSUER, which is the same address for ID tokens: without it, tokens of every "
            "issuer would be accepted whose keys are at JWT_JWKS_URL."
        )
    if auth.oidc_token == "id_token" and auth.issuer != auth.oidc_issuer:  # noqa: S105 - the name of a field
        raise StartupError(
            f"JWT_ISSUER is {auth.issuer!r}, but ID tokens name {auth.oidc_issuer!r} (QUEEN_OIDC_ISSUER) as their "
            "issuer: nobody could sign in."
        )
