"""What goes in and what comes out: items, messages and results, as they stand on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec import UNSET as _UNSET
from msgspec import Raw, Struct, UnsetType, field

from queenmq.client.errors import InvalidItem
from queenmq.client.own_transaction import OwnTransaction
from queenmq.client.payload import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    Content,
    Payload,
    T,
    decode,
    decode_as,
    decode_content,
    described,
    encode,
    encode_content,
)
from queenmq.ids import is_uuid, uuid7_text

DEFAULT_PARTITION = "Default"
_BODY = frozenset({"data", "payload"})
_KEYS = frozenset({"transactionId", "transaction_id", "traceId", "trace_id"})
# What a dict may have beside `data` if it could be meant as a message with properties rather than as a payload.
_PROPERTIES = _KEYS | {"headers", "delay", "priority", "partition", "queue"}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """A message to push, when it needs more than its payload. Raises InvalidItem if `trace_id` is no UUID.

    >>> Item({"order": 17}, transaction_id="order-17")
    Item(data={'order': 17}, transaction_id='order-17', trace_id=None, headers=None)
    """

    data: Payload
    transaction_id: str | None = None
    trace_id: str | None = None
    headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        # The server stores no other trace ids: it would drop this one.
        if self.trace_id is not None and not (isinstance(self.trace_id, str) and is_uuid(self.trace_id)):
            raise InvalidItem(f"the trace id of a message must be a UUID, not {self.trace_id!r}")


class PushItem(Struct, kw_only=True, rename="camel", omit_defaults=True):
    """An item as it is sent. Made once and sent as often as it takes: always with the same transactionId."""

    queue: str
    partition: str
    payload: Raw
    transaction_id: str
    trace_id: str | UnsetType = _UNSET
    headers: Mapping[str, str] | UnsetType = _UNSET


def to_push_items(given: Any, queue: str, partition: str) -> list[PushItem]:
    """What `push` accepts, as items of the wire: one or a list, each an Item, a dict with `data`, or a bare payload."""
    return [to_push_item(item, queue, partition) for item in to_items(given)]


def to_items(given: Any) -> list[Item]:
    return [_to_item(one) for one in (given if isinstance(given, (list, tuple)) else [given])]


def _to_item(given: Any) -> Item:
    """Raises InvalidItem if it may be meant as a payload or as a message: either guess would change somebody's data."""
    if isinstance(given, Item):
        return given
    if not isinstance(given, Mapping) or given.keys().isdisjoint(_BODY) or not given.keys() <= _BODY | _PROPERTIES:
        return Item(given)
    if len(given.keys() & _BODY) == 1 and given.keys() & _KEYS and given.keys() <= _BODY | _KEYS | {"headers"}:
        return Item(
            given["data"] if "data" in given else given["payload"],
            given.get("transactionId", given.get("transaction_id")),
            given.get("traceId", given.get("trace_id")),
            given.get("headers"),
        )
    names = ", ".join(sorted(given))
    raise InvalidItem(
        f"a dict with just {names} may be a payload or a message: push Item({{...}}) to store the whole dict, "
        "or Item(data, transaction_id=..., trace_id=...) to store only its data"
    )


def to_push_item(item: Item, queue: str, partition: str) -> PushItem:
    payload, headers = _wire(item)
    return PushItem(
        queue=queue,
        partition=partition,
        payload=payload,
        transaction_id=uuid7_text() if item.transaction_id is None else item.transaction_id,
        trace_id=_UNSET if item.trace_id is None else item.trace_id,
        headers=headers or _UNSET,
    )


def _wire(item: Item) -> tuple[Raw, Mapping[str, str] | None]:
    """The payload as JSON, and the headers. Raises InvalidItem if headers would say something else of content."""
    if not isinstance(item.data, Content):
        return encode(item.data), item.headers
    payload, headers = encode_content(item.data)
    given = item.headers or {}
    if any(name.lower() in (CONTENT_TYPE, CONTENT_ENCODING) for name in given):
        raise InvalidItem(f"Content has {CONTENT_TYPE} and {CONTENT_ENCODING} already; leave these headers out")
    return payload, headers | dict(given)


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
    | `scheduled` | a timer is stored, which becomes the message later |
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


class FinishResult(Struct, kw_only=True, rename="camel"):
    """Whether a lease was finished, and how many messages that was about; of them `dlq` are dead letters now.

    `uncertain`: an earlier attempt got no answer, so this refusal may be that of a repetition of what was applied.
    """

    lease_id: str
    success: bool
    error: str | None = None
    messages: int = 0
    dlq: int = 0
    uncertain: bool = False


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
