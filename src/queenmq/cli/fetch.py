"""One plain GET, for what the client has no call for: text instead of JSON, and probing without retries."""

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
    """A token must not follow to another place."""

    def redirect_request(self, *_: object) -> None:
        return None


_directly = build_opener(ProxyHandler({}), _NoRedirects())


def fetch(server: str, path: str, timeout_s: float = 10.0) -> Answer:
    """The answer, whatever its status. Raises OSError if there is none, ValueError if the URL cannot be one."""
    if not server.startswith(("http://", "https://")):
        raise ValueError(f"not the URL of a server: {server!r}")
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token()}"} if token() else {})
    try:
        with _directly.open(Request(server.rstrip("/") + path, headers=headers), timeout=timeout_s) as answer:  # noqa: S310 - checked above
            return Answer(answer.status, answer.read())
    except HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.read())
    except URLError as error:
        raise OSError(str(error.reason)) from error
    except HTTPException as error:
        raise OSError(f"what answers does not speak HTTP ({type(error).__name__})") from error
