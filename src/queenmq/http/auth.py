"""Who is calling and what they may do: bearer tokens, the keys that verify them, the roles in them.

Owns the JWT_* settings from the keys to the skip list. Which route needs which role belongs to the
routes, and turning the errors raised here into answers to the application.

Decisions:

* A key serves one algorithm only. A token names its algorithm, never its key: HS256 is checked with
  JWT_SECRET and nothing else, and what comes from a PEM or a key set is never used as a secret.
* JWT_PUBLIC_KEY is tried before the published keys, so that it works while they cannot be fetched.
* A token without `exp` is accepted, as in the reference. `iat` is not looked at.
* A token without `kid` fits the published keys only if there is exactly one for its algorithm.
* Redirects are not followed: what JWT_JWKS_URL names is what is trusted.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
import urllib.request
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from queenmq.clock import Clock
from queenmq.config import Settings
from queenmq.errors import Forbidden, StartupError, Unauthenticated, UnavailableError

MAX_TOKEN_BYTES = 16 * 1024
MAX_KEY_SET_BYTES = 256 * 1024
MAX_REMEMBERED_TOKENS = 10_000
REMEMBER_S = 60.0
REFETCH_PAUSE_S = 10.0
MIN_SECRET_BYTES = 32

PublicKey = RSAPublicKey | Ed25519PublicKey | Ed448PublicKey
Claims = dict[str, Any]

_HS256, _RS256, _EDDSA = "HS256", "RS256", "EdDSA"
_PUBLIC_KEY_ALGORITHMS = frozenset({_RS256, _EDDSA})
_READ_BYTES = 64 * 1024

_log = logging.getLogger(__name__)
_hmac = HMACAlgorithm(HMACAlgorithm.SHA256)
_rsa = RSAAlgorithm(RSAAlgorithm.SHA256)
_okp = OKPAlgorithm()
_jws = jwt.PyJWS(options={"verify_signature": False})


class Role(enum.IntEnum):
    """What a route demands and a token grants; each role includes the ones before it."""

    PUBLIC = 0
    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3


class Authenticator:
    """Decides whether a request may go on. Verified tokens are remembered for at most REMEMBER_S.

    So a token is refused as soon as it expires, and at most REMEMBER_S after its key is given up.
    """

    def __init__(
        self, verifier: TokenVerifier | None, roles: RoleClaims, skip_paths: Iterable[str], clock: Clock
    ) -> None:
        self._verifier = verifier
        self._roles = roles
        self._clock = clock
        self._remembered: OrderedDict[bytes, _Caller] = OrderedDict()
        entries = tuple(skip_paths)
        self._skipped_prefixes = tuple(e for e in entries if e.endswith("/") and e != "/")
        self._skipped_paths = frozenset(entries).difference(self._skipped_prefixes)

    @classmethod
    def from_settings(cls, settings: Settings, clock: Clock) -> Authenticator:
        """Raises StartupError when tokens are demanded that could never be verified."""
        verifier = TokenVerifier.from_settings(settings, clock) if settings.jwt_enabled else None
        return cls(verifier, RoleClaims.from_settings(settings), settings.jwt_skip_paths, clock)

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


class RoleClaims:
    """Where a token carries its roles, and what they are called. The highest recognised one counts."""

    def __init__(self, claim: str, list_claim: str, roles: dict[str, Role]) -> None:
        self._claim = claim
        self._list_claim = list_claim
        self._roles = roles

    @classmethod
    def from_settings(cls, settings: Settings) -> RoleClaims:
        roles = {
            settings.jwt_role_admin: Role.ADMIN,
            settings.jwt_role_read_write: Role.READ_WRITE,
            settings.jwt_role_read_only: Role.READ_ONLY,
        }
        if len(roles) < 3:
            raise StartupError(
                "JWT_ROLE_ADMIN, JWT_ROLE_READ_WRITE and JWT_ROLE_READ_ONLY must be three different names."
            )
        return cls(settings.jwt_roles_claim, settings.jwt_roles_array_claim, roles)

    def role(self, claims: Claims) -> Role:
        listed = claims.get(self._list_claim)
        names = listed if isinstance(listed, list) else []
        granted = (self._roles.get(n) for n in [claims.get(self._claim), *names] if isinstance(n, str))
        return max((role for role in granted if role is not None), default=Role.PUBLIC)


class TokenVerifier:
    """Checks the signature of a token and the claims that say when, from whom and for whom it is."""

    def __init__(self, keys: VerificationKeys, issuer: str, audience: str, skew_s: float, clock: Clock) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._skew_s = skew_s
        self._clock = clock

    @classmethod
    def from_settings(cls, settings: Settings, clock: Clock) -> TokenVerifier:
        keys = VerificationKeys.from_settings(settings, clock)
        return cls(keys, settings.jwt_issuer, settings.jwt_audience, settings.jwt_clock_skew_s, clock)

    async def verify(self, token: bytes) -> Claims:
        """Return the claims. Raises Unauthenticated, or UnavailableError from the published keys."""
        claims = _decode_claims(await self._keys.signed_payload(token))
        self._check_time(claims)
        if self._issuer and claims.get("iss") != self._issuer:
            raise Unauthenticated("Invalid token issuer")
        if self._audience and self._audience not in _audiences(claims):
            raise Unauthenticated("Invalid token audience")
        return claims

    def valid_until(self, claims: Claims) -> float:
        """The wall time from which the token is expired."""
        expiry = _numeric_date(claims, "exp")
        return float("inf") if expiry is None else expiry + self._skew_s

    def _check_time(self, claims: Claims) -> None:
        now = self._clock.wall()
        if now >= self.valid_until(claims):
            raise Unauthenticated("Token expired")
        not_before = _numeric_date(claims, "nbf")
        if not_before is not None and now < not_before - self._skew_s:
            raise Unauthenticated("Token not yet valid")


def _decode_claims(payload: bytes) -> Claims:
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (ValueError, RecursionError):
        raise Unauthenticated("Malformed token") from None


def _numeric_date(claims: Claims, name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthenticated(f"Invalid token claim {name}")
    return value


def _audiences(claims: Claims) -> list[object]:
    audience = claims.get("aud")
    return audience if isinstance(audience, list) else [audience]


class VerificationKeys:
    """The secret, the public key and the published keys, each bound to its algorithm."""

    def __init__(
        self,
        *,
        secret: bytes | None = None,
        public_keys: dict[str, PublicKey] | None = None,
        published: PublishedKeys | None = None,
        published_algorithms: Iterable[str] = (),
    ) -> None:
        self._secret = secret
        self._public_keys = public_keys or {}
        self._published = published
        self._published_algorithms = frozenset(published_algorithms)

    @classmethod
    def from_settings(cls, settings: Settings, clock: Clock) -> VerificationKeys:
        """Keep the keys that JWT_ALGORITHM can use; raises StartupError if there is none."""
        chosen = settings.jwt_algorithm
        wants_secret = chosen in (_HS256, "auto")
        wanted = _PUBLIC_KEY_ALGORITHMS if chosen == "auto" else _PUBLIC_KEY_ALGORITHMS & {chosen}
        secret = settings.jwt_secret if wants_secret else None
        pem = settings.jwt_public_key if wanted else None
        url = settings.jwt_jwks_url if wanted else None
        if not (secret or pem or url):
            raise StartupError(_NO_KEY.get(chosen, _NO_PUBLIC_KEY.format(chosen)))
        return cls(
            secret=_usable_secret(secret) if secret else None,
            public_keys=_usable_public_key(pem, wanted) if pem else None,
            published=PublishedKeys.from_settings(settings, clock) if url else None,
            published_algorithms=wanted if url else (),
        )

    async def signed_payload(self, token: bytes) -> bytes:
        """Return what the token's signature covers. Raises Unauthenticated or UnavailableError."""
        parsed = _parse_token(token)
        match parsed.algorithm:
            case "HS256" if self._secret is not None:
                if not _hmac.verify(parsed.signed, self._secret, parsed.signature):
                    raise Unauthenticated("Invalid token signature")
            case "RS256" | "EdDSA":
                await self._check_public_key(parsed)
            case _:
                raise Unauthenticated("Token algorithm not allowed")
        return parsed.payload

    async def _check_public_key(self, token: _ParsedToken) -> None:
        given = self._public_keys.get(token.algorithm)
        if given is not None and _is_signed_by(given, token):
            return
        if self._published is None or token.algorithm not in self._published_algorithms:
            raise Unauthenticated("Token algorithm not allowed" if given is None else "Invalid token signature")
        key = await self._published.find(token.algorithm, token.key_id)
        if key is None:
            raise Unauthenticated("Unknown token key")
        if not _is_signed_by(key, token):
            raise Unauthenticated("Invalid token signature")


