from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any
from uuid import UUID

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from queenmq.access.tokens import Token, digest_of
from queenmq.clock import ManualClock, utc_now
from queenmq.config import AuthSettings
from queenmq.errors import Forbidden, QueenError, StartupError, Unauthenticated, UnavailableError
from queenmq.http import auth
from queenmq.http.auth import MAX_TOKEN_BYTES, REMEMBER_OWN_S, REMEMBER_S, Authenticator
from queenmq.http.published_keys import MAX_KEY_SET_BYTES, REFETCH_PAUSE_S
from queenmq.http.roles import Role, RoleClaims
from queenmq.http.tokens import Claims, TokenVerifier

SECRET = "0123456789abcdef0123456789abcdef"
PATH = "/api/v1/push"
NOW = 1_700_000_000
FAR = NOW + 10_000_000

RSA_KEY = generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY = generate_private_key(public_exponent=65537, key_size=2048)
ED_KEY = Ed25519PrivateKey.generate()
ED448_KEY = Ed448PrivateKey.generate()

SigningKey = str | RSAPrivateKey | Ed25519PrivateKey | Ed448PrivateKey


def pem(key: PublicKeyTypes) -> str:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def sign(key: SigningKey, algorithm: str, claims: Claims | None = None, **headers: Any) -> bytes:
    claims = {"sub": "alice", "role": "admin", "exp": FAR} | (claims or {})
    return jwt.encode(claims, key, algorithm, headers=headers).encode()


def hs256(**claims: Any) -> bytes:
    return sign(SECRET, "HS256", claims)


def forged_hs256(secret: bytes, claims: Claims, **headers: Any) -> bytes:
    """What PyJWT refuses to make: an HS256 token whose secret is a public key."""
    parts = [{"alg": "HS256", "typ": "JWT"} | headers, claims]
    signed = b".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts)
    signature = hmac.digest(secret, signed, hashlib.sha256)
    return signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")


def settings(**values: Any) -> AuthSettings:
    return AuthSettings(**({"enabled": True} | values))


def with_secret(clock: ManualClock, **values: Any) -> Authenticator:
    return Authenticator.from_settings(settings(**({"secret": SECRET} | values)), clock)


async def ask(
    authenticator: Authenticator, token: bytes | None, role: Role = Role.ADMIN, path: str = PATH
) -> str | None:
    return (await authenticator.authenticate(path, token, role)).subject


async def refusal(authenticator: Authenticator, token: bytes | None, role: Role = Role.READ_ONLY) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await ask(authenticator, token, role)
    return caught.value.message


def startup_refusal(**values: Any) -> str:
    with pytest.raises(StartupError) as caught:
        Authenticator.from_settings(settings(**values), ManualClock())
    return caught.value.message


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


# Where no token is needed


async def test_everything_is_open_when_tokens_are_off(clock: ManualClock) -> None:
    authenticator = Authenticator.from_settings(AuthSettings(), clock)
    assert await ask(authenticator, None) is None
    assert await ask(authenticator, b"Bearer nonsense") is None


async def test_a_public_route_needs_no_token(clock: ManualClock) -> None:
    authenticator = with_secret(clock)
    assert await ask(authenticator, None, Role.PUBLIC) is None
    assert await ask(authenticator, b"Bearer nonsense", Role.PUBLIC) is None


SKIP = ("/health", "/docs/", "/")


@pytest.mark.parametrize("path", ["/health", "/docs/", "/docs/a", "/docs/a/b", "/"])
async def test_skipped_paths(clock: ManualClock, path: str) -> None:
    assert await ask(with_secret(clock, skip_paths=SKIP), None, path=path) is None


@pytest.mark.parametrize(
    "path", ["/health/", "/health/deep", "/healthy", "/HEALTH", "/docs", "/docsx", "//", "/api/v1/push", ""]
)
async def test_paths_that_are_not_skipped(clock: ManualClock, path: str) -> None:
    with pytest.raises(Unauthenticated, match=r"^Authentication required$"):
        await ask(with_secret(clock, skip_paths=SKIP), None, path=path)


async def test_an_empty_skip_list_skips_nothing(clock: ManualClock) -> None:
    with pytest.raises(Unauthenticated):
        await ask(with_secret(clock, skip_paths=()), None, path="/health")


# The header


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  ", b" Bearer\t", b""])
async def test_the_scheme_is_case_insensitive_and_may_be_left_out(clock: ManualClock, scheme: bytes) -> None:
    assert await ask(with_secret(clock), scheme + hs256()) == "alice"


@pytest.mark.parametrize("header", [None, b"", b" ", b"Bearer", b"bearer ", b"Basic YTpi", b"Bearer a b"])
async def test_no_token(clock: ManualClock, header: bytes | None) -> None:
    assert await refusal(with_secret(clock), header) == "Authentication required"


async def test_a_token_has_a_greatest_length(clock: ManualClock) -> None:
    token = hs256(note="x" * MAX_TOKEN_BYTES)
    assert await refusal(with_secret(clock), token) == "Token too long"


@pytest.mark.parametrize(
    "token",
    [
        b"x",
        b"a.b",
        b"..",
        b"a.b.c.d",
        b"!!.!!.!!",
        b"\xff\xfe.\x00.\xff",
        b"bnVsbA.e30.",  # header: null
        b"W10.e30.",  # header: []
        b"e30.e30.",  # header: {}
        b"eyJhbGciOjF9.e30.",  # alg: 1
        base64.urlsafe_b64encode(b'{"a":' * 2000).rstrip(b"=") + b".e30.",
    ],
)
async def test_malformed_tokens(clock: ManualClock, token: bytes) -> None:
    assert await refusal(with_secret(clock), token) == "Malformed token"


