"""A small OpenID provider: discovery, a page to sign in on, codes that work once with their verifier, and tokens."""

from __future__ import annotations

import hashlib
import html
import json
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

CLIENT = "dashboard"


class Provider:
    """Whoever clicks is alice, an administrator."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.issued = 0
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._codes: dict[str, dict[str, str]] = {}

    def configuration(self) -> dict[str, str]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
        }

    def keys(self) -> dict[str, Any]:
        return {"keys": [json.loads(RSAAlgorithm.to_jwk(self._key.public_key())) | {"kid": "1", "use": "sig"}]}

    def sign_in_page(self, asked: dict[str, str]) -> str:
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe()
        self._codes[code] = asked
        links = ""
        for text, back in (("Sign in as alice", {"code": code}), ("Refuse", {"error": "access_denied"})):
            target = f"{asked['redirect_uri']}?{urlencode(back | {'state': asked['state']})}"
            links += f'<a href="{html.escape(target)}">{text}</a> '
        return f"<!doctype html><title>Provider</title>{links}"

    def tokens(self, given: dict[str, str]) -> tuple[int, dict[str, Any]]:
        asked = self._codes.pop(given["code"], None)
        challenge = urlsafe_b64encode(hashlib.sha256(given["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if (
            asked is None
            or given["grant_type"] != "authorization_code"
            or given["client_id"] != CLIENT
            or given["redirect_uri"] != asked["redirect_uri"]
            or challenge != asked["code_challenge"]
        ):
            return 400, {"error": "invalid_grant"}
        self.issued += 1
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "alice",
            "role": "admin",
            "nonce": asked["nonce"],
            "exp": time.time() + 600,
        }
        made = jwt.encode(claims, self._key, "RS256", {"kid": "1"})
        return 200, {"id_token": made, "access_token": "opaque", "token_type": "Bearer"}


@contextmanager
def provider() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorize":
                page = known.sign_in_page({name: value for name, [value] in parse_qs(parts.query).items()})
                self.answer(200, page.encode(), "text/html")
            elif parts.path in ("/.well-known/openid-configuration", "/keys"):
                told = known.keys() if parts.path == "/keys" else known.configuration()
                self.answer(200, json.dumps(told).encode())
            else:
                self.answer(404, b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, told = known.tokens({name: value for name, [value] in parse_qs(body).items()})
            self.answer(status, json.dumps(told).encode())

        def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The tests say what is wrong."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known = Provider(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
