"""Bodies of answers about attempts that failed and about consumers, and how they are made of what was read."""

from __future__ import annotations

from msgspec import Struct

from queenmq.core.names import iso_millis, optional_iso_millis
from queenmq.http.schemas import Moment
from queenmq.reports.attempts import Attempt, Consumer, ListedConsumer, Outcome


class ConsumerShown(Struct, kw_only=True):
    """A consumer, as it calls itself: its name, host and process. `address` is where its connection comes from, unless
    another server has forwarded it, `subject` that of its token."""

    name: str | None
    host: str | None
    process: str | None
    address: str | None
    subject: str | None


class AttemptShown(Struct, kw_only=True, rename="camel"):
    """A delivery that failed. `outcome` is what the consumer said (`failed`, `retry`, `dlq`), or `expired`: its lease
    ended without a word. `consumer` is null if it is not known any more."""

    consumer_group: str
    outcome: Outcome
    error: str | None
    leased_at: Moment | None
    ended_at: Moment
    consumer: ConsumerShown | None


class ConsumerListed(ConsumerShown, kw_only=True, rename="camel"):
    """A consumer that has popped not long ago (`lastPopAt`), known since `since`. `leases` counts those that it holds,
    the oldest since `oldestLeaseAt`; `partitions` names ten of them."""

    consumer_group: str
    since: Moment
    last_pop_at: Moment
    leases: int
    oldest_lease_at: Moment | None
    partitions: list[str]


class ConsumersListed(Struct, kw_only=True):
    queue: str
    consumers: list[ConsumerListed]


def consumer_shown(one: Consumer | None) -> ConsumerShown | None:
    if one is None:
        return None
    return ConsumerShown(name=one.name, host=one.host, process=one.process, address=one.address, subject=one.subject)


def attempt_shown(one: Attempt | None) -> AttemptShown | None:
    return None if one is None else _shown(one)


def attempts_shown(some: list[Attempt]) -> list[AttemptShown]:
    return [_shown(one) for one in some]


def _shown(one: Attempt) -> AttemptShown:
    return AttemptShown(
        consumer_group=one.consumer_group,
        outcome=one.outcome,
        error=one.error,
        leased_at=optional_iso_millis(one.leased_at),
        ended_at=iso_millis(one.ended_at),
        consumer=consumer_shown(one.consumer),
    )


def consumer_listed(one: ListedConsumer) -> ConsumerListed:
    return ConsumerListed(
        consumer_group=one.consumer_group,
        name=one.name,
        host=one.host,
        process=one.process,
        address=one.address,
        subject=one.subject,
        since=iso_millis(one.since),
        last_pop_at=iso_millis(one.seen_at),
        leases=one.leases,
        oldest_lease_at=optional_iso_millis(one.oldest),
        partitions=one.partitions,
    )
