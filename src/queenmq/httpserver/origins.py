"""Which web pages may use this server.

Without tokens a browser is all that an attacker needs: any page that it shows can send requests to this machine. So a
server without tokens serves a request only under a name that cannot be somebody else's (a page whose own name is made
to point here, DNS rebinding, comes with that name in `Host`), and only from pages of its own: what comes from a page of
another origin is refused, unless the origin is configured. Programs that are no browsers send neither `Origin` nor
`Sec-Fetch-Site`, and are not concerned.

With tokens a page can do nothing that it has no token for, so nothing is refused here. In both cases CORS headers go
only to the configured origins: no other page can read an answer. Browsers do not apply CORS to WebSockets, so there
the origin is checked in both cases.
"""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from queenmq.config import Settings
from queenmq.errors import Forbidden, StartupError
from queenmq.httpserver.messages import Header, Request
from queenmq.httpserver.websocket import KEY

ANY = "*"

# No page of the public web has a name like these: they are reserved (RFC 6761, 6762, 8375; ICANN for .internal).
_SENT = b"Content-Type, Authorization, X-Request-Id, X-Queen-Consumer, traceparent, tracestate"
_NEVER_PUBLIC = (".localhost", ".local", ".internal", ".test", ".home.arpa")
_PAGES = "/assets/"  # the files of the dashboard; they carry no data, and links to them may stand anywhere
FROM_A_PAGE = frozenset({b"origin", b"sec-fetch-site", b"referer"})
"""Headers by which browsers say that a web page has sent the request."""

BROWSER = b"Mozilla/"
"""So the user agents of all browsers begin, and of no client."""


_OWN_SITE = frozenset({b"same-origin", b"none"})
_MOST_REMEMBERED = 1000
_MOST_SHOWN = 100


class Origins:
    """`check` refuses pages of strangers, `headers` permits configured ones to read the answer."""

    def __init__(
        self, configured: frozenset[str], fronts: frozenset[str], names: frozenset[str], *, guards: bool
    ) -> None:
        self._configured = frozenset(origin.encode() for origin in configured)
        self._any = ANY in configured
        self._fronts = fronts  # names of proxies before this server, whose pages are its own
        self._names = names
        self._guards = guards
        self.known_hosts: set[bytes] = set()
        """Values of `Host` that have passed: a request with one of them that no page has sent needs no `check`."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Origins:
        """Raises StartupError where every web page would be let in."""
        configured = frozenset(settings.http.cors_origins)
        if ANY in configured and not settings.auth.required:
            raise StartupError(
                "QUEEN_CORS_ORIGINS is * and no token is required, so that every web page could read and delete "
                "everything; name the origins, or set QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true"
            )
        fronts = frozenset(name.lower() for name in settings.http.allowed_hosts)
        names = fronts | {settings.http.host.lower(), socket.gethostname().lower()}
        return cls(configured, fronts, names, guards=not settings.auth.required)

    @property
    def permits_some(self) -> bool:
        return bool(self._configured)

    def check(self, request: Request) -> None:
        """Raises Forbidden with the reason and what to do about it."""
        headers = request.headers
        host = headers.get(b"host")
        if not self._guards:
            if KEY in headers:
                self._check_socket(headers, host)
            return
        if host is not None and host not in self.known_hosts:
            self._check_host(host)
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site is None and origin is None:
            if b"referer" in headers and not self._is_own(headers[b"referer"], host) and not _is_page(request.path):
                raise _foreign(headers[b"referer"])
            return
        if site in _OWN_SITE or _is_page(request.path):
            return
        if origin is not None and (origin in self._configured or (site is None and self._is_own(origin, host))):
            return
        raise _foreign(origin or b"a page of another site")

    def check_change_by_get(self, request: Request) -> None:
        """Of a GET that changes something, such as a pop, and that a browser sends. Raises Forbidden if it does not say
        from where: over plain HTTP, a page of another site can have it sent so, by a link."""
        if FROM_A_PAGE.isdisjoint(request.headers):
            raise Forbidden(
                "a browser asks for this and does not say for which page, so it may be one of another site; use a "
                "client or the dashboard, or require tokens (QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true)"
            )

    def _check_socket(self, headers: dict[bytes, bytes], host: bytes | None) -> None:
        origin = headers.get(b"origin")
        if origin is None or self._any or origin in self._configured or self._is_own(origin, host):
            return
        raise _foreign(origin)

    def headers(self, request: Request) -> tuple[Header, ...]:
        """What permits the page that the request comes from to read the answer, if it may."""
        origin = request.headers.get(b"origin")
        if origin is None or not (self._any or origin in self._configured):
            return ()
        permitted: tuple[Header, ...] = (
            (b"Access-Control-Allow-Origin", origin),
            (b"Vary", b"Origin"),
            (b"Access-Control-Expose-Headers", b"Retry-After, X-Request-Id"),
        )
        if request.method != "OPTIONS":
            return permitted
        permitted += (
            (b"Access-Control-Allow-Methods", b"GET, POST, PUT, DELETE, OPTIONS"),
            (b"Access-Control-Allow-Headers", _SENT),
            (b"Access-Control-Max-Age", b"600"),
        )
        if request.headers.get(b"access-control-request-private-network") == b"true":
            permitted += ((b"Access-Control-Allow-Private-Network", b"true"),)
        return permitted

    def _check_host(self, host: bytes) -> None:
        name = _name_of(host)
        if not (name in self._names or _cannot_be_foreign(name)):
            raise Forbidden(
                f"{_shown(host)} is not a known name of this server; if it is one, add it to QUEEN_ALLOWED_HOSTS, "
                "or require tokens (QUEEN_TOKENS_ENABLED=true or JWT_ENABLED=true)"
            )
        if len(self.known_hosts) < _MOST_REMEMBERED:
            self.known_hosts.add(host)

    def _is_own(self, url: bytes, host: bytes | None) -> bool:
        """Whether an `Origin` or a `Referer` names this server, by the name of the request or by a configured one."""
        try:
            parts = urlsplit(url.decode("ascii"))
            authority = parts.netloc.lower()
        except ValueError:
            return False
        if not authority:
            return False
        if host is not None and _without_default_port(authority) == _without_default_port(
            host.decode("latin-1").lower()
        ):
            return True
        return parts.hostname in self._fronts


def _is_page(path: str) -> bool:
    return path == "/" or path.startswith(_PAGES)


def _name_of(host: bytes) -> str:
    """Of `name:port`; an IPv6 address stands in brackets."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _cannot_be_foreign(name: str) -> bool:
    """Addresses, names without a dot and reserved names: nobody has a page on the public web under one of them."""
    if "." not in name and ":" not in name:
        return True
    if name.endswith(_NEVER_PUBLIC):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _without_default_port(authority: str) -> str:
    return re.sub(r":(80|443)$", "", authority)


def _shown(raw: bytes) -> str:
    return raw[:_MOST_SHOWN].decode("ascii", "backslashreplace")


def _foreign(origin: bytes) -> Forbidden:
    return Forbidden(
        f"a web page of another origin may not use this server ({_shown(origin)}); add the origin to "
        "QUEEN_CORS_ORIGINS to permit it, or the name of the server to QUEEN_ALLOWED_HOSTS if it is behind a proxy"
    )