@pytest.mark.parametrize("payload", [b"null", b"[]", b"1", b"", b"\xff", b'{"a":'])
async def test_signed_payloads_that_are_no_claims(clock: ManualClock, payload: bytes) -> None:
    token = jwt.PyJWS().encode(payload, SECRET, "HS256").encode()
    assert await refusal(with_secret(clock), token) == "Malformed token"


@pytest.mark.parametrize("headers", [{"crit": ["exp"]}, {"crit": ["b64"], "b64": True}, {"crit": []}])
async def test_critical_extensions_are_refused(clock: ManualClock, headers: dict[str, Any]) -> None:
    token = forged_hs256(SECRET.encode(), {"role": "admin"}, **headers)
    assert await refusal(with_secret(clock), token) == "Malformed token"


@given(token=st.binary(max_size=200))
def test_no_bytes_get_through_or_into_the_message(token: bytes) -> None:
    authenticator = with_secret(ManualClock(NOW))
    message = asyncio.run(refusal(authenticator, token))
    assert message in {"Authentication required", "Malformed token", "Token algorithm not allowed"}


@given(data=st.data())
def test_no_changed_token_gets_through(data: st.DataObject) -> None:
    token = bytearray(hs256())
    # The last character has two bits that carry nothing; older releases of PyJWT do not look at them.
    position = data.draw(st.integers(0, len(token) - 2))
    token[position] = data.draw(st.sampled_from(b"AQgwx059-_.=").filter(lambda c: c != token[position]))
    message = asyncio.run(refusal(with_secret(ManualClock(NOW)), bytes(token)))
    assert bytes(token) not in message.encode()


# Algorithms


@pytest.mark.parametrize("chosen", ["HS256", "auto"])
async def test_hs256(clock: ManualClock, chosen: str) -> None:
    authenticator = with_secret(clock, algorithm=chosen)
    assert await ask(authenticator, hs256()) == "alice"
    assert await refusal(authenticator, sign("f" * 32, "HS256")) == "Invalid token signature"


@pytest.mark.parametrize("chosen", ["RS256", "auto"])
async def test_rs256(clock: ManualClock, chosen: str) -> None:
    public = pem(RSA_KEY.public_key())
    authenticator = Authenticator.from_settings(settings(algorithm=chosen, public_key=public), clock)
    assert await ask(authenticator, sign(RSA_KEY, "RS256")) == "alice"
    assert await refusal(authenticator, sign(OTHER_RSA_KEY, "RS256")) == "Invalid token signature"


@pytest.mark.parametrize("chosen", ["EdDSA", "auto"])
@pytest.mark.parametrize("key", [ED_KEY, ED448_KEY], ids=["Ed25519", "Ed448"])
async def test_eddsa(clock: ManualClock, chosen: str, key: Ed25519PrivateKey | Ed448PrivateKey) -> None:
    public = pem(key.public_key())
    authenticator = Authenticator.from_settings(settings(algorithm=chosen, public_key=public), clock)
    assert await ask(authenticator, sign(key, "EdDSA")) == "alice"
    other = sign(Ed25519PrivateKey.generate(), "EdDSA")
    assert await refusal(authenticator, other) == "Invalid token signature"


async def test_auto_takes_each_algorithm_that_has_a_key(clock: ManualClock) -> None:
    authenticator = with_secret(clock, algorithm="auto", public_key=pem(RSA_KEY.public_key()))
    assert await ask(authenticator, hs256()) == "alice"
    assert await ask(authenticator, sign(RSA_KEY, "RS256")) == "alice"
    assert await refusal(authenticator, sign(ED_KEY, "EdDSA")) == "Token algorithm not allowed"


@pytest.mark.parametrize(
    ("chosen", "token"),
    [
        ("HS256", sign(RSA_KEY, "RS256")),
        ("HS256", sign(ED_KEY, "EdDSA")),
        ("HS256", sign("s" * 64, "HS512")),
        ("RS256", sign(SECRET, "HS256")),
        ("RS256", sign(RSA_KEY, "PS256")),
        ("RS256", sign(RSA_KEY, "RS512")),
        ("RS256", sign(ED_KEY, "EdDSA")),
        ("auto", sign("s" * 64, "HS512")),
    ],
)
async def test_only_the_chosen_algorithm_is_allowed(clock: ManualClock, chosen: str, token: bytes) -> None:
    """Also when keys for the others are configured."""
    authenticator = with_secret(clock, algorithm=chosen, public_key=pem(RSA_KEY.public_key()))
    assert await refusal(authenticator, token) == "Token algorithm not allowed"


@pytest.mark.parametrize("name", ["none", "None", "NONE", ""])
@pytest.mark.parametrize("chosen", ["HS256", "RS256", "auto"])
async def test_unsigned_tokens_are_refused(clock: ManualClock, chosen: str, name: str) -> None:
    authenticator = with_secret(clock, algorithm=chosen, public_key=pem(RSA_KEY.public_key()))
    unsigned = forged_hs256(b"", {"role": "admin"}, alg=name).rpartition(b".")[0] + b"."
    assert await refusal(authenticator, unsigned) == "Token algorithm not allowed"


def spellings(key: RSAPrivateKey | Ed25519PrivateKey) -> list[bytes]:
    """Every way in which an attacker might turn the public key into a secret."""
    public = key.public_key()
    text = pem(public).encode()
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    one_line = text.replace(b"\n", b"\\n")
    body = b"".join(text.split(b"\n")[1:-2])
    raw = [public.public_bytes(Encoding.Raw, PublicFormat.Raw)] if isinstance(key, Ed25519PrivateKey) else []
    return [text, text.strip(), der, one_line, body, b"", *raw]


