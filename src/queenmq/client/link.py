"""A consumer connection, as long as there is one: batches come on it, and what became of them goes back.

Owns the connection of one consumer: opening it, again and again, the batches that no worker has taken yet, and the
acknowledgements that are not answered. Workers use it as if they polled; while there is no connection they do poll.

* Acknowledgements go out behind the handler: a worker does not wait for their result. What is said in one turn of the
  event loop goes out together.
* Without a word from the server a lost connection means that the leases are given back, so batches that no worker has
  begun (`prefetched`) are dropped. A server that stops says so (1001) and leaves them: they are handled, and finished
  elsewhere.
* What was sent and not answered is sent again, as a request of its own: its lease tells whether that is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec

from queenmq.client.errors import InvalidResponse, InvalidUse, NetworkError, QueenError, RequestError
from queenmq.client.finish import Finish, finish_what_is_left, without_missing
from queenmq.client.frames import FinishLease, frames, received
from queenmq.client.models import FinishResult, PopAnswer, TakeResult
from queenmq.client.options import RENEW_MILLIS, ConsumerOptions
from queenmq.client.polls import Polls
from queenmq.client.prefetched import Batch, Prefetched
from queenmq.client.session import Session
from queenmq.client.sizing import Size
from queenmq.client.transport import Socket
from queenmq.clock import SYSTEM

logger = logging.getLogger("queenmq.client")

_GOING_AWAY: Final = 1001
_TRY_LATER: Final = 1013
_FIRST_PAUSE_S: Final = 0.2
_LAST_PAUSE_S: Final = 10.0
_REFUSED_PAUSE_S: Final = 300.0  # of a server that does not know how, or a proxy that does not let it through
_REPEAT_S: Final = 0.5
_LASTING_S: Final = 5.0  # a connection that lives so long, or delivers, is a good one
_CLOSE_S: Final = 2.0
_UNKNOWN: Final = "outcome_unknown"
_BACK: Final = "retry"
_KNOWN_REFUSALS: Final = frozenset({401, 403})  # a poll is refused for the same reason, and raises it

Note = Callable[[FinishResult, int, bool], None]


class Link:
    """`polls` is the way without a connection; with `connection(True)` there is no such way."""

    def __init__(self, session: Session, path: str, polls: Polls, options: ConsumerOptions) -> None:
        self._session = session
        self._path = path
        self._polls = polls
        self._name = options.name
        self._only = bool(options.connection)
        self._note: Note = lambda *_: None
        self._socket: Socket | None = None
        self._tried = asyncio.Event()  # the first attempt is over
        self._connected = asyncio.Event()
        self._is_refused = False
        self._is_closing = False
        self._error: Exception | None = None
        self._batches = Prefetched(session.verbs, options.renew_millis or RENEW_MILLIS, self.drop)
        self._waiters: deque[asyncio.Future[Batch | None]] = deque()
        self._leases: dict[str, int] = {}  # that came on this connection and are not finished, with their messages
        self._answers: dict[str, asyncio.Future[FinishResult | None]] = {}
        self._outgoing: list[FinishLease | None] = []
        self._size: Size | None = None  # of batches, if it is another one than the path asks for
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Future[Batch]] = set()  # polls that were begun without a connection
        self._keeper: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    def open(self, note: Note) -> Polls:
        """Connect in the background. `note` gets every result, with the number of messages."""
        self._note = note
        self._keeper = asyncio.create_task(self._keep())
        self._renewing = asyncio.create_task(self._batches.keep())
        return Polls(self._pop, self._take)

    def stop(self) -> None:
        """Get nothing more, and give back what no worker has begun."""
        self._is_closing = True
        self._queue(None)
        self._batches.close()

    async def close(self, within_s: float) -> None:
        """Give back what was not begun, wait for the acknowledgements that are under way, and close."""
        self._is_closing = True
        self._batches.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)
        for task in filter(None, (self._keeper, self._renewing)):
            task.cancel()
            await asyncio.wait((task,))
        for polling in tuple(self._late):
            polling.cancel()
        if self._tasks:  # what was not answered on the connection is sent as requests
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()

    # For the workers.

    def resize(self, size: Size) -> None:
        """Have batches of another size delivered from now on."""
        self._size = size
        self._queue(None)

    async def _pop(self, size: Size, wait_ms: int) -> Batch:
        end = SYSTEM.monotonic() + wait_ms / 1000
        await self._tried.wait()
        while True:
            if self._error is not None:
                raise self._error
            left_ms = max(1, int((end - SYSTEM.monotonic()) * 1000))
            if self._socket is None and not self._batches and not self._only:
                found = await self._poll(size, left_ms)
            else:
                found = await self._next(left_ms)
            if found is not None:
                return found

    def holds(self, lease_id: str) -> bool:
        """Whether the lease came on the connection, which counts it until it is finished there."""
        return lease_id in self._leases

    def finishes(self, lease_id: str) -> bool:
        """Whether `take` answers for the acknowledgement, whatever becomes of the worker."""
        return self._keeper is not None and (lease_id in self._leases or not self._is_refused)

    async def _take(self, lease_id: str, finish: Finish, size: Size, wait_ms: int) -> TakeResult:
        if self._polls.take is not None and not self.finishes(lease_id):
            return await self._polls.take(lease_id, finish, size, wait_ms)
        self._spawn(self._finish(lease_id, finish, self._leases.get(lease_id, 1)))
        return TakeResult(lease_id=lease_id, success=True, taken=PopAnswer(list(await self._pop(size, wait_ms))))

    async def _poll(self, size: Size, wait_ms: int) -> Batch | None:
        """Without the connection; None if there is one before anything was found."""
        if self._is_refused:
            return await self._polls.pop(size, wait_ms)
        late = next((late for late in self._late if not late.done()), None)
        polling = late or asyncio.ensure_future(self._polls.pop(size, wait_ms))
        self._late.discard(polling)
        polling.remove_done_callback(self._came_late)
        connected = asyncio.ensure_future(self._connected.wait())
        try:
            await asyncio.wait((polling, connected), return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                return polling.result()
        except asyncio.CancelledError:
            if not polling.cancel():
                self._came_late(polling)
            raise
        finally:
            connected.cancel()
        # Its answer may be under way, with a lease: some worker gets it.
        self._late.add(polling)
        polling.add_done_callback(self._came_late)
        return None

    def _came_late(self, polling: asyncio.Future[Batch]) -> None:
        self._late.discard(polling)
        if polling.cancelled() or polling.exception() is not None:
            return
        if batch := polling.result():
            self._deliver(batch)

    async def _next(self, wait_ms: int) -> Batch | None:
        """The next batch; none if none came in time. None: the connection has gone, or come, meanwhile."""
        batch = await self._batches.take()
        if batch is not None:
            return batch
        waiter: asyncio.Future[Batch | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        alarm = SYSTEM.call_later(wait_ms / 1000, _resolve, waiter, [])
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and (batch := waiter.result() or []):
                self._batches.put_back(batch)
            raise
        finally:
            alarm.cancel()
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def drop(self, batch: Batch) -> None:
        """No worker goes on with it: give it back, and on the connection make room for the next."""
        lease_id = batch[0].lease_id
        if self._socket is not None and lease_id in self._leases:
            self._queue(FinishLease(lease_id=lease_id, status=_BACK))
        else:
            self._spawn(self._give_back(lease_id))

    # Acknowledgements.

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, lease_id: str, finish: Finish, messages: int) -> None:
        is_uncertain = False
        try:
            while lease_id in self._leases:
                result = await self._finish_here(lease_id, finish)
                if result is not None and result.is_over:
                    self._note(result, messages, is_uncertain)
                    return
                if result is None or result.code == _UNKNOWN:
                    is_uncertain = True
                elif (left := without_missing(finish, result)) is not None:
                    finish = left
                    continue
                if result is not None:
                    await SYSTEM.sleep(_REPEAT_S)
            result = await finish_what_is_left(self._session.verbs.finish, lease_id, finish)
            self._note(result, messages, is_uncertain)
        except QueenError as error:
            self._note(FinishResult(lease_id=lease_id, success=False, error=str(error)), messages, is_uncertain)

    async def _finish_here(self, lease_id: str, finish: Finish) -> FinishResult | None:
        """On the connection; None if it is lost."""
        answer: asyncio.Future[FinishResult | None] = asyncio.get_running_loop().create_future()
        self._answers[lease_id] = answer
        self._queue(FinishLease(lease_id=lease_id, status=finish.status, error=finish.error, excepted=finish.excepted))
        return await answer

    def _queue(self, said: FinishLease | None) -> None:
        """Send it with the next message; None sends what is said beside: an end of deliveries, or another size."""
        if self._socket is None:
            return
        if not self._outgoing:
            self._spawn(self._send())
        self._outgoing.append(said)

    async def _send(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        finish = [said for said in outgoing if said is not None]
        for frame in frames(finish, self._size, stop=self._is_closing):
            if self._socket is not None:
                await self._socket.send(frame)

    # The connection.

    async def _keep(self) -> None:
        """Connect, and again when the connection is lost."""
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                socket, refused = await self._connect()
                self._is_refused = refused
                if socket is not None and await self._serve(socket):
                    pause_s = _FIRST_PAUSE_S
                self._tried.set()
                self._wake()
                if self._error is not None or self._is_closing:
                    return
                await SYSTEM.sleep(_REFUSED_PAUSE_S if refused else pause_s)
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        except Exception as error:  # of the function that gives the token, for example: a poll would raise it, too
            self._error = error
            self._tried.set()
            self._wake()

    async def _connect(self) -> tuple[Socket | None, bool]:
        """The connection if there is one, and whether there will be none for long."""
        servers = self._session.servers
        server = servers.choose(SYSTEM.monotonic())
        if server is None:
            return None, False
        try:
            return await self._session.transport.connect(server, self._path), False
        except (RequestError, InvalidResponse) as error:
            if self._only:
                is_refusal = isinstance(error, RequestError)
                self._error = error if is_refusal else InvalidUse(f"connection(True) is not possible here: {error}")
                return None, True
            is_for_long = isinstance(error, InvalidResponse) or error.status not in _KNOWN_REFUSALS
            if is_for_long:
                logger.info("consuming %s: no consumer connection (%s), long polls are used", self._name, error)
            return None, is_for_long
        except NetworkError as error:
            servers.failed(server, SYSTEM.monotonic())
            logger.debug("consuming %s: no consumer connection for now: %s", self._name, error)
        except QueenError as error:
            logger.debug("consuming %s: no consumer connection for now: %s", self._name, error)
        return None, False

    async def _serve(self, socket: Socket) -> bool:
        """Until the connection ends. Whether it was of use, so that the next need not wait."""
        began, was_of_use = SYSTEM.monotonic(), False
        self._socket = socket
        self._tried.set()
        self._connected.set()
        if self._size is not None:
            self._queue(None)
        try:
            while (data := await socket.receive()) is not None:
                was_of_use = self._read(data) or was_of_use
        except msgspec.MsgspecError as error:
            logger.warning("consuming %s: the server sent what is not of the contract: %s", self._name, error)
        finally:
            self._socket = None
            self._connected.clear()
            await asyncio.shield(socket.close())
            self._lost(socket.close_code)
        return socket.close_code != _TRY_LATER and (was_of_use or SYSTEM.monotonic() - began >= _LASTING_S)

    def _read(self, data: str) -> bool:
        """Whether something was delivered."""
        frame = received(data)
        for result in frame.finished:
            self._leases_done(result)
        for answer in frame.delivered:
            batch = [message for message in answer.messages if message is not None]
            if batch:
                self._leases[batch[0].lease_id] = len(batch)
                self._deliver(batch)
        return bool(frame.delivered)

    def _leases_done(self, result: FinishResult) -> None:
        if result.is_over:
            self._leases.pop(result.lease_id, None)
        answer = self._answers.pop(result.lease_id, None)
        if answer is not None:
            _resolve(answer, result)

    def _deliver(self, batch: Batch) -> None:
        if self._is_closing:
            self.drop(batch)
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(batch)
                return
        self._batches.add(batch)

    def _lost(self, code: int | None) -> None:
        self._leases.clear()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            _resolve(answer, None)
        if code != _GOING_AWAY and not self._is_closing:
            self._batches.drop_all()
        self._wake()
        logger.debug("consuming %s: the consumer connection was closed (%s)", self._name, code)

    async def _give_back(self, lease_id: str) -> None:
        """The server may have done so already."""
        with suppress(QueenError):
            await self._session.verbs.finish(lease_id, Finish(status=_BACK))

    def _wake(self) -> None:
        for waiter in self._waiters:
            _resolve(waiter, None)


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
