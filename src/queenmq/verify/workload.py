"""Workloads: what the clients do with a queue of their own, and how a run of one is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import cycle
from typing import Any, Final, TypeAlias

from queenmq.client import Queen, QueenError
from queenmq.client.options import Options
from queenmq.clock import SYSTEM
from queenmq.verify.clients import PAUSE_S, RETRY_LIMIT, Clients, Load
from queenmq.verify.history import History, Push
from queenmq.verify.leases import connected, taking
from queenmq.verify.recorder import Recorder

__all__ = ["OWN_CLUSTER_ONLY", "WORKLOADS", "Load", "run"]

_FLOOD = 8


async def log(clients: Clients) -> None:
    """Several producers, and two groups that read everything."""
    clients.groups = ["readers", "others"]
    consumers = [_consumer(clients, f"consumer-{group}-{n}", group) for group in clients.groups for n in range(2)]
    await asyncio.gather(*_producers(clients), *consumers)


async def lease(clients: Clients) -> None:
    """Consumers that lose their leases, renew them, or acknowledge too late."""
    await asyncio.gather(*_producers(clients), *_each(clients, _forgetful))


async def transaction(clients: Clients) -> None:
    """Each message is acknowledged in a transaction that pushes two others. Some clients do not wait for the answer."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, _transacting))


async def deduplication(clients: Clients) -> None:
    """Producers that repeat themselves, some of them through two clients at once."""
    await asyncio.gather(*_each(clients, _repeating), *_each(clients, _reader))


async def dead_letters(clients: Clients) -> None:
    """Handlers that fail, some of them every time."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, _failing))


async def seek(clients: Clients) -> None:
    """A group that goes to the beginning, to the end, and to moments between."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, _reader), _seeking(clients))


async def pipeline(clients: Clients) -> None:
    """Each message becomes another one exactly once, although transactions come too late, in part or again."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, _moving))


async def timers(clients: Clients) -> None:
    """Messages that are pushed later, some of which are cancelled."""
    await asyncio.gather(*_each(clients, _scheduling), *_each(clients, _reader))


async def take(clients: Clients) -> None:
    """Consumers that finish a lease and pop again in one request."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, taking))


async def connection(clients: Clients) -> None:
    """Consumers on consumer connections, some of which they close."""
    await asyncio.gather(*_producers(clients, 1), *_each(clients, connected))


async def overload(clients: Clients) -> None:
    """More pushes at once than the servers are made to take: they are deferred (202) or refused (429)."""
    await asyncio.gather(*_each(clients, _flooding), *_each(clients, _reader))


async def journal(clients: Clients) -> None:
    """Pushes are switched off and on again, so that they go to the journals of the servers."""
    await asyncio.gather(*_producers(clients), *_each(clients, _reader), _maintaining(clients))


Workload: TypeAlias = Callable[[Clients], Awaitable[None]]
_ALL: Final = (
    log,
    lease,
    transaction,
    pipeline,
    deduplication,
    dead_letters,
    seek,
    timers,
    take,
    connection,
    overload,
    journal,
)
WORKLOADS: Final[dict[str, Workload]] = {work.__name__.replace("_", "-"): work for work in _ALL}
# Other users of the servers would notice them.
OWN_CLUSTER_ONLY: Final = ("overload", "journal")


def _each(clients: Clients, what: Callable[[Clients, str], Awaitable[None]]) -> list[Awaitable[None]]:
    return [what(clients, f"{what.__name__.strip('_')}-{number}") for number in range(clients.load.consumers)]


def _producers(clients: Clients, count: int | None = None) -> list[Awaitable[None]]:
    return [_producer(clients, f"producer-{number}") for number in range(count or clients.load.producers)]


async def _producer(clients: Clients, process: str) -> None:
    while not clients.is_over:
        ids = clients.new_ids(process, clients.chance.randint(1, clients.load.batch))
        if await clients.push(process, clients.partition(), ids) is None:
            await clients.pause(PAUSE_S)


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
                some = set(clients.chance.sample(range(len(messages)), clients.chance.randint(1, len(messages))))
                await clients.ack(process, [one for number, one in enumerate(messages) if number in some])
            case 3:
                await clients.ack(process, messages, "retry")
            case _:
                await clients.ack(process, messages)


async def _transacting(clients: Clients, process: str) -> None:
    while not clients.is_over:
        messages = await clients.pop(process, "readers")
        if messages:
            pushes = [Push(clients.queue, clients.partition(), clients.new_ids(process, 1)) for _ in range(2)]
            patience_s = clients.chance.uniform(0, 0.02) if clients.chance.random() < 0.2 else None
            await clients.transact(process, messages, pushes, patience_s)


async def _repeating(clients: Clients, process: str) -> None:
    while not clients.is_over:
        partition, ids = clients.partition(), clients.new_ids(process, clients.chance.randint(1, 5))
        some = ids[: clients.chance.randint(1, len(ids))]
        if clients.chance.random() < 0.5:
            await asyncio.gather(
                clients.push(process, partition, ids), clients.push(f"{process}.again", partition, some)
            )
        else:
            await clients.push(process, partition, ids)
            await clients.push(process, partition, some)


