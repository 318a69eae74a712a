"""Who is calling and what they may do: the way of a request past its token, and the tokens remembered.

Owns the skip list. JWTs are verified by `tokens`, the claims in them are read by `roles`; the tokens that Queen makes
are in the database (`queenmq.access.tokens`). Which route needs which role belongs to the routes, and turning the
errors raised here into answers to the application.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from queenmq.access.caller import Caller
from queenmq.access.permissions import Permissions
from queenmq.access.rates import UNLIMITED
from queenmq.access.tokens import PREFIX, Token, digest_of
from queenmq.clock import Clock
from queenmq.config import AuthSettings
from queenmq.errors import Forbidden, Unauthenticated, UnavailableError
from queenmq.http.login import check_login
from queenmq.http.roles import Role, RoleClaims
from queenmq.http.tokens import Claims, TokenVerifier

T = TypeVar("T")

_MOST_SHOWN = 2048
_SHOWN = "shown token"  # of a connection: the header that came last, and the digest of its token

MAX_TOKEN_BYTES = 16 * 1024
MAX_REMEMBERED_TOKENS = 10_000
REMEMBER_S = 60.0
# Of a token that Queen has made: how long a server may not know that it was revoked, if it misses the notification.
REMEMBER_OWN_S = 10.0
# While a token that is in use is looked up again, and while the database is away, it goes on being accepted.
_LOOKED_UP_WITHIN_S = 1.0
# So that tokens that somebody makes up cannot keep the database busy, nor hold up those that were valid before.
_MOST_LOOKUPS = 4


class KnownTokens(Protocol):
    """The tokens that Queen has made."""

    @property
    def is_away(self) -> bool:
        """Whether there is no database in which they could be found, or revoked."""
        ...

    async def find(self, digest: bytes) -> Token | None: ...


class Authenticator:
    """Decides whether a request may go on. Verified tokens are remembered for at most REMEMBER_S.

    So a token is refused as soon as it expires, and at most REMEMBER_S after its key is given up. A token that Queen
    has made is refused as soon as this server knows that it was revoked, and at most REMEMBER_OWN_S after that; while
    the database is away, nothing can be revoked, and the tokens that are remembered go on being accepted.
    """

    def __init__(
        self,
        verifier: TokenVerifier | None,
        roles: RoleClaims,
        skip_paths: Iterable[str],
        clock: Clock,
        known: KnownTokens | None = None,
    ) -> None:
        self.enabled = verifier is not None or known is not None
        """Without it, everybody may do everything."""
        self._verifier = verifier
        self._known = known
        self._roles = roles
        self._clock = clock
        self._remembered: OrderedDict[bytes, Caller] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # until when without asking again, and why
        self._were_valid: OrderedDict[bytes, None] = OrderedDict()
        self._lookups = asyncio.Semaphore(_MOST_LOOKUPS)  # of tokens that were valid before
        self._first_lookups = asyncio.Semaphore(_MOST_LOOKUPS)
        self._revocations = 0
        self._forget_at = 0.0
        entries = tuple(skip_paths)
        self._skipped_prefixes = tuple(e for e in entries if e.endswith("/") and e != "/")
        self._skipped_paths = frozenset(entries).difference(self._skipped_prefixes)

    @classmethod
    def from_settings(cls, auth: AuthSettings, clock: Clock, known: KnownTokens | None = None) -> Authenticator:
        """Raises StartupError when tokens are demanded that could never be verified."""
        check_login(auth)
        verifier = TokenVerifier.from_settings(auth, clock) if auth.enabled else None
        return cls(verifier, RoleClaims.from_settings(auth), auth.skip_paths, clock, known if auth.required else None)

    @property
    def remembered_tokens(self) -> int:
        return len(self._remembered)

    async def authenticate(
        self, path: str, authorization: bytes | None, role: Role, connection: dict[str, Any] | None = None
    ) -> Caller:
        """Return who is calling: without `sub`, or where no token is needed, there is no subject.

        `path` is what the router matches, without the query. `connection` is what is kept of the connection, whose
        requests mostly show the same token. Raises Unauthenticated, Forbidden, or
        UnavailableError when the published keys or the table of tokens are needed and cannot be had.
        """
        if not self.enabled:
            return Caller(None, Role.ADMIN)
        if role is Role.PUBLIC or self._is_skipped(path):
            return Caller(None, role)
        if not authorization:
            raise Unauthenticated("Authentication required")
        shown, digest = (None, b"") if connection is None else connection.get(_SHOWN, (None, b""))
        if shown != authorization:
            digest = _digest_of(authorization)
        caller = self._recall(digest)
        if caller is not None:
            # Only what is known, so that strangers do not fill the memory with what they make up.
            if shown != authorization and connection is not None and len(authorization) <= _MOST_SHOWN:
                connection[_SHOWN] = authorization, digest
        else:
            token = _bearer_token(authorization)
            revocations = self._revocations
            caller = await self._identify(digest, token)
            if revocations == self._revocations or caller.token_id is None:
                self._remember(digest, caller)
        if caller.role < role:
            raise Forbidden("Insufficient permissions")
        return caller

    def remembered(self, authorization: bytes | None) -> Caller | None:
        """Who has shown this token, if it is known."""
        if not authorization:
            return None
        try:
            return self._remembered.get(_digest_of(authorization))
        except Unauthenticated:
            return None

    def revoked(self, _token_id: str) -> None:
        """A token that Queen has made was revoked: read all of them again when they are used, also those that are being
        read now."""
        self._revocations += 1
        for digest in [digest for digest, caller in self._remembered.items() if caller.token_id is not None]:
            del self._remembered[digest]

    def _is_skipped(self, path: str) -> bool:
        return path in self._skipped_paths or path.startswith(self._skipped_prefixes)

    async def _identify(self, digest: bytes, token: bytes) -> Caller:
        if self._known is not None and token.startswith(PREFIX):
            return await self._look_up(self._known, digest, token)
        if self._verifier is None:
            raise Unauthenticated("Malformed token")
        forget_at = self._clock.monotonic() + REMEMBER_S
        claims = await self._verifier.verify(token)
        role = self._roles.role(claims)
        return Caller(
            _subject(claims),
            role,
            self._roles.permissions(claims, role),
            limits=self._roles.limits(claims),
            valid_until=self._verifier.valid_until(claims),
            forget_at=forget_at,
        )

    async def _look_up(self, known: KnownTokens, digest: bytes, text: bytes) -> Caller:
        """Ask the database. A token that is in use is accepted meanwhile, and while the database is away."""
        now = self._clock.monotonic()
        until, reason = self._refused.get(digest, (0.0, ""))
        if until > now:
            raise Unauthenticated(reason)
        former = self._remembered.get(digest)
        if former is not None:
            self._remember(digest, former._replace(forget_at=now + _LOOKED_UP_WITHIN_S))
        try:
            async with self._lookups if digest in self._were_valid else self._first_lookups:
                token = await known.find(digest_of(text))
        except BaseException as error:
            if former is not None and known.is_away and isinstance(error, UnavailableError):
                return former._replace(forget_at=now + _LOOKED_UP_WITHIN_S)
            self._remembered.pop(digest, None)
            raise
        if token is None or not token.is_valid:
            self._remembered.pop(digest, None)
            self._were_valid.pop(digest, None)
            raise self._refusal(digest, now, _why_not(token))
        _note(self._were_valid, digest, None)
        return Caller(
            token.name,
            token.role,
            Permissions(token.role, token.grants) if token.grants else None,
            str(token.id),
            None if token.limits == UNLIMITED else token.limits,
            token.expires_at.timestamp() if token.expires_at is not None else float("inf"),
            now + REMEMBER_OWN_S,
        )

    def _refusal(self, digest: bytes, now: float, reason: str) -> Unauthenticated:
        _note(self._refused, digest, (now + REMEMBER_OWN_S, reason))
        return Unauthenticated(reason)

    def _recall(self, digest: bytes) -> Caller | None:
        caller = self._remembered.get(digest)
        if caller is None:
            return None
        if self._clock.wall() >= caller.valid_until:
            del self._remembered[digest]
            return None
        if self._clock.monotonic() >= caller.forget_at:
            if caller.token_id is None:
                del self._remembered[digest]
            return None
        self._remembered.move_to_end(digest)
        return caller

    def _remember(self, digest: bytes, caller: Caller) -> None:
        now = self._clock.monotonic()
        if now >= self._forget_at:
            self._forget_at = now + REMEMBER_S
            # Those that Queen has made are also what goes on being accepted while the database is away.
            for old in [
                d for d, known in self._remembered.items() if known.token_id is None and now >= known.forget_at
            ]:
                del self._remembered[old]
        _note(self._remembered, digest, caller)


def _note(known: OrderedDict[bytes, T], digest: bytes, value: T) -> None:
    """Put it down as the newest, in place of the oldest if there are too many."""
    known[digest] = value
    known.move_to_end(digest)
    if len(known) > MAX_REMEMBERED_TOKENS:
        known.popitem(last=False)


def _why_not(token: Token | None) -> str:
    if token is None:
        return "Invalid token"
    return "Token revoked" if token.revoked_at is not None else "Token expired"


def _digest_of(authorization: bytes) -> bytes:
    """Of the token alone: there are many spellings of the header. Raises Unauthenticated if it is none."""
    if len(authorization) > MAX_TOKEN_BYTES:
        raise Unauthenticated("Token too long")
    return hashlib.sha256(_bearer_token(authorization)).digest()


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
