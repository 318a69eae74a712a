"""Which OpenID providers a server takes, and with which other settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from server_settings import settings_with

from queenmq.cli.effective import doubts
from queenmq.config import AuthSettings
from queenmq.errors import StartupError
from queenmq.http.login import check_login, origin_of
from queenmq.http.routes.dashboard import _policy

GOOD: dict[str, Any] = {
    "enabled": True,
    "algorithm": "RS256",
    "jwks_url": "https://id.example.org/keys",
    "audience": "queen",
    "issuer": "https://id.example.org/realms/shop",
    "oidc_issuer": "https://id.example.org/realms/shop",
    "oidc_client_id": "queen",
}


def test_a_whole_configuration_and_none_are_fine() -> None:
    check_login(AuthSettings(**GOOD))
    check_login(AuthSettings())
    check_login(AuthSettings(**GOOD | {"oidc_token": "access_token", "issuer": "https://sts.example.org"}))
    for here in ("http://127.0.0.1:9000/", "http://[::1]:9000", "http://localhost:9000"):
        check_login(AuthSettings(**GOOD | {"oidc_issuer": here, "issuer": here}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"oidc_client_id": None}, "need each other"),
        ({"oidc_issuer": None}, "need each other"),
        ({"enabled": False}, "JWT_ENABLED=true and JWT_JWKS_URL"),
        ({"jwks_url": None}, "JWT_ENABLED=true and JWT_JWKS_URL"),
        ({"algorithm": "HS256"}, "HS256 has no published keys"),
        ({"audience": ""}, "JWT_AUDIENCE"),
        ({"issuer": ""}, "needs JWT_ISSUER"),
        ({"issuer": "https://other.example.org"}, "nobody could sign in"),
        ({"oidc_issuer": "id.example.org"}, "must be an http:// or https:// address"),
        ({"oidc_issuer": "http://id.example.org/realms/shop"}, "must begin with https://"),
        ({"oidc_issuer": "http://10.0.0.7:8080/"}, "must begin with https://"),
        ({"oidc_issuer": "http://localhost.example.org/"}, "must begin with https://"),
    ],
)
def test_what_could_not_work_or_would_let_others_in_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(StartupError, match=says):
        check_login(AuthSettings(**GOOD | changes))


@pytest.mark.parametrize(
    ("issuer", "origin"),
    [
        ("https://id.example.org", "https://id.example.org"),
        ("https://id.example.org/realms/shop", "https://id.example.org"),
        ("http://127.0.0.1:9000/", "http://127.0.0.1:9000"),
        ("http://[::1]:9000/x", "http://[::1]:9000"),
    ],
)
def test_the_policy_of_the_page_has_the_origin_and_nothing_else(issuer: str, origin: str) -> None:
    assert origin_of(issuer) == origin
    _, policy = _policy(issuer)
    assert policy.replace(b"connect-src 'self' " + origin.encode(), b"connect-src 'self'") == _policy(None)[1]


@pytest.mark.parametrize(
    "issuer",
    [
        "javascript:alert(1)",
        "https://id.example.org;script-src *",
        "https://* https://evil.example",
        "https://alice:secret@id.example.org",
        "https://id.example.org?x=1",
        "https://id.example.org:99999",
        "https://",
    ],
)
def test_an_address_that_would_change_the_policy_is_none(issuer: str) -> None:
    with pytest.raises(ValueError):
        origin_of(issuer)


@pytest.mark.parametrize(
    ("url", "is_doubtful"),
    [
        ("https://id.example.org/keys", False),
        ("http://127.0.0.1:9000/keys", False),
        ("http://id.example.org/keys", True),
        ("http://10.0.0.7/keys", True),
    ],
)
def test_keys_over_plain_http_are_doubted(url: str, is_doubtful: bool) -> None:
    auth = AuthSettings(enabled=True, algorithm="RS256", jwks_url=url)
    assert any("JWT_JWKS_URL begins" in doubt for doubt in doubts(settings_with(auth=asdict(auth)))) is is_doubtful


def test_what_tokens_do_not_protect_is_said() -> None:
    def said(**auth: object) -> list[str]:
        return [doubt.split(" ")[0] for doubt in doubts(settings_with(auth=auth))]

    assert said() == []
    assert said(tokens_enabled=True) == ["/metrics"]
    jwt = {"enabled": True, "secret": "x" * 32}
    assert said(**jwt) == ["JWTs", "/metrics"]
    assert said(**jwt, requires_expiry=True, skip_paths=("/health",)) == []
