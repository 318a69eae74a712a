"""A server of Queen as the pipeline reaches it over HTTP, with a token: no password of the database is needed.

The driver reads the token and the certificates, and tasks get them with the reader or writer that they run: neither is
an option, so that no plan and no log shows them.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from queenmq.pipeline.errors import BadOption, DatabaseAway, NoSuchQueue, PipelineError
from queenmq.pipeline.patience import patiently

TOKEN_VARIABLE: Final = "QUEEN_TOKEN"  # noqa: S105 - the name of a variable
CA_VARIABLE: Final = "QUEEN_CA_FILE"
_TIMEOUT_S: Final = 120.0
_LATER: Final = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Access:
    """What a request to the server needs. It is made in the driver."""

    url: str
    token: str | None = field(default=None, repr=False)
    certificates: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, options: Mapping[str, str]) -> Access:
        """With the files that the options name. Raises BadOption for a token in the URL, and for files that cannot be
        read."""
        found = urlsplit(url)
        if found.username or found.password or found.query:
            raise BadOption(f"url takes no user, password or token: put the token into {TOKEN_VARIABLE} or tokenFile")
        given = {name.lower().removeprefix("option."): value for name, value in options.items()}
        token_file, ca_file = given.get("tokenfile"), given.get("cafile") or os.environ.get(CA_VARIABLE)
        token = _read(token_file, "tokenFile").strip() if token_file else os.environ.get(TOKEN_VARIABLE)
        return cls(url.rstrip("/"), token or None, _read(ca_file, "caFile") if ca_file else None)


def _read(path: str, name: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{name}: {path} cannot be read: {getattr(error, 'strerror', error)}") from None


class Server:
    """Asks one question after the other over one connection. Once it has answered, and in tasks, a server that is
    restarted or overloaded is waited for."""

    def __init__(self, access: Access, *, reached: bool = False) -> None:
        self._access = access
        self._reached = reached
        self._address = urlsplit(access.url)
        self._connection: HTTPConnection | None = None

    def get(self, *path: str, **query: object) -> Any:
        asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        return json.loads(self.ask("GET", "/".join(quote(part, safe="") for part in path) + (asked and f"?{asked}")))

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The answer. Raises PipelineError if the server refuses, and DatabaseAway if it is away for too long."""

        def attempt() -> bytes:
            return self._once(method, f"{self._address.path}/api/v1/{path}", body)

        if not self._reached:
            try:
                return attempt()
            except DatabaseAway:
                # One that says that it cannot now is there.
                if not self._reached:
                    raise
        return patiently(attempt)

    def _once(self, method: str, path: str, body: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json", "Connection": "keep-alive"}
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token}"
        try:
            connection = self._connection = self._connection or self._connect()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            self._reached = True
        except ssl.SSLCertVerificationError as error:
            raise PipelineError(
                f"the certificate of {self._access.url} is not trusted ({error.verify_message}): name the file of its "
                f"authority in {CA_VARIABLE} or caFile"
            ) from None
        except (OSError, HTTPException) as error:
            self.close()
            raise DatabaseAway(f"{self._access.url} does not answer: {error}") from None
        if answer.status < 300:
            return content
        raise _refusal(answer.status, content, self._access.url)

    def _connect(self) -> HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme.lower() == "http":
            return HTTPConnection(host, port or 80, timeout=_TIMEOUT_S)
        context = ssl.create_default_context(cadata=self._access.certificates)
        return HTTPSConnection(host, port or 443, timeout=_TIMEOUT_S, context=context)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None


def _refusal(status: int, content: bytes, url: str) -> PipelineError:
    told = content.decode("utf-8", "replace")[:300]
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(content)["error"]
    if status in _LATER:
        return DatabaseAway(f"{url} answers {status}: {told}")
    if status in (401, 403):
        return PipelineError(f"{url} refuses the token ({status}): {told}; it comes from {TOKEN_VARIABLE} or tokenFile")
    if status == 404 and "ueue" in told:
        return NoSuchQueue(f"{url}: {told}")
    return PipelineError(f"{url} refuses ({status}): {told}")
