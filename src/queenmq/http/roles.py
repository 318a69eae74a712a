"""What a route demands and what a token grants: the roles, and the claims that carry them."""

from __future__ import annotations

import enum
from typing import Any

from queenmq.config import AuthSettings
from queenmq.errors import StartupError


class Role(enum.IntEnum):
    """What a route demands and a token grants; each role includes the ones before it."""

    PUBLIC = 0
    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3


class RoleClaims:
    """Where a token carries its roles, and what they are called. The highest recognised one counts."""

    def __init__(self, claim: str, list_claim: str, roles: dict[str, Role]) -> None:
        self._claim = claim
        self._list_claim = list_claim
        self._roles = roles

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
        return cls(auth.roles_claim, auth.roles_array_claim, roles)

    def role(self, claims: dict[str, Any]) -> Role:
        listed = claims.get(self._list_claim)
        names = listed if isinstance(listed, list) else []
        granted = (self._roles.get(n) for n in [claims.get(self._claim), *names] if isinstance(n, str))
        return max((role for role in granted if role is not None), default=Role.PUBLIC)
