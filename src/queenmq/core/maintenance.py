"""The maintenance switches. No I/O."""

from __future__ import annotations

from enum import Enum


class Switch(Enum):
    """What can be switched off on every server."""

    PUSH = "push"
    POP = "pop"
