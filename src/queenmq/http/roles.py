"""What a token grants: the claims that carry roles, and those that restrict it to queues and groups."""

from __future__ import annotations

from typing import Any

import msgspec

from queenmq.access.permissions import Grant, Permissions, check_grants
from queenmq.access.rates import Limits
from queenmq.config import AuthSettings
from queenmq.core.roles import Role
from queenmq.errors import InvalidRequest, StartupError, Unauthenticated

__all__ = ["Role", "RoleClaims"]


class RoleClaims:
    """Where a token carries its roles, and what they are called. The highest recognised one counts."""

    def __init__(
        self,
        claim: str,
        list_claim: str,
        roles: dict[str, Role],
        scopes_claim: str = "queen",
        limits_claim: str = "queenLimits",
        *,
        requires_scopes: bool = False,
    ) -> None:
        self._claim = claim
        self._list_claim = list_claim
        self._roles = roles
        self._scopes_claim = scopes_claim
        self._limits_claim = limits_claim
        self._requires_scopes = requires_scopes

    @classmethod
    def from_settings(cls, auth: AuthSettings) -> RoleClaims:
        roles = {
            auth.role_admin: Role.ADMIN,
            auth.role_read_write: Role.READ_WRITE,
            auth.role_read_only: Role.READ_ONLY,
        }
        if len(roles) < 3:
            raise StartupError(
                "JWT_ROLE_ADMIN, JWT_ROLE_READ_WRITE and JWT_ROLE_READ_ONLY must be three different names."
            )
        return cls(
            *(auth.roles_claim, auth.roles_array_claim, roles, auth.scopes_claim, auth.limits_claim),
            requires_scopes=auth.requires_scopes,
        )

    def role(self, claims: dict[str, Any]) -> Role:
        listed = claims.get(self._list_claim)
        names = listed if isinstance(listed, list) else []
        granted = (self._roles.get(n) for n in [claims.get(self._claim), *names] if isinstance(n, str))
        return max((role for role in granted if role is not None), default=Role.PUBLIC)

    def permissions(self, claims: dict[str, Any], role: Role) -> Permissions | None:
        """What the token is restricted to; None if it is not. Raises Unauthenticated if that cannot be read."""
        given = claims.get(self._scopes_claim)
        if given is None:
            if self._requires_scopes:
                raise Unauthenticated(f"Missing token claim {self._scopes_claim} (JWT_REQUIRE_SCOPES)")
            return None
        try:
            grants = msgspec.convert(given if isinstance(given, list) else [given], tuple[Grant, ...])
            check_grants(grants, self._scopes_claim)
        except (msgspec.ValidationError, InvalidRequest):
            raise Unauthenticated(f"Invalid token claim {self._scopes_claim}") from None
        if Grant() in grants:  # restricts nothing: something was left out when the token was made
            raise Unauthenticated(f"Invalid token claim {self._scopes_claim}: a grant is empty")
        return Permissions(role, grants)

    def limits(self, claims: dict[str, Any]) -> Limits | None:
        """How much the token may ask for; None if there is no limit. Raises Unauthenticated if that cannot be read."""
        given = claims.get(self._limits_claim)
        if given is None:
            return None
        try:
            return msgspec.convert(given, Limits)
        except msgspec.ValidationError:
            raise Unauthenticated(f"Invalid token claim {self._limits_claim}") from None
