"""Verbs that meet at their locks on a real PostgreSQL, with the statements that the broker sends.

In the first form, a verb has done its work and not committed when the second begins; then it commits or is rolled back.
In the other, a stranger holds a lock that the first verb needs after others: it stops in the middle and holds what it
took before, the second verb runs or waits, and the stranger lets go. Whatever the order, offsets have no gaps, heads
and groups agree with the messages, and everything that is unread is read afterwards, in its order.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest
from versioned_sql import VersionedSession

from integration.meeting import CLIENTS, LOCKS, STOPS, VERBS, attempt, begin, judge
from integration.queen import until
from integration.session import Session
from queenmq.storage.statements import function_set

ENDS = ("commit", "rollback")
LONG = bool(os.environ.get("QUEEN_LONG"))
SECONDS = len(VERBS) if LONG else 3


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[list[Session]]:
    opened = [
        await asyncpg.connect(
            database_url,
            server_settings={"timezone": "UTC", "lock_timeout": "20s"},
            connection_class=VersionedSession,
        )
        for _ in range(4)
    ]
    yield [Session(connection) for connection in opened]
    for connection in opened:
        connection.terminate()


async def meet(first: str, second: str, end: str, sessions: list[Session]) -> None:
    one, two, observer, _ = sessions
    scene = await begin(observer)
    transaction = one.sql.transaction()
    await transaction.start()
    await attempt(VERBS[first], one, scene)
    waiting = asyncio.create_task(attempt(VERBS[second], two, scene))
    await waits_or_is_done(waiting, two, observer)
    await getattr(transaction, end)()
    await waiting
    await judge(observer, f"{first}, {end}, beside {second}")


async def waits_or_is_done(task: asyncio.Task[None], of: Session, observer: Session) -> bool:
    """Whether it waits for a lock."""

    async def reached() -> bool:
        blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0"
        return task.done() or bool(await observer.sql.fetchval(blocked, of.pid))

    await until(reached, 20)
    return not task.done()


async def meet_inside(first: str, lock: str, second: str, sessions: list[Session]) -> bool:
    """Whether the first one has stopped at that lock."""
    one, two, observer, stranger = sessions
    scene = await begin(observer)
    held = stranger.sql.transaction()
    await held.start()
    await stranger.sql.fetch(LOCKS[lock])
    stopping = asyncio.create_task(attempt(VERBS[first], one, scene))
    stops = await waits_or_is_done(stopping, one, observer)
    waiting = asyncio.create_task(attempt(VERBS[second], two, scene))
    await waits_or_is_done(waiting, two, observer)
    await held.commit()
    await asyncio.gather(stopping, waiting)
    await judge(observer, f"{first}, stopped at {lock}, beside {second}")
    return stops


@pytest.mark.parametrize("first", VERBS)
async def test_beside_every_other_verb(sessions: list[Session], first: str) -> None:
    """All orders of what clients do; of the rest, an end each, or both with QUEEN_LONG."""
    for second in VERBS:
        is_short = not LONG and not {first, second} <= CLIENTS
        for end in (random.choice(ENDS),) if is_short else ENDS:
            await meet(first, second, end, sessions)


@pytest.mark.parametrize("first", STOPS)
async def test_stopped_in_the_middle(sessions: list[Session], first: str) -> None:
    """Beside some of the others, new ones in each run; beside all of them with QUEEN_LONG."""
    for lock in STOPS[first]:
        for second in random.sample(list(VERBS), SECONDS):
            assert await meet_inside(first, lock, second, sessions), f"{first} does not wait at {lock}"


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
