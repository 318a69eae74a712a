"""One GET without the client: for answers that are not JSON, and for probes without retries."""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from queenmq.cli.remote import token


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


class _NoRedirects(HTTPRedirectHandler):
    """A redirect must not carry the token to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


_directly = build_opener(ProxyHandler({}), _NoRedirects())


def fetch(server: str, path: str, timeout_s: float = 10.0, *, bearer: bool = True) -> Answer:
    """The answer, whatever its status; `bearer` sends the token, if there is one.

    Raises OSError if no server answers, ValueError if the URL is not valid.
    """
    if not server.startswith(("http://", "https://")):
        raise ValueError(f"not the URL of a server: {server!r}")
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token()}"} if bearer and token() else {})
    try:
        with _directly.open(Request(server.rstrip("/") + path, headers=headers), timeout=timeout_s) as answer:  # noqa: S310 - checked above
            return Answer(answer.status, answer.read())
    except HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.read())
    except URLError as error:
        raise OSError(str(error.reason)) from error
    except HTTPException as error:
        raise OSError(f"the server does not speak HTTP ({type(error).__name__})") from error
