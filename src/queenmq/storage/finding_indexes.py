"""The indexes over all messages, which are made on request: every push pays for them, and only searches use them."""

from __future__ import annotations

from typing import Final

from queenmq.storage.database import Database
from queenmq.storage.slices import Report, outside_transaction
from queenmq.storage.statements import statement

INDEXES: Final = {
    "transactions": (
        "messages_found_by_transaction",
        "CREATE INDEX CONCURRENTLY messages_found_by_transaction ON queen.messages (transaction_id)",
    ),
    "headers": (
        "messages_found_by_headers",
        "CREATE INDEX CONCURRENTLY messages_found_by_headers ON queen.messages USING gin (headers jsonb_path_ops) "
        "WITH (gin_pending_list_limit = 256) WHERE headers IS NOT NULL",
    ),
}


async def existing(database: Database) -> list[str]:
    """The kinds that there are, and that can be used."""
    found = {row["name"] for row in await database.fetch(statement("finding_indexes"))}
    return [kind for kind, (name, _) in INDEXES.items() if name in found]


async def make(database: Database, kind: str, report: Report) -> None:
    """Make one while servers run; pushes go on meanwhile. One that is there already is left as it is."""
    if kind in await existing(database):
        return
    name, text = INDEXES[kind]
    # An attempt that was interrupted leaves an index that is not valid.
    await outside_transaction(database, f"index {name}", f"DROP INDEX CONCURRENTLY IF EXISTS queen.{name}", report)
    await outside_transaction(database, f"index {name}", text, report)


async def drop(database: Database, kind: str, report: Report) -> None:
    name, _ = INDEXES[kind]
    await outside_transaction(database, f"index {name}", f"DROP INDEX CONCURRENTLY IF EXISTS queen.{name}", report)
