"""The asynchronous client."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, get_args, overload

from queenmq.client.admin import Admin
from queenmq.client.errors import InvalidUse
from queenmq.client.keys import Keys
from queenmq.client.models import (
    AckResult,
    BufferStats,
    Message,
    Operation,
    RenewResult,
    TraceResult,
)
from queenmq.client.options import AckStatus, ClientOptions, Options, check_names, said_by_environment, server_urls
from queenmq.client.queue import Queue
from queenmq.client.session import Session
from queenmq.client.transaction import Transaction
from queenmq.client.verbs import to_ack

if TYPE_CHECKING:
    from queenmq.client.answers import GroupDeleted, SubscriptionMoved

Context = Mapping[str, Any]


class Queen:
    """A client of one or several Queen servers that share a database.

    >>> async with Queen("http://127.0.0.1:6632") as queen:  # doctest: +SKIP
    ...     await queen.queue("orders").partition("customer-17").push({"order": 1})
    ...     for message in await queen.queue("orders").group("billing").batch(10).pop():
    ...         await queen.ack(message)

    `servers` is a URL or a list of them, in order of preference. Without one, the variables QUEEN_URL, QUEEN_TOKEN and
    QUEEN_CA_FILE of the environment say which, as for the command `queen`. The options are those of `ClientOptions`.
    Belongs to the event loop in which it is first used.
    """

    def __init__(
        self,
        servers: str | Sequence[str] | None = None,
        *,
        url: str | None = None,
        urls: Sequence[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        if not (servers or url or urls):
            servers, options = said_by_environment(options)
        check_names(options)
        self._session = Session(server_urls(servers, url, urls), ClientOptions(**options))
        self.keys: Keys[Awaitable[Any]] = Keys(self._session.verbs.ask_once)
        """Values under keys, counters and locks."""
        self.admin = Admin(self._session.verbs.ask)
        """Administration: `await queen.admin.list_queues()`."""

    def queue(self, name: str | None = None) -> Queue[Message]:
        """Begin a sentence about a queue. Without a name, `namespace` and `task` say which queues to pop from."""
        return Queue(self._session, name)

    def transaction(self) -> Transaction:
        """Begin a transaction: `queen.transaction().ack(message).queue("b").push(item).commit()`."""
        return Transaction(self._session)

    @overload
    async def ack(
        self,
        messages: Message,
        status: bool | AckStatus = True,
        context: Context | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> AckResult: ...

    @overload
    async def ack(
        self,
        messages: Sequence[Message],
        status: bool | AckStatus = True,
        context: Context | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> list[AckResult]: ...

    async def ack(
        self,
        messages: Message | Sequence[Message],
        status: bool | AckStatus = True,
        context: Context | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> AckResult | list[AckResult]:
        """Acknowledge one message or several at once: True or `completed`, False or `failed`, `retry`, `dlq`.

        An ack that the server does not take, because the lease is over, is a result with `success` False, not an
        exception. `context` is for code that was written for queen-mq: `{"group": …, "error": …}`.
        """
        self._session.check_open()
        given = [messages] if isinstance(messages, Message) else list(messages)
        if not all(isinstance(message, Message) for message in given):
            raise TypeError("ack takes a message as pop returns it, or a list of them")
        said = context or {}
        word = ("completed" if status else "failed") if status in (True, False) else status
        if not isinstance(word, str) or word not in get_args(AckStatus):
            raise InvalidUse(f"{word!r} is no status of an acknowledgement: completed, failed, retry or dlq")
        reason = error if error is not None else said.get("error")
        results = await self._ack_all(given, word, reason, group or said.get("group") or said.get("consumer_group"))
        return results[0] if isinstance(messages, Message) else results

    async def _ack_all(
        self, messages: Sequence[Message], status: str, error: str | None, group: str | None
    ) -> list[AckResult]:
        """One request for each group, because the wire has one group for all acks of a request."""
        results: dict[int, AckResult] = {}
        by_group: dict[str | None, list[int]] = {}
        for index, message in enumerate(messages):
            by_group.setdefault(group or message.consumer_group or None, []).append(index)
        for name, indexes in by_group.items():
            acks = [to_ack(messages[index], status, error) for index in indexes]
            results |= zip(indexes, await self._session.verbs.ack(acks, name), strict=True)
        return [results[index] for index in range(len(messages))]

    @overload
    async def renew(self, what: Message | str, seconds: int = 60) -> RenewResult: ...

    @overload
    async def renew(self, what: Sequence[Message], seconds: int = 60) -> list[RenewResult]: ...

    async def renew(
        self, what: Message | str | Sequence[Message], seconds: int = 60
    ) -> RenewResult | list[RenewResult]:
        """Extend the lease of a message, or a lease by its id; of a list, every lease once.

        The lease then lives `seconds` from now, or longer if it did. One that is over is a result with `success` False.
        """
        self._session.check_open()
        if isinstance(what, str):
            return await self._session.verbs.renew(what, seconds)
        if isinstance(what, Message):
            return await self._session.verbs.renew(what.lease_id, seconds)
        leases = dict.fromkeys(message.lease_id for message in what)
        return [await self._session.verbs.renew(lease, seconds) for lease in leases]

    async def trace(
        self, message: Message, data: Any, *, names: str | Sequence[str] = (), event_type: str = "info"
    ) -> TraceResult:
        """Leave a trace of what happened to a message. Never raises."""
        listed = (names,) if isinstance(names, str) else names
        return await self._session.verbs.trace(message, data, listed, event_type)

    async def operation(self, operation_id: str) -> Operation:
        """How a queued operation (202) is getting on."""
        return await self._session.verbs.operation(operation_id)

    async def wait_for_operation(self, operation_id: str) -> Operation:
        """Wait until a queued operation is completed. Raises OperationFailed or OperationTimeout."""
        return await self._session.verbs.settle(operation_id)

    async def delete_consumer_group(self, group: str, delete_metadata: bool = True) -> GroupDeleted:
        """Forget a group everywhere; its next pop starts as a new group."""
        return await self.admin.delete_consumer_group(group, delete_metadata)

    async def update_consumer_group_timestamp(self, group: str, timestamp: str) -> SubscriptionMoved:
        """Change where a group starts in partitions that it has not read yet."""
        return await self.admin.update_consumer_group_timestamp(group, timestamp)

    async def flush_all_buffers(self) -> None:
        """Send what is in all buffers. Raises what the server refused, or BufferNotFlushed."""
        await self._session.buffers.flush_all()

    def get_buffer_stats(self) -> BufferStats:
        return self._session.buffers.stats()

    async def close(self) -> None:
        """Let consumers finish what they have in hand, flush buffers, close the connections.

        In a handler call `stop()` of its consumer instead. Raises what `flush_all_buffers` raises, after closing.
        """
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and session.transport.is_open:
            warnings.warn(f"unclosed client {self!r}", ResourceWarning, source=self, stacklevel=2)
