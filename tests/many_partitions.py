"""Fills a queue with very many partitions by SQL alone, and says how many buffers a statement touches.

The triggers of the tables run as for any writer, so what they keep (heads, places of groups) is as a server would have
made it. Statistics of the planner are brought up to date at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from queenmq.storage.statements import versioned

_AT_ONCE = 50_000

_PARTITIONS = """
INSERT INTO queen.partitions (id, queue_id, name, created_at)
SELECT queen.uuid7(), $1, 'p' || n, clock_timestamp() - $4::interval FROM generate_series($2::bigint, $3::bigint) AS n
"""

_MESSAGES = """
INSERT INTO queen.messages (partition_id, "offset", created_at)
SELECT p.id, o, clock_timestamp() - $5::interval
FROM generate_series($2::bigint, $3::bigint) AS n
JOIN queen.partitions p ON p.queue_id = $1 AND p.name = 'p' || n
CROSS JOIN generate_series(1, $4::bigint) AS o
"""


async def fill(
    sql: asyncpg.Connection[asyncpg.Record],
    queue: str,
    partitions: int,
    *,
    messages: int = 1,
    groups: Sequence[str] = (),
    age: str = "0",
    options: str = "",
) -> UUID:
    """Make a queue with so many partitions and so many messages in each, `age` old. `options` are assignments of SET.

    Each of `groups` has subscribed and read everything.
    """
    await sql.execute("INSERT INTO queen.queues (name) VALUES ($1) ON CONFLICT DO NOTHING", queue)
    found: UUID = await sql.fetchval("SELECT id FROM queen.queues WHERE name = $1", queue)
    for first in range(1, partitions + 1, _AT_ONCE):
        last = min(partitions, first + _AT_ONCE - 1)
        await sql.execute("SELECT set_config('queen.announce', 'off', false)")
        await sql.execute(_PARTITIONS.replace("$4", f"'{age}'"), found, first, last)
        if messages:
            await sql.execute(_MESSAGES.replace("$5", f"'{age}'"), found, first, last, messages)
    for group in groups:
        await sql.execute(versioned("SELECT queen.subscribe($1, NULL, $2, 'new', NULL)"), queue, group)
    if options:
        await sql.execute(f"UPDATE queen.queues SET {options} WHERE id = $1", found)
    await sql.execute("VACUUM ANALYZE")
    return found


async def buffers(sql: asyncpg.Connection[asyncpg.Record], query: str, *arguments: object) -> int:
    """How many pages of tables and indexes a statement touches, those of the functions that it calls included."""
    return (await explained(sql, query, *arguments))[0]


async def explained(
    sql: asyncpg.Connection[asyncpg.Record], query: str, *arguments: object
) -> tuple[int, float, dict[str, Any]]:
    """(buffers, milliseconds, plan) of a statement that is run."""
    told = await sql.fetchval(versioned(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {query}"), *arguments)
    plan = json.loads(told)[0]
    top = plan["Plan"]
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"], plan["Execution Time"], top