@pytest.mark.parametrize("key", [RSA_KEY, ED_KEY], ids=["RSA", "Ed25519"])
async def test_a_public_key_is_never_a_secret(clock: ManualClock, key: RSAPrivateKey | Ed25519PrivateKey) -> None:
    public = pem(key.public_key())
    fixed = "RS256" if key is RSA_KEY else "EdDSA"
    alone = [settings(algorithm=chosen, public_key=public) for chosen in (fixed, "auto")]
    beside = settings(algorithm="auto", public_key=public, secret=SECRET)
    for secret in spellings(key):
        token = forged_hs256(secret, {"sub": "mallory", "role": "admin"})
        for each in alone:
            authenticator = Authenticator.from_settings(each, clock)
            assert await refusal(authenticator, token) == "Token algorithm not allowed"
        both = Authenticator.from_settings(beside, clock)
        assert await refusal(both, token) == "Invalid token signature"


# Keys at the start


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "JWT_ENABLED with JWT_ALGORITHM HS256 needs JWT_SECRET."),
        ({"secret": ""}, "JWT_ENABLED with JWT_ALGORITHM HS256 needs JWT_SECRET."),
        ({"public_key": "x"}, "JWT_ENABLED with JWT_ALGORITHM HS256 needs JWT_SECRET."),
        (
            {"algorithm": "RS256", "secret": SECRET},
            "JWT_ENABLED with JWT_ALGORITHM RS256 needs JWT_PUBLIC_KEY or JWT_JWKS_URL.",
        ),
        (
            {"algorithm": "EdDSA", "secret": SECRET},
            "JWT_ENABLED with JWT_ALGORITHM EdDSA needs JWT_PUBLIC_KEY or JWT_JWKS_URL.",
        ),
        (
            {"algorithm": "auto"},
            "JWT_ENABLED needs a key: set JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL.",
        ),
    ],
)
def test_no_usable_key(values: dict[str, Any], sentence: str) -> None:
    assert startup_refusal(**values) == sentence


def test_a_key_that_is_not_needed_is_not_looked_at(clock: ManualClock) -> None:
    with_secret(clock, public_key="nonsense", jwks_url="nonsense")


PRIVATE_PEM = ED_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.mark.parametrize(
    "text", ["nonsense", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", PRIVATE_PEM]
)
@pytest.mark.parametrize("chosen", ["RS256", "EdDSA", "auto"])
def test_an_unreadable_public_key(chosen: str, text: str) -> None:
    assert startup_refusal(algorithm=chosen, public_key=text) == "JWT_PUBLIC_KEY is not a PEM public key."


@pytest.mark.parametrize("key", [generate_ec_key(SECP256R1()), X25519PrivateKey.generate()], ids=["EC", "X25519"])
def test_a_public_key_of_another_kind(key: Any) -> None:
    sentence = startup_refusal(algorithm="auto", public_key=pem(key.public_key()))
    assert sentence == "JWT_PUBLIC_KEY is neither an RSA key nor an Ed25519 or Ed448 key."


@pytest.mark.parametrize(
    ("chosen", "key", "sentence"),
    [
        ("RS256", ED_KEY, "JWT_PUBLIC_KEY is a key for EdDSA, but JWT_ALGORITHM is RS256."),
        ("EdDSA", RSA_KEY, "JWT_PUBLIC_KEY is a key for RS256, but JWT_ALGORITHM is EdDSA."),
    ],
)
def test_a_public_key_for_the_other_algorithm(chosen: str, key: Any, sentence: str) -> None:
    assert startup_refusal(algorithm=chosen, public_key=pem(key.public_key())) == sentence


async def test_a_pem_may_be_on_one_line(clock: ManualClock) -> None:
    one_line = pem(RSA_KEY.public_key()).replace("\n", "\\n")
    authenticator = Authenticator.from_settings(settings(algorithm="RS256", public_key=one_line), clock)
    assert await ask(authenticator, sign(RSA_KEY, "RS256")) == "alice"


def test_a_public_key_as_secret() -> None:
    sentence = startup_refusal(secret=pem(RSA_KEY.public_key()))
    assert sentence == "JWT_SECRET holds a public key or a certificate, not a secret."


def test_a_short_secret_is_refused(clock: ManualClock) -> None:
    sentence = startup_refusal(secret="x" * 31)
    assert "JWT_SECRET has fewer than 32 bytes" in sentence
    assert "xxx" not in sentence
    with_secret(clock, secret="x" * 32)


async def test_a_token_without_an_end(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    endless = [jwt.encode({"sub": "alice", "role": "admin", "n": n}, SECRET).encode() for n in range(2)]
    lenient = with_secret(clock)
    assert [await ask(lenient, token) for token in endless] == ["alice", "alice"]
    assert caplog.text.count("JWT_REQUIRE_EXP") == 1, "said once"
    strict = with_secret(clock, requires_expiry=True)
    with pytest.raises(Unauthenticated):
        await ask(strict, endless[0])
    assert await ask(strict, hs256()) == "alice"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host/keys",
        "data:application/json,{}",
        "host/keys",
        "https://",
        "http:///keys",
        "https://user:hush@host/keys",
        "http://host:99999/keys",
        "http://[::1/keys",
        "//host/keys",
    ],
)
def test_only_web_addresses_are_fetched(url: str) -> None:
    sentence = startup_refusal(algorithm="RS256", jwks_url=url)
    assert sentence == "JWT_JWKS_URL must be an http:// or https:// address without a password."


# Claims


async def test_exp_with_skew(clock: ManualClock) -> None:
    authenticator, token = with_secret(clock, clock_skew_s=30), hs256(exp=NOW + 5)
    clock.advance(34.9)
    assert await ask(authenticator, token) == "alice"
    clock.advance(0.1)
    assert await refusal(authenticator, token) == "Token expired"
    assert await refusal(with_secret(clock), token) == "Token expired"


async def test_exp_without_skew(clock: ManualClock) -> None:
    authenticator = with_secret(clock, clock_skew_s=0)
    assert await refusal(authenticator, hs256(exp=NOW)) == "Token expired"
    assert await ask(authenticator, hs256(exp=NOW + 0.5)) == "alice"


