"""Who is calling and what they may do: the way of a request past its token, and the tokens remembered.

Owns the skip list. Tokens are verified by `tokens`, the roles in them are read by `roles`. Which route needs which role
belongs to the routes, and turning the errors raised here into answers to the application.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from queenmq.clock import Clock
from queenmq.config import AuthSettings
from queenmq.errors import Forbidden, Unauthenticated
from queenmq.http.roles import Role, RoleClaims
from queenmq.http.tokens import Claims, TokenVerifier

MAX_TOKEN_BYTES = 16 * 1024
MAX_REMEMBERED_TOKENS = 10_000
REMEMBER_S = 60.0


class Authenticator:
    """Decides whether a request may go on. Verified tokens are remembered for at most REMEMBER_S.

    So a token is refused as soon as it expires, and at most REMEMBER_S after its key is given up.
    """

    def __init__(
        self, verifier: TokenVerifier | None, roles: RoleClaims, skip_paths: Iterable[str], clock: Clock
    ) -> None:
        self.enabled = verifier is not None
        """Without it, everybody may do everything."""
        self._verifier = verifier
        self._roles = roles
        self._clock = clock
        self._remembered: OrderedDict[bytes, _Caller] = OrderedDict()
        entries = tuple(skip_paths)
        self._skipped_prefixes = tuple(e for e in entries if e.endswith("/") and e != "/")
        self._skipped_paths = frozenset(entries).difference(self._skipped_prefixes)

    @classmethod
    def from_settings(cls, auth: AuthSettings, clock: Clock) -> Authenticator:
        """Raises StartupError when tokens are demanded that could never be verified."""
        verifier = TokenVerifier.from_settings(auth, clock) if auth.enabled else None
        return cls(verifier, RoleClaims.from_settings(auth), auth.skip_paths, clock)

    @property
    def remembered_tokens(self) -> int:
        return len(self._remembered)

    async def authenticate(self, path: str, authorization: bytes | None, role: Role) -> tuple[str | None, Role]:
        """Return the token's `sub` and role; without `sub`, or where no token is needed, there is None of it.

        `path` is what the router matches, without the query. Raises Unauthenticated, Forbidden, or
        UnavailableError when the published keys are needed and cannot be had.
        """
        if self._verifier is None:
            return None, Role.ADMIN
        if role is Role.PUBLIC or self._is_skipped(path):
            return None, role
        if not authorization:
            raise Unauthenticated("Authentication required")
        if len(authorization) > MAX_TOKEN_BYTES:
            raise Unauthenticated("Token too long")
        digest = hashlib.sha256(authorization).digest()
        caller = self._recall(digest)
        if caller is None:
            caller = await self._identify(self._verifier, authorization)
            self._remember(digest, caller)
        if caller.role < role:
            raise Forbidden("Insufficient permissions")
        return caller.subject, caller.role

    def _is_skipped(self, path: str) -> bool:
        return path in self._skipped_paths or path.startswith(self._skipped_prefixes)

    async def _identify(self, verifier: TokenVerifier, authorization: bytes) -> _Caller:
        forget_at = self._clock.monotonic() + REMEMBER_S
        claims = await verifier.verify(_bearer_token(authorization))
        return _Caller(_subject(claims), self._roles.role(claims), verifier.valid_until(claims), forget_at)

    def _recall(self, digest: bytes) -> _Caller | None:
        caller = self._remembered.get(digest)
        if caller is None:
            return None
        if self._clock.monotonic() >= caller.forget_at or self._clock.wall() >= caller.valid_until:
            del self._remembered[digest]
            return None
        self._remembered.move_to_end(digest)
        return caller

    def _remember(self, digest: bytes, caller: _Caller) -> None:
        self._remembered[digest] = caller
        if len(self._remembered) > MAX_REMEMBERED_TOKENS:
            self._remembered.popitem(last=False)


class _Caller(NamedTuple):
    subject: str | None
    role: Role
    valid_until: float
    forget_at: float


def _bearer_token(authorization: bytes) -> bytes:
    """The token of `Bearer <token>` in any case, or a bare token."""
    match authorization.split():
        case [token] if token.lower() != b"bearer":
            return token
        case [scheme, token] if scheme.lower() == b"bearer":
            return token
        case _:
            raise Unauthenticated("Authentication required")


def _subject(claims: Claims) -> str | None:
    subject = claims.get("sub")
    if subject is None:
        return None
    # The subject is stored with each message, and PostgreSQL cannot store a NUL.
    if not isinstance(subject, str) or "\0" in subject:
        raise Unauthenticated("Invalid token subject")
    return subject
