"""The pauses between two tries to store a journalled push."""

from __future__ import annotations

from queenmq.services.journal_replay import pause_after


def test_pauses_grow_to_a_bound_and_stay_there_for_ever() -> None:
    pauses = [pause_after(tries) for tries in (*range(20), 10_000, 10_000_000)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10.0
