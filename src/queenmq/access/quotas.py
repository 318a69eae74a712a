"""How much the queues of a namespace may store, and how much may be asked for of them.

What is asked for is counted in memory (`rates`). What is stored is measured for the statistics in any case, so a push
counts nothing: it is compared with the last figures and with what was let through here since then. What other servers
have let through meanwhile is not known, so a quota can be exceeded by what is pushed within some seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import Struct

from queenmq.clock import Clock
from queenmq.errors import QuotaExceeded, UnavailableError
from queenmq.storage.database import Database
from queenmq.storage.failures import after_commit
from queenmq.storage.statements import statement

REFRESH_S: Final = 5.0
_LEAST_PAUSES: Final = 20  # between two readings, in the time that one takes
_FRESH_S: Final = 1.0
_SAMPLES: Final = 50  # messages of each queue whose size is read


class Quota(Struct, kw_only=True):
    """Of the queue that is called like the namespace, and of all whose names begin with it and a dot."""

    namespace: str
    max_messages: int | None
    max_bytes: int | None
    requests_per_second: int | None = None
    messages_per_second: int | None = None
    long_polls: int | None = None
    messages: int = 0
    bytes: int | None = None  # known only if there is a limit


class Quotas:
    """`refused` counts the pushes that were refused."""

    def __init__(self, database: Database, clock: Clock, most_queues: int) -> None:
        self._most_queues = most_queues
        self.are_queues_full = False  # read for every request
        self._database = database
        self._clock = clock
        self._known: dict[str, Quota] = {}
        self._due_at = self._read_at = float("-inf")
        self.any = False  # read for every push
        self.limits_requests = False
        self.refused = 0

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._due_at

    async def freshen(self) -> None:
        """Before an answer: read the figures again unless that was done within the last second."""
        if self._clock.monotonic() - self._read_at >= _FRESH_S:
            await self.refresh()

    def known(self) -> list[Quota]:
        """The quotas as far as this server knows them, by namespace."""
        return list(self._known.values())

    def of(self, queue: str) -> list[Quota]:
        """Those of the namespaces that a queue is in."""
        return [self._known[namespace] for namespace in _namespaces_of(queue) if namespace in self._known]

    def take(self, pushed: Mapping[str, int], size: int) -> None:
        """So many messages are pushed to each of these queues, with so many bytes in all. Raises QuotaExceeded; then
        none has been counted."""
        wanted: dict[str, int] = {}
        for queue, messages in pushed.items():
            for quota in self.of(queue):
                wanted[quota.namespace] = wanted.get(quota.namespace, 0) + messages
        if not wanted:
            return
        total = sum(pushed.values())
        for namespace, messages in wanted.items():
            self._require(self._known[namespace], messages, size * messages // total)
        for namespace, messages in wanted.items():
            quota = self._known[namespace]
            quota.messages += messages
            quota.bytes = (quota.bytes or 0) + size * messages // total

    async def require_queues(self, queues: Collection[str]) -> None:
        """Raises QuotaExceeded if one of these queues would have to be made, and there are as many as there may be."""
        named = [queue for queue in queues if "\0" not in queue]  # of others the handler says what is wrong
        try:
            missing = await self._database.fetchval(statement("missing_queue"), named, repeatable=True)
        except UnavailableError:
            return  # what is kept while the database is away has been accepted
        if missing is not None:
            self.refused += 1
            raise QuotaExceeded(
                f"queue {missing!r} would be a new one, and there are {self._most_queues} queues, as many as there may "
                "be: delete what nobody needs, or raise QUEEN_MAX_QUEUES; connection refused for now (ECONNREFUSED)",
                retry_after_s=60,
            )

    def why_not(self, queue: str, size: int) -> str | None:
        """Count a message that nobody asks for now, such as that of a timer that repeats, unless it exceeds a quota:
        then the reason."""
        try:
            self.take({queue: 1}, size)
        except QuotaExceeded:
            return f"the quota of a namespace of queue {queue!r} is used up (quota_exceeded)"
        return None

    def _require(self, quota: Quota, messages: int, size: int) -> None:
        for used, wanted, most, unit in (
            (quota.messages, messages, quota.max_messages, "messages"),
            (quota.bytes or 0, size, quota.max_bytes, "bytes"),
        ):
            if most is not None and used + wanted > most:
                self.refused += 1
                raise QuotaExceeded(
                    f"the namespace {quota.namespace!r} stores {used} {unit} and may store {most}, so {wanted} more do "
                    "not fit: wait until retention deletes some, or have the quota raised; connection refused for now "
                    "(ECONNREFUSED)",
                    round(REFRESH_S),
                )

    async def refresh(self) -> None:
        """Read the quotas and what is stored. Raises what the database raises; then the figures stay as they are."""
        begun = self._clock.monotonic()
        before = {name: (quota.messages, quota.bytes or 0) for name, quota in self._known.items()}
        rows = await self._database.fetch(statement("quotas_used"), _SAMPLES, repeatable=True)
        self.are_queues_full = await self._database.fetchval(
            statement("too_many_queues"), self._most_queues, repeatable=True
        )
        self._read_at = now = self._clock.monotonic()
        self._due_at = now + max(REFRESH_S, (now - begun) * _LEAST_PAUSES)
        found = {row["namespace"]: Quota(**dict(row)) for row in rows}
        for name, quota in found.items():
            former = self._known.get(name)
            if former is None:
                continue
            # What came while the figures were read may not be in them.
            messages, size = before.get(name, (0, 0))
            quota.messages += max(0, former.messages - messages)
            if quota.bytes is not None:
                quota.bytes += max(0, (former.bytes or 0) - size)
        self._known = found
        self.any = bool(found)
        self.limits_requests = any(quota.requests_per_second for quota in found.values())

    async def set(self, quota: Quota) -> None:
        await self._database.fetchval(
            statement("set_quota"),
            quota.namespace,
            quota.max_messages,
            quota.max_bytes,
            quota.requests_per_second,
            quota.messages_per_second,
            quota.long_polls,
        )
        with after_commit():
            await self.refresh()

    async def remove(self, namespace: str) -> bool:
        """Whether there was one."""
        removed = await self._database.fetchval(statement("remove_quota"), namespace)
        with after_commit():
            await self.refresh()
        return removed is not None


def _namespaces_of(queue: str) -> Iterator[str]:
    """Those that a queue is in: for `a.b.c` it is `a`, `a.b` and itself."""
    end = queue.find(".")
    while end >= 0:
        yield queue[:end]
        end = queue.find(".", end + 1)
    yield queue
