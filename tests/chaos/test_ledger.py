"""The ledger of the mixed chaos notices what it is there for: each check fails once."""

from __future__ import annotations

import time
from typing import Any

from chaos.mixed_load import BURST, LIMITED, RATE, WITH_BREAKER, Breaker, Delivery, Ledger, Pause
from chaos.test_mixed import RATED_S, of_rate

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
    # As much as there can have been, from a full bucket; then one second of it at once, and one message too many.
    allowed = [Delivery(0, 0.1, BURST), *(Delivery(n / 10, n / 10 + 0.1, RATE // 10) for n in range(1, 50))]
    assert of_rate(allowed) == []
    assert of_rate([*allowed, Delivery(3, 3.01, RATE)]) != []
    assert of_rate([Delivery(0, 0, BURST + 2)]) != []
    # Asked for long before: nobody knows when it was taken.
    assert of_rate([*allowed, Delivery(3 - RATED_S, 3.01, RATE // 2)]) == []


def test_what_is_rated() -> None:
    ledger = Ledger()
    queue, group = LIMITED
    ledger.deliver(group, queue, [message(queue)], asked=1)
    ledger.deliver(group, "other", [message("other")], asked=1)
    assert [delivery.messages for delivery in ledger.limited] == [1]
