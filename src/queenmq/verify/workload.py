"""Workloads: clients that use a queue of their own on real servers, and record what they see.

Every call is tried once, so that each outcome has the meaning that `history` gives it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from queenmq.client import Item, Message, OperationTimeout, PushResults, Queen, QueenError
from queenmq.client.options import Options
from queenmq.clock import SYSTEM, Clock
from queenmq.verify.history import (
    Ack,
    Acked,
    AckStatus,
    Dead,
    Delivered,
    Done,
    Drain,
    History,
    ListDead,
    Pop,
    Popped,
    Push,
    Pushed,
    Read,
    Renew,
    Renewed,
    Seek,
    Stored,
    Transact,
)
from queenmq.verify.recorder import Recorder

RETRY_LIMIT = 2
_WORDS: Final = {"queued": "stored", "accepted": "accepted", "buffered": "accepted", "duplicate": "duplicate"}
_PAGE = 1000
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is done. Rates are not bounded: each client sends its next request after the answer to the last."""

    seconds: float = 10
    producers: int = 4
    consumers: int = 4
    partitions: int = 8
    batch: int = 10
    lease_s: int = 2
    settle_s: float = 60
    """How long a group may take to read the rest, and an accepted push to be stored."""
    seed: int = 0


class Clients:
    """The clients of one workload on one queue."""

    def __init__(self, queen: Queen, queue: str, load: Load, recorder: Recorder, clock: Clock = SYSTEM) -> None:
        self.queue = queue
        self.load = load
        self.groups: list[str] = ["readers"]
        self.chance = random.Random(load.seed)  # noqa: S311 - a workload can be repeated by its seed
        self._queen = queen
        self._recorder = recorder
        self._clock = clock
        self._end = clock.monotonic() + load.seconds
        self._operations: set[str] = set()
        self._pushed = 0

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._end

    async def pause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def partition(self) -> str:
        return f"p{self.chance.randrange(self.load.partitions)}"

    def new_ids(self, process: str, count: int) -> list[str]:
        self._pushed += count
        return [f"{process}-{self._pushed - count + number}" for number in range(count)]

    async def push(self, process: str, partition: str, ids: Sequence[str]) -> PushResults | None:
        target = self._queen.queue(self.queue).partition(partition)

        async def send() -> PushResults:
            items = [Item({"id": name}, transaction_id=name) for name in ids]
            return await target.push(items).on_error(lambda results, error: None)

        results = await self._recorder.attempt(process, Push(self.queue, partition, list(ids)), send, _pushed)
        if results is not None:
            self._operations.update(results.operations)
        return results

    async def pop(self, process: str, group: str, batch: int | None = None, wait_ms: int = 200) -> list[Message]:
        messages = await self._try_pop(process, group, batch or self.load.batch, wait_ms)
        if messages is None:
            await self.pause(_PAUSE_S)
        return messages or []

    async def _try_pop(self, process: str, group: str, batch: int, wait_ms: int) -> list[Message] | None:
        """None if no server has answered it."""
        ask = self._queen.queue(self.queue).group(group).batch(batch).timeout_millis(wait_ms)
        return await self._recorder.attempt(process, Pop(self.queue, group, self.load.lease_s), ask.pop, _popped)

    async def ack(self, process: str, messages: Sequence[Message], status: AckStatus = "completed") -> None:
        request = Ack(messages[0].lease_id, [message.transaction_id for message in messages], status)
        await self._recorder.attempt(
            process,
            request,
            lambda: self._queen.ack(list(messages), status),
            lambda results: Acked([one.success for one in results], [one.dlq for one in results]),
        )

    async def renew(self, process: str, message: Message) -> None:
        await self._recorder.attempt(
            process,
            Renew(message.lease_id, self.load.lease_s),
            lambda: self._queen.renew(message, self.load.lease_s),
            lambda result: Renewed(result.success),
        )

    async def transact(self, process: str, messages: Sequence[Message], pushes: Sequence[Push]) -> None:
        transaction = self._queen.transaction().ack(messages)
        for push in pushes:
            transaction.queue(push.queue).partition(push.partition).push(
                [Item({"id": name}, transaction_id=name) for name in push.ids]
            )
        acks = [Ack(messages[0].lease_id, [message.transaction_id for message in messages])]
        await self._recorder.attempt(process, Transact(list(pushes), acks), transaction.commit, lambda _: Done())

    async def seek(self, process: str, group: str) -> None:
        """To the beginning."""
        call = lambda: self._queen.admin.seek_consumer_group(group, self.queue, timestamp="1970-01-01T00:00:00Z")  # noqa: E731
        await self._recorder.attempt(process, Seek(self.queue, group), call, lambda _: Done())

    # What every workload ends with

    async def end(self) -> None:
        """Wait for what was accepted, let each group read the rest, then read what is stored.

        Raises OperationTimeout if an accepted push is still queued then: the history could not be judged.
        """
        for operation in self._operations:
            await self._settled(operation)
        for group in self.groups:
            await self._drain(group)
        for number in range(self.load.partitions):
            await self._read(f"p{number}")
        for group in self.groups:
            await self._dead_letters(group)

    async def _settled(self, operation: str) -> None:
        end = self._clock.monotonic() + self.load.settle_s
        while self._clock.monotonic() < end:
            try:
                if (await self._queen.operation(operation)).done:
                    return
            except QueenError:
                pass
            await self.pause(_PAUSE_S)
        raise OperationTimeout(f"an accepted push has not been stored within {self.load.settle_s} s", operation)

    async def _drain(self, group: str) -> None:
        """Until nothing has come for as long as leases and retries may keep messages back."""
        op = self._recorder.invoke("end", Drain(self.queue, group))
        quiet_since = self._clock.monotonic()
        end = quiet_since + self.load.settle_s
        while self._clock.monotonic() < min(end, quiet_since + self.load.lease_s + 2):
            messages = await self._try_pop("end", group, self.load.batch, 500)
            if messages:
                await self.ack("end", messages)
            elif messages is None:
                await self.pause(_PAUSE_S)
            if messages != []:
                quiet_since = self._clock.monotonic()
        self._recorder.complete(op, "ok" if self._clock.monotonic() < end else "info", Done())

    async def _read(self, partition: str) -> None:
        found: list[Delivered] = []

        async def read() -> list[Delivered]:
            source, offset = self._queen.queue(self.queue).partition(partition), 0
            while page := await source.read(offset, limit=_PAGE):
                found.extend(Delivered(partition, one.offset, one.transaction_id) for one in page)
                offset = page.next_offset
            return found

        await self._recorder.attempt("end", Read(self.queue, partition), read, Stored)

    async def _dead_letters(self, group: str) -> None:
        async def read() -> list[str]:
            found: list[str] = []
            while page := await self._queen.queue(self.queue).dlq(group).limit(_PAGE).offset(len(found)).get():
                found += [letter.transaction_id for letter in page]
            return found

        await self._recorder.attempt("end", ListDead(self.queue, group, RETRY_LIMIT), read, Dead)


