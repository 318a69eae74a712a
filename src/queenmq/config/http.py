"""Settings of the HTTP front and of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from queenmq.config import parse
from queenmq.config.setting import setting


def is_here(url: str) -> bool:
    """Whether an address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_protected(url: str) -> bool:
    """Whether nobody on the network can read or change what is sent to an address, or comes from there."""
    return urlsplit(url).scheme == "https" or is_here(url)


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """HTTP: where the server listens, how much it takes, and which web pages may use it."""

    host: str = setting(
        "HOST",
        "127.0.0.1",
        "Address to listen on. An address that other machines can reach needs TLS or `QUEEN_ALLOW_PLAIN_HTTP`, and "
        "`QUEEN_TOKENS_ENABLED` or `JWT_ENABLED`; or `QUEEN_INSECURE`.",
    )
    port: int = setting("PORT", 6632, "HTTP port to listen on; 0 lets the system choose one.", parse.port_number)
    max_body_bytes: int = setting(
        "QUEEN_MAX_BODY_BYTES",
        16 * 1024 * 1024,
        "Largest request body, in bytes; a larger one is refused with 413.",
        parse.byte_count,
    )
    body_budget_bytes: int = setting(
        "QUEEN_BODY_BUDGET_BYTES",
        128 * 1024 * 1024,
        "Memory for all large request bodies together, in bytes, over all workers. When it is used up, further bodies "
        "are not read until memory is free. On its way to the database a body takes about four times its size.",
        parse.byte_count,
    )
    body_timeout_s: int = setting(
        "QUEEN_BODY_TIMEOUT_S", 120, "Longest time in which a large request body must arrive, in s.", parse.positive
    )
    input_budget_bytes: int = setting(
        "QUEEN_INPUT_BUDGET_BYTES",
        128 * 1024 * 1024,
        "Memory for requests that have not arrived whole, or wait behind others on their connection, in bytes, over "
        "all workers; large bodies have a budget of their own. Beyond it the connections that have taken longest are "
        "closed.",
        parse.byte_count,
    )
    answer_budget_bytes: int = setting(
        "QUEEN_ANSWER_BUDGET_BYTES",
        256 * 1024 * 1024,
        "Memory for answers that clients have not read yet, in bytes, over all workers. Beyond it further pops and "
        "listings wait, and the clients that read slowest are disconnected.",
        parse.byte_count,
    )
    max_connections: int = setting(
        "QUEEN_MAX_CONNECTIONS",
        20_000,
        "Maximum number of open HTTP connections. Room for further ones is made by closing those that have sent "
        "nothing or only part of a request, or are idle; if all are in use, new ones get 503. The server raises its "
        "limit of open files (`ulimit -n`) for them at start, and takes fewer connections where it cannot.",
        parse.positive,
    )
    max_connections_per_address: int = setting(
        "QUEEN_MAX_CONNECTIONS_PER_ADDRESS",
        0,
        "Maximum number of open HTTP connections of one IPv4 address, or of one IPv6 network of 64 bits; 0 stands for "
        "three quarters of all connections. A proxy in front counts as one address.",
        parse.count,
    )
    keep_alive_s: int = setting(
        "QUEEN_KEEP_ALIVE_S",
        75,
        "Time after which an idle HTTP connection is closed, in s. Make it longer than the idle timeout of a proxy in "
        "front.",
        parse.positive,
    )
    shutdown_grace_s: int = setting(
        "QUEEN_SHUTDOWN_GRACE_S", 10, "Time that running requests have to finish at shutdown, in s.", parse.positive
    )
    cors_origins: tuple[str, ...] = setting(
        "QUEEN_CORS_ORIGINS",
        (),
        "Origins of web pages that may use this server from a browser, such as `https://shop.example`, separated by "
        "commas; `*` only with `QUEEN_TOKENS_ENABLED` or `JWT_ENABLED`. The dashboard needs no entry.",
        parse.origins,
    )
    allowed_hosts: tuple[str, ...] = setting(
        "QUEEN_ALLOWED_HOSTS",
        (),
        "Host names under which clients reach a server without tokens, such as the name of a proxy, separated by "
        "commas. IP addresses, names without a dot and reserved names (`.localhost`, `.local`, `.internal`, …) need "
        "no entry.",
        parse.host_names,
    )


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """TLS: the certificate of the server, and what other servers must show."""

    certificate: Path | None = setting(
        "QUEEN_TLS_CERT_FILE",
        None,
        "File with the certificate of this server and those between it and its authority, in PEM; with it the server "
        "speaks HTTPS only (TLS 1.2 or newer). The files are read again when they change.",
        parse.path,
    )
    key: Path | None = setting(
        "QUEEN_TLS_KEY_FILE",
        None,
        "File with the private key of that certificate, in PEM, without passphrase.",
        parse.path,
    )
    peer_ca: Path | None = setting(
        "QUEEN_TLS_PEER_CA_FILE",
        None,
        "File with the certificates of the authority of the cluster, in PEM. With it servers forward requests only to "
        "servers that show a certificate of this authority, and accept them only from such.",
        parse.path,
    )
    allow_plain_http: bool = setting(
        "QUEEN_ALLOW_PLAIN_HTTP",
        False,
        "Allow plain HTTP at an address that other machines can reach: a proxy in front has TLS, or the network is "
        "protected.",
        parse.flag,
    )


