"""A request until it is answered: choosing the server, trying again, and reading the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import msgspec

from queenmq.client.errors import (
    InvalidResponse,
    NetworkError,
    NotFound,
    Overloaded,
    QueenError,
    RequestError,
    Unavailable,
    refusal,
)
from queenmq.client.options import ClientOptions
from queenmq.client.retry import Retries
from queenmq.client.servers import Servers
from queenmq.client.transport import Reply, Request, Transport
from queenmq.clock import SYSTEM, Clock

logger = logging.getLogger("queenmq.client")

T = TypeVar("T")

# What Queen says of a path that it does not serve; others say nothing.
_NO_SUCH_CALL = "Not found"


class Caller:
    """Sends requests to whichever server works, and again if none does.

    A request is encoded once, so every attempt carries the same bytes: the same transactionIds above all, by which the
    server knows a repetition.
    """

    def __init__(
        self,
        options: ClientOptions,
        transport: Transport,
        servers: Servers,
        clock: Clock = SYSTEM,
        random: Random | None = None,
    ) -> None:
        self._options = options
        self._transport = transport
        self._servers = servers
        self._clock = clock
        self._random = random or Random()  # noqa: S311 - jitter, not a secret

    async def call(self, request: Request, read: Callable[[Reply], T]) -> T:
        """What `read` makes of a 2xx answer.

        Raises a RequestError at once for a 4xx; Unavailable, NetworkError or InvalidResponse when no attempt is left.
        """
        retries = Retries(self._options, self._random)
        tried: set[str] = set()
        uncertain = False
        while True:
            server = self._servers.choose(self._clock.monotonic(), tried)
            if server is None:
                tried.clear()
                continue
            try:
                return await self._attempt(server, request, read, uncertain)
            except RequestError as error:
                self._servers.worked(server)
                error.uncertain = uncertain
                raise
            except Overloaded as error:
                self._servers.worked(server)
                failure: QueenError = error
            except (Unavailable, NetworkError, InvalidResponse) as error:
                self._servers.failed(server, self._clock.monotonic())
                tried.add(server)
                uncertain = uncertain or not isinstance(error, NetworkError) or error.sent
                if isinstance(error, NetworkError):
                    error.sent = uncertain  # of all attempts: the caller sees none but the last
                failure = error
            if uncertain and not request.repeatable:
                raise failure
            await self._pause(failure, retries, server, tried)

    async def _attempt(self, server: str, request: Request, read: Callable[[Reply], T], uncertain: bool) -> T:
        reply = await self._transport.send(server, request)
        if reply.status >= 400:
            body = _error_body(reply.content)
            if reply.status == 404 and body.get("error", _NO_SUCH_CALL) == _NO_SUCH_CALL:
                raise NotFound(
                    404, f"{server} has no {request.method} {request.path}; is it a Queen server's URL?", body
                )
            raise refusal(reply.status, body, reply.retry_after_s)
        if reply.status >= 300:
            raise InvalidResponse(f"{server} answered {reply.status}, which is not of the contract")
        try:
            value = read(replace(reply, uncertain=uncertain))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidResponse(f"{server} answered what is not of the contract: {error}") from error
        self._servers.worked(server)
        return value

    async def _pause(self, failure: QueenError, retries: Retries, server: str, tried: set[str]) -> None:
        """Wait before the next attempt, unless another server has not been tried yet. Raises the failure at the end."""
        if not isinstance(failure, Overloaded) and self._servers.has_other_than(tried):
            logger.warning("%s; trying another server", failure)
            return
        delay = retries.delay_after(failure)
        if delay is None:
            raise failure
        logger.warning("%s; trying again in %.1f s", failure, delay)
        tried.clear()
        await self._clock.sleep(delay)


def _error_body(content: bytes) -> Mapping[str, Any]:
    try:
        body = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return body if isinstance(body, dict) else {}
