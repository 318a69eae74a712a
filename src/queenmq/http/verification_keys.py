"""The keys of JWT_SECRET, JWT_PUBLIC_KEY and JWT_JWKS_URL, and the signatures that they verify.

* A key serves one algorithm only. A token names its algorithm, never its key: HS256 is checked with JWT_SECRET and
  nothing else, and what comes from a PEM or a key set is never used as a secret.
* JWT_PUBLIC_KEY is tried before the published keys, so that it works while they cannot be fetched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import HMACAlgorithm

from queenmq.clock import Clock
from queenmq.config import AuthSettings
from queenmq.errors import StartupError, Unauthenticated
from queenmq.http.public_key import PUBLIC_KEY_ALGORITHMS, PublicKey, algorithm_of, is_signed_by
from queenmq.http.published_keys import PublishedKeys

MIN_SECRET_BYTES = 32

_HS256 = "HS256"

_hmac = HMACAlgorithm(HMACAlgorithm.SHA256)
_jws = jwt.PyJWS(options={"verify_signature": False})


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
    def from_settings(cls, auth: AuthSettings, clock: Clock) -> VerificationKeys:
        """Keep the keys that JWT_ALGORITHM can use; raises StartupError if there is none."""
        chosen = auth.algorithm
        wants_secret = chosen in (_HS256, "auto")
        wanted = PUBLIC_KEY_ALGORITHMS if chosen == "auto" else PUBLIC_KEY_ALGORITHMS & {chosen}
        secret = auth.secret if wants_secret else None
        pem = auth.public_key if wanted else None
        url = auth.jwks_url if wanted else None
        if not (secret or pem or url):
            raise StartupError(_NO_KEY.get(chosen, _NO_PUBLIC_KEY.format(chosen)))
        return cls(
            secret=_usable_secret(secret) if secret else None,
            public_keys=_usable_public_key(pem, wanted) if pem else None,
            published=PublishedKeys.from_settings(auth, clock) if url else None,
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
        if given is not None and is_signed_by(given, token.signed, token.signature):
            return
        if self._published is None or token.algorithm not in self._published_algorithms:
            raise Unauthenticated("Token algorithm not allowed" if given is None else "Invalid token signature")
        key = await self._published.find(token.algorithm, token.key_id)
        if key is None:
            raise Unauthenticated("Unknown token key")
        if not is_signed_by(key, token.signed, token.signature):
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


def _usable_secret(secret: str) -> bytes:
    try:
        key = _hmac.prepare_key(secret)
    except jwt.PyJWTError:
        raise StartupError("JWT_SECRET holds a public key or a certificate, not a secret.") from None
    if len(key) < MIN_SECRET_BYTES:
        raise StartupError(
            f"JWT_SECRET has fewer than {MIN_SECRET_BYTES} bytes, so that tokens could be forged by guessing it: "
            "`openssl rand -hex 32` makes a good one."
        )
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
    algorithm = algorithm_of(key)
    if algorithm not in wanted:
        raise StartupError(f"JWT_PUBLIC_KEY is a key for {algorithm}, but JWT_ALGORITHM is {min(wanted)}.")
    return {algorithm: key}
