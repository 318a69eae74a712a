"""Storing messages that were accepted earlier, in a transaction that also removes them from where they waited: timers
that are due, and what applications have sent in their own transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import asyncpg

from queenmq.broker.encryption import PayloadEncryption
from queenmq.broker.load import LoadWatch
from queenmq.broker.maintenance import Maintenance
from queenmq.broker.parts import Parts
from queenmq.broker.queue_options import QueueOptions
from queenmq.broker.wake_ups import by_queue
from queenmq.core.message import Message
from queenmq.core.push_call import PushCall
from queenmq.errors import HttpError, InternalError
from queenmq.journal.interface import Journal
from queenmq.storage.failures import EncryptionRequired
from queenmq.storage.sqlstates import is_about_the_statement
from queenmq.storage.statements import statement

# How long a batch waits for a partition that another transaction has locked, and then each partition alone.
LOCK_TIMEOUT: Final = "500ms"
LOCK_TIMEOUT_APART: Final = "50ms"


class AcceptedPush:
    def __init__(
        self,
        parts: Parts,
        encryption: PayloadEncryption,
        options: QueueOptions,
        load: LoadWatch,
        maintenance: Maintenance,
        journal: Journal | None,
    ) -> None:
        self.database = parts.database
        self._activity = parts.activity
        self._long_polls = parts.long_polls
        self._encryption = encryption
        self._options = options
        self._load = load
        self._maintenance = maintenance
        self._journal = journal
        self._behind: set[tuple[str, str]] = set()

    @property
    def is_allowed(self) -> bool:
        """Whether pushes are not switched off for maintenance."""
        return self._maintenance.switches.pushes_allowed

    def must_wait(self, message: Message) -> bool:
        """Whether its partition has older messages in the journal: these go first. It is `behind` from then on."""
        where = (message.queue, message.partition)
        if self._is_journalled(where):
            self._behind.add(where)
        return where in self._behind

    def behind(self) -> tuple[list[str], list[str]]:
        """The queues and names of the partitions that were found to wait and still do. Who reads a batch leaves them
        out: what the journal cannot store may be stuck for long, and would fill the batch again and again."""
        self._behind = {where for where in self._behind if self._is_journalled(where)}
        return [queue for queue, _ in self._behind], [partition for _, partition in self._behind]

    def _is_journalled(self, where: tuple[str, str]) -> bool:
        journal = self._journal
        return journal is not None and bool(journal.messages) and journal.holds_any([where])

    async def store(
        self, connection: asyncpg.Connection[asyncpg.Record], messages: Sequence[Message], lock_timeout: str
    ) -> PushCall:
        """Store them in the caller's transaction, each partition's in their order, also in a full queue."""
        call = PushCall.merge(list(messages))
        if not messages:
            return call
        answer = await connection.fetchrow(
            statement("push_or_queue"),
            *call.arguments(None, self._encryption.seal(call.messages)),
            "accepted",
            [0] * len(call.messages),
            None,
            None,
            lock_timeout,
        )
        if answer is None:
            raise AssertionError("queen.push returned no row")
        if answer["queued_id"] is not None:
            self._load.note_queued((answer["queued_before"] or 0) + len(answer["queued_id"]))
        return call

    def announce(self, call: PushCall) -> None:
        """After the commit: count them, and wake who waits for them."""
        for target, messages in Counter(call.target).items():
            self._activity.pushed(call.queues[target - 1], 0, messages)
        for queue, partitions in by_queue(zip(call.queues, call.partitions, strict=True)).items():
            self._long_polls.wake(queue, partitions)

    async def learn_from(self, error: HttpError, messages: Sequence[Message]) -> None:
        """The options that this server knew were not true any more, if that is why they were refused."""
        if isinstance(error, EncryptionRequired):
            await self._options.correct(sorted({message.queue for message in messages}))


def may_succeed_apart(error: HttpError) -> bool:
    """Whether it may be the fault of one partition; so also of unknown errors, which must not hold up all others."""
    return isinstance(error, (InternalError, EncryptionRequired)) or is_about_the_statement(error)
