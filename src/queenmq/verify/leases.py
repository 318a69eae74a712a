"""Clients that finish whole leases: in the request that pops again, or on consumer connections.

What they do is recorded as the pops and acknowledgements that it stands for, so that the same rules judge it. A pop on
a connection begins when there is room for its batch: when the connection is opened, or the finish is sent that makes
room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from queenmq.client import Message, QueenError
from queenmq.client.finish import Excepted, Finish
from queenmq.client.frames import FinishLease, Received
from queenmq.client.models import FinishResult, PopAnswer, RenewResult
from queenmq.client.transport import Socket
from queenmq.client.verbs import path_of, with_query
from queenmq.verify.clients import PAUSE_S, Clients, name_of, popped_of
from queenmq.verify.history import Ack, Acked, AckStatus, Outcome, Pop, Renew, Renewed
from queenmq.verify.recorder import outcome_of

GROUP: Final = "readers"
_IN_FLIGHT: Final = 2
_TRIES: Final = 10
_UNKNOWN: Final = "outcome_unknown"
_ENDING_S: Final = 30.0
_FORGOTTEN_S: Final = 30.0  # a server makes room for a lease that has ended without a word after a minute


class _Frame(Received, kw_only=True):
    renewed: list[RenewResult] = msgspec.field(default_factory=list)


_received = msgspec.json.Decoder(_Frame).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of the messages of a lease: of `failed` that they have failed, of the rest `status`."""

    messages: Sequence[Message]
    status: AckStatus
    failed: frozenset[str]

    @property
    def lease_id(self) -> str:
        return self.messages[0].lease_id

    @property
    def finish(self) -> Finish:
        excepted = [
            Excepted(transaction_id=one.transaction_id, partition_id=one.partition_id, status="failed", error="no")
            for one in self.messages
            if one.transaction_id in self.failed
        ]
        return Finish(status=self.status, excepted=excepted)


def choose(clients: Clients, messages: Sequence[Message]) -> Said:
    chance = clients.chance
    failed = frozenset(one.transaction_id for one in messages if chance.random() < 0.05)
    return Said(messages, "retry" if chance.random() < 0.1 else "completed", failed)


class Acks:
    """The recorded acknowledgements that one finish stands for: one for each status."""

    def __init__(self, clients: Clients, process: str, said: Said) -> None:
        self._recorder = clients.recorder
        parts: dict[AckStatus, list[Message]] = {}
        for one in said.messages:
            status: AckStatus = "failed" if one.transaction_id in said.failed else said.status
            parts.setdefault(status, []).append(one)
        self._excepted = [one.transaction_id for one in said.messages if one.transaction_id in said.failed]
        self._parts = [
            (self._recorder.invoke(process, Ack(said.lease_id, [name_of(one) for one in some], status)), some)
            for status, some in parts.items()
        ]

    def ended(self, result: FinishResult | None) -> bool:
        """Note what became of it, None if nobody knows; whether the lease is over."""
        if result is None or result.code == _UNKNOWN:
            self._complete("info", result.error if result else None)
            return False
        if not result.is_over:
            self._complete("fail", result.error)
            return False
        dead = {self._excepted[one.index] for one in result.excepted if one.dlq}
        for op, some in self._parts:
            answer = Acked([result.success] * len(some), [one.transaction_id in dead for one in some])
            self._recorder.complete(op, "ok", answer)
        return True

    def failed(self, error: QueenError) -> None:
        self._complete(outcome_of(error), str(error))

    def _complete(self, outcome: Outcome, error: str | None) -> None:
        for op, _ in self._parts:
            self._recorder.complete(op, outcome, error=(error or "")[:200])


async def finish(clients: Clients, process: str, said: Said) -> None:
    """By a request of its own, until it is known that the lease is over."""
    for _ in range(_TRIES):
        await clients.paced()
        acks = Acks(clients, process, said)
        try:
            if acks.ended(await clients.one().verbs.finish(said.lease_id, said.finish)):
                return
        except QueenError as error:
            acks.failed(error)
        await clients.pause(PAUSE_S)


