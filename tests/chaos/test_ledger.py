"""The ledger of the mixed chaos notices what it is there for: each check fails once."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from chaos.mixed_load import BUCKETS, SHARED, SHARER, WITH_BREAKER, Breaker, Ledger, Pause
from chaos.mixed_rates import RATED_S, Bucket, Delivery, too_many
from chaos.mixed_shares import unfair

Json = dict[str, Any]


def message(queue: str, partition: str = "0:0") -> Json:
    return {"queue": queue, "partition": partition, "partitionId": partition, "transactionId": "1:1"}


def test_what_an_open_breaker_lets_through() -> None:
    queue, group = WITH_BREAKER
    now = time.monotonic()
    ledger = Ledger(breaker=Breaker(since=now - 2, until=now + 60))
    ledger.deliver(group, queue, [message(queue)], asked=now - 3)  # it was not seen open then
    ledger.deliver("other", queue, [message(queue)], asked=now)
    ledger.deliver(group, queue, [], asked=now)
    assert (ledger.violations, ledger.controlled["breaker"]) == ([], 1)
    ledger.deliver(group, queue, [message(queue)], asked=now, by="connection")
    assert ledger.violations == [f"{group} got 1 of {queue} by connection while its breaker was open"]


def test_a_breaker_that_was_open_lets_the_next_batch_through() -> None:
    queue, group = WITH_BREAKER
    now = time.monotonic()
    ledger = Ledger(breaker=Breaker(since=now - 2, until=now - 1))
    ledger.deliver(group, queue, [message(queue)], asked=now - 1.5)
    assert ledger.violations == []


def test_what_a_pause_lets_through() -> None:
    now = time.monotonic()
    ledger = Ledger(paused=Pause("q", "g", "0:1", since=now - 1))
    ledger.deliver("g", "q", [message("q", "0:1")], asked=now - 2)
    ledger.deliver("g", "q", [message("q", "0:2")], asked=now, by="connection")
    assert (ledger.violations, ledger.controlled["pause, connection"]) == ([], 1)
    ledger.deliver("g", "q", [message("q", "0:1")], asked=now, by="connection")
    assert len(ledger.violations) == 1


def test_more_than_the_rate() -> None:
    bucket = Bucket("rate", "q", "g", False, 150, 15)
    # As much as there can have been, from a full bucket; then one second of it at once, and one message too many.
    allowed = [Delivery(0, 0.1, bucket.burst), *(Delivery(n / 10, n / 10 + 0.1, 15) for n in range(1, 50))]
    assert too_many(bucket, allowed) == ""
    assert too_many(bucket, [*allowed, Delivery(3, 3.01, bucket.rate)]) != ""
    assert too_many(bucket, [Delivery(0, 0, bucket.burst + 2)]) == "17 messages in 0.000 s"
    # Asked for long before: nobody knows when it was taken.
    assert too_many(bucket, [*allowed, Delivery(3 - RATED_S, 3.01, bucket.rate // 2)]) == ""


def test_what_is_rated() -> None:
    of_group, of_queue, of_key = BUCKETS
    ledger = Ledger()
    ledger.deliver(str(of_group.group), of_group.queue, [message(of_group.queue)], 1)
    ledger.deliver("other", of_group.queue, [message(of_group.queue)], 1)
    ledger.deliver("other", of_key.queue, [message(of_key.queue, f"{n % 2}:0") for n in range(3)], 1)
    ledger.deliver("more", of_key.queue, [message(of_key.queue)], 1)
    ledger.deliver("other", "other", [message("other")], 1)
    seen = {rated: [one.messages for one in deliveries] for rated, deliveries in ledger.rates.deliveries.items()}
    assert seen == {(of_group, ""): [1], (of_queue, ""): [3, 1], (of_key, "0"): [2, 1], (of_key, "1"): [1]}
    assert ledger.rates.exceeded() == []
    now = time.monotonic()
    ledger.deliver("other", of_key.queue, [message(of_key.queue, "2:0")] * (of_key.burst + 2), now)
    [found] = ledger.rates.exceeded()
    assert found.startswith(f"more than the rate of a key 2: {of_key.burst + 2} messages in 0.0")


def test_what_is_shared() -> None:
    ledger = Ledger()
    ledger.left.update({(SHARED, "few:0"): 2, (SHARED, "many:0"): 1})
    ledger.deliver(SHARER, SHARED, [message(SHARED, "few:0")], 1)
    ledger.sharing = Counter()
    ledger.deliver(SHARER, SHARED, [message(SHARED, "few:0"), message(SHARED, "many:0")], 1)
    ledger.deliver("other", SHARED, [message(SHARED, "many:0")], 1)
    assert ledger.left == {(SHARED, "few:0"): 1, (SHARED, "many:0"): 0}, "the first comes again"
    assert ledger.sharing == {"few": 1, "many": 1}


@pytest.mark.parametrize(
    ("few", "is_fair"), [(30, False), (60, False), (85, True), (90, True), (95, True), (120, False)]
)
def test_shares(few: int, is_fair: bool) -> None:
    """Of 120: what those with fewer partitions get by age, by turns without weights, and by weight; and all."""
    assert (unfair([Counter(few=90, many=30), Counter(few=few, many=120 - few)]) == []) == is_fair
    assert unfair([]) == ["no shares were counted"]
