"""Broken twins of Python code: each is a fault that somebody could make, and must be found."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from server_settings import settings_with

from integration.test_twins import LOAD, ROUNDS, load_for
from queenmq.broker.ack import Acked, Acker
from queenmq.broker.finish import Finished, Finisher, FinishRequest, Taken
from queenmq.broker.long_polls import LongPolls
from queenmq.broker.pop import Popper
from queenmq.broker.push import Pusher
from queenmq.broker.transaction import Transactor
from queenmq.client import Queen
from queenmq.clock import SYSTEM
from queenmq.core.push_call import Outcome, PushCall
from queenmq.errors import Overloaded
from queenmq.journal.push_journal import PushJournal
from queenmq.journal.segment import Segment
from queenmq.operations.pushes import DeferredPushes
from queenmq.server import Server
from queenmq.storage.failures import AnswerLost, TransactionRefused
from queenmq.verify import check
from queenmq.verify.clients import Clients
from queenmq.verify.recorder import Recorder
from queenmq.verify.workload import run

Patch = pytest.MonkeyPatch
PUSHES = 20
NOWHERE = str(UUID(int=0))


@dataclass(frozen=True)
class Twin:
    """What is broken, the workload or scene that shows it, and the rule or complaint that must name it."""

    name: str
    break_it: Callable[[Patch], None]
    shown_by: str
    complaint: str


def replay_that_reorders(patch: Patch) -> None:
    oldest = PushJournal.oldest

    async def newest(self: PushJournal, most: int, most_messages: int) -> Any:
        return (await oldest(self, most, most_messages))[::-1]

    patch.setattr(PushJournal, "oldest", newest)


def replay_that_forgets(patch: Patch) -> None:
    """It takes for stored what is not."""
    store, number = Pusher.store_accepted, count()

    async def forgetful(self: Pusher, requests: Any, lock_timeout: str) -> list[list[Outcome]]:
        if next(number) % 3 == 2:
            return [[Outcome("queued", message.id, NOWHERE) for message in request] for request in requests]
        return await store(self, requests, lock_timeout)

    patch.setattr(Pusher, "store_accepted", forgetful)


def push_that_overtakes_the_journal(patch: Patch) -> None:
    patch.setattr(PushJournal, "holds", lambda self, messages: False)


def operations_in_the_wrong_order(patch: Patch) -> None:
    store = DeferredPushes._store

    async def reversed_store(self: DeferredPushes, claim: str, rows: list[Any], lock_ms: int) -> Any:
        return await store(self, claim, rows[::-1], lock_ms)

    patch.setattr(DeferredPushes, "_store", reversed_store)


def push_that_is_answered_and_not_stored(patch: Patch) -> None:
    store, number = Pusher._store, count()

    async def careless(self: Pusher, call: PushCall, *rest: Any) -> list[Outcome]:
        if next(number) % 5 == 4:
            return [Outcome("queued", message.id, NOWHERE) for message in call.messages]
        return await store(self, call, *rest)

    patch.setattr(Pusher, "_store", careless)


def push_that_is_refused_and_stored(patch: Patch) -> None:
    push, number = Pusher.push, count()

    async def hasty(self: Pusher, messages: Any) -> list[Outcome]:
        outcomes = await push(self, messages)
        if next(number) % 7 == 6:
            raise Overloaded("too much", retry_after_s=1)
        return outcomes

    patch.setattr(Pusher, "push", hasty)


def duplicates_that_are_called_stored(patch: Patch) -> None:
    outcomes_of = PushCall.outcomes_of

    def always_new(self: PushCall, row: Any) -> list[Outcome]:
        found = outcomes_of(self, row)
        for one in found:
            if one.status == "duplicate":
                one.status = "queued"
        return found

    patch.setattr(PushCall, "outcomes_of", always_new)


def items_that_are_merged_in_any_order(patch: Patch) -> None:
    merge = PushCall.merge.__func__  # type: ignore[attr-defined]
    patch.setattr(PushCall, "merge", classmethod(lambda cls, messages: _turned(merge(cls, messages))))


def _turned(call: PushCall) -> PushCall:
    """Two messages of one target change places, and nobody notices."""
    messages: Any = call.messages
    for number in range(len(messages) - 1):
        if call.target[number] == call.target[number + 1]:
            messages[number], messages[number + 1] = messages[number + 1], messages[number]
            break
    return call


def ack_that_does_nothing(patch: Patch) -> None:
    async def pretend(self: Acker, runs: Any, lock_timeout: str) -> list[Acked]:
        return [Acked(None, "q", "p", False, False) for run in runs for _ in run.transactions]

    patch.setattr(Acker, "_apply", pretend)


def ack_that_takes_refusals_for_success(patch: Patch) -> None:
    """As if a stale lease were accepted."""
    apply = Acker._apply

    async def generous(self: Acker, runs: Any, lock_timeout: str) -> list[Acked]:
        return [replace(one, problem=None) for one in await apply(self, runs, lock_timeout)]

    patch.setattr(Acker, "_apply", generous)


def finish_that_does_nothing(patch: Patch) -> None:
    """Of one lease in three it says that it is finished."""
    submit, number = Finisher._submit, count()

    async def pretend(self: Finisher, request: FinishRequest) -> Taken:
        if next(number) % 3 == 2:
            return Taken(Finished(messages=1, excepted=[(None, False)] * len(request.finish.excepted)), None)
        return await submit(self, request)

    patch.setattr(Finisher, "_submit", pretend)


def delivery_to_two_consumers(patch: Patch) -> None:
    take, last = Popper._take, list[Any]()

    async def generous(self: Popper, claim: Any) -> Any:
        if last:
            return last.pop()
        found = await take(self, claim)
        if found:
            last.append(found)
        return found

    patch.setattr(Popper, "_take", generous)


def transaction_that_is_refused_and_committed(patch: Patch) -> None:
    commit, number = Transactor.commit, count()

    async def hasty(self: Transactor, transaction: Any) -> Any:
        committed = await commit(self, transaction)
        if next(number) % 4 == 3:
            raise TransactionRefused("a lease is not valid any more")
        return committed

    patch.setattr(Transactor, "commit", hasty)


def transaction_that_is_torn(patch: Patch) -> None:
    """The connection breaks between two commits where one should be."""
    commit, number = Transactor.commit, count()

    async def torn(self: Transactor, transaction: Any) -> Any:
        if next(number) % 4 == 3:
            await commit(self, replace(transaction, messages=transaction.messages[:1]))
            raise AnswerLost
        return await commit(self, transaction)

    patch.setattr(Transactor, "commit", torn)


def journal_without_fsync(patch: Patch) -> None:
    def append(self: Segment, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.size)
            file.write(data)
        self.size += len(data)

    patch.setattr(Segment, "append", append)


def wake_up_that_wakes_nobody(patch: Patch) -> None:
    patch.setattr(LongPolls, "wake_here", lambda self, *_, **__: None)


TWINS = [
    Twin("replay that reorders", replay_that_reorders, "journal", "order-of-pushes"),
    Twin("replay that forgets", replay_that_forgets, "journal", "nothing-lost"),
    Twin("push that overtakes the journal", push_that_overtakes_the_journal, "journal", "order-of-pushes"),
    Twin("operations in the wrong order", operations_in_the_wrong_order, "overload", "order-of-pushes"),
    Twin("push that is answered and not stored", push_that_is_answered_and_not_stored, "log", "nothing-lost"),
    Twin("push that is refused and stored", push_that_is_refused_and_stored, "log", "refused-means-nothing"),
    Twin("duplicates that are called stored", duplicates_that_are_called_stored, "deduplication", "stored-once"),
    Twin("items that are merged in any order", items_that_are_merged_in_any_order, "log", "order-of-pushes"),
    Twin("ack that does nothing", ack_that_does_nothing, "log", "nothing-after-its-ack"),
    Twin("ack under a stale lease", ack_that_takes_refusals_for_success, "lease", "nothing-after-its-ack"),
    Twin("finish with a take that does nothing", finish_that_does_nothing, "take", "nothing-after-its-ack"),
    Twin("finish on a connection that does nothing", finish_that_does_nothing, "connection", "nothing-after-its-ack"),
    Twin("delivery to two consumers", delivery_to_two_consumers, "log", "one-lease-at-a-time"),
    Twin(
        "transaction that is refused and committed",
        transaction_that_is_refused_and_committed,
        "transaction",
        "refused-means-nothing",
    ),
    Twin("transaction that is torn", transaction_that_is_torn, "transaction", "all-or-nothing"),
    Twin("journal without fsync", journal_without_fsync, "power cut", "nothing-lost"),
    Twin("wake-up that wakes nobody", wake_up_that_wakes_nobody, "parked pop", "late"),
]


@asynccontextmanager
async def serving(database_url: str, folder: Path, **groups: Any) -> AsyncIterator[str]:
    settings = settings_with(
        journal={"folder": folder, "replay_interval_ms": 10},
        overload={"wait_threshold_ms": 5, "standing_wait_ms": 2, "standing_after_ms": 20},
        **groups,
    )
    server = Server(settings, database_url)
    await server.start()
    try:
        host, port = server.address
        yield f"http://{host}:{port}"
    finally:
        await server.stop()


async def complaints(
    database_url: str, folder: Path, shown_by: str, rule: str | None = None, seed: int = 0
) -> set[str]:
    if shown_by in SCENES:
        return await SCENES[shown_by](database_url, folder)
    async with serving(database_url, folder) as url:
        history = await run([url], shown_by, f"verify.{shown_by}.{seed}", load_for(rule, seed), keep=True)
        return set(check(history).by_rule())


async def power_cut(database_url: str, folder: Path) -> set[str]:
    """Pushes are journalled, the power goes, and the disk has only what was synced."""
    synced: dict[str, int] = {}

    def sync(descriptor: int) -> None:
        synced[str(Path(f"/proc/self/fd/{descriptor}").readlink())] = os.fstat(descriptor).st_size

    recorder = Recorder(SYSTEM)
    with pytest.MonkeyPatch.context() as disk:
        disk.setattr(os, "fdatasync", sync)
        async with serving(database_url, folder) as url, Queen(url) as queen:
            clients = Clients(queen, {url: queen}, "verify.power", LOAD, recorder)
            await clients.maintain(True)
            for _ in range(PUSHES):
                await clients.push("producer", clients.partition(), clients.new_ids("producer", 2))
    for path in folder.rglob("*.journal"):  # noqa: ASYNC240 - nothing else runs
        os.truncate(path, synced.get(str(path), 0))
    async with serving(database_url, folder) as url, Queen(url) as queen:
        clients = Clients(queen, {url: queen}, "verify.power", LOAD, recorder)
        await clients.maintain(False)
        while (await queen.admin.get_operation_stats())["journal"]["operations"]:
            await asyncio.sleep(0.01)
        await clients.end()
    return set(check(recorder.history).by_rule())


async def parked_pop(database_url: str, folder: Path) -> set[str]:
    """A long poll waits, and a message comes: it gets it at once, not when the safety net finds it."""
    hour_ms = 3_600_000
    rarely = {"wait_initial_interval_ms": hour_ms, "wait_max_interval_ms": hour_ms}
    async with serving(database_url, folder, pop=rarely) as url, Queen(url) as queen:
        await queen.queue("verify.parked").create()
        waiting = asyncio.create_task(queen.queue("verify.parked").timeout_millis(3000).pop())
        while not (await queen.admin.get_shared_state())["pop_wait"]["waiters"]:
            await asyncio.sleep(0.01)
        await queen.queue("verify.parked").push({"id": 1})
        return set() if await waiting else {"late"}


SCENES: dict[str, Callable[[str, Path], Awaitable[set[str]]]] = {"power cut": power_cut, "parked pop": parked_pop}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
async def test_the_twin_is_found(database_url: str, tmp_path: Path, monkeypatch: Patch, twin: Twin) -> None:
    twin.break_it(monkeypatch)
    found: set[str] = set()
    for seed in range(ROUNDS):
        found = await complaints(database_url, tmp_path / str(seed), twin.shown_by, twin.complaint, seed)
        if twin.complaint in found:
            return
    pytest.fail(f"{twin.complaint} is not among what was found: {found}")


@pytest.mark.parametrize("shown_by", ["journal", "deduplication", "take", "connection", *SCENES])
async def test_the_server_itself_is_not_complained_of(database_url: str, tmp_path: Path, shown_by: str) -> None:
    """The other workloads are in test_twins.py."""
    assert await complaints(database_url, tmp_path, shown_by) == set()
