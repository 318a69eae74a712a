"""The verbs that meet, the scene on which they do, and what must be true afterwards.

Each verb sends the statements that a server sends, and is in transactions of its own as there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from integration.session import Pop, Session, ack
from queenmq.core.acknowledgement import Acknowledgement, Finish
from queenmq.core.names import QUEUE_MODE
from queenmq.ids import uuid7_text
from queenmq.operations.pushes import DeferredPushes
from queenmq.storage.sqlstates import LOCK_NOT_AVAILABLE, TRANSACTION_REFUSED
from queenmq.storage.statements import statement

QUEUE, OTHER = "q", "g"


@dataclass
class Scene:
    """Partitions of which everything was delivered under a lease."""

    lease: str
    delivered: list[dict[str, Any]]
    number: int = 0

    def acks(self, status: str = "completed") -> list[Acknowledgement]:
        return [ack(row, self.lease, status) for row in self.delivered]  # type: ignore[arg-type]

    def new(self) -> str:
        self.number += 1
        return f"new-{self.number}"


Verb = Callable[[Session, Scene], Awaitable[Any]]

VERBS: dict[str, Verb] = {
    "push": lambda session, scene: session.push((QUEUE, "a", scene.new()), (QUEUE, "b", scene.new())),
    "pop": lambda session, scene: session.pop(QUEUE, group=OTHER, batch=2, partitions=2),
    "pop at once": lambda session, scene: session.pop(QUEUE, group=OTHER, batch=2, partitions=2, auto_ack=True),
    "ack": lambda session, scene: session.ack(scene.acks()),
    "fail": lambda session, scene: session.ack(scene.acks("failed")),
    "finish": lambda session, scene: session.finish(Finish(scene.lease, "completed", None)),
    "take": lambda session, scene: session.take(Finish(scene.lease, "completed", None), QUEUE),
    "transact": lambda session, scene: session.transact([(QUEUE, "b", scene.new())], scene.acks()),
    "renew": lambda session, scene: session.renew(scene.lease),
    "release": lambda session, scene: session.release(scene.lease),
    "seek": lambda session, scene: operate(session, "seek", f'{{"group": "{QUEUE_MODE}"}}'),
    "go back": lambda session, scene: operate(session, "seek", f'{{"group": "{OTHER}", "at": "1970-01-01T00:00:00Z"}}'),
    "clear": lambda session, scene: operate(session, "clear", "{}"),
    "redrive": lambda session, scene: operate(session, "redrive", f'{{"group": "{QUEUE_MODE}"}}'),
    "push timers": lambda session, scene: push_timers(session),
    "run operations": lambda session, scene: run_operations(session),
    "retain": lambda session, scene: session.sweep("retain", QUEUE),
    "delete queue": lambda session, scene: session.delete_queue(QUEUE),
}

CLIENTS: Final = {
    "push",
    "pop",
    "pop at once",
    "ack",
    "fail",
    "finish",
    "take",
    "transact",
    "renew",
    "release",
    "seek",
}

# What a stranger may hold, while a verb stops there.
_HEAD = """
    SELECT 1 FROM queen.partition_lookup l JOIN queen.partitions p ON p.id = l.partition_id
    JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'q' AND p.name = '{}' FOR UPDATE OF l
"""
_GROUP = """
    SELECT 1 FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
    JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'q' AND p.name = '{}'
      AND c.consumer_group = '{}' FOR UPDATE OF c
"""
LOCKS: Final[dict[str, str]] = {
    "head of a": _HEAD.format("a"),
    "head of b": _HEAD.format("b"),
    "head of d": _HEAD.format("d"),
    "group in a": _GROUP.format("a", QUEUE_MODE),
    "group in b": _GROUP.format("b", QUEUE_MODE),
    "other group in a": _GROUP.format("a", OTHER),
    "other group in b": _GROUP.format("b", OTHER),
    "queue": "SELECT 1 FROM queen.queues WHERE name = 'q' FOR UPDATE",
    "operation": "SELECT 1 FROM queen.operation_queue WHERE queue_name = 'q' FOR UPDATE",
    "timers": "SELECT 1 FROM queen.timers WHERE queue_name = 'q' FOR UPDATE",
    "dead letters": "SELECT 1 FROM queen.dead_letter_queue FOR UPDATE",
    "administration": "SELECT queen.administer(id) FROM queen.queues WHERE name = 'q'",
}


# Where each verb stops and holds other locks already. What is not here never waits while it holds one.
_GROUPS = ("group in a", "group in b", "other group in a", "other group in b")
STOPS: Final[dict[str, tuple[str, ...]]] = {
    "push": ("head of b",),
    "ack": ("group in b",),
    "fail": ("group in b",),
    "finish": ("group in b",),
    "take": ("group in b",),
    "transact": ("group in a", "group in b"),
    "renew": ("group in b",),
    "release": ("group in b",),
    "seek": ("group in a", "group in b"),
    "go back": ("other group in a", "other group in b"),
    "clear": (
        "head of a",
        "head of b",
        "head of d",
        "group in a",
        "group in b",
        "other group in a",
        "other group in b",
    ),
    "redrive": ("dead letters",),
    "push timers": ("head of b",),
    "delete queue": tuple(LOCKS),
}


@dataclass
class Only:
    """A session in the place of a server's pool."""

    session: Session

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield self.session.sql

    async def fetch(self, text: str, *arguments: object, **_: object) -> Any:
        return await self.session.sql.fetch(text, *arguments)

    async def fetchrow(self, text: str, *arguments: object, **_: object) -> Any:
        return await self.session.sql.fetchrow(text, *arguments)


