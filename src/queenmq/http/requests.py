"""The bodies of requests, as they stand on the wire; the OpenAPI document is made from them.

The type and the numbers are enforced when a body is decoded. What is declared with `documented_as` is enforced by the
routes, with `queenmq.core.names` and `is_uuid`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from queenmq.core.acknowledgement import MAX_ERROR, STATUSES
from queenmq.core.fairness import FairnessPolicy
from queenmq.core.filters import MAX_LENGTH
from queenmq.core.headers import MAX_HEADERS
from queenmq.core.limits import LimitPolicy
from queenmq.core.names import DEFAULT_PARTITION, START_MODES
from queenmq.core.options import MAX_SECONDS, QueueOptions
from queenmq.core.retry_policy import BreakerPolicy, RetryPolicy
from queenmq.http.schemas import (
    NAME_SCHEMA,
    TEXT_SCHEMA,
    Label,
    Moment,
    Name,
    Schema,
    Text,
    Uuid,
    documented_as,
)

MAX_TRACE_NAMES = 100
MAX_ERROR_PART = 1000  # characters of a text that errors are narrowed by
MAX_DELAY_MS = 3660 * 86_400_000
DEFAULT_RENEW_S = 60

Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
ErrorText = Annotated[str, documented_as({"description": f"Cut to {MAX_ERROR} characters."} | TEXT_SCHEMA)]
Status = Annotated[str, documented_as({"enum": sorted(STATUSES)})]
_From = Annotated[str, documented_as({"anyOf": [{"const": "now"}, {"format": "date-time"}, {"maxLength": 0}]})]
_HEADER_NAMES: Schema = {"propertyNames": NAME_SCHEMA, "maxProperties": MAX_HEADERS}
Headers = Annotated[dict[str, Text], documented_as(_HEADER_NAMES)]


class ConfigureBody(Struct, kw_only=True):
    queue: Name
    namespace: Label | None = None
    task: Label | None = None
    options: QueueOptions | None = None
    mode: Annotated[
        Literal["merge", "replace"],
        Meta(description="`replace`: options that are left out return to their defaults."),
    ] = "merge"


class PushItem(Struct, kw_only=True, rename="camel"):
    queue: Name
    partition: Name = DEFAULT_PARTITION
    payload: Raw | UnsetType = UNSET
    data: Annotated[Raw, Meta(description="Refused without `payload`: that is the content.")] | UnsetType = UNSET
    transaction_id: Name | UnsetType = UNSET
    trace_id: Annotated[str, documented_as({"description": "Dropped if it is no UUID."})] | UnsetType = UNSET
    headers: Headers | None = None
    delay: Annotated[float, Meta(ge=0, le=MAX_DELAY_MS / 1000, description="Seconds to wait.")] | UnsetType = UNSET
    deliver_at: Annotated[Moment, Meta(description="Push it at this moment.")] | UnsetType = UNSET
    fairness_key: Annotated[str, Meta(description="Refused: keys are made of names of partitions.")] | UnsetType = UNSET


class Expectation(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The last offset that a partition must have, to which the same request pushes; 0 if it must be new."""

    queue: Name
    partition: Name = DEFAULT_PARTITION
    last_offset: Count


class PushBody(Struct):
    """With `expect`, all items are stored if every partition in it has the last offset that it says, and none else."""

    items: list[PushItem]
    expect: list[Expectation] | None = None


class AckBody(Struct, kw_only=True, rename="camel"):
    transaction_id: Name
    partition_id: Uuid
    status: str | None = None
    consumer_group: Label | None = None
    lease_id: str | None = None
    error: ErrorText | None = None


class AckBatchItem(Struct, kw_only=True, rename="camel"):
    transaction_id: Name
    partition_id: Uuid
    status: str | None = None
    lease_id: str | None = None
    error: ErrorText | None = None


class AckBatchBody(Struct, kw_only=True, rename="camel"):
    acknowledgments: list[AckBatchItem]
    consumer_group: Label | None = None


class Operation(Struct, kw_only=True, rename="camel"):
    """One operation of a transaction; which fields it needs depends on its type."""

    type: str
    items: list[PushItem] | None = None
    transaction_id: Name | None = None
    partition_id: Uuid | None = None
    status: str | None = None
    consumer_group: Label | None = None
    lease_id: str | None = None
    error: ErrorText | None = None