async def _failing(clients: Clients, process: str) -> None:
    """One message at a time, so that it is certain which one has failed."""
    while not clients.is_over:
        for message in await clients.pop(process, "readers", 1):
            poisoned = message.transaction_id.endswith("7")
            await clients.ack(
                process, [message], "failed" if poisoned or clients.chance.random() < 0.1 else "completed"
            )


async def _moving(clients: Clients, process: str) -> None:
    """What is in the first half of the partitions goes to the other half, under a name that it always gets."""
    half = max(clients.load.partitions // 2, 1)
    while not clients.is_over:
        messages = await clients.pop(process, "readers")
        if not messages:
            continue
        if all(one.data["id"].endswith(".moved") for one in messages):
            await clients.ack(process, messages)
            continue
        if clients.chance.random() < 0.1:
            await clients.pause(clients.load.lease_s * 1.5)  # too late
        chosen = messages[: clients.chance.randint(1, len(messages))]
        target = f"p{half + int(chosen[0].partition.removeprefix('p')) % half}"
        ids = [f"{one.data['id']}.moved" for one in chosen]
        await clients.transact(process, chosen, [Push(clients.queue, target, ids)])


async def _scheduling(clients: Clients, process: str) -> None:
    while not clients.is_over:
        [name] = clients.new_ids(process, 1)
        seconds = clients.chance.uniform(0.1, 2)
        await clients.schedule(process, clients.partition(), name, seconds)
        if clients.chance.random() < 0.3:
            await clients.pause(clients.chance.choice((0, seconds / 2, seconds)))
            await clients.cancel(process, name)


async def _flooding(clients: Clients, process: str) -> None:
    while not clients.is_over:
        size = 10 * clients.load.batch
        pushes = (
            clients.push(f"{process}.{lane}", clients.partition(), clients.new_ids(f"{process}.{lane}", size))
            for lane in range(_FLOOD)
        )
        if None in await asyncio.gather(*pushes):
            await clients.pause(PAUSE_S)


async def _maintaining(clients: Clients) -> None:
    try:
        while not clients.is_over:
            for enabled in (True, False):
                await clients.pause(clients.load.seconds / 8)
                await clients.maintain(enabled)
    finally:
        await clients.maintain(False)


async def _seeking(clients: Clients) -> None:
    """At last to the beginning, so that everything must be read."""
    for kind in cycle(("beginning", "end", "moment")):
        await clients.pause(clients.load.seconds / 8)
        if clients.is_over:
            break
        if kind == "moment" and clients.seen:
            await clients.seek("seeker", "readers", clients.chance.choice(clients.seen))
        else:
            await clients.seek("seeker", "readers", "end" if kind == "end" else "beginning")
    await clients.seek("seeker", "readers")


async def run(
    servers: Sequence[str],
    workload: str,
    queue: str,
    load: Load,
    *,
    keep: bool = False,
    beside: Callable[[Recorder], Awaitable[None]] | None = None,
    recorder: Recorder | None = None,
    **options: Any,
) -> History:
    """Run a workload on a new queue, and return its history. The queue is deleted unless `keep` is said.

    `beside` goes on at the same time, and is awaited before what is left is read. Raises QueenError, or what `beside`
    raises, if the workload does not come to its end; `recorder` has the history so far then.
    """
    single: Options = {
        "retry_attempts": 1,
        "retry_on_429": False,
        "timeout_millis": 10_000,
        "load_balancing": "round-robin",
    }
    async with AsyncExitStack() as stack:
        queen = await stack.enter_async_context(Queen(servers, **single, **options))
        each = {one: await stack.enter_async_context(Queen(one, **single, **options)) for one in servers}
        limits = {"leaseTime": load.lease_s, "retryLimit": RETRY_LIMIT, "retryDelay": 10}
        await queen.queue(queue).config(limits).create()
        recorder = recorder or Recorder(SYSTEM)
        clients = Clients(queen, each, queue, load, recorder)
        try:
            asking = asyncio.ensure_future(clients.ask_meanwhile())
            try:
                await _both(WORKLOADS[workload](clients), None if beside is None else beside(recorder))
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await clients.end()
        except BaseException:
            # Why it failed says more than whether its queue could be deleted.
            with suppress(QueenError):
                if not keep:
                    await _deleted(queen, queue)
            raise
        if not keep:
            await _deleted(queen, queue)
        return recorder.history


async def _both(work: Awaitable[None], beside: Awaitable[None] | None) -> None:
    """What goes on beside is never broken off: it has to mend what it has harmed."""
    working = asyncio.ensure_future(work)
    try:
        if beside is not None:
            await beside
        await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _deleted(queen: Queen, queue: str) -> None:
    for attempt in range(3):
        try:
            await queen.queue(queue).delete()
            return
        except QueenError as error:
            if attempt == 2:
                raise QueenError(f"the queue could not be deleted: {error.message}") from error
            await SYSTEM.sleep(PAUSE_S)