async def test_nbf_with_skew(clock: ManualClock) -> None:
    authenticator, token = with_secret(clock, clock_skew_s=30), hs256(nbf=NOW + 40)
    clock.advance(9.9)
    assert await refusal(authenticator, token) == "Token not yet valid"
    clock.advance(0.1)
    assert await ask(authenticator, token) == "alice"


async def test_a_token_without_exp_is_accepted(clock: ManualClock) -> None:
    token = jwt.encode({"sub": "alice", "role": "admin"}, SECRET, "HS256").encode()
    authenticator = with_secret(clock)
    assert await ask(authenticator, token) == "alice"
    clock.advance(1e9)
    assert await ask(authenticator, token) == "alice"


async def test_iat_is_not_looked_at(clock: ManualClock) -> None:
    assert await ask(with_secret(clock), hs256(iat=FAR)) == "alice"


@pytest.mark.parametrize("name", ["exp", "nbf"])
@pytest.mark.parametrize("value", ["1", None, True, [], {}])
async def test_times_must_be_numbers(clock: ManualClock, name: str, value: object) -> None:
    token = forged_hs256(SECRET.encode(), {"role": "admin", name: value})
    assert await refusal(with_secret(clock), token) == f"Invalid token claim {name}"


async def test_times_may_be_huge(clock: ManualClock) -> None:
    assert await ask(with_secret(clock), hs256(exp=10**300)) == "alice"
    assert await refusal(with_secret(clock), hs256(nbf=10**300)) == "Token not yet valid"


async def test_issuer(clock: ManualClock) -> None:
    authenticator = with_secret(clock, issuer="https://id")
    assert await ask(authenticator, hs256(iss="https://id")) == "alice"
    for claims in ({}, {"iss": "https://id/"}):
        assert await refusal(authenticator, hs256(**claims)) == "Invalid token issuer"
    listed = forged_hs256(SECRET.encode(), {"iss": ["https://id"], "role": "admin"})
    assert await refusal(authenticator, listed) == "Invalid token issuer"


async def test_audience(clock: ManualClock) -> None:
    authenticator = with_secret(clock, audience="queen")
    for accepted in ("queen", ["other", "queen"]):
        assert await ask(authenticator, hs256(aud=accepted)) == "alice"
    for refused in ("queens", "", [], ["queens"], ["quee", "n"], {"queen": 1}, None):
        assert await refusal(authenticator, hs256(aud=refused)) == "Invalid token audience"
    assert await refusal(authenticator, hs256()) == "Invalid token audience"


async def test_issuer_and_audience_are_ignored_unless_configured(clock: ManualClock) -> None:
    assert await ask(with_secret(clock), hs256(iss="anyone", aud="anything")) == "alice"


async def test_a_token_may_have_no_subject(clock: ManualClock) -> None:
    assert await ask(with_secret(clock), forged_hs256(SECRET.encode(), {"role": "admin"})) is None


@pytest.mark.parametrize("subject", [1, True, ["alice"], "al\0ice"])
async def test_a_subject_that_cannot_be_stored(clock: ManualClock, subject: object) -> None:
    token = forged_hs256(SECRET.encode(), {"sub": subject, "role": "admin"})
    assert await refusal(with_secret(clock), token) == "Invalid token subject"


# Roles

NAMES = {"read-only": Role.READ_ONLY, "read-write": Role.READ_WRITE, "admin": Role.ADMIN}


@pytest.mark.parametrize("needed", [Role.READ_ONLY, Role.READ_WRITE, Role.ADMIN])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["role", "roles"])
async def test_each_role_includes_the_lower_ones(clock: ManualClock, form: str, name: str, needed: Role) -> None:
    claims = {"role": name} if form == "role" else {"role": None, "roles": ["other", name]}
    answer = ask(with_secret(clock), hs256(**claims), needed)
    if NAMES[name] >= needed:
        assert await answer == "alice"
        return
    with pytest.raises(Forbidden, match=r"^Insufficient permissions$"):
        await answer


@pytest.mark.parametrize(
    "claims",
    [
        {"role": None},
        {"role": ""},
        {"role": "Admin"},
        {"role": "owner", "roles": ["a", "b"]},
        {"role": ["admin"]},
        {"role": {"admin": True}},
        {"role": None, "roles": "admin"},
        {"role": None, "roles": {"admin": True}},
        {"role": None, "roles": [["admin"], 1, None]},
        {"role": 3},
    ],
)
async def test_no_recognised_role(clock: ManualClock, claims: Claims) -> None:
    with pytest.raises(Forbidden, match=r"^Insufficient permissions$"):
        await ask(with_secret(clock), hs256(**claims), Role.READ_ONLY)


async def test_the_highest_of_both_claims_counts(clock: ManualClock) -> None:
    authenticator = with_secret(clock)
    assert await ask(authenticator, hs256(role="read-only", roles=["admin"])) == "alice"
    assert await ask(authenticator, hs256(role="admin", roles=["read-only"])) == "alice"


async def test_claims_and_roles_can_be_renamed(clock: ManualClock) -> None:
    authenticator = with_secret(
        clock,
        roles_claim="https://queen/role",
        roles_array_claim="groups",
        role_admin="chief",
        role_read_write="worker",
        role_read_only="guest",
    )
    assert await ask(authenticator, hs256(**{"https://queen/role": "chief"}), Role.ADMIN) == "alice"
    assert await ask(authenticator, hs256(groups=["guest", "worker"]), Role.READ_WRITE) == "alice"
    with pytest.raises(Forbidden):
        await ask(authenticator, hs256(role="admin", roles=["admin"]), Role.READ_ONLY)


