"""The sentences of explain are grammatical for one message and for several."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queenmq.core.explanation import HeldBack, Options, PositionState, Verdict, given_up, held_back, judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
OPTIONS = Options(lease_s=60, retry_limit=3, delay_s=0, window_s=0, ttl_s=9)


def verdict(**fields: Any) -> Verdict:
    nothing: dict[str, Any] = dict.fromkeys(
        ("lease_id", "lease_expires_at", "retry_at", "ready_at", "next_created_at", "last_message_at")
    )
    counts = dict.fromkeys(("unread", "ready", "attempts", "leased"), 0)
    return judge(PositionState(now=NOW, **(nothing | counts | fields)), OPTIONS)


def sentence(**fields: Any) -> str:
    return verdict(**fields).sentence


def test_what_a_pop_gets_is_ready_or_failing() -> None:
    there: dict[str, Any] = {"unread": 1, "ready": 1, "next_created_at": NOW, "ready_at": NOW}
    assert (verdict(**there).state, verdict(**there, attempts=1).state) == ("Ready", "Failing")
    assert verdict(**there, attempts=1, retry_at=LATER).state == "Retrying"
    assert verdict(**there, attempts=1, lease_id="a", lease_expires_at=LATER).state == "Leased"


@pytest.mark.parametrize(
    ("count", "leased", "expired", "unread"),
    [
        (1, "1 message that is not", "1 message expired unread and is not", "1 message is unread"),
        (2, "2 messages that are not", "2 messages expired unread and are not", "2 messages are unread"),
    ],
)
def test_verbs_agree_with_the_number_of_messages(count: int, leased: str, expired: str, unread: str) -> None:
    assert f"Lease a holds {leased} acknowledged yet;" in sentence(
        lease_id="a", lease_expires_at=LATER, leased=count, unread=count
    )
    assert sentence(expired=count).startswith(f"{expired} delivered any more: older than the ttl of the queue, 9 s.")
    assert sentence(unread=count, next_created_at=NOW).startswith(f"{unread}, but pops do not find this partition")


def test_one_of_something_has_no_oldest() -> None:
    assert "1 push, which failed: why" in held_back(HeldBack(operations=1, error="why")).sentence
    assert "2 pushes, of which the oldest failed: why" in held_back(HeldBack(operations=2, error="why")).sentence
    assert given_up(1).sentence.endswith("1 message became a dead letter.")
    assert given_up(2).sentence.endswith("2 messages became dead letters.")
