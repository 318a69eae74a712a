"""One journal for all worker processes of a server: the first worker keeps it, the others ask it.

Before a push goes to the database, a worker reads the board that the keeper writes: one read of memory that is
zero as long as nothing is journalled. Otherwise it asks the keeper, over a Unix socket that only this user can open.
While the keeper is gone, requests that need it wait until its successor answers, for a bounded time; then they fail
with 503.

Frames are a length and a MessagePack value: (number, verb, deadline, arguments) and (number, result, error).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from queenmq.clock import SYSTEM, Clock
from queenmq.core.message import Message
from queenmq.errors import DatabaseUnavailable, Overloaded
from queenmq.ids import uuid7_text
from queenmq.journal.board import JournalBoard, JournalFigures
from queenmq.journal.files import JournalBounds, JournalFailed
from queenmq.journal.interface import JournalledOperation
from queenmq.journal.push_journal import PushJournal
from queenmq.journal.push_records import JournalledPush, Partition, marks_of, partitions_of
from queenmq.retry import Failure, Pauses, retried

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# How long a push may wait until it is on disk. Beyond, the keeper does not journal it any more.
PUT_WITHIN_S: Final = 10.0
# How much longer its answer is waited for, so that it is almost never unknown what became of it.
ANSWER_WITHIN_S: Final = 2.0
_ASK_WITHIN_S: Final = 5.0
_ASK_AGAIN: Final = Pauses(0.05, 0.05)
# Requests of one worker that are not answered. Beyond, pushes get 429 and the keeper reads no further ones.
MOST_ASKED: Final = 2000
_LENGTH: Final = struct.Struct("<I")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.decode


class _Question(msgspec.Struct, array_like=True):
    number: int
    verb: str
    deadline: float  # of the clock that all processes of a machine share
    arguments: msgspec.Raw


class _Answer(msgspec.Struct, array_like=True):
    number: int
    result: msgspec.Raw
    error: tuple[str, str, int] | None = None  # its code, its text, when to try again


_decode_question = msgspec.msgpack.Decoder(_Question).decode
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


@dataclass(frozen=True, slots=True)
class JournalSharing:
    """What a worker needs to know of the journal of its server. `listener` is for the one that keeps it."""

    board: JournalBoard
    path: str
    listener: socket.socket | None = None


class _Gone(Exception):
    """The keeper is not there, or was not there any more when it should have answered."""


# The worker that keeps the journal


class SharedJournal(PushJournal):
    """The journal with a door for the other workers."""

    def __init__(
        self, shared: JournalSharing, folder: Path, bounds: JournalBounds, keys: Sequence[bytes], clock: Clock = SYSTEM
    ) -> None:
        super().__init__(folder, bounds, keys, shared.board, clock)
        self._clock = clock
        self._listener = shared.listener
        self._server: asyncio.Server | None = None
        self._callers: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await super().open()
        if self._listener is None:
            raise AssertionError("the worker that keeps the journal has no socket for the others")
        # The socket has a name that outlives this process: its successor listens on the same one.
        kept: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        self._server = await asyncio.start_unix_server(self._accept, sock=self._listener, **kept)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for caller in self._callers:
            caller.cancel()
        if self._callers:
            await asyncio.wait(self._callers)
        await super().close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: of one that asyncio makes, Python 3.11 logs as an error that it was cancelled.
        caller = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._callers.add(caller)
        caller.add_done_callback(self._callers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the questions of one worker, until it goes away."""
        answering: set[asyncio.Task[None]] = set()
        room = asyncio.Semaphore(MOST_ASKED)
        try:
            while True:
                question = _decode_question(await _read(reader))
                await room.acquire()
                # Tasks begin in the order in which they are made, and a push takes its place when it begins.
                one = asyncio.get_running_loop().create_task(self._answer(question, writer))
                answering.add(one)
                one.add_done_callback(answering.discard)
                one.add_done_callback(lambda _: room.release())
        except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
            pass
        finally:
            # A push that has begun is journalled and known, whether or not somebody waits for it.
            for one in answering:
                one.cancel()
            writer.close()

    async def _answer(self, question: _Question, writer: asyncio.StreamWriter) -> None:
        error: tuple[str, str, int] | None = None
        result: object = None
        try:
            result = await self._do(question)
        except Overloaded as refusal:
            error = (refusal.code, refusal.message, refusal.retry_after_s)
        except JournalFailed as failure:
            error = (failure.code, failure.message, 0)
        except Exception:
            log.exception("journal: a worker's question (%s) failed", question.verb)
            error = (JournalFailed.code, "the journal failed; the details are in the log", 0)
        frame = _encode(_Answer(question.number, msgspec.Raw(_encode(result)), error))
        with contextlib.suppress(OSError):
            writer.write(_LENGTH.pack(len(frame)) + frame)
            await writer.drain()

    async def _do(self, question: _Question) -> object:
        left_s = question.deadline - self._clock.monotonic()
        arguments = question.arguments
        match question.verb:
            case "put":
                if left_s <= 0:
                    raise JournalFailed("the worker that keeps the journal was too slow; nothing was kept")
                put = _decode(arguments, type=JournalledPush)
                return await self.put(put.read(), put.operation_id)
            case "turn":
                return await self.turn(_decode(arguments, type=list[Partition]), left_s)
            case "find":
                return await self.find(_decode(arguments, type=str))
            case "find_quarantined":
                return await self.find_quarantined(_decode(arguments, type=str))
            case "held_in":
                return await self.held_in(*_decode(arguments, type=tuple[str, str | None]))
        raise AssertionError(f"unknown question {question.verb}")