def test_two_roles_of_one_name_are_refused() -> None:
    sentence = startup_refusal(secret=SECRET, role_read_only="admin")
    assert sentence.endswith("must be three different names.")


# Remembered tokens


class CountingVerifier(TokenVerifier):
    checked = 0

    async def verify(self, token: bytes) -> Claims:
        self.checked += 1
        return await super().verify(token)


@pytest.fixture
def verifier(clock: ManualClock) -> CountingVerifier:
    return CountingVerifier.from_settings(settings(secret=SECRET), clock)  # type: ignore[return-value]


@pytest.fixture
def counting(clock: ManualClock, verifier: CountingVerifier) -> Authenticator:
    return Authenticator(verifier, RoleClaims.from_settings(AuthSettings()), (), clock)


async def test_a_token_is_verified_once_a_minute(
    clock: ManualClock, verifier: CountingVerifier, counting: Authenticator
) -> None:
    token = hs256()
    for _ in range(10):
        assert await ask(counting, token) == "alice"
    clock.advance(REMEMBER_S - 0.1)
    assert await ask(counting, token) == "alice"
    assert verifier.checked == 1
    clock.advance(0.1)
    assert await ask(counting, token) == "alice"
    assert verifier.checked == 2


async def test_jwts_that_nobody_shows_any_more_are_forgotten(clock: ManualClock, counting: Authenticator) -> None:
    for number in range(20):
        await ask(counting, hs256(jti=str(number)))
    assert counting.remembered_tokens == 20
    clock.advance(REMEMBER_S)
    await ask(counting, hs256())
    assert counting.remembered_tokens == 1


async def test_use_does_not_prolong_the_memory(
    clock: ManualClock, verifier: CountingVerifier, counting: Authenticator
) -> None:
    token = hs256()
    for _ in range(4):
        await ask(counting, token)
        clock.advance(REMEMBER_S / 2)
    assert verifier.checked == 2


async def test_a_remembered_token_is_refused_when_it_expires(
    clock: ManualClock, verifier: CountingVerifier, counting: Authenticator
) -> None:
    token = hs256(exp=NOW + 1)
    assert await ask(counting, token) == "alice"
    clock.advance(30.9)
    assert await ask(counting, token) == "alice"
    assert verifier.checked == 1
    clock.advance(0.1)
    assert await refusal(counting, token) == "Token expired"
    assert counting.remembered_tokens == 0


async def test_a_remembered_token_still_needs_the_role(verifier: CountingVerifier, counting: Authenticator) -> None:
    token = hs256(role="read-only")
    assert await ask(counting, token, Role.READ_ONLY) == "alice"
    with pytest.raises(Forbidden):
        await ask(counting, token, Role.READ_WRITE)
    assert verifier.checked == 1


async def test_refused_tokens_are_not_remembered(counting: Authenticator) -> None:
    await refusal(counting, b"Bearer a.b.c")
    await refusal(counting, hs256(exp=1))
    assert counting.remembered_tokens == 0


async def test_the_memory_is_bounded_and_drops_the_least_used(
    verifier: CountingVerifier, counting: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "MAX_REMEMBERED_TOKENS", 2)
    first, second, third = (hs256(sub=name) for name in ("a", "b", "c"))
    for token in (first, second, first, third):
        await ask(counting, token)
    assert (counting.remembered_tokens, verifier.checked) == (2, 3)
    assert await ask(counting, first) == "a"
    assert verifier.checked == 3
    assert await ask(counting, second) == "b"
    assert verifier.checked == 4


# Published keys


class KeyServer:
    """A web server on 127.0.0.1 that publishes what the test tells it to."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.body: bytes | None = None
        self.status = 200
        self.location: str | None = None
        self.requests = 0
        self.arrived = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.between_halves: Callable[[], None] = lambda: None
        self.before_body: Callable[[BufferedIOBase], None] = lambda stream: None
        self._server = _QuietServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/keys"

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                outer.arrived.set()
                outer.gate.wait()
                body = json.dumps({"keys": outer.keys}).encode() if outer.body is None else outer.body
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                if outer.location is not None:
                    self.send_header("Location", outer.location)
                self.flush_headers()
                outer.before_body(self.wfile)
                self.end_headers()
                self.wfile.write(body[: len(body) // 2])
                outer.between_halves()
                self.wfile.write(body[len(body) // 2 :])

            def log_message(self, *args: object) -> None:
                pass

        return Handler


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for the answers under way

    def handle_error(self, *args: object) -> None:
        """A caller that went away is part of some tests."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = KeyServer()
    yield server
    server.close()


def published(key: RSAPrivateKey | Ed25519PrivateKey, kid: str | None = "a", **more: Any) -> dict[str, Any]:
    if isinstance(key, Ed25519PrivateKey):
        jwk = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        jwk = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    return jwk | ({} if kid is None else {"kid": kid}) | more


def with_keys(server: KeyServer, clock: ManualClock, **values: Any) -> Authenticator:
    chosen = {"algorithm": "RS256", "jwks_url": server.url, "jwks_refresh_interval_s": 3600}
    return Authenticator.from_settings(settings(**(chosen | values)), clock)


def rs256(kid: str | None = "a", key: RSAPrivateKey = RSA_KEY, **claims: Any) -> bytes:
    return sign(key, "RS256", claims, **({} if kid is None else {"kid": kid}))


async def unavailable(authenticator: Authenticator, token: bytes) -> str:
    with pytest.raises(UnavailableError) as caught:
        await ask(authenticator, token)
    assert caught.value.status == 503
    return caught.value.message


async def test_keys_are_fetched_when_first_needed_and_kept(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY)]
    authenticator = with_keys(server, clock)
    assert server.requests == 0
    for name in ("x", "y", "z"):
        assert await ask(authenticator, rs256(sub=name)) == name
    assert server.requests == 1


