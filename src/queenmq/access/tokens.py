"""The tokens that Queen makes: their text, and the table in which only their digests are."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from queenmq.access.permissions import Grant
from queenmq.access.rates import UNLIMITED, Limits
from queenmq.core.roles import ROLE_NAMES, Role
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

PREFIX: Final = b"queen_"
# The channel of NOTIFY on which the database announces that tokens were revoked.
REVOKED: Final = "queen_tokens"
_RANDOM_BYTES: Final = 32

_limits_decoder = msgspec.json.Decoder(Limits)
_grants_decoder = msgspec.json.Decoder(tuple[Grant, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is stored, without its text."""

    id: UUID
    name: str
    role: Role
    grants: tuple[Grant, ...]
    limits: Limits = UNLIMITED
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    is_valid: bool

    @property
    def role_name(self) -> str:
        return next(name for name, role in ROLE_NAMES.items() if role is self.role)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    name: str
    role: str
    grants: Sequence[Grant] = ()
    limits: Limits = UNLIMITED
    expires_in_s: int | None = None


def new_text() -> str:
    """256 random bits, as text that differs from a JWT and that scanners of secrets can find."""
    return PREFIX.decode() + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(text: bytes) -> bytes:
    """A plain hash is enough: 256 random bits cannot be guessed, whatever a guess costs."""
    return hashlib.sha256(text).digest()


class Tokens:
    """The table of tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def is_away(self) -> bool:
        return not self._database.is_open

    async def create(self, wanted: NewToken, created_by: str | None) -> tuple[Token, str]:
        """Returns the token and its text, which is not stored and cannot be had again."""
        text = new_text()
        row = await self._database.fetchrow(
            statement("create_token"),
            digest_of(text.encode()),
            wanted.name,
            wanted.role,
            msgspec.json.encode(list(wanted.grants)).decode(),
            created_by,
            wanted.expires_in_s,
            msgspec.json.encode(wanted.limits).decode(),
        )
        if row is None:
            raise AssertionError("create_token returned no row")
        return _token(row), text

    async def find(self, digest: bytes) -> Token | None:
        """The token with this digest, also if it has expired or was revoked. Notes about hourly that it is used."""
        row = await self._database.fetchrow(statement("find_token"), digest, repeatable=True)
        return None if row is None else _token(row)

    async def page(self, limit: int, offset: int) -> list[Token]:
        rows = await self._database.fetch(statement("tokens_listed"), limit, offset, repeatable=True)
        return [_token(row) for row in rows]

    async def revoke(self, token_id: str) -> Token | None:
        """Revoke a token on every server; None if there is none. One that was revoked before stays as it is."""
        row = await self._database.fetchrow(statement("revoke_token"), token_id)
        return None if row is None else _token(row)


def _token(row: asyncpg.Record) -> Token:
    return Token(
        id=row["id"],
        name=row["name"],
        role=ROLE_NAMES[row["role"]],
        grants=_grants_decoder.decode(row["grants"]),
        limits=_limits_decoder.decode(row["limits"]),
        created_at=row["created_at"],
        created_by=row["created_by"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
        is_valid=row["is_valid"],
    )