async def operate(session: Session, kind: str, parameters: str) -> None:
    await session.sql.fetchrow(
        statement("begin_operation"), kind, QUEUE, parameters, "session", uuid7_text(), 1000, 100
    )


async def run_operations(session: Session) -> bool:
    """Whether there was one."""
    pushes = DeferredPushes(Only(session), "session")  # type: ignore[arg-type]
    claimed = await pushes.claim(10, 10)
    if claimed is not None:
        async for _ in pushes.run(claimed):
            pass
    return claimed is not None


async def push_timers(session: Session) -> None:
    """As `Timers.push_due`."""
    async with session.sql.transaction():
        rows = await session.sql.fetch(statement("due_timers"), 100, 2**20, [], [])
        if rows:
            await session.push(
                *((row["queue_name"], row["partition_name"], row["transaction_id"]) for row in rows), mode="accepted"
            )
            names = [row["queue_name"] for row in rows], [row["key"] for row in rows]
            await session.sql.execute(statement("remove_timers"), *names)


async def begin(session: Session) -> Scene:
    await session.delete_queue(QUEUE)
    await session.configure(
        QUEUE,
        lease_time=300,
        retry_delay=0,
        retention_enabled=True,
        completed_retention_seconds=60,
        dead_letter_queue=True,
    )
    await session.push(*((QUEUE, partition, f"{partition}{number}") for partition in "abcd" for number in range(3)))
    for group in (QUEUE_MODE, OTHER):
        await session.subscribe(QUEUE, group)
    # Somebody has read c, where a message is a dead letter and the others are old enough to be deleted.
    popped = Pop(QUEUE, "c", batch=3)
    [found] = await session.pop_merged([popped])
    await session.ack(
        [ack(row, popped.lease_id, "dlq" if number == 1 else "completed") for number, row in enumerate(found.rows)]
    )
    while (await session.pop(QUEUE, "c", group=OTHER, batch=10, auto_ack=True)).rows:
        pass
    await session.sql.execute(
        "UPDATE queen.messages m SET created_at = m.created_at - interval '1 hour' FROM queen.partitions p "
        "JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = m.partition_id AND q.name = $1 AND p.name = 'c'",
        QUEUE,
    )
    # A push to d waits as an operation, and a timer for b is due.
    await session.push((QUEUE, "d", "deferred"), mode="queue")
    await session.schedule(QUEUE, "b", "timer")
    popped = Pop(QUEUE, batch=100, partitions=10)
    [found] = await session.pop_merged([popped])
    assert {row["partition_name"] for row in found.rows} == {"a", "b", "d"}
    return Scene(popped.lease_id, found.rows)


async def attempt(verb: Verb, session: Session, scene: Scene) -> None:
    """A transaction whose lease is gone is refused, and what deadlocks is tried again; what matters is what is there
    afterwards."""
    for _ in range(3):
        try:
            await verb(session, scene)
        except asyncpg.DeadlockDetectedError:
            continue
        except asyncpg.PostgresError as refusal:
            assert refusal.sqlstate in (TRANSACTION_REFUSED, LOCK_NOT_AVAILABLE), refusal
        return
    raise AssertionError("it deadlocks again and again")


async def judge(session: Session, what: str) -> None:
    assert await session.sql.fetch("SELECT * FROM queen.stale_lookup()") == [], what
    while await run_operations(session):
        pass
    stored: dict[str, list[str]] = {}
    offsets: dict[str, list[int]] = {}
    for row in await session.sql.fetch(
        'SELECT p.name, m."offset", m.transaction_id FROM queen.messages m '
        "JOIN queen.partitions p ON p.id = m.partition_id "
        'JOIN queen.queues q ON q.id = p.queue_id AND q.name = $1 ORDER BY p.name, m."offset"',
        QUEUE,
    ):
        names = stored.setdefault(row["name"], [])
        names.append(row["transaction_id"])
        offsets.setdefault(row["name"], []).append(row["offset"])
    for name, given in offsets.items():
        # Only retention and clear take messages away, the oldest first.
        assert given == list(range(given[0], given[0] + len(given))), (what, name)
    if not await session.sql.fetchval("SELECT count(*) FROM queen.partition_consumers"):
        for group in (QUEUE_MODE, OTHER):  # the queue was deleted, and pushed to again
            await session.subscribe(QUEUE, group)
    # Leases are given back; what is unread must come, without another push that would wake the group.
    held = await session.sql.fetch("SELECT DISTINCT lease_id FROM queen.partition_consumers WHERE lease_id IS NOT NULL")
    await session.release(*(str(row["lease_id"]) for row in held))
    for group in (QUEUE_MODE, OTHER):
        positions = {
            row["name"]: (row["position"], row["done"])
            for row in await session.sql.fetch(
                "SELECT p.name, c.position, c.done FROM queen.partition_consumers c "
                "JOIN queen.partitions p ON p.id = c.partition_id JOIN queen.queues q ON q.id = c.queue_id "
                "WHERE q.name = $1 AND c.consumer_group = $2",
                QUEUE,
                group,
            )
        }
        read: dict[str, list[str]] = {}
        while (popped := await session.pop(QUEUE, group=group, batch=100, auto_ack=True)).rows:
            for found in popped.rows:
                read.setdefault(found["partition_name"], []).append(found["transaction_id"])
        for name, names in stored.items():
            position, done = positions[name]
            finished = {number for part in done for number in range(part.lower, part.upper)}
            numbered = zip(offsets[name], names, strict=True)
            unread = [one for number, one in numbered if number > position and number not in finished]
            assert read.get(name, []) == unread, (what, group, name, position)