async def test_published_eddsa_keys(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY, "r"), published(ED_KEY, "e")]
    authenticator = with_keys(server, clock, algorithm="EdDSA")
    assert await ask(authenticator, sign(ED_KEY, "EdDSA", kid="e")) == "alice"
    assert await refusal(authenticator, rs256("r")) == "Token algorithm not allowed"


async def test_auto_takes_published_keys_of_both_kinds(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY, "same"), published(ED_KEY, "same")]
    authenticator = with_keys(server, clock, algorithm="auto")
    assert await ask(authenticator, rs256("same")) == "alice"
    assert await ask(authenticator, sign(ED_KEY, "EdDSA", kid="same")) == "alice"
    assert await refusal(authenticator, hs256()) == "Token algorithm not allowed"


async def test_a_key_serves_only_its_own_kid(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY, "a"), published(OTHER_RSA_KEY, "b")]
    authenticator = with_keys(server, clock)
    assert await ask(authenticator, rs256("b", OTHER_RSA_KEY)) == "alice"
    assert await refusal(authenticator, rs256("b", RSA_KEY)) == "Invalid token signature"


async def test_a_published_key_is_never_a_secret(server: KeyServer, clock: ManualClock) -> None:
    symmetric = {"kty": "oct", "kid": "s", "alg": "HS256", "k": base64.urlsafe_b64encode(b"k" * 32).decode()}
    server.keys = [published(RSA_KEY), symmetric]
    alone = with_keys(server, clock, algorithm="auto")
    beside = with_keys(server, clock, algorithm="auto", secret=SECRET)
    claims = {"sub": "mallory", "role": "admin"}
    for secret in [*spellings(RSA_KEY), published(RSA_KEY)["n"].encode(), b"k" * 32]:
        for kid in ("a", "s"):
            token = forged_hs256(secret, claims, kid=kid)
            assert await refusal(alone, token) == "Token algorithm not allowed"
            assert await refusal(beside, token) == "Invalid token signature"


async def test_no_kid_is_enough_for_a_single_key(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY), published(ED_KEY)]
    assert await ask(with_keys(server, clock), rs256(None)) == "alice"
    server.keys = [published(RSA_KEY, None)]
    assert await ask(with_keys(server, clock), rs256(None)) == "alice"
    server.keys = [published(RSA_KEY, "a"), published(OTHER_RSA_KEY, "b")]
    assert await refusal(with_keys(server, clock), rs256(None)) == "Unknown token key"


async def test_two_keys_of_one_kid_are_ambiguous(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY), published(OTHER_RSA_KEY)]
    assert await refusal(with_keys(server, clock), rs256()) == "Unknown token key"


async def test_unusable_keys_are_skipped(server: KeyServer, clock: ManualClock) -> None:
    private = RSAAlgorithm.to_jwk(OTHER_RSA_KEY, as_dict=True) | {"kid": "private"}
    server.keys = [
        {},
        {"kty": ["RSA"], "kid": "list"},
        {"kty": "RSA", "kid": "half", "n": "AQAB"},
        {"kty": "RSA", "kid": "typed", "n": 1, "e": None},
        {"kty": "OKP", "crv": "X25519", "x": "AA", "kid": "x"},
        {"kty": "EC", "crv": "P-256", "kid": "ec"},
        published(OTHER_RSA_KEY, "enc", use="enc"),
        published(OTHER_RSA_KEY, "rs512", alg="RS512"),
        private,
        published(RSA_KEY, "good", use="sig", alg="RS256", x5c=["AA"]),
    ]
    authenticator = with_keys(server, clock)
    assert await ask(authenticator, rs256("good")) == "alice"
    for kid in ("enc", "rs512", "private", "half", "ec"):
        assert await refusal(authenticator, rs256(kid, OTHER_RSA_KEY)) == "Unknown token key"


async def test_the_given_key_works_beside_published_ones(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(OTHER_RSA_KEY, "b")]
    authenticator = with_keys(server, clock, public_key=pem(RSA_KEY.public_key()))
    assert await ask(authenticator, rs256("any")) == "alice"
    assert server.requests == 0
    assert await ask(authenticator, rs256("b", OTHER_RSA_KEY)) == "alice"


async def test_a_published_private_key_is_not_trusted(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY), OKPAlgorithm.to_jwk(ED_KEY, as_dict=True) | {"kid": "a"}]
    authenticator = with_keys(server, clock, algorithm="auto")
    assert await refusal(authenticator, sign(ED_KEY, "EdDSA", kid="a")) == "Unknown token key"


async def test_a_key_whose_kid_is_no_text_does_not_count(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY), published(OTHER_RSA_KEY, kid=None) | {"kid": 7}]
    assert await ask(with_keys(server, clock), rs256(None)) == "alice"


# Published keys: rotation


async def test_an_unknown_kid_fetches_again(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY, "a")]
    authenticator = with_keys(server, clock)
    assert await ask(authenticator, rs256("a")) == "alice"
    server.keys.append(published(OTHER_RSA_KEY, "b"))
    clock.advance(REFETCH_PAUSE_S)
    assert await ask(authenticator, rs256("b", OTHER_RSA_KEY)) == "alice"
    assert await ask(authenticator, rs256("a", sub="x")) == "x"
    assert server.requests == 2


async def test_unknown_kids_cannot_make_it_fetch_all_the_time(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY, "a")]
    authenticator = with_keys(server, clock)
    for n in range(20):
        assert await refusal(authenticator, rs256(f"unknown-{n}")) == "Unknown token key"
    assert server.requests == 1
    clock.advance(REFETCH_PAUSE_S)
    for n in range(20):
        assert await refusal(authenticator, rs256(f"unknown-{n}")) == "Unknown token key"
    assert server.requests == 2