def _pushed(results: PushResults) -> Pushed:
    return Pushed([_WORDS.get(result.status, "refused") for result in results])  # type: ignore[misc]


def _popped(messages: list[Message]) -> Popped:
    lease = messages[0].lease_id if messages else ""
    return Popped(lease, [Delivered(one.partition, one.offset or 0, one.transaction_id) for one in messages])


# The workloads


async def log(clients: Clients) -> None:
    """Several producers, and two groups that read everything."""
    clients.groups = ["readers", "others"]
    consumers = [_consumer(clients, f"consumer-{group}-{n}", group) for group in clients.groups for n in range(2)]
    await asyncio.gather(*_producers(clients), *consumers)


async def lease(clients: Clients) -> None:
    """Consumers that lose their leases, renew them, or acknowledge too late."""
    await asyncio.gather(*_producers(clients), *_each(clients, _forgetful))


async def transaction(clients: Clients) -> None:
    """Each message is acknowledged in a transaction that pushes two others."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, _transacting))


async def deduplication(clients: Clients) -> None:
    """Producers that repeat themselves."""
    await asyncio.gather(*_each(clients, _repeating), *_each(clients, _reader))


async def dead_letters(clients: Clients) -> None:
    """Handlers that fail, some of them every time."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, _failing))


async def seek(clients: Clients) -> None:
    """A group that goes back to the beginning again and again."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, _reader), _seeking(clients))


Workload: TypeAlias = Callable[[Clients], Awaitable[None]]
WORKLOADS: Final[dict[str, Workload]] = {
    work.__name__.replace("_", "-"): work for work in (log, lease, transaction, deduplication, dead_letters, seek)
}


def _each(clients: Clients, what: Callable[[Clients, str], Awaitable[None]]) -> list[Awaitable[None]]:
    return [what(clients, f"{what.__name__.strip('_')}-{number}") for number in range(clients.load.consumers)]


def _producers(clients: Clients, count: int | None = None) -> list[Awaitable[None]]:
    return [_producer(clients, f"producer-{number}") for number in range(count or clients.load.producers)]


async def _producer(clients: Clients, process: str) -> None:
    while not clients.is_over:
        ids = clients.new_ids(process, clients.chance.randint(1, clients.load.batch))
        if await clients.push(process, clients.partition(), ids) is None:
            await clients.pause(_PAUSE_S)


async def _consumer(clients: Clients, process: str, group: str) -> None:
    while not clients.is_over:
        messages = await clients.pop(process, group)
        if messages:
            await clients.ack(process, messages)


async def _reader(clients: Clients, process: str) -> None:
    await _consumer(clients, process, "readers")


async def _forgetful(clients: Clients, process: str) -> None:
    while not clients.is_over:
        messages = await clients.pop(process, "readers")
        if not messages:
            continue
        match clients.chance.randrange(5):
            case 0:
                await clients.pause(clients.load.lease_s * 1.5)  # too late
                await clients.ack(process, messages)
            case 1:
                await clients.pause(clients.load.lease_s / 2)
                await clients.renew(process, messages[0])
                await clients.pause(clients.load.lease_s * 0.75)
                await clients.ack(process, messages)
            case 2:
                await clients.ack(process, messages[: clients.chance.randint(1, len(messages))])
            case 3:
                await clients.ack(process, messages, "retry")
            case _:
                await clients.ack(process, messages)


async def _transacting(clients: Clients, process: str) -> None:
    while not clients.is_over:
        messages = await clients.pop(process, "readers")
        if messages:
            pushes = [Push(clients.queue, clients.partition(), clients.new_ids(process, 1)) for _ in range(2)]
            await clients.transact(process, messages, pushes)


async def _repeating(clients: Clients, process: str) -> None:
    while not clients.is_over:
        partition, ids = clients.partition(), clients.new_ids(process, clients.chance.randint(1, 5))
        await clients.push(process, partition, ids)
        await clients.push(process, partition, ids[: clients.chance.randint(1, len(ids))])


async def _failing(clients: Clients, process: str) -> None:
    """One message at a time, so that it is certain which one has failed."""
    while not clients.is_over:
        for message in await clients.pop(process, "readers", 1):
            poisoned = message.transaction_id.endswith("7")
            await clients.ack(
                process, [message], "failed" if poisoned or clients.chance.random() < 0.1 else "completed"
            )


async def _seeking(clients: Clients) -> None:
    while not clients.is_over:
        await clients.pause(clients.load.seconds / 4)
        await clients.seek("seeker", "readers")


async def run(
    servers: Sequence[str], workload: str, queue: str, load: Load, *, keep: bool = False, **options: Any
) -> History:
    """Run a workload on a new queue, and return its history. The queue is deleted unless `keep` is said."""
    single: Options = {
        "retry_attempts": 1,
        "retry_on_429": False,
        "timeout_millis": 10_000,
        "load_balancing": "round-robin",
    }
    async with Queen(servers, **single, **options) as queen:
        limits = {"leaseTime": load.lease_s, "retryLimit": RETRY_LIMIT, "retryDelay": 10}
        await queen.queue(queue).config(limits).create()
        recorder = Recorder(SYSTEM)
        clients = Clients(queen, queue, load, recorder)
        try:
            await WORKLOADS[workload](clients)
            await clients.end()
        finally:
            if not keep:
                await queen.queue(queue).delete()
        return recorder.history
