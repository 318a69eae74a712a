"""Who sends a request, as its token says."""

from __future__ import annotations

from typing import NamedTuple

from queenmq.access.permissions import Permissions
from queenmq.core.roles import Role


class Caller(NamedTuple):
    """Without permissions the role alone decides. `forget_at` is when the token must be verified again."""

    subject: str | None
    role: Role
    permissions: Permissions | None = None
    token_id: str | None = None
    valid_until: float = float("inf")
    forget_at: float = float("inf")