async def test_old_keys_are_fetched_again(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY)]
    authenticator = with_keys(server, clock, jwks_refresh_interval_s=100)
    assert await ask(authenticator, rs256(sub="x")) == "x"
    clock.advance(99.9)
    assert await ask(authenticator, rs256(sub="y")) == "y"
    assert server.requests == 1
    clock.advance(0.1)
    assert await ask(authenticator, rs256(sub="z")) == "z"
    assert server.requests == 2


async def test_a_withdrawn_key_is_refused_after_the_refresh(server: KeyServer, clock: ManualClock) -> None:
    """Not later than JWT_JWKS_REFRESH_INTERVAL plus the minute for which tokens are remembered."""
    server.keys = [published(RSA_KEY, "a")]
    authenticator, token = with_keys(server, clock, jwks_refresh_interval_s=100), rs256("a")
    assert await ask(authenticator, token) == "alice"
    server.keys = [published(OTHER_RSA_KEY, "b")]
    clock.advance(99)
    assert await ask(authenticator, token) == "alice"
    clock.advance(REMEMBER_S)
    assert await refusal(authenticator, token) == "Unknown token key"
    assert await ask(authenticator, rs256("b", OTHER_RSA_KEY)) == "alice"


async def test_keys_that_cannot_be_renewed_stay_in_use(
    server: KeyServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    server.keys = [published(RSA_KEY)]
    authenticator = with_keys(server, clock, jwks_refresh_interval_s=100)
    assert await ask(authenticator, rs256()) == "alice"
    server.status = 500
    clock.advance(100)
    for n in range(5):
        assert await ask(authenticator, rs256(sub=f"{n}")) == f"{n}"
    assert server.requests == 2
    clock.advance(REFETCH_PAUSE_S)
    assert await ask(authenticator, rs256(sub="x")) == "x"
    assert server.requests == 3
    assert [r.getMessage() for r in caplog.records] == ["token keys cannot be fetched: OSError: status 500"]


async def test_an_unknown_kid_is_unavailable_while_nobody_can_know(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY)]
    authenticator = with_keys(server, clock)
    assert await ask(authenticator, rs256()) == "alice"
    server.status = 500
    clock.advance(REFETCH_PAUSE_S)
    await unavailable(authenticator, rs256("b"))
    await unavailable(authenticator, rs256("b"))
    assert server.requests == 2
    server.status = 200
    clock.advance(REFETCH_PAUSE_S)
    assert await refusal(authenticator, rs256("b")) == "Unknown token key"


# Published keys: one fetch at a time


async def arrival(server: KeyServer) -> None:
    await asyncio.to_thread(server.arrived.wait)
    server.arrived.clear()


async def test_all_wait_for_the_same_fetch(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY)]
    server.gate.clear()
    authenticator = with_keys(server, clock)
    waiting = [asyncio.create_task(ask(authenticator, rs256(sub=f"{n}"))) for n in range(20)]
    await arrival(server)
    server.gate.set()
    assert await asyncio.gather(*waiting) == [f"{n}" for n in range(20)]
    assert server.requests == 1


async def test_a_failing_fetch_fails_all_who_wait_and_the_next_tries_again(
    server: KeyServer, clock: ManualClock
) -> None:
    server.keys, server.status = [published(RSA_KEY)], 500
    server.gate.clear()
    authenticator = with_keys(server, clock)
    waiting = [asyncio.create_task(ask(authenticator, rs256(sub=f"{n}"))) for n in range(20)]
    await arrival(server)
    server.gate.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {UnavailableError}
    assert server.requests == 1
    server.status = 200
    assert await ask(authenticator, rs256()) == "alice"
    assert server.requests == 2


async def test_one_who_gives_up_does_not_end_the_fetch(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY)]
    server.gate.clear()
    authenticator = with_keys(server, clock)
    first, second = (asyncio.create_task(ask(authenticator, rs256(sub=name))) for name in ("x", "y"))
    await arrival(server)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    server.gate.set()
    assert await second == "y"
    assert server.requests == 1


async def test_the_event_loop_runs_on_while_keys_are_fetched(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY)]
    server.gate.clear()
    authenticator = with_keys(server, clock, algorithm="auto", secret=SECRET)
    waiting = asyncio.create_task(ask(authenticator, rs256()))
    await arrival(server)
    assert await ask(authenticator, hs256(sub="bob")) == "bob"
    assert not waiting.done()
    server.gate.set()
    assert await waiting == "alice"


# Published keys: failures


async def test_the_text_of_an_outage_keeps_published_consumers_alive(server: KeyServer, clock: ManualClock) -> None:
    server.status = 503
    message = await unavailable(with_keys(server, clock), rs256())
    assert "connection" in message
    assert "ECONNREFUSED" in message


async def test_a_server_that_is_not_there(server: KeyServer, clock: ManualClock) -> None:
    authenticator = with_keys(server, clock)
    server.close()
    await unavailable(authenticator, rs256())


async def test_a_server_that_does_not_answer(server: KeyServer, clock: ManualClock) -> None:
    server.keys = [published(RSA_KEY)]
    server.gate.clear()
    await unavailable(with_keys(server, clock, jwks_timeout_ms=50), rs256())


async def test_a_server_that_answers_byte_by_byte(
    server: KeyServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    server.keys = [published(RSA_KEY)]
    server.between_halves = lambda: clock.advance(6)
    await unavailable(with_keys(server, clock, jwks_timeout_ms=5000), rs256())
    assert "took longer than 5.0 s" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"null",
        b"[]",
        b"{}",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":[1]}',
        b'{"keys":[{}]}',
    ],
)
async def test_an_answer_without_keys_is_a_failure(server: KeyServer, clock: ManualClock, body: bytes) -> None:
    server.keys = [published(RSA_KEY)]
    server.body = body
    authenticator = with_keys(server, clock)
    await unavailable(authenticator, rs256())
    server.body = None
    assert await ask(authenticator, rs256()) == "alice"


