"""Every verb beside every other one: the first has done its work and not committed when the second begins.

The sessions send the statements that the broker sends. One verb takes its place in a transaction of its own; the second
runs to its end, or waits for the first; then the first commits or is rolled back. Whatever the order, offsets have no
gaps, heads and groups agree with the messages, and everything that is unread is read afterwards, in its order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from versioned_sql import VersionedSession

from integration.queen import until
from integration.session import Pop, Session, ack
from queenmq.core.acknowledgement import Acknowledgement, Finish
from queenmq.core.names import QUEUE_MODE
from queenmq.storage.sqlstates import TRANSACTION_REFUSED
from queenmq.storage.statements import function_set

QUEUE, OTHER = "q", "g"


@dataclass
class Scene:
    """A partition of which everything was delivered under a lease."""

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
    "seek": lambda session, scene: session.seek(QUEUE_MODE, QUEUE),
}


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[list[Session]]:
    opened = [
        await asyncpg.connect(
            database_url,
            server_settings={"timezone": "UTC", "lock_timeout": "20s"},
            connection_class=VersionedSession,
        )
        for _ in range(3)
    ]
    yield [Session(connection) for connection in opened]
    for connection in opened:
        connection.terminate()


async def begin(session: Session) -> Scene:
    await session.delete_queue(QUEUE)
    await session.configure(QUEUE, lease_time=300, retry_delay=0)
    await session.push(*((QUEUE, partition, f"{partition}{number}") for partition in "ab" for number in range(3)))
    for group in (QUEUE_MODE, OTHER):
        await session.subscribe(QUEUE, group)
    popped = Pop(QUEUE, "a", batch=3)
    [found] = await session.pop_merged([popped])
    assert found.transactions == ["a0", "a1", "a2"]
    return Scene(popped.lease_id, found.rows)


async def attempt(verb: Verb, session: Session, scene: Scene) -> None:
    """A transaction whose lease is gone is refused; what matters is what is there afterwards."""
    try:
        await verb(session, scene)
    except asyncpg.PostgresError as refusal:
        assert refusal.sqlstate == TRANSACTION_REFUSED, refusal


async def meet(first: str, second: str, end: str, sessions: list[Session]) -> None:
    one, two, observer = sessions
    scene = await begin(observer)
    await one.begin()
    await attempt(VERBS[first], one, scene)
    waiting = asyncio.create_task(attempt(VERBS[second], two, scene))

    async def waits_or_is_done() -> bool:
        blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0"
        return waiting.done() or bool(await observer.sql.fetchval(blocked, two.pid))

    await until(waits_or_is_done, 20)
    await getattr(one, end)()
    await waiting
    await judge(observer, f"{first}, {end}, beside {second}")


async def judge(session: Session, what: str) -> None:
    assert await session.sql.fetch("SELECT * FROM queen.stale_lookup()") == [], what
    stored: dict[str, list[str]] = {}
    for row in await session.sql.fetch(
        'SELECT p.name, m."offset", m.transaction_id FROM queen.messages m '
        "JOIN queen.partitions p ON p.id = m.partition_id "
        'JOIN queen.queues q ON q.id = p.queue_id AND q.name = $1 ORDER BY p.name, m."offset"',
        QUEUE,
    ):
        names = stored.setdefault(row["name"], [])
        names.append(row["transaction_id"])
        assert row["offset"] == len(names), what
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
            unread = [one for number, one in enumerate(names, 1) if number > position and number not in finished]
            assert read.get(name, []) == unread, (what, group, name, position)


@pytest.mark.parametrize("first", VERBS)
async def test_beside_every_other_verb(sessions: list[Session], first: str) -> None:
    for second in VERBS:
        for end in ("commit", "rollback"):
            await meet(first, second, end, sessions)


@pytest.mark.parametrize(
    ("function", "before", "after", "verbs"),
    [
        (
            "finish_leased",
            "upper(c.lease_offsets) - 1, upper(c.done) - 1)\n        FOR NO KEY UPDATE OF l SKIP LOCKED",
            "upper(c.lease_offsets) - 1, upper(c.done) - 1)",
            ("push", "finish"),
        ),
        (
            "lock_targets",
            "ORDER BY h.generation DESC LIMIT 1 FOR NO KEY UPDATE\n",
            "ORDER BY h.generation DESC LIMIT 1\n",
            ("push", "push"),
        ),
    ],
    ids=["a group falls asleep without the lock of the head", "offsets outside the lock of the head"],
)
async def test_a_broken_twin_is_found(
    sessions: list[Session], function: str, before: str, after: str, verbs: tuple[str, str]
) -> None:
    text = function_set().files[function]
    assert before in text
    await sessions[0].sql.execute(text.replace(before, after))
    with pytest.raises(AssertionError):
        await meet(*verbs, "commit", sessions)
