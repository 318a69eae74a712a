"""The answers about policies."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from queenmq.core.fairness import FairnessPolicy
from queenmq.core.limits import LimitPolicy
from queenmq.core.retry_policy import BreakerPolicy, RetryPolicy
from queenmq.http.schemas import Moment, Uuid


class PolicySet(Struct, kw_only=True, rename="camel"):
    """The parts that were set. `changed` is false if it was so before."""

    queue: str
    consumer_group: str | None
    retry: RetryPolicy | UnsetType | None = UNSET
    breaker: BreakerPolicy | UnsetType | None = UNSET
    limits: LimitPolicy | UnsetType | None = UNSET
    fairness: FairnessPolicy | UnsetType | None = UNSET
    changed: bool


class PolicyListed(Struct, kw_only=True, rename="camel"):
    """Without a group, for all groups that have none of their own; the limits are for all groups together."""

    queue: str
    consumer_group: str | None
    changed_at: Moment
    changed_by: str | None
    retry: RetryPolicy | None
    breaker: BreakerPolicy | None
    limits: LimitPolicy | None
    fairness: FairnessPolicy | None


class PoliciesListed(Struct):
    policies: list[PolicyListed]


class SkippedShown(Struct, kw_only=True, rename="camel"):
    """It is delivered again at `until`. `parked`: it is not, and everything behind it waits, until it is retried, made
    a dead letter or deleted."""

    partition: str
    partition_id: Uuid
    consumer_group: str
    offset: int
    transaction_id: str
    created_at: Moment
    until: Moment | None
    parked: bool
    retry_count: int


class SkippedListed(Struct):
    messages: list[SkippedShown]