async def test_an_answer_that_is_too_long(
    server: KeyServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"keys": [published(RSA_KEY)]}).encode()
    server.body = body.ljust(MAX_KEY_SET_BYTES)
    assert await ask(with_keys(server, clock), rs256()) == "alice"
    server.body = body.ljust(MAX_KEY_SET_BYTES + 1)
    await unavailable(with_keys(server, clock), rs256())
    assert "key set is longer than 262144 bytes" in caplog.text


async def test_nobody_waits_longer_than_the_timeout(server: KeyServer, clock: ManualClock) -> None:
    """Also when the server keeps the socket busy; and the fetch under way stays the only one."""
    done = threading.Event()

    def dribble(stream: BufferedIOBase) -> None:
        stream.write(b"X-Slow: ")
        while not done.wait(0.01):
            stream.write(b"z")
        stream.write(b"\r\n")

    server.keys, server.before_body = [published(RSA_KEY)], dribble
    authenticator = with_keys(server, clock, jwks_timeout_ms=100)
    try:
        for _ in range(2):
            await unavailable(authenticator, rs256())
        assert server.requests == 1
    finally:
        done.set()


@pytest.mark.parametrize("target", ["/elsewhere", "file:///etc/passwd"])
async def test_redirects_are_not_followed(server: KeyServer, clock: ManualClock, target: str) -> None:
    server.keys, server.status, server.location = [published(RSA_KEY)], 302, target
    await unavailable(with_keys(server, clock), rs256())
    assert server.requests == 1


async def test_failures_are_logged_once_and_so_is_their_end(
    server: KeyServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.keys, server.status = [published(RSA_KEY)], 500
    authenticator = with_keys(server, clock)
    for _ in range(3):
        await unavailable(authenticator, rs256())
    server.status = 200
    await ask(authenticator, rs256())
    assert [record.getMessage() for record in caplog.records] == [
        "token keys cannot be fetched: OSError: status 500",
        "token keys can be fetched again",
    ]


async def test_no_token_is_ever_logged_or_shown(
    server: KeyServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.keys = [published(RSA_KEY)]
    authenticator = with_keys(server, clock)
    tokens = [rs256(exp=1), rs256("b"), rs256(key=OTHER_RSA_KEY), rs256(sub=1), hs256(), rs256() + b"A"]
    shown = ""
    for token in tokens:
        with pytest.raises(QueenError) as caught:
            await ask(authenticator, token)
        shown += f"{caught.value!r} {caught.value.body()}"  # type: ignore[attr-defined]
    for token in tokens:
        for part in token.decode().split("."):
            assert part not in shown + caplog.text


@pytest.mark.parametrize("left", [b'{"keys": []}', b'{"keys": [{"kty": "EC", "kid": "a"}]}'])
async def test_keys_of_a_set_that_became_empty_are_not_valid_any_more(
    server: KeyServer, clock: ManualClock, left: bytes
) -> None:
    server.keys = [published(RSA_KEY)]
    authenticator = with_keys(server, clock)
    assert await ask(authenticator, rs256()) == "alice"
    server.body = left
    clock.advance(3601)
    await unavailable(authenticator, rs256())
    server.body = None
    clock.advance(REFETCH_PAUSE_S + 1)
    assert await ask(authenticator, rs256()) == "alice"


async def test_what_a_connection_has_shown_is_bounded_and_follows_the_header(clock: ManualClock) -> None:
    authenticator = with_secret(clock)
    connection: dict[str, Any] = {}

    async def shown(token: bytes) -> str | None:
        caller = await authenticator.authenticate(PATH, b"Bearer " + token, Role.READ_ONLY, connection)
        return caller.subject

    for _ in range(3):
        assert await shown(hs256(sub="alice")) == "alice"
    assert len(connection) == 1
    assert await shown(hs256(sub="bob")) == "bob"
    for stranger in (b"x" * 1000, hs256(sub="alice") + b"x"):
        for _ in range(2):
            with pytest.raises(Unauthenticated):
                await shown(stranger)
    assert stranger not in str(connection).encode()
    long = hs256(sub="c" * 3000)
    for _ in range(2):
        assert await shown(long) == "c" * 3000
    assert len(str(connection)) < 3000
    clock.advance(FAR)
    with pytest.raises(Unauthenticated):
        await shown(hs256(sub="alice"))


class _Lookups:
    """Tokens that take as long to be found as the test likes."""

    is_away = False

    def __init__(self, valid: Token) -> None:
        self.valid = valid
        self.gate = asyncio.Event()

    async def find(self, digest: bytes) -> Token | None:
        if digest == digest_of(OWN):
            return self.valid
        await self.gate.wait()
        return None


OWN = b"queen_own"


async def test_tokens_that_somebody_makes_up_do_not_hold_up_known_ones(clock: ManualClock) -> None:
    token = Token(
        id=UUID(int=1),
        name="alice",
        role=Role.ADMIN,
        grants=(),
        created_at=utc_now(),
        created_by=None,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
        is_valid=True,
    )
    lookups = _Lookups(token)
    authenticator = Authenticator(None, RoleClaims.from_settings(AuthSettings()), (), clock, lookups)
    assert await ask(authenticator, OWN) == "alice"
    made_up = [asyncio.create_task(ask(authenticator, b"queen_%d" % number)) for number in range(50)]
    await asyncio.sleep(0)
    clock.advance(REMEMBER_OWN_S + 1)
    async with asyncio.timeout(30):
        assert await ask(authenticator, OWN) == "alice", "when it is looked up again"
        authenticator.revoked("another")
        assert await ask(authenticator, OWN) == "alice", "after a revocation"
    lookups.gate.set()
    answers = await asyncio.gather(*made_up, return_exceptions=True)
    assert all(isinstance(answer, Unauthenticated) for answer in answers)
