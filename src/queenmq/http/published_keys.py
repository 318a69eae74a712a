"""The keys that JWT_JWKS_URL publishes: fetched, read, kept and renewed.

* A token without `kid` fits the published keys only if there is exactly one for its algorithm.
* Redirects are not followed: what JWT_JWKS_URL names is what is trusted.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt
import msgspec
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from queenmq.clock import Clock
from queenmq.config import AuthSettings
from queenmq.errors import StartupError, UnavailableError
from queenmq.http.public_key import PublicKey, algorithm_of

MAX_KEY_SET_BYTES = 256 * 1024
REFETCH_PAUSE_S = 10.0

_READ_BYTES = 64 * 1024

_log = logging.getLogger(__name__)


class _PublishedKey(NamedTuple):
    algorithm: str
    key_id: str | None
    key: PublicKey


class PublishedKeys:
    """The key set at JWT_JWKS_URL, fetched when first needed, when old, and for an unknown `kid`.

    One fetch runs at a time and all who need it wait for that one. After a fetch REFETCH_PAUSE_S pass
    before the next, except while none has succeeded: then the next request tries again. Keys that could not be renewed
    stay in use; keys that the set does not have any more do not, also if it has become empty.
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
    def from_settings(cls, auth: AuthSettings, clock: Clock) -> PublishedKeys:
        url = auth.jwks_url or ""
        if not _is_web_address(url):
            raise StartupError("JWT_JWKS_URL must be an http:// or https:// address without a password.")
        timeout_s = auth.jwks_timeout_ms / 1000
        return cls(url, refresh_s=auth.jwks_refresh_interval_s, timeout_s=timeout_s, clock=clock)

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
            if isinstance(error, NoKeys):
                self._keys = []
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


class NoKeys(ValueError):
    """A key set without any key that can be used: those of the set before are withdrawn."""


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def parse_key_set(body: bytes) -> list[_PublishedKey]:
    """The usable keys of a JWK set; others are skipped. Raises ValueError, and NoKeys if it has none."""
    candidates = [_published_key(jwk) for jwk in msgspec.json.decode(body, type=_KeySet).keys]
    keys = [key for key in candidates if key is not None]
    if not keys:
        raise NoKeys("key set has no RS256 or EdDSA public key")
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
    algorithm = algorithm_of(key)
    if jwk.get("use", "sig") != "sig" or jwk.get("alg", algorithm) != algorithm:
        return None
    return _PublishedKey(algorithm, key_id, key)
