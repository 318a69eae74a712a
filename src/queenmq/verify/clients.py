"""The clients of a workload: what they ask of real servers is recorded, and so is what they see.

Every call is tried once, so that each outcome has the meaning that `history` gives it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from queenmq.client import (
    Item,
    Message,
    Operation,
    OperationFailed,
    OperationTimeout,
    PushResults,
    Queen,
    QueenError,
)
from queenmq.client.session import Session
from queenmq.client.transport import Socket
from queenmq.clock import SYSTEM, Clock
from queenmq.verify.history import (
    Ack,
    Acked,
    AckStatus,
    Answer,
    Cancel,
    Cancelled,
    Dead,
    Delivered,
    Done,
    Drain,
    ListDead,
    Pop,
    Popped,
    Push,
    Pushed,
    Read,
    Renew,
    Renewed,
    Request,
    Schedule,
    Seek,
    Stored,
    Transact,
)
from queenmq.verify.recorder import Recorder

T = TypeVar("T")
RETRY_LIMIT = 2
_WORDS: Final = {"queued": "stored", "accepted": "accepted", "buffered": "buffered", "duplicate": "duplicate"}
_PAGE = 1000
_READ_ATTEMPTS = 5
PAUSE_S: Final = 0.2
DRAIN_S: Final = 60.0
_ASK_S: Final = 5.0
_REMEMBERED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is done. Each client sends its next request after the answer to the last."""

    seconds: float = 10
    producers: int = 4
    consumers: int = 4
    partitions: int = 8
    batch: int = 10
    lease_s: int = 2
    settle_s: float = 60
    """How long an accepted push may take to be stored."""
    drain_s: float = DRAIN_S
    """How long a group may take to read the rest."""
    quiet_s: float = 2
    """How long nothing must come, after the end of the last lease, before a group is believed to have everything."""
    rate: float = 0
    """Calls a second of all clients together; 0 for as many as the servers answer."""
    seed: int = 0