async def taking(clients: Clients, process: str) -> None:
    """Finish each lease in the request that pops the next messages."""
    messages: list[Message] = []
    while not clients.is_over:
        if not messages:
            messages = await clients.pop(process, GROUP)
            continue
        said = choose(clients, messages)
        if clients.chance.random() < 0.05:
            await clients.pause(clients.load.lease_s * 1.5)  # too late
        is_over, messages = await _take(clients, process, said)
        if not is_over:
            # Without a take: else there would be one lease more with each repetition.
            await finish(clients, process, said)
    if messages:
        await finish(clients, process, choose(clients, messages))


async def _take(clients: Clients, process: str, said: Said) -> tuple[bool, list[Message]]:
    """Whether the lease is over, and the next messages."""
    await clients.paced()
    load, recorder = clients.load, clients.recorder
    pop = {"queue": clients.queue, "consumerGroup": GROUP, "batch": load.batch, "wait": True, "timeout": 200}
    pop["ifFinished"] = clients.chance.random() < 0.3
    acks = Acks(clients, process, said)
    op = recorder.invoke(process, Pop(clients.queue, GROUP, load.lease_s))
    try:
        taken = await clients.one().verbs.take(said.lease_id, said.finish, pop, 200)
    except QueenError as error:
        acks.failed(error)
        recorder.complete(op, outcome_of(error), error=str(error)[:200])
        return False, []
    messages = _messages(taken.taken or PopAnswer())
    if taken.take_error is None:
        recorder.complete(op, "ok", popped_of(messages))
    else:
        recorder.complete(op, "info", error=taken.take_error[:200])
    return acks.ended(taken), messages


async def connected(clients: Clients, process: str) -> None:
    """Consume over one connection after the other."""
    path = path_of("api", "v1", "consume", "queue", clients.queue)
    path = with_query(path, {"consumerGroup": GROUP, "batch": clients.load.batch, "inFlight": _IN_FLIGHT})
    while not clients.is_over:
        connection = _Connection(clients, process)
        try:
            socket = await clients.connect(path)
        except QueenError:
            connection.lost(None)
            await clients.pause(PAUSE_S)
            continue
        await connection.run(socket)


