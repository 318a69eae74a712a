"""The roles that a token grants and a route demands."""

from __future__ import annotations

import enum
from typing import Final


class Role(enum.IntEnum):
    """What a route demands and a token grants; each role includes the ones before it."""

    PUBLIC = 0
    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3


ROLE_NAMES: Final = {"read-only": Role.READ_ONLY, "read-write": Role.READ_WRITE, "admin": Role.ADMIN}
