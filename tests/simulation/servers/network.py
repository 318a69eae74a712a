"""The way between clients and servers, without sockets: the front of a server, and the transport of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any

from queenmq.client.errors import NetworkError
from queenmq.client.options import ClientOptions
from queenmq.client.retry import parse_retry_after
from queenmq.client.transport import Reply
from queenmq.client.transport import Request as Sent
from queenmq.clock import SYSTEM, Clock
from queenmq.errors import HttpError, InternalError, Interrupted
from queenmq.httpserver.limits import Limits
from queenmq.httpserver.messages import Application, Request, Response
from queenmq.httpserver.refusals import error_response
from simulation.servers.loop import LIFE, Life

_LATENCY_S = (0.0002, 0.003)


class SimulatedFront:
    """What a server uses of HttpFront. `announce` is called when it listens, and gets it."""

    def __init__(
        self, announce: Callable[[SimulatedFront], None], handler: Application, limits: Limits, _: Clock, **__: Any
    ) -> None:
        self.limits = limits
        self.on_stop: list[Callable[[], None]] = []
        self.is_listening = False
        self.life: Life | None = None
        self._announce = announce
        self._handler = handler
        self._running: dict[asyncio.Task[Response], None] = {}
        self._is_stopping = False
        self._context = Context()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", 6632

    async def start(self, _host: str, _port: int, *, shared: bool = False) -> None:
        self.is_listening = True
        self.life = LIFE.get()
        self._context.run(LIFE.set, self.life)
        self._announce(self)

    async def stop(self, grace_s: float) -> None:
        self.is_listening = False
        self._is_stopping = True
        for callback in self.on_stop:
            callback()
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def begin(self, request: Request) -> asyncio.Task[Response]:
        task = asyncio.get_running_loop().create_task(self._serve(request), context=self._context.copy())
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    async def _serve(self, request: Request) -> Response:
        try:
            response = await self._handler(request)
            response.encode()
        except HttpError as error:
            return error_response(error)
        except asyncio.CancelledError:
            if self._is_stopping:
                return error_response(Interrupted())
            raise
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
            return error_response(InternalError())
        return response


class Network:
    """Which server is at which URL, and how often requests or answers get lost."""

    def __init__(self, chance: Random, note: Callable[..., None]) -> None:
        self._chance = chance
        self._note = note
        self.fronts: dict[str, SimulatedFront] = {}
        self.lost = 0.0
        self._open: dict[asyncio.Future[Response], SimulatedFront] = {}

    def latency_s(self) -> float:
        return self._chance.uniform(*_LATENCY_S)

    def died(self, life: Life) -> None:
        """Every connection to this process breaks."""
        for url, front in list(self.fronts.items()):
            if front.life is life:
                del self.fronts[url]
        for answer, front in list(self._open.items()):
            if front.life is life and not answer.done():
                answer.set_exception(ConnectionResetError())

    async def send(self, url: str, request: Request, timeout_s: float) -> Response:
        """Raises NetworkError."""
        await SYSTEM.sleep(self.latency_s())
        front = self.fronts.get(url)
        if front is None or not front.is_listening:
            raise NetworkError(f"no connection to {url}", sent=False)
        fate = self._chance.random() / self.lost if self.lost else 4.0
        if fate < 1:
            self._note("request lost")
            raise NetworkError(f"the connection to {url} broke", sent=True)
        task = front.begin(request)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._open[answer] = front
        task.add_done_callback(lambda done: _pass_on(done, answer), context=Context())
        try:
            # The client goes away in the middle, or the answer does not arrive.
            async with asyncio.timeout(self._chance.uniform(0, 0.3) if 1 < fate < 2 else timeout_s):
                response = await answer
        except (TimeoutError, ConnectionResetError) as error:
            if front.life is None or not front.life.ended:
                task.cancel()
            self._note("answer lost")
            raise NetworkError(f"no answer from {url}", sent=True) from error
        finally:
            del self._open[answer]
        await SYSTEM.sleep(self.latency_s())
        if 2 < fate < 3:
            self._note("answer lost")
            raise NetworkError(f"the connection to {url} broke", sent=True)
        return response


def _pass_on(task: asyncio.Task[Response], answer: asyncio.Future[Response]) -> None:
    if answer.done():
        return
    if task.cancelled():
        answer.set_exception(ConnectionResetError())
    else:
        answer.set_result(task.result())


class SimulatedTransport:
    """What a client uses of its transport."""

    def __init__(self, network: Network, options: ClientOptions) -> None:
        self._network = network
        self._options = options
        self.is_open = True

    async def send(self, server: str, request: Sent) -> Reply:
        path, _, query = request.path.partition("?")
        made = Request(request.method, path, query.encode(), body=request.body or b"")
        timeout_s = request.timeout_s or self._options.timeout_millis / 1000
        response = await self._network.send(server, made, timeout_s)
        headers = {name.lower(): value.decode() for name, value in response.headers}
        return Reply(response.status, response.body, parse_retry_after(headers.get(b"retry-after")))

    async def close(self) -> None:
        self.is_open = False