_STRING = {"type": "string"}
_BY_TYPE: Schema = {
    "anyOf": [
        {"properties": {"type": {"const": "push"}, "items": {"type": "array"}}, "required": ["items"]},
        {
            "properties": {"type": {"const": "ack"}, "transactionId": _STRING, "partitionId": _STRING},
            "required": ["transactionId", "partitionId"],
        },
        {"properties": {"type": {"not": {"enum": ["push", "ack"]}}}, "description": "Refused with success: false."},
    ]
}


_Whole = Annotated[int, Meta(ge=-(10**18), le=10**18)]


class KeyOperation(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`put` and `putIfAbsent` store `value`, `incr` adds `delta` to a whole number within `min` and `max`, each with
    `ttlSeconds` or `forever`. `expect` is the version that the key must have, 0 if it must not exist. If what is
    `required` is not applied, nothing of the request is."""

    op: Literal["put", "putIfAbsent", "incr", "delete", "check", "get", "getMany", "getPrefix"]
    ns: Name
    key: Name | None = None
    value: Raw | UnsetType = UNSET
    ttl_seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] | None = None
    forever: bool = False
    expect: Count | None = None
    required: bool = False
    delta: _Whole = 1
    min: _Whole | None = None
    max: _Whole | None = None
    keys: list[Name] | None = None
    prefix: Text | None = None
    after: Text | None = None
    limit: Count | None = None
    keys_only: bool = False


class KeysBody(Struct):
    operations: list[KeyOperation]


class LockBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`acquire` and `renew` need `ttlSeconds`, `renew` and `release` the `token` and `slot` of the permit. Who acquires
    without an `owner` is given a new one, so a repetition is somebody else."""

    op: Literal["acquire", "renew", "release", "get"]
    name: Annotated[str, documented_as(NAME_SCHEMA | {"maxLength": 250})]
    owner: Name | None = None
    ttl_seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1
    slot: Annotated[int, Meta(ge=0, le=999)] = 0
    token: Count | None = None


class LocksBody(Struct):
    operations: list[LockBody]


class TimerOperation(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`schedule` and `reschedule` make a timer or replace the one of that key: with `delayMs`, `deliverAt` or
    `schedule`, and with its payload as JSON in `data`, or as the Base64 of it in `payload`."""

    op: Literal["schedule", "reschedule", "cancel"]
    queue: Name
    timer_key: Name
    partition: Name = DEFAULT_PARTITION
    data: Raw | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_zstd: bool = False
    delay_ms: Annotated[int, Meta(ge=-MAX_DELAY_MS, le=MAX_DELAY_MS)] | UnsetType = UNSET
    deliver_at: Moment | UnsetType = UNSET
    schedule: Text | UnsetType = UNSET
    time_zone: Text | UnsetType = UNSET
    txn: Name | UnsetType = UNSET
    headers: Headers | None = None


class TransactionBody(Struct, kw_only=True, rename="camel"):
    """`kv` has changes of keys, which are conditions of the whole if they are `required`."""

    operations: Annotated[list[Annotated[Operation, documented_as(_BY_TYPE)]], documented_as({"minItems": 1})]
    required_leases: list[str] | None = None
    expect: Annotated[list[Expectation], Meta(description="As in a push.")] | None = None
    kv: list[KeyOperation] | None = None
    timers: list[TimerOperation] | None = None


class ExtendBody(Struct):
    seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] | None = None


class ExceptedBody(Struct, kw_only=True, rename="camel"):
    transaction_id: Name
    status: Status
    partition_id: Uuid | None = None
    error: ErrorText | None = None


class TakeBody(Struct, kw_only=True, rename="camel"):
    """The parameters of a pop."""

    queue: Name
    partition: Name | None = None
    consumer_group: Label | None = None
    batch: Integer | None = None
    partitions: Integer | None = None
    wait: bool = False
    timeout: Count | None = None
    auto_ack: bool = False
    subscription_mode: Annotated[str, documented_as({"enum": sorted(START_MODES)})] | None = None
    subscription_from: _From | None = None
    if_finished: Annotated[bool, documented_as({"description": "Take nothing if the lease is not finished."})] = False


class Finishing(Struct, kw_only=True, rename="camel"):
    """What is said of the messages of a lease."""

    status: Status | None = None
    error: ErrorText | None = None
    excepted: list[ExceptedBody] = field(name="except", default_factory=list)


class FinishBody(Finishing, kw_only=True, rename="camel"):
    take: TakeBody | None = None


class FinishedLease(Finishing, kw_only=True, rename="camel"):
    lease_id: Text


class RenewedLease(Struct, kw_only=True, rename="camel"):
    lease_id: Text
    seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = DEFAULT_RENEW_S


class ConsumerFrame(Struct, kw_only=True, rename="camel"):
    """What a client sends on a consumer connection. With `stop` it wants nothing more to be delivered."""

    finish: list[FinishedLease] = []
    renew: list[RenewedLease] = []
    stop: bool = False
    batch: Count = 0  # what the next batches may have; 0 changes nothing
    partitions: Count = 0


class TraceBody(Struct, kw_only=True, rename="camel"):
    transaction_id: Name
    partition_id: Uuid
    data: Raw
    consumer_group: Label | None = None
    event_type: Label | None = None
    trace_names: Name | Annotated[list[Name], Meta(max_length=MAX_TRACE_NAMES)] | None = None


class SubscriptionBody(Struct, kw_only=True, rename="camel"):
    subscription_timestamp: Moment


class RedriveBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Which dead letters of a queue, each field if given: of partitions of a name and of a group; with a text in the
    `error`, in any case; with errors of a `fingerprint`; that failed between `from` and `to`, with both."""

    queue: Name
    partition: Name | None = None
    consumer_group: Name | None = None
    error: Annotated[str, documented_as({"minLength": 1, "maxLength": MAX_ERROR_PART} | TEXT_SCHEMA)] | None = None
    fingerprint: Name | None = None
    since: Moment | None = field(default=None, name="from")
    until: Moment | None = field(default=None, name="to")


class SeekBody(Struct, kw_only=True, rename="camel"):
    to_end: bool | None = None
    timestamp: Moment | None = None


_SOMEWHERE: Schema = {
    "anyOf": [
        {"properties": {"toEnd": {"const": True}}, "required": ["toEnd"]},
        {"properties": {"timestamp": _STRING}, "required": ["timestamp"]},
    ]
}
SeekRequest = Annotated[SeekBody, documented_as(_SOMEWHERE)]


class SwitchBody(Struct):
    enabled: bool


class NotifyBody(Struct):
    queue: Name
    partition: Name | UnsetType = UNSET


class TimersBody(Struct):
    operations: list[TimerOperation]


class FetchEntry(Struct, kw_only=True, rename="camel"):
    """From `offset`, or from the first message at or after `since`; without both, or with 0, from the beginning."""

    queue: Name
    partition: Name = DEFAULT_PARTITION
    offset: Count | None = None
    since: Moment | None = None
    limit: Annotated[Count, Meta(description="Most messages; cut to the server's limit.")] | None = None
    max_bytes: Annotated[Count, Meta(description="Most bytes of payload; one message comes in any case.")] | None = None


class FetchBody(Struct, kw_only=True, rename="camel"):
    entries: list[FetchEntry]
    max_bytes: Annotated[Count, Meta(description="Most bytes of payload of all entries together.")] | None = None


class ResumeBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A queue; with `consumerGroup`, only for that group; with `partition`, only that one for the group."""

    queue: Name
    consumer_group: Name | None = None
    partition: Name | None = None


class FilterBody(Struct, forbid_unknown_fields=True):
    """An expression over `headers.NAME` and `payload.NAME`; null removes the filter."""

    filter: Annotated[str, documented_as({"maxLength": MAX_LENGTH} | TEXT_SCHEMA)] | None


class PauseBody(ResumeBody, kw_only=True):
    reason: Text | None = None


class PolicyBody(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Of a queue; with `consumerGroup`, of that group in it. A part that is left out stays as it is, and null takes it
    back. A group goes by its own part, or by that of its queue; by the limits of both."""

    queue: Name
    consumer_group: Name | None = None
    retry: RetryPolicy | UnsetType | None = UNSET
    breaker: BreakerPolicy | UnsetType | None = UNSET
    limits: LimitPolicy | UnsetType | None = UNSET
    fairness: FairnessPolicy | UnsetType | None = UNSET