@dataclass(frozen=True, kw_only=True)
class AuthSettings:
    """Tokens: whether they are required, how they are verified, and what their roles are called."""

    enabled: bool = setting("JWT_ENABLED", False, "Require a token with every request.", parse.flag)
    algorithm: str = setting(
        "JWT_ALGORITHM",
        "HS256",
        "Algorithm of the tokens: `HS256`, `RS256`, `EdDSA`, or `auto` for any of them that has a key.",
        parse.choice("HS256", "RS256", "EdDSA", "auto"),
    )
    secret: str | None = setting("JWT_SECRET", None, "Secret key for HS256, of at least 32 bytes.", secret=True)
    public_key: str | None = setting("JWT_PUBLIC_KEY", None, "Public key for RS256 or EdDSA, in PEM.")
    jwks_url: str | None = setting("JWT_JWKS_URL", None, "URL from which public keys are fetched (JWKS).")
    jwks_refresh_interval_s: int = setting(
        "JWT_JWKS_REFRESH_INTERVAL", 3600, "Age at which fetched keys are fetched again, in s.", parse.positive
    )
    jwks_timeout_ms: int = setting(
        "JWT_JWKS_TIMEOUT_MS", 5000, "Longest time for fetching the keys, in ms.", parse.positive
    )
    issuer: str = setting("JWT_ISSUER", "", "Required `iss` claim. Not checked if it is empty.")
    audience: str = setting("JWT_AUDIENCE", "", "Required `aud` claim. Not checked if it is empty.")
    clock_skew_s: int = setting("JWT_CLOCK_SKEW", 30, "Tolerance for the claims `exp` and `nbf`, in s.", parse.count)
    requires_expiry: bool = setting(
        "JWT_REQUIRE_EXP",
        False,
        "Refuse JWTs without `exp`, which are valid until their key is changed. Without it they are accepted, and the "
        "first one is noted in the log.",
        parse.flag,
    )
    skip_paths: tuple[str, ...] = setting(
        "JWT_SKIP_PATHS",
        ("/health", "/metrics/prometheus", "/metrics", "/"),
        "Paths that need no token, separated by commas; a path that ends with `/` stands for everything below it. "
        "`/health`, `/`, `/assets/`, `/docs`, `/openapi.json`, `/asyncapi.json` and `/api/v1/login` never need one.",
        parse.items,
    )
    roles_claim: str = setting("JWT_ROLES_CLAIM", "role", "Claim that holds one role.")
    roles_array_claim: str = setting("JWT_ROLES_ARRAY_CLAIM", "roles", "Claim that holds a list of roles.")
    role_admin: str = setting("JWT_ROLE_ADMIN", "admin", "Name of the role that may do everything.")
    role_read_write: str = setting(
        "JWT_ROLE_READ_WRITE", "read-write", "Name of the role that may push, pop and acknowledge."
    )
    scopes_claim: str = setting(
        "JWT_SCOPES_CLAIM",
        "queen",
        "Claim that restricts a token to queues, namespaces, groups and verbs. Without it the role alone decides.",
    )
    requires_scopes: bool = setting(
        "JWT_REQUIRE_SCOPES",
        False,
        "Refuse JWTs without the claim `JWT_SCOPES_CLAIM`: set it where every JWT is for one of several tenants.",
        parse.flag,
    )
    limits_claim: str = setting(
        "JWT_LIMITS_CLAIM",
        "queenLimits",
        "Claim that limits how much may be asked for with a token: requests, messages and long polls.",
    )
    tokens_enabled: bool = setting(
        "QUEEN_TOKENS_ENABLED",
        False,
        "Require a token with every request, and accept those that `queen token create` has made. With `JWT_ENABLED` "
        "they are accepted beside JWTs in any case.",
        parse.flag,
    )
    oidc_issuer: str | None = setting(
        "QUEEN_OIDC_ISSUER",
        None,
        "Address of an OpenID provider at which people sign in to the dashboard. Its tokens are verified as others "
        "are: set `JWT_ENABLED`, `JWT_JWKS_URL`, `JWT_ISSUER` and `JWT_AUDIENCE`, too. `https://`, unless it is on "
        "this machine.",
    )
    oidc_client_id: str | None = setting(
        "QUEEN_OIDC_CLIENT_ID", None, "Name under which the provider knows the dashboard: a public client with PKCE."
    )
    oidc_scopes: str = setting(
        "QUEEN_OIDC_SCOPES", "openid", "Scopes that the dashboard asks for, with spaces between."
    )
    oidc_token: str = setting(
        "QUEEN_OIDC_TOKEN",
        "id_token",
        "Which of the provider's tokens the dashboard shows to Queen: `id_token`, or `access_token` if that is a JWT.",
        parse.choice("id_token", "access_token"),
    )
    role_read_only: str = setting("JWT_ROLE_READ_ONLY", "read-only", "Name of the role that may only read.")
    insecure: bool = setting(
        "QUEEN_INSECURE",
        False,
        "Allow `HOST` to be reachable from other machines without tokens and without TLS. Set it only if something "
        "else protects the server.",
        parse.flag,
    )

    @property
    def required(self) -> bool:
        """Whether a request needs a token."""
        return self.enabled or self.tokens_enabled


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Audit log: what was changed and refused, by whom."""

    enabled: bool = setting(
        "QUEEN_AUDIT_ENABLED",
        True,
        "Record in the database who deletes, configures, seeks, redrives, switches maintenance, makes and revokes "
        "tokens, and whose requests are refused with 401 and 403.",
        parse.flag,
    )
    log: bool = setting(
        "QUEEN_AUDIT_LOG",
        False,
        "Write the entries of the audit log to the log, too, as one JSON object a line.",
        parse.flag,
    )
    retention_days: int = setting(
        "QUEEN_AUDIT_RETENTION_DAYS", 90, "Days for which entries of the audit log are kept.", parse.positive
    )
    max_rows: int = setting(
        "QUEEN_AUDIT_MAX_ROWS",
        1_000_000,
        "Maximum number of entries in the audit log, of administrators and of all others; the oldest are deleted "
        "first.",
        parse.positive,
    )