# The other workers


class RemoteJournal:
    """The journal of another worker of this server, as `queenmq.journal.interface.Journal`."""

    def __init__(self, shared: JournalSharing, bounds: JournalBounds, clock: Clock = SYSTEM) -> None:
        self._board = shared.board
        self._path = shared.path
        self.bounds = bounds
        self._clock = clock
        self._number = 0
        self._asked: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def open(self) -> None:
        """The connection is made when it is needed first."""

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))

    def holds(self, messages: Iterable[Message]) -> bool:
        if self._board.is_empty:
            return False
        return self.holds_any({(message.queue, message.partition) for message in messages})

    def holds_any(self, partitions: Iterable[Partition]) -> bool:
        return not self._board.is_empty and self._board.holds(marks_of(partitions))

    async def turn(self, partitions: Iterable[Partition], timeout_s: float) -> bool:
        """As long as nobody answers, there may be something before it."""
        wanted = list(partitions)
        deadline = self._clock.monotonic() + timeout_s

        async def ask() -> bool:
            return not self.holds_any(wanted) or _decode(await self._ask("turn", wanted, deadline), type=bool)

        try:
            return await self._until(deadline, ask)
        except _Gone:
            return False

    async def require_turn(self, messages: Sequence[Message], timeout_s: float) -> None:
        if self.holds(messages) and not await self.turn(partitions_of(messages), timeout_s):
            raise DatabaseUnavailable("database connection is catching up after an outage (ECONNREFUSED)")

    async def put(self, messages: Sequence[Message]) -> tuple[str, int]:
        """Repeated while the keeper is gone: its successor finds what it has journalled, by the id of the operation."""
        operation_id = uuid7_text()
        put = JournalledPush.of(operation_id, messages)
        deadline = self._clock.monotonic() + PUT_WITHIN_S
        try:
            return _decode(await self._until(deadline, lambda: self._ask("put", put, deadline)), type=tuple[str, int])
        except _Gone:
            raise JournalFailed(
                "the worker that keeps the journal does not answer; push again with the same transactionId"
            ) from None

    async def find(self, operation_id: str) -> JournalledOperation | None:
        return None if self._board.is_empty else await self._find("find", operation_id)

    async def find_quarantined(self, operation_id: str) -> JournalledOperation | None:
        return await self._find("find_quarantined", operation_id) if self._board.figures().quarantined else None

    async def _find(self, verb: str, operation_id: str) -> JournalledOperation | None:
        try:
            found: JournalledOperation | None = _decode(
                await self._ask(verb, operation_id, self._soon), type=JournalledOperation | None
            )
            return found
        except _Gone:
            raise JournalFailed("the worker that keeps the journal does not answer; try again later") from None

    async def held_in(self, queue: str, partition: str | None) -> dict[str, int]:
        if self._board.is_empty:
            return {}
        try:
            return _decode(await self._ask("held_in", (queue, partition), self._soon), type=dict[str, int])
        except _Gone:
            return {}

    messages = 0  # only the keeper knows which queues have how many

    def messages_of(self, queue: str) -> int:
        return 0

    def figures(self) -> JournalFigures:
        return self._board.figures()

    # Asking

    async def _until(self, deadline: float, ask: Callable[[], Awaitable[Result]]) -> Result:
        """What `ask` returns. Repeated while the keeper is gone; raises _Gone if it still is at the deadline."""

        def is_worth_another(failure: Failure) -> bool:
            return isinstance(failure.error, _Gone) and self._clock.monotonic() + failure.pause_s < deadline

        return await retried(ask, is_worth_another, _ASK_AGAIN, self._clock)

    @property
    def _soon(self) -> float:
        return self._clock.monotonic() + _ASK_WITHIN_S

    async def _ask(self, verb: str, arguments: object, deadline: float) -> msgspec.Raw:
        """Raises _Gone, Overloaded or JournalFailed."""
        if len(self._asked) >= MOST_ASKED:
            raise Overloaded("too many pushes wait for the journal")
        within_s = deadline - self._clock.monotonic()
        if within_s <= 0:
            raise _Gone
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._number += 1
        number = self._number
        self._asked[number] = answer
        try:
            async with self._clock.timeout(within_s + ANSWER_WITHIN_S):
                await self._send(_encode(_Question(number, verb, deadline, msgspec.Raw(_encode(arguments)))))
                return await answer
        except (TimeoutError, OSError):
            raise _Gone from None
        finally:
            del self._asked[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # it counts as retrieved, so that asyncio does not log it

    async def _send(self, frame: bytes) -> None:
        async with self._connecting:
            if self._writer is None:
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                self._reading = asyncio.get_running_loop().create_task(self._read(reader, self._writer))
            self._writer.write(_LENGTH.pack(len(frame)) + frame)
            await self._writer.drain()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self._deal(_decode_answer(await _read(reader)))
        except (asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
            pass
        finally:
            self._writer = None
            writer.close()
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(_Gone())

    def _deal(self, answer: _Answer) -> None:
        waiting = self._asked.get(answer.number)
        if waiting is None or waiting.done():
            return
        if answer.error is None:
            waiting.set_result(answer.result)
            return
        code, message, retry_after_s = answer.error
        waiting.set_exception(Overloaded(message, retry_after_s) if code == Overloaded.code else JournalFailed(message))


async def _read(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(length)
