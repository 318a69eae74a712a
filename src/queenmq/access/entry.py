"""What a request leaves in the audit log. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from queenmq.clock import utc_now

MOST_TEXT: Final = 2000
ADMINISTRATOR: Final = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`count` requests from `at` to `until`; one, unless they were refused. `address` is where the connection is from,
    `forwarded_for` what the request says about that."""

    at: datetime
    until: datetime
    count: int = 1
    subject: str | None = None
    role: str | None = None
    token_id: str | None = None
    action: str
    target: str | None = None
    detail: str | None = None
    address: str | None = None
    forwarded_for: str | None = None
    status: int
    error: str | None = None
    operation_id: str | None = None
    server: str = ""

    @property
    def is_administrative(self) -> bool:
        """Whether an administrator did it: such entries are never left out, nor displaced by others."""
        return self.role == ADMINISTRATOR


def entry(action: str, status: int, **known: str | None) -> Entry:
    """An entry of now; texts that are too long are cut."""
    now = utc_now()
    cut = {name: None if text is None else _storable(text) for name, text in known.items()}
    return Entry(at=now, until=now, action=action, status=status, **cut)  # type: ignore[arg-type]


def _storable(text: str) -> str:
    """What PostgreSQL can store: no NUL, no half of a character."""
    return text[:MOST_TEXT].replace("\0", "").encode(errors="replace").decode()
