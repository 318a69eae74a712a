"""What a token says, once its signature is checked: when, from whom and for whom it is valid.

A token without `exp` is accepted, as by the server that the published clients come from, unless JWT_REQUIRE_EXP is set.
`iat` is not checked.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from queenmq.clock import Clock
from queenmq.config import AuthSettings
from queenmq.errors import Unauthenticated
from queenmq.http.verification_keys import VerificationKeys

Claims = dict[str, Any]

_log = logging.getLogger(__name__)


class TokenVerifier:
    """Checks the signature of a token and the claims that say when, from whom and for whom it is."""

    def __init__(
        self,
        keys: VerificationKeys,
        issuer: str,
        audience: str,
        skew_s: float,
        clock: Clock,
        *,
        requires_expiry: bool = False,
    ) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._skew_s = skew_s
        self._clock = clock
        self._requires_expiry = requires_expiry
        self._warned = False

    @classmethod
    def from_settings(cls, auth: AuthSettings, clock: Clock) -> TokenVerifier:
        keys = VerificationKeys.from_settings(auth, clock)
        return cls(keys, auth.issuer, auth.audience, auth.clock_skew_s, clock, requires_expiry=auth.requires_expiry)

    async def verify(self, token: bytes) -> Claims:
        """Return the claims. Raises Unauthenticated, or UnavailableError from the published keys."""
        claims = _decode_claims(await self._keys.signed_payload(token))
        self._check_time(claims)
        if self._issuer and claims.get("iss") != self._issuer:
            raise Unauthenticated("Invalid token issuer")
        if self._audience and self._audience not in _audiences(claims):
            raise Unauthenticated("Invalid token audience")
        return claims

    def valid_until(self, claims: Claims) -> float:
        """The wall time from which the token is expired."""
        expiry = _numeric_date(claims, "exp")
        return float("inf") if expiry is None else expiry + self._skew_s

    def _check_time(self, claims: Claims) -> None:
        now = self._clock.wall()
        if claims.get("exp") is None:
            self._without_expiry()
        if now >= self.valid_until(claims):
            raise Unauthenticated("Token expired")
        not_before = _numeric_date(claims, "nbf")
        if not_before is not None and now < not_before - self._skew_s:
            raise Unauthenticated("Token not yet valid")

    def _without_expiry(self) -> None:
        if self._requires_expiry:
            raise Unauthenticated("Token never expires")
        if not self._warned:
            self._warned = True
            _log.warning(
                "a JWT without `exp` was accepted: it can be used until its key is changed, by anyone who finds it. "
                "Give tokens an end, and set JWT_REQUIRE_EXP=true"
            )


def _decode_claims(payload: bytes) -> Claims:
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise Unauthenticated("Malformed token") from None


def _numeric_date(claims: Claims, name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthenticated(f"Invalid token claim {name}")
    return value


def _audiences(claims: Claims) -> list[object]:
    audience = claims.get("aud")
    return audience if isinstance(audience, list) else [audience]
