"""What is pushed: messages as programs give them, and as they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET as _UNSET
from msgspec import Raw, Struct, UnsetType

from queenmq.client.errors import InvalidItem
from queenmq.client.options import timestamp
from queenmq.client.payload import CONTENT_ENCODING, CONTENT_TYPE, Content, Payload, encode, encode_content
from queenmq.ids import is_uuid, uuid7_text

_BODY = frozenset({"data", "payload"})
_KEYS = frozenset({"transactionId", "transaction_id", "traceId", "trace_id"})
# What a dict may have beside `data` if it could be meant as a message with properties rather than as a payload.
_PROPERTIES = _KEYS | {"headers", "delay", "priority", "partition", "queue"}


@dataclass(frozen=True, slots=True)
class Item:
    """A message to push, when it needs more than its payload. Raises InvalidItem if `trace_id` is no UUID.

    With `delay` (seconds) or `at` a timer is stored, which becomes the message then; a transaction takes none of these.

    >>> Item({"order": 17}, transaction_id="order-17").transaction_id
    'order-17'
    """

    data: Payload
    transaction_id: str | None = None
    trace_id: str | None = None
    headers: Mapping[str, str] | None = None
    delay: timedelta | float | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        if self.delay is not None and self.at is not None:
            raise InvalidItem("a message is pushed after a delay or at a moment, not both")
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
    delay: float | UnsetType = _UNSET
    deliver_at: str | UnsetType = _UNSET


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
        delay=_UNSET if item.delay is None else _seconds(item.delay),
        deliver_at=_UNSET if item.at is None else timestamp(item.at, "at"),
    )


def _seconds(delay: timedelta | float) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def _wire(item: Item) -> tuple[Raw, Mapping[str, str] | None]:
    """The payload as JSON, and the headers. Raises InvalidItem if headers would say something else of content."""
    if not isinstance(item.data, Content):
        return encode(item.data), item.headers
    payload, headers = encode_content(item.data)
    given = item.headers or {}
    if any(name.lower() in (CONTENT_TYPE, CONTENT_ENCODING) for name in given):
        raise InvalidItem(f"Content has {CONTENT_TYPE} and {CONTENT_ENCODING} already; leave these headers out")
    return payload, headers | dict(given)
