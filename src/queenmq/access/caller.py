"""Who sends a request, as its token says."""

from __future__ import annotations

from typing import NamedTuple

from queenmq.access.permissions import Permissions
from queenmq.access.rates import Limits
from queenmq.core.roles import Role


class Caller(NamedTuple):
    """Without permissions the role alone decides, without limits it may ask for as much as it likes. `forget_at` is
    when the token must be verified again."""

    subject: str | None
    role: Role
    permissions: Permissions | None = None
    token_id: str | None = None
    limits: Limits | None = None
    valid_until: float = float("inf")
    forget_at: float = float("inf")

    @property
    def rated_as(self) -> str:
        """Under which name its requests are counted."""
        return f"subject {self.subject}" if self.token_id is None else self.token_id