class Clients:
    """The clients of one workload on one queue."""

    def __init__(
        self, queen: Queen, each: Mapping[str, Queen], queue: str, load: Load, recorder: Recorder, clock: Clock = SYSTEM
    ) -> None:
        """`queen` may ask any server, `each` of the others only its own, by URL."""
        self.queue = queue
        self.load = load
        self.groups: list[str] = ["readers"]
        self.chance = random.Random(load.seed)  # noqa: S311 - a workload can be repeated by its seed
        self._queen = queen
        self._each = each
        self._recorder = recorder
        self._clock = clock
        self._end = clock.monotonic() + load.seconds
        self._operations: set[str] = set()
        self.seen: deque[Message] = deque(maxlen=_REMEMBERED)
        """Some messages that were delivered."""
        self._pushed = 0
        self._next_call = 0.0

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._end

    @property
    def left(self) -> float:
        """How many seconds the workload still goes on."""
        return self._end - self.now

    @property
    def now(self) -> float:
        return self._clock.monotonic()

    @property
    def recorder(self) -> Recorder:
        return self._recorder

    async def pause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    async def paced(self) -> None:
        """Wait for the turn of the next call."""
        if self.load.rate:
            now = self._clock.monotonic()
            self._next_call = max(self._next_call, now) + 1 / self.load.rate
            await self.pause(self._next_call - now)

    async def _attempt(
        self, process: str, request: Request, call: Callable[[], Awaitable[T]], answer: Callable[[T], Answer]
    ) -> T | None:
        await self.paced()
        return await self._recorder.attempt(process, request, call, answer)

    def partition(self) -> str:
        return f"p{self.chance.randrange(self.load.partitions)}"

    def new_ids(self, process: str, count: int) -> list[str]:
        self._pushed += count
        return [f"{process}-{self._pushed - count + number}" for number in range(count)]

    def _one(self) -> Queen:
        """A client of one server, so that a call is tried once: another server's answer says nothing of the first."""
        return self._each[self.chance.choice(list(self._each))]

    def one(self) -> Session:
        """What the client of one server sends with."""
        return self._one()._session

    async def connect(self, path: str) -> Socket:
        """Open a consumer connection to some server. Raises QueenError."""
        server = self.chance.choice(list(self._each))
        return await self._each[server]._session.transport.connect(server, path)

    async def push(self, process: str, partition: str, ids: Sequence[str]) -> PushResults | None:
        server = self.chance.choice(list(self._each))
        target = self._each[server].queue(self.queue).partition(partition)

        async def send() -> PushResults:
            items = [Item({"id": name}, transaction_id=name) for name in ids]
            return await target.push(items).on_error(lambda results, error: None)

        results = await self._attempt(process, Push(self.queue, partition, list(ids), server), send, _pushed)
        if results is not None:
            self._operations.update(results.operations)
        return results

    async def pop(self, process: str, group: str, batch: int | None = None, wait_ms: int = 200) -> list[Message]:
        messages = await self._try_pop(process, group, batch or self.load.batch, wait_ms)
        if messages is None:
            await self.pause(PAUSE_S)
        return messages or []

    async def _try_pop(self, process: str, group: str, batch: int, wait_ms: int) -> list[Message] | None:
        """None if no server has answered it."""
        ask = self._one().queue(self.queue).group(group).batch(batch).timeout_millis(wait_ms)
        messages = await self._attempt(process, Pop(self.queue, group, self.load.lease_s), ask.pop, popped_of)
        self.seen.extend(messages[:1] if messages else ())
        return messages

    async def ack(self, process: str, messages: Sequence[Message], status: AckStatus = "completed") -> None:
        request = Ack(messages[0].lease_id, [name_of(message) for message in messages], status)
        await self._attempt(
            process,
            request,
            lambda: self._one().ack(list(messages), status),
            lambda results: Acked([one.success for one in results], [one.dlq for one in results]),
        )

    async def renew(self, process: str, message: Message) -> None:
        await self._attempt(
            process,
            Renew(message.lease_id, self.load.lease_s),
            lambda: self._one().renew(message, self.load.lease_s),
            lambda result: Renewed(result.success),
        )

    async def transact(
        self, process: str, messages: Sequence[Message], pushes: Sequence[Push], patience_s: float | None = None
    ) -> None:
        """With `patience_s`, the client goes away if there is no answer by then, and never knows."""
        transaction = self._one().transaction().ack(messages)
        for push in pushes:
            transaction.queue(push.queue).partition(push.partition).push(
                [Item({"id": name}, transaction_id=name) for name in push.ids]
            )
        acks = [Ack(messages[0].lease_id, [name_of(message) for message in messages])]

        async def commit() -> None:
            async with asyncio.timeout(patience_s):
                await transaction.commit()

        await self._attempt(process, Transact(list(pushes), acks), commit, lambda _: Done())

    async def seek(self, process: str, group: str, behind: Message | Literal["beginning", "end"] = "beginning") -> None:
        """It is over when its operation is, if there is one: that goes on after the answer."""
        where: dict[str, Any]
        match behind:
            case "beginning":
                request, where = Seek(self.queue, group), {"timestamp": "1970-01-01T00:00:00Z"}
            case "end":
                request, where = Seek(self.queue, group, "end"), {"to_end": True}
            case message:
                request = Seek(self.queue, group, "moment", message.partition, name_of(message))
                where = {"timestamp": message.created_at}

        async def seek() -> None:
            answer = await self._one().admin.seek_consumer_group(group, self.queue, **where)
            if name := answer.get("operationId"):
                operation = await self._ended(name)
                if operation.status != "completed":
                    raise OperationFailed(operation.why, name)

        await self._attempt(process, request, seek, lambda _: Done())

    async def schedule(self, process: str, partition: str, name: str, seconds: float) -> None:
        target = self._one().queue(self.queue).partition(partition)
        await self._attempt(
            process,
            Schedule(self.queue, partition, name, seconds),
            lambda: target.schedule({"id": name}, key=name, delay=seconds),
            lambda _: Done(),
        )

    async def cancel(self, process: str, name: str) -> None:
        await self._attempt(
            process,
            Cancel(self.queue, name),
            lambda: self._one().queue(self.queue).cancel(name),
            lambda timer: Cancelled(timer.status == "cancelled"),
        )

    async def maintain(self, enabled: bool) -> None:
        """Switch pushes off on all servers, so that they are journalled; or on again.

        Raises QueenError if that takes longer than a push may take to be stored.
        """
        end = self._clock.monotonic() + self.load.settle_s
        while True:
            try:
                await self._queen.admin.set_maintenance_mode(enabled)
                return
            except QueenError:
                if self._clock.monotonic() >= end:
                    raise
                await self.pause(PAUSE_S)

    async def ask_meanwhile(self) -> None:
        """Ask for accepted operations until each is done: servers forget them after a while, an hour by default."""
        while True:
            await self.pause(_ASK_S)
            for operation in list(self._operations):
                try:
                    found = await self._queen.operation(operation)
                except QueenError:
                    break
                if found.done:
                    self._operations.discard(operation)

    # What every workload ends with

    async def end(self) -> None:
        """Wait for what was accepted, let each group read the rest, then read what is stored.

        Raises OperationTimeout if an accepted push is still queued then: the history could not be judged.
        """
        for operation in self._operations:
            await self._settled(operation)
        await self._timers_pushed()
        await asyncio.gather(*(self._drain(group) for group in self.groups))
        for number in range(self.load.partitions):
            await self._read(f"p{number}")
        for group in self.groups:
            await self._dead_letters(group)

    async def _settled(self, operation: str) -> None:
        await self._ended(operation)

    async def _ended(self, operation: str) -> Operation:
        """Raises OperationTimeout."""
        end = self._clock.monotonic() + self.load.settle_s
        while self._clock.monotonic() < end:
            try:
                found = await self._queen.operation(operation)
                if found.done:
                    return found
            except QueenError:
                pass
            await self.pause(PAUSE_S)
        raise OperationTimeout(f"an accepted operation has not been done within {self.load.settle_s} s", operation)

    async def _timers_pushed(self) -> None:
        """Raises QueenError: a timer that is only late is not lost."""
        end = self._clock.monotonic() + self.load.settle_s
        while self._clock.monotonic() < end:
            try:
                if not await self._queen.queue(self.queue).timers(1):
                    return
            except QueenError:
                pass
            await self.pause(PAUSE_S)
        raise QueenError(f"timers that were due have not been pushed within {self.load.settle_s} s")

    async def _drain(self, group: str) -> None:
        """Until nothing has come for as long as leases and retries may keep messages back."""
        op = self._recorder.invoke("end", Drain(self.queue, group))
        quiet_since = self._clock.monotonic()
        end = quiet_since + self.load.drain_s
        while self._clock.monotonic() < min(end, quiet_since + self.load.lease_s + self.load.quiet_s):
            messages = await self._try_pop("end", group, 10 * self.load.batch, 500)
            if messages:
                await self.ack("end", messages)
            elif messages is None:
                await self.pause(PAUSE_S)
            if messages != []:
                quiet_since = self._clock.monotonic()
        self._recorder.complete(op, "ok" if self._clock.monotonic() < end else "info", Done())

    async def _read(self, partition: str) -> None:
        async def read() -> list[Delivered]:
            found: list[Delivered] = []
            source, offset = self._queen.queue(self.queue).partition(partition), 0
            while page := await source.read(offset, limit=_PAGE):
                found.extend(Delivered(partition, one.offset, name_of(one)) for one in page)
                offset = page.next_offset
            return found

        await self._until_answered(Read(self.queue, partition), read, Stored)

    async def _dead_letters(self, group: str) -> None:
        async def read() -> list[str]:
            found: list[str] = []
            while page := await self._queen.queue(self.queue).dlq(group).limit(_PAGE).offset(len(found)).get():
                found += [letter.transaction_id for letter in page]
            return found

        await self._until_answered(ListDead(self.queue, group, RETRY_LIMIT), read, Dead)

    async def _until_answered(
        self, request: Request, call: Callable[[], Awaitable[T]], answer: Callable[[T], Answer]
    ) -> None:
        """What only reads is tried a few times: without it, the history is judged only in part."""
        for _ in range(_READ_ATTEMPTS):
            if await self._recorder.attempt("end", request, call, answer) is not None:
                return
            await self.pause(PAUSE_S)


def name_of(message: Any) -> str:
    """In the payload, because of what a timer becomes the server chooses the transactionId."""
    name: str = message.data["id"]
    return name


def _pushed(results: PushResults) -> Pushed:
    return Pushed([_WORDS.get(result.status, "refused") for result in results])  # type: ignore[misc]


def popped_of(messages: list[Message]) -> Popped:
    lease = messages[0].lease_id if messages else ""
    return Popped(lease, [Delivered(one.partition, one.offset or 0, name_of(one)) for one in messages])
