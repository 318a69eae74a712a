"""What comes out: messages and results, as they stand on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from msgspec import Raw, Struct, field

from queenmq.client.own_transaction import OwnTransaction
from queenmq.client.payload import (
    Content,
    T,
    decode,
    decode_as,
    decode_content,
    described,
)

DEFAULT_PARTITION = "Default"

Json = dict[str, Any]


class _Payload(Struct, kw_only=True, rename="camel", dict=True):
    raw: Raw = field(name="data", default_factory=lambda: Raw(b"null"))
    """The payload as JSON, byte for byte as it was pushed."""
    headers: dict[str, str] = {}

    @cached_property
    def data(self) -> Any:
        """The payload as a Python value, parsed when it is first asked for."""
        return decode(self.raw)

    def decode(self, kind: type[T]) -> T:
        """The payload as a dataclass, a model of msgspec or pydantic, or any other type that msgspec knows.

        Raises InvalidPayload if it is none. Fields that the type does not have are passed over.
        """
        return decode_as(self.raw, kind)

    @property
    def content(self) -> Content | None:
        """The bytes with their content type, if the message was pushed as `Content`. Raises InvalidPayload."""
        return decode_content(self.raw, self.headers)

    __repr__ = described


class Message(_Payload, kw_only=True, rename="camel", dict=True):
    """A message that was popped. `lease_id` is empty if it was consumed at delivery."""

    id: str
    transaction_id: str
    partition_id: str
    partition: str = DEFAULT_PARTITION
    offset: int | None = None
    queue: str = ""
    consumer_group: str = ""
    lease_id: str = ""
    trace_id: str | None = None
    producer_sub: str | None = None
    created_at: str = ""
    retry_count: int = 0
    traceparent: str | None = None

    def transaction(self, connection: Any) -> OwnTransaction:
        """A transaction of your own database, where Queen has its schema, too: what you write in it and the
        acknowledgement of this message are one commit. Consume with `auto_ack(False)`.

        >>> async with message.transaction(connection):  # doctest: +SKIP
        ...     await connection.execute("UPDATE orders SET state = 'billed' WHERE id = $1", message.data["order"])
        """
        return OwnTransaction(connection, [(self.lease_id, self.id)])


class StoredMessage(_Payload, kw_only=True, rename="camel", dict=True):
    """A message as it is stored, read without a group: it has no lease and no state."""

    offset: int
    id: str
    transaction_id: str
    raw: Raw = field(name="payload")
    created_at: str = field(name="ts")
    trace_id: str | None = None
    producer_sub: str | None = None


class DeadLetter(_Payload, kw_only=True, rename="camel", dict=True):
    """A message that failed too often."""

    id: str
    transaction_id: str
    partition_id: str
    partition: str
    queue: str
    consumer_group: str
    error_message: str | None = None
    retry_count: int = 0
    undecryptable: bool = False
    producer_sub: str | None = None
    created_at: str = ""
    failed_at: str = ""


class DeadLetters(Struct):
    """A page of dead letters, newest failure first; `total` counts all that match."""

    messages: list[DeadLetter]
    total: int = 0

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class PopAnswer(Struct):
    messages: list[Message | None] = []


class PushResult(Struct, kw_only=True, rename="camel"):
    """What became of one item.

    | status | meaning |
    |---|---|
    | `queued` | stored in PostgreSQL |
    | `duplicate` | was stored before, under the same transactionId; `message_id` is the stored one |
    | `accepted` | durable in the server's operation queue; the operation `operation_id` has its result later |
    | `buffered` | durable in the server's journal; `operation_id` as above |
    | `failed` | refused; `error` says why |
    | `scheduled` | a timer is stored, which becomes the message at `deliver_at`; `cancel(timer_key)` ends it |
    | `pending` | still in the buffer of this client |
    """

    status: str
    index: int = 0
    transaction_id: str = ""
    message_id: str | None = None
    partition_id: str | None = None
    offset: int | None = None  # of the message that is stored, in its partition
    queue: str = field(name="queueName", default="")
    partition: str = ""
    trace_id: str | None = field(name="trace_id", default=None)
    error: str | None = None
    operation_id: str | None = None
    queue_position: int | None = None
    estimated_wait: float | str | None = None
    reason: str | None = None
    timer_key: str | None = None
    deliver_at: str | None = None

    @property
    def stored(self) -> bool:
        """Whether the message is committed in PostgreSQL."""
        return self.status in ("queued", "duplicate")


class Accepted(Struct, kw_only=True, rename="camel"):
    """A 202: the server has put the request into its operation queue, on disk, and will carry it out in order."""

    operation_id: str
    status: str = "queued"
    queue_position: int | None = None
    estimated_wait: float | str | None = None
    reason: str | None = None


class PushResults(list[PushResult]):
    """One result per item, in order."""

    @property
    def operations(self) -> list[str]:
        """The ids of the operations that will store what was accepted for later (202); mostly none."""
        return list(dict.fromkeys(result.operation_id for result in self if result.operation_id))

    @property
    def stored(self) -> bool:
        """Whether every message is committed in PostgreSQL."""
        return all(result.stored for result in self)

    def with_status(self, status: str) -> list[PushResult]:
        return [result for result in self if result.status == status]


class AckResult(Struct, kw_only=True, rename="camel"):
    """What an acknowledgement did. Refused ones have `success` False and an `error`.

    `uncertain`: an earlier attempt got no answer, so this refusal may be that of a repetition of what was applied.
    """

    success: bool
    transaction_id: str = ""
    error: str | None = None
    queue: str | None = field(name="queueName", default=None)
    partition: str | None = field(name="partitionName", default=None)
    lease_released: bool = False
    dlq: bool = False
    uncertain: bool = False
    operation_id: str | None = None


class ExceptedResult(Struct, kw_only=True):
    """What became of what was said of one message of a lease."""

    index: int
    error: str | None = None
    dlq: bool = False


class FinishResult(Struct, kw_only=True, rename="camel"):
    """Whether a lease was finished, and how many messages that was about; of them `dlq` are dead letters now.

    `uncertain`: an earlier attempt got no answer, so this refusal may be that of a repetition of what was applied.
    """

    lease_id: str
    success: bool
    error: str | None = None
    code: str = ""
    messages: int = 0
    dlq: int = 0
    uncertain: bool = False
    excepted: list[ExceptedResult] = field(name="except", default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the lease has ended; else it is as it was, and may be finished again."""
        return self.success or self.code in ("", "lease_not_found")