class _Connection:
    """A consumer connection, and what is recorded of it."""

    def __init__(self, clients: Clients, process: str) -> None:
        self._clients = clients
        self._process = process
        self._recorder = clients.recorder
        self._pops: deque[tuple[int, float]] = deque()  # that are under way, and since when
        self._held: dict[str, tuple[Said, float, float]] = {}  # what came, since when its pop was under way, and when
        self._answers: dict[str, asyncio.Future[FinishResult | None]] = {}
        self._renewals: dict[str, int] = {}
        self._working: set[asyncio.Task[None]] = set()
        for _ in range(_IN_FLIGHT):
            self._pop()

    def _pop(self) -> None:
        op = self._recorder.invoke(self._process, Pop(self._clients.queue, GROUP, self._clients.load.lease_s))
        self._pops.append((op, self._clients.now))

    async def run(self, socket: Socket) -> None:
        """Until it is lost, or the time is over. Raises QueenError if more batches come than may be in flight."""
        reading = asyncio.create_task(self._read(socket))
        try:
            await asyncio.wait((reading,), timeout=max(self._clients.left, 0))
            if not reading.done():
                await socket.send(_encode({"stop": True}))
                await self._idle(reading)
        finally:
            if not reading.done():
                self._let_go()
            await socket.close()
            await asyncio.wait((reading,))
            self.lost(socket.close_code)
            if self._working:
                await asyncio.wait(self._working)
        reading.result()

    async def _idle(self, reading: asyncio.Task[None]) -> None:
        """Until everything is finished, or the connection is lost."""
        end = self._clients.now + _ENDING_S
        while self._working and not reading.done() and self._clients.now < end:
            await asyncio.wait((*self._working, reading), timeout=1, return_when=asyncio.FIRST_COMPLETED)

    async def _read(self, socket: Socket) -> None:
        while (data := await socket.receive()) is not None:
            frame = _received(data)
            for result in frame.finished:
                _resolve(self._answers.pop(result.lease_id, None), result)
            for renewed in frame.renewed:
                if (op := self._renewals.pop(renewed.lease_id, None)) is not None:
                    self._recorder.complete(op, "ok", Renewed(renewed.success))
            for answer in frame.delivered:
                self._came(_messages(answer), socket)

    def _came(self, messages: list[Message], socket: Socket) -> None:
        now = self._clients.now
        if not self._pops:
            if all(now - came < _FORGOTTEN_S for _, _, came in self._held.values()):
                raise QueenError(f"more than {_IN_FLIGHT} batches are in flight on a consumer connection")
            self._pop()
        op, begun = self._pops.popleft()
        self._recorder.complete(op, "ok", popped_of(messages))
        said = choose(self._clients, messages)
        self._held[said.lease_id] = said, begun, now
        task = asyncio.create_task(self._handle(said, socket))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _handle(self, said: Said, socket: Socket) -> None:
        clients = self._clients
        match clients.chance.randrange(40):
            case 0:
                await clients.pause(clients.load.lease_s * 1.5)  # too late
            case 1:
                await clients.pause(clients.load.lease_s / 2)
                request = Renew(said.lease_id, clients.load.lease_s)
                self._renewals[said.lease_id] = self._recorder.invoke(self._process, request)
                await socket.send(_encode({"renew": [{"leaseId": said.lease_id, "seconds": clients.load.lease_s}]}))
                await clients.pause(clients.load.lease_s * 0.75)
            case 2 if clients.chance.random() < 0.5:
                self._let_go()
                await socket.close()
                return
        while said.lease_id in self._held:
            await clients.paced()
            if said.lease_id not in self._held:
                return
            acks = Acks(clients, self._process, said)
            self._pop()
            answer: asyncio.Future[FinishResult | None] = asyncio.get_running_loop().create_future()
            self._answers[said.lease_id] = answer
            await socket.send(_encode({"finish": [_finish_lease(said)]}))
            result = await answer
            if acks.ended(result):
                self._held.pop(said.lease_id, None)
            elif result is not None:
                # No room was made, and so none is filled.
                op, _ = self._pops.pop()
                self._recorder.complete(op, "fail")
                await clients.pause(PAUSE_S)

    def _let_go(self) -> None:
        """We are about to close the connection: the server gives back what we hold."""
        for said, _, _ in self._held.values():
            self._released(said, self._clients.now)
        self._held.clear()

    def _released(self, said: Said, since: float) -> None:
        ids = [name_of(one) for one in said.messages]
        op = self._recorder.invoke(self._process, Ack(said.lease_id, ids, "retry"), since)
        self._recorder.complete(op, "info")

    def lost(self, code: int | None) -> None:
        """The connection has gone. What was under way may have been done, and leases may have been given back from the
        moment on at which they came; but not by a server that stops."""
        held, self._held = self._held, {}
        for said, begun, _ in held.values():
            if code == 1001:
                task = asyncio.create_task(finish(self._clients, self._process, said))
                self._working.add(task)
                task.add_done_callback(self._working.discard)
            else:
                self._released(said, begun)
        for op in (*(op for op, _ in self._pops), *self._renewals.values()):
            self._recorder.complete(op, "info")
        self._pops.clear()
        self._renewals.clear()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            _resolve(answer, None)


def _finish_lease(said: Said) -> FinishLease:
    finish = said.finish
    return FinishLease(lease_id=said.lease_id, status=finish.status, excepted=finish.excepted)


def _messages(answer: PopAnswer) -> list[Message]:
    return [one for one in answer.messages if one is not None]


def _resolve(future: asyncio.Future[FinishResult | None] | None, result: FinishResult | None) -> None:
    if future is not None and not future.done():
        future.set_result(result)
