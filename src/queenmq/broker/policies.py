"""What queues and groups do with messages that fail. It is kept in the database, where each ack finds it."""

from __future__ import annotations

import msgspec

from queenmq.core.retry_policy import RetryPolicy
from queenmq.errors import Conflict, NotFound
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

_encoder = msgspec.json.Encoder()


class Policies:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def set_retry(self, queue: str, group: str | None, by: str | None, policy: RetryPolicy | None) -> bool:
        """Set the retry policy of a queue, or of a group in it; None takes it back. False if nothing changes.

        When this returns, every later ack goes by it. Raises NotFound if there is no such queue, and Conflict while
        servers may run that would not keep what it promises.
        """
        given = RetryPolicy() if policy is None else policy
        row = await self._database.fetchrow(
            statement("set_retry"),
            queue,
            group or "",
            by,
            None if policy is None else _encoder.encode(policy).decode(),
            given.limit,
            given.delays(),
            given.least_part,
            given.poison,
            repeatable=True,
        )
        if row is None or row["changed"] is None:
            raise NotFound("Queue not found")
        if row["needs_contract"]:
            raise Conflict(
                f"poison {given.poison!r} is for servers of this version only: when none of the version before runs "
                "any more, finish the upgrade with `queen db upgrade --contract`, and set it then"
            )
        changed: bool = row["changed"]
        return changed