class TakeResult(FinishResult, kw_only=True, rename="camel"):
    """The same with the messages that were popped after it. `take_error` says why there could be none."""

    taken: PopAnswer | None = None
    take_error: str | None = None


class RenewResult(Struct, kw_only=True, rename="camel"):
    """Whether a lease was extended, and until when it lives now."""

    lease_id: str
    success: bool
    new_expires_at: str | None = None
    error: str | None = None


class TransactionStep(Struct, kw_only=True, rename="camel"):
    type: str
    success: bool
    index: int = 0
    transaction_id: str = ""
    message_id: str | None = None
    partition_id: str | None = None
    queue: str | None = field(name="queueName", default=None)
    error: str | None = None
    dlq: bool = False


class OffsetFound(Struct):
    """The last offset that a partition has, where another one was expected."""

    queue: str
    partition: str
    expected: int
    actual: int


class TransactionResult(Struct, kw_only=True, rename="camel"):
    """One result per pushed item and per ack, in order.

    `repeated`: the answer was lost, and a repetition showed that everything had been applied; then `results` is empty.
    `kv` is empty, too, if only the server lost an answer, that of its database.
    """

    success: bool
    transaction_id: str = ""
    error: str | None = None
    conflicts: list[OffsetFound] = []
    results: list[TransactionStep] = []
    reason: str | None = None
    kv: list[Json] = []
    repeated: bool = False


class TraceResult(Struct, kw_only=True, rename="camel"):
    """Tracing never raises: a trace that could not be left has `success` False and an `error`."""

    success: bool
    trace_id: str | None = None
    error: str | None = None


class BufferStats(Struct, kw_only=True):
    """What is in the buffers of this client. `oldest_age_s` is how long its oldest message has been waiting."""

    active_buffers: int
    buffered_messages: int
    oldest_age_s: float


class Operation(Struct, kw_only=True, rename="camel"):
    """An operation as the server reports it. `result` is set once it is completed."""

    status: str
    operation_id: str = ""
    id: str = ""
    result: Raw = field(default_factory=lambda: Raw(b"null"))
    error: str | None = None
    error_message: str | None = None
    last_error: str | None = None

    @property
    def done(self) -> bool:
        """Nothing more happens to it by itself."""
        return self.status in ("completed", "blocked", "failed", "cancelled", "canceled")

    @property
    def why(self) -> str:
        return self.error or self.error_message or self.last_error or f"the operation is {self.status}"