_NO_PUBLIC_KEY = "JWT_ENABLED with JWT_ALGORITHM {} needs JWT_PUBLIC_KEY or JWT_JWKS_URL."
_NO_KEY = {
    _HS256: "JWT_ENABLED with JWT_ALGORITHM HS256 needs JWT_SECRET.",
    "auto": "JWT_ENABLED needs a key: set JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL.",
}


class _ParsedToken(NamedTuple):
    algorithm: str
    key_id: str | None
    signed: bytes
    payload: bytes
    signature: bytes


def _parse_token(token: bytes) -> _ParsedToken:
    try:
        parts = _jws.decode_complete(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Unauthenticated("Malformed token") from None
    header = parts["header"]
    algorithm, key_id = header.get("alg"), header.get("kid")
    # `crit` lists extensions that must be understood; none is.
    if not isinstance(algorithm, str) or "crit" in header or not isinstance(key_id, str | None):
        raise Unauthenticated("Malformed token")
    return _ParsedToken(algorithm, key_id, token.rpartition(b".")[0], parts["payload"], parts["signature"])


def _is_signed_by(key: PublicKey, token: _ParsedToken) -> bool:
    if isinstance(key, RSAPublicKey):
        return _rsa.verify(token.signed, key, token.signature)
    return _okp.verify(token.signed, key, token.signature)


def _usable_secret(secret: str) -> bytes:
    try:
        key = _hmac.prepare_key(secret)
    except jwt.PyJWTError:
        raise StartupError("JWT_SECRET holds a public key or a certificate, not a secret.") from None
    if len(key) < MIN_SECRET_BYTES:
        _log.warning("JWT_SECRET has fewer than %d bytes; tokens can be forged by guessing", MIN_SECRET_BYTES)
    return key


def _usable_public_key(pem: str, wanted: frozenset[str]) -> dict[str, PublicKey]:
    # Files of environment variables often hold a PEM on one line.
    text = pem.replace("\\n", "\n")
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise StartupError("JWT_PUBLIC_KEY is not a PEM public key.") from None
    if not isinstance(key, PublicKey):
        raise StartupError("JWT_PUBLIC_KEY is neither an RSA key nor an Ed25519 or Ed448 key.")
    algorithm = _algorithm_of(key)
    if algorithm not in wanted:
        raise StartupError(f"JWT_PUBLIC_KEY is a key for {algorithm}, but JWT_ALGORITHM is {min(wanted)}.")
    return {algorithm: key}


def _algorithm_of(key: PublicKey) -> str:
    return _RS256 if isinstance(key, RSAPublicKey) else _EDDSA


class _PublishedKey(NamedTuple):
    algorithm: str
    key_id: str | None
    key: PublicKey


class PublishedKeys:
    """The key set at JWT_JWKS_URL, fetched when first needed, when old, and for an unknown `kid`.

    One fetch runs at a time and all who need it wait for that one. After a fetch REFETCH_PAUSE_S pass
    before the next, except while there are no keys at all: then whoever comes next tries again. Keys
    that could not be renewed stay in use.
    """

    def __init__(self, url: str, *, refresh_s: float, timeout_s: float, clock: Clock) -> None:
        self._url = url
        self._refresh_s = refresh_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._opener = _plain_opener()
        self._keys: list[_PublishedKey] = []
        self._fetched_at: float | None = None
        self._tried_at = 0.0
        self._failure: str | None = None
        self._flight: asyncio.Task[None] | None = None

    @classmethod
    def from_settings(cls, settings: Settings, clock: Clock) -> PublishedKeys:
        url = settings.jwt_jwks_url or ""
        if not _is_web_address(url):
            raise StartupError("JWT_JWKS_URL must be an http:// or https:// address without a password.")
        timeout_s = settings.jwt_jwks_timeout_ms / 1000
        return cls(url, refresh_s=settings.jwt_jwks_refresh_interval_s, timeout_s=timeout_s, clock=clock)

    async def find(self, algorithm: str, key_id: str | None) -> PublicKey | None:
        """Return the key, or None if the current set has none such.

        Waits for a fetch no longer than the timeout. Raises UnavailableError when the set could not be
        fetched, so that nobody can say whether the key exists.
        """
        key = self._look_up(algorithm, key_id)
        if (key is None or self._is_old()) and self._may_fetch():
            await self._join_flight()
            key = self._look_up(algorithm, key_id)
        if key is None and not self._is_certain():
            # Published consumers stay alive only if the text has both "connection" and "ECONNREFUSED".
            raise UnavailableError("token keys unavailable, connection failed (ECONNREFUSED)")
        return key

    def _look_up(self, algorithm: str, key_id: str | None) -> PublicKey | None:
        fitting = [k.key for k in self._keys if k.algorithm == algorithm and key_id in (None, k.key_id)]
        return fitting[0] if len(fitting) == 1 else None

    def _is_old(self) -> bool:
        return self._fetched_at is None or self._clock.monotonic() - self._fetched_at >= self._refresh_s

    def _may_fetch(self) -> bool:
        return self._fetched_at is None or self._clock.monotonic() - self._tried_at >= REFETCH_PAUSE_S

    def _is_certain(self) -> bool:
        return self._fetched_at is not None and self._failure is None and self._flight is None

    async def _join_flight(self) -> None:
        if self._flight is None:
            self._flight = asyncio.create_task(self._fetch())
        # Unlike `wait_for`, this leaves the fetch to the others when one waiter gives up.
        await asyncio.wait({self._flight}, timeout=self._timeout_s)

    async def _fetch(self) -> None:
        try:
            self._keys = parse_key_set(await asyncio.to_thread(self._download))
        except Exception as error:
            self._report(f"{type(error).__name__}: {error}")
        else:
            self._report(None)
            self._fetched_at = self._clock.monotonic()
        finally:
            self._tried_at = self._clock.monotonic()
            self._flight = None

    def _report(self, failure: str | None) -> None:
        """Log changes only: while there are no keys, each request may cause a fetch."""
        if failure == self._failure:
            return
        self._failure = failure
        if failure is None:
            _log.info("token keys can be fetched again")
        else:
            _log.warning("token keys cannot be fetched: %s", failure)

    def _download(self) -> bytes:
        deadline = self._clock.monotonic() + self._timeout_s
        body = bytearray()
        with self._opener.open(self._url, timeout=self._timeout_s) as response:
            if response.status != 200:
                raise OSError(f"status {response.status}")
            while chunk := response.read1(_READ_BYTES):
                body += chunk
                if len(body) > MAX_KEY_SET_BYTES:
                    raise ValueError(f"key set is longer than {MAX_KEY_SET_BYTES} bytes")
                # The socket's timeout starts again with each byte that a slow server sends.
                if self._clock.monotonic() > deadline:
                    raise TimeoutError(f"key set took longer than {self._timeout_s} s")
        return bytes(body)


def _plain_opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS, through the proxy of the environment if there is one, and nothing else."""
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
        opener.add_handler(handler())
    return opener


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - a port out of range raises here
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def parse_key_set(body: bytes) -> list[_PublishedKey]:
    """The usable keys of a JWK set; others are skipped. Raises ValueError if that leaves none."""
    candidates = [_published_key(jwk) for jwk in msgspec.json.decode(body, type=_KeySet).keys]
    keys = [key for key in candidates if key is not None]
    if not keys:
        raise ValueError("key set has no RS256 or EdDSA public key")
    return keys


def _published_key(jwk: dict[str, Any]) -> _PublishedKey | None:
    try:
        key = RSAAlgorithm.from_jwk(jwk) if jwk.get("kty") == "RSA" else OKPAlgorithm.from_jwk(jwk)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
        return None
    key_id = jwk.get("kid")
    # A private key is not in `PublicKey`: one that is published is not to be trusted.
    if not isinstance(key, PublicKey) or not isinstance(key_id, str | None):
        return None
    algorithm = _algorithm_of(key)
    if jwk.get("use", "sig") != "sig" or jwk.get("alg", algorithm) != algorithm:
        return None
    return _PublishedKey(algorithm, key_id, key)
