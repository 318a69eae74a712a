"""The only module that opens sockets: one attempt of one request. Foreign exceptions become ours here."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO

import aiohttp
from yarl import URL

from queenmq.client.errors import ClientClosed, InvalidResponse, NetworkError, refusal
from queenmq.client.options import ClientOptions
from queenmq.client.retry import parse_retry_after
from queenmq.client.tracing import inject

# Shorter than what servers keep idle connections, so that a request rarely meets one that is being closed.
_KEEPALIVE_S = 8.0
_PIECEMEAL = 512 * 1024
_HEARTBEAT_S = 10.0  # of silence, then it is pinged
_PINGS = 2  # so many go without an answer before the server counts as gone
_JSON = {"Content-Type": "application/json", "Accept": "application/json"}


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, in every attempt the same. `repeatable`: carrying it out twice does no harm."""

    method: str
    path: str
    body: bytes | None = None
    timeout_s: float | None = None
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `uncertain`: an earlier attempt got none, or a 5xx, and may have been carried out all the same."""

    status: int
    content: bytes
    retry_after_s: float | None = None
    uncertain: bool = False


class Socket:
    """A WebSocket that is open."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def receive(self) -> str | None:
        """The next message; None when the connection is closed or lost."""
        silences = 0
        while True:
            # The silence may be our own: a handler that blocks the event loop does not let us read. What came meanwhile
            # is there in the next round, so one silence alone means nothing.
            try:
                message = await self._socket.receive(_HEARTBEAT_S)
            except TimeoutError:
                if silences == _PINGS:
                    return None
                silences += 1
                await self._try(self._socket.ping())
                continue
            silences = 0
            if message.type is aiohttp.WSMsgType.PING:
                await self._try(self._socket.pong(message.data))
            elif message.type is not aiohttp.WSMsgType.PONG:
                return message.data if message.type is aiohttp.WSMsgType.TEXT else None

    @staticmethod
    async def _try(sending: Awaitable[None]) -> None:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_HEARTBEAT_S):
                await sending

    async def send(self, data: bytes) -> None:
        """Nothing happens if the connection is lost: `receive` says so."""
        with suppress(aiohttp.ClientError, OSError):
            await self._socket.send_str(data.decode())

    async def close(self) -> None:
        await self._socket.close()

    @property
    def close_code(self) -> int | None:
        return self._socket.close_code


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Have a request sent once.

    When a connection breaks, aiohttp sends GET and DELETE again, and tells only what came of that: a server that was
    killed refuses the second one, although it may have carried out the first.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


class Transport:
    """A pool of keep-alive connections to all servers. It is opened by the first request."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def send(self, server: str, request: Request) -> Reply:
        """One attempt. Raises NetworkError if no whole answer came in time, in the words of the system and without the
        traceback of a library, which would only hide them."""
        session = self._opened()
        try:
            async with session.request(
                request.method,
                URL(server + request.path, encoded=True),
                data=_data(request.body),
                headers=self._headers(),
                timeout=self._timeout(request),
                allow_redirects=False,
            ) as response:
                content = await response.read()
                wait = parse_retry_after(response.headers.get("Retry-After"))
                return Reply(response.status, content, wait)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NetworkError(f"no connection to {server}: {_described(error)}", sent=False) from None
        except TimeoutError:
            raise NetworkError(f"no answer from {server} in time (timed out)", sent=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise NetworkError(f"the connection to {server} broke: {_described(error)}", sent=True) from None

    async def connect(self, server: str, path: str) -> Socket:
        """Open a WebSocket. Raises ResponseError if the server refuses it, InvalidResponse or NetworkError."""
        session = self._opened()
        try:
            async with asyncio.timeout(self._options.connect_timeout_millis / 1000):
                socket = await session.ws_connect(
                    URL(server + path, encoded=True), headers=self._headers(), autoping=False, max_msg_size=0
                )
            return Socket(socket)
        except aiohttp.WSServerHandshakeError as error:
            if error.status < 400:
                raise InvalidResponse(f"{server} opens no WebSocket: {error.message}") from error
            raise refusal(error.status, {}, None) from error
        except TimeoutError as error:
            raise NetworkError(f"no answer from {server} in time (timed out)", sent=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NetworkError(f"no connection to {server}: {_described(error)}", sent=False) from error

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ClientClosed
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._options.max_connections,
                keepalive_timeout=_KEEPALIVE_S,
                ssl=self._options.ssl_context or True,
            )
            consumer = self._options.consumer()
            said = {} if consumer is None else {"X-Queen-Consumer": consumer}
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=_JSON | said | dict(self._options.headers),
                middlewares=(_once,),
            )
        return self._session

    def _headers(self) -> dict[str, str]:
        token = self._options.token()
        return inject({} if token is None else {"Authorization": f"Bearer {token}"})

    def _timeout(self, request: Request) -> aiohttp.ClientTimeout:
        total = request.timeout_s or self._options.timeout_millis / 1000
        return aiohttp.ClientTimeout(total=total, sock_connect=self._options.connect_timeout_millis / 1000)


def _data(body: bytes | None) -> bytes | BytesIO | None:
    # Large bodies in pieces, so that sending one does not hold up the event loop.
    return BytesIO(body) if body is not None and len(body) > _PIECEMEAL else body


def _described(error: Exception) -> str:
    """What went wrong, in the words of the system rather than of a library."""
    cause = getattr(error, "os_error", None)
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed ({(cause.reason or str(cause)).lower().replace('_', ' ')}); perhaps it speaks http"
    if isinstance(cause, OSError) and cause.errno is not None:
        # Numbers of name resolution are negative, and only their own text says what they mean.
        return os.strerror(cause.errno) if cause.errno > 0 else cause.strerror or str(cause)
    return str(error) or type(error).__name__
