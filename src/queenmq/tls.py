"""TLS: the certificate of the server, read again when its files change, and what other servers of the cluster show.

Owns the two contexts, for connections that come in and for those to other servers. Connections that are open keep the
certificate with which they began. Files that cannot be used stop the start with a sentence; while the server runs it
keeps the certificate that it has, and says so in the log.
"""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from queenmq.clock import SYSTEM, Clock
from queenmq.config import TlsSettings
from queenmq.errors import StartupError

EXPIRES_SOON_S: Final = 14 * 86_400
REMIND_S: Final = 86_400
MINIMUM: Final = ssl.TLSVersion.TLSv1_2

_log = logging.getLogger(__name__)


class Tls:
    """`incoming` and `outgoing` are the contexts for new connections; `expires_at` is in seconds since 1970."""

    incoming: ssl.SSLContext
    outgoing: ssl.SSLContext
    expires_at: float

    def __init__(self, certificate: Path, key: Path, peer_ca: Path | None, clock: Clock = SYSTEM) -> None:
        """Raises StartupError if the files cannot be used."""
        self._certificate = certificate
        self._key = key
        self._peer_ca = peer_ca
        self._clock = clock
        self.handshakes_failed = 0
        self.reloads = 0
        self._loaded = self._seen = self._state()
        self._reminded_at = 0.0
        self._told: object = None  # of which files was said what is wrong with them
        self._load()

    @classmethod
    def from_settings(cls, tls: TlsSettings, clock: Clock = SYSTEM) -> Tls | None:
        """None if the server speaks plain HTTP. Raises StartupError."""
        if tls.certificate is None and tls.key is None:
            if tls.peer_ca is not None:
                raise StartupError(
                    "QUEEN_TLS_PEER_CA_FILE demands certificates of other servers, but this one has none: "
                    "set QUEEN_TLS_CERT_FILE and QUEEN_TLS_KEY_FILE, too"
                )
            return None
        if tls.certificate is None or tls.key is None:
            missing = "QUEEN_TLS_CERT_FILE" if tls.certificate is None else "QUEEN_TLS_KEY_FILE"
            raise StartupError(f"TLS needs a certificate and its key, and {missing} is not set")
        return cls(tls.certificate, tls.key, tls.peer_ca, clock)

    @property
    def peers_show_certificates(self) -> bool:
        return self._peer_ca is not None

    def check(self) -> None:
        """Read the files again if they have changed and are no longer being changed, until they can be used. To be
        called every second."""
        now, seen = self._state(), self._seen
        self._seen = now
        if now == self._loaded or now != seen:
            self._remind()
            return
        try:
            self._load()
        except StartupError as error:
            if self._told != (now, str(error)):
                self._told = now, str(error)
                _log.error(
                    "the new TLS files are not used, and the server keeps the certificate that it has: %s", error
                )
            self._remind()
            return
        self._loaded = now
        self.reloads += 1
        until = datetime.fromtimestamp(self.expires_at, UTC).isoformat(timespec="minutes")
        _log.info("TLS: read the certificate again from %s; it is valid until %s", self._certificate, until)

    def _state(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(_file_state(path) for path in (self._certificate, self._key, self._peer_ca) if path is not None)

    def _load(self) -> None:
        expires_at = _expiry(self._certificate, self._clock.wall())
        incoming = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        outgoing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        outgoing.check_hostname = False  # the greeting shows which server it is, at whatever address
        outgoing.verify_mode = ssl.CERT_NONE
        for context in (incoming, outgoing):
            context.minimum_version = MINIMUM
            _use(context, self._certificate, self._key)
            if self._peer_ca is not None:
                _trust(context, self._peer_ca)
        incoming.set_alpn_protocols(["http/1.1"])
        incoming.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        if self._peer_ca is not None:
            incoming.verify_mode = ssl.CERT_OPTIONAL  # of clients nobody demands one
            outgoing.verify_mode = ssl.CERT_REQUIRED
        self.incoming, self.outgoing, self.expires_at = incoming, outgoing, expires_at

    def _remind(self) -> None:
        now = self._clock.wall()
        if self.expires_at - now > EXPIRES_SOON_S or now - self._reminded_at < REMIND_S:
            return
        self._reminded_at = now
        until = datetime.fromtimestamp(self.expires_at, UTC).isoformat(timespec="minutes")
        if now < self.expires_at:
            _log.warning("the certificate in %s expires at %s: put a new one there", self._certificate, until)
        else:
            _log.error("the certificate in %s expired at %s: clients refuse it", self._certificate, until)


def _file_state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _expiry(path: Path, now: float) -> float:
    """When the first certificate of the file expires. Raises StartupError if it cannot be read, or has expired."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())[0]
    except OSError as error:
        raise StartupError(f"QUEEN_TLS_CERT_FILE {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise StartupError(
            f"QUEEN_TLS_CERT_FILE {path} has no certificate in PEM format (-----BEGIN CERTIFICATE-----)"
        ) from None
    begins, expires = found.not_valid_before_utc, found.not_valid_after_utc
    if expires.timestamp() <= now:
        raise StartupError(
            f"the certificate in QUEEN_TLS_CERT_FILE {path} expired at {expires.isoformat(timespec='minutes')}: "
            "clients would refuse it; put a valid one there"
        )
    if begins.timestamp() > now:
        _log.warning(
            "the certificate in %s is valid only from %s on: clients whose clock is right refuse it until then",
            *(path, begins.isoformat(timespec="minutes")),
        )
    return expires.timestamp()


def _use(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def passphrase() -> str:
        raise StartupError(
            f"the key in QUEEN_TLS_KEY_FILE {key} is protected by a passphrase, which nobody can type in; "
            "store it without one in a file that only the server's user can read"
        )

    try:
        key.read_bytes()
        context.load_cert_chain(certificate, key, passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise StartupError(
                f"the key in QUEEN_TLS_KEY_FILE {key} does not belong to the certificate in {certificate}"
            ) from None
        raise StartupError(
            f"QUEEN_TLS_CERT_FILE {certificate} and QUEEN_TLS_KEY_FILE {key} cannot be used: the key must be in PEM "
            f"format (-----BEGIN PRIVATE KEY-----) and strong enough ({error.reason or error})"
        ) from None
    except OSError as error:
        raise StartupError(f"QUEEN_TLS_KEY_FILE {key} cannot be read: {error.strerror}") from None


def _trust(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError:
        raise StartupError(
            f"QUEEN_TLS_PEER_CA_FILE {authority} has no certificate in PEM format (-----BEGIN CERTIFICATE-----)"
        ) from None
    except OSError as error:
        raise StartupError(f"QUEEN_TLS_PEER_CA_FILE {authority} cannot be read: {error.strerror}") from None
