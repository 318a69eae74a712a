"""The floor of the outbox: it rises with what was moved, and never above a commit that somebody may still see late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queenmq.core.outbox_floor import OutboxFloor


def test_it_rises_behind_what_was_moved() -> None:
    floor = OutboxFloor()
    for step in range(1, 50):
        floor.moved(step * 10, transaction=100 + step, finished_below=100 + step)
    assert floor.number > 400
    floor.reset()
    assert floor.number == 0


def test_a_transaction_that_stays_open_keeps_it_down() -> None:
    floor = OutboxFloor()
    for step in range(1, 5000):
        floor.moved(step * 10, transaction=100 + step, finished_below=90)
    assert floor.number == 0
    floor.moved(60_000, transaction=6000, finished_below=5999)
    assert 0 < floor.number <= 60_000


# What happens: somebody draws the next number, somebody who has one becomes visible, or a server moves what is visible.
@given(st.lists(st.sampled_from(["draw", "show", "show newest", "abort", "move"]), max_size=200))
def test_no_commit_is_ever_hidden(events: list[str]) -> None:
    floor = OutboxFloor()
    next_xid, next_number = 1000, 1
    drawn: dict[int, int] = {}  # number -> its transaction, which has not ended
    visible: set[int] = set()
    for event in events:
        if event == "draw":
            drawn[next_number] = next_xid
            next_xid, next_number = next_xid + 1, next_number + 1
        elif event in ("show", "show newest", "abort") and drawn:
            number = max(drawn) if event == "show newest" else min(drawn)
            del drawn[number]
            if event != "abort":
                visible.add(number)
        elif event == "move" and visible:
            found = sorted(number for number in visible if number >= floor.number)[:3]
            finished_below = min(drawn.values(), default=next_xid)
            transaction, next_xid = next_xid, next_xid + 1
            visible.difference_update(found)
            floor.moved(found[-1], transaction, finished_below)
        assert all(number >= floor.number for number in visible | drawn.keys())
