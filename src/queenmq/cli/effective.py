"""Describes the settings in effect: for the first lines of a server, and for `queen doctor`."""

from __future__ import annotations

from queenmq.config import WITHOUT_EFFECT, AuthSettings, Settings, is_protected, unknown_variables


def in_effect(settings: Settings) -> list[str]:
    """Authentication, TLS, TLS to the database, encryption at rest and clustering, as they are in effect."""
    return [
        _authentication(settings),
        _tls(settings),
        _database(settings),
        _encryption(settings),
        _cluster(settings),
    ]


def doubts(settings: Settings) -> list[str]:
    """Warnings about settings that probably do not do what was intended, one sentence each."""
    found = []
    for name, advice in unknown_variables().items():
        strange = "has no effect:" if name in WITHOUT_EFFECT else "is not a variable of Queen and has no effect;"
        found.append(f"{name} {strange} {advice}")
    keys = (settings.auth.secret, settings.auth.public_key, settings.auth.jwks_url)
    if not settings.auth.enabled and any(keys):
        effect = "it accepts no JWT" if settings.auth.required else "the server requires no token"
        found.append(f"a key for tokens is set (JWT_…), but JWT_ENABLED is not true: {effect}")
    if settings.auth.enabled and settings.auth.jwks_url and not is_protected(settings.auth.jwks_url):
        found.append(
            "JWT_JWKS_URL begins with http:// and is not on this machine: an attacker on the network could put keys "
            "into the answer, and make tokens with them; use https://"
        )
    found += doubts_about_tokens(settings)
    if settings.server.encryption_keys_previous and settings.server.encryption_key is None:
        found.append(
            "QUEEN_ENCRYPTION_KEYS_PREVIOUS has no effect without QUEEN_ENCRYPTION_KEY: nothing can be decrypted"
        )
    if settings.cluster.peers and not settings.cluster.enabled:
        found.append("QUEEN_UDP_PEERS names other servers, but QUEEN_SYNC_ENABLED is false: nothing is sent to them")
    return found


def doubts_about_tokens(settings: Settings) -> list[str]:
    """What can still be done with a token that should have ended, or without one; what to do is behind a colon."""
    found = []
    if settings.auth.enabled and not settings.auth.requires_expiry:
        found.append(
            "JWTs without exp are accepted, and are valid until their key is changed: give all of them an end, and set "
            "JWT_REQUIRE_EXP=true"
        )
    if settings.auth.required and settings.auth.skip_paths == AuthSettings().skip_paths:
        found.append(
            "/metrics and /metrics/prometheus need no token, and name queues, namespaces and groups: set "
            "JWT_SKIP_PATHS=/health, and give your monitoring a token with the role read-only"
        )
    return found


def _authentication(settings: Settings) -> str:
    if settings.auth.enabled:
        return f"authentication on ({settings.auth.algorithm})"
    return "authentication on (tokens of Queen)" if settings.auth.required else "authentication off"


def _tls(settings: Settings) -> str:
    if settings.tls.certificate is None:
        return "plain HTTP"
    if settings.tls.peer_ca is None:
        return f"HTTPS with the certificate in {settings.tls.certificate}"
    return (
        f"HTTPS with the certificate in {settings.tls.certificate}, and servers of the cluster that show one "
        f"of {settings.tls.peer_ca}"
    )


def _database(settings: Settings) -> str:
    if settings.database.is_bundled:
        return "the bundled PostgreSQL"
    if settings.database.use_ssl:
        checked = "verified" if settings.database.ssl_reject_unauthorized else "that is not verified"
        return f"TLS to the database with a certificate {checked}"
    return "TLS to the database only if its URL or PostgreSQL requires it (PG_USE_SSL is false)"


def _encryption(settings: Settings) -> str:
    if settings.server.encryption_key is None:
        return "no encryption key"
    previous = len(settings.server.encryption_keys_previous)
    return f"an encryption key and {previous} previous ones" if previous else "an encryption key"


def _cluster(settings: Settings) -> str:
    if not settings.cluster.peers:
        return "no peers"
    if not settings.cluster.enabled:
        return "clustering off"
    forwarding = ", and forwards requests to them" if settings.coordinator.enabled else ""
    return f"{len(settings.cluster.peers)} peers{forwarding}"
