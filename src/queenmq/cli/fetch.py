"""One GET without the client: for answers that are not JSON, and for probes without retries."""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from queenmq.cli.remote import token, trusted_context


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


class _NoRedirects(HTTPRedirectHandler):
    """A redirect must not carry the token to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


def _opener(server: str) -> OpenerDirector:
    """One that knows no proxies; for https it trusts what --cacert says."""
    if server.startswith("http:"):
        return _directly
    return build_opener(ProxyHandler({}), _NoRedirects(), HTTPSHandler(context=trusted_context()))


_directly = build_opener(ProxyHandler({}), _NoRedirects())


def fetch(server: str, path: str, timeout_s: float = 10.0, *, bearer: bool = True) -> Answer:
    """The answer, whatever its status; `bearer` sends the token, if there is one.

    Raises OSError if no server answers, ValueError if the URL is not valid.
    """
    if not server.startswith(("http://", "https://")):
        raise ValueError(f"not the URL of a server: {server!r}")
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token()}"} if bearer and token() else {})
    try:
        opener = _opener(server)
        with opener.open(Request(server.rstrip("/") + path, headers=headers), timeout=timeout_s) as answer:  # noqa: S310 - checked above
            return Answer(answer.status, answer.read())
    except HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.read())
    except URLError as error:
        raise OSError(str(error.reason)) from error
    except HTTPException as error:
        raise OSError(f"the server does not speak HTTP ({type(error).__name__})") from error
