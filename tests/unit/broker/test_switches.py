"""The switches: the newest version wins, the database has the last word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queenmq.broker.switches import Switches
from queenmq.core.maintenance import Switch


def test_the_switches_are_independent() -> None:
    switches = Switches()
    assert switches.receive(Switch.PUSH, True, 1, 0)
    assert (switches.is_on(Switch.PUSH), switches.is_on(Switch.POP)) == (True, False)


@given(st.permutations([(1, True), (2, False), (3, True), (4, False)]))
def test_every_order_ends_the_same(order: list[tuple[int, bool]]) -> None:
    switches = Switches()
    for version, on in order:
        switches.receive(Switch.POP, on, version, 0)
    assert not switches.is_on(Switch.POP)


def test_a_lie_lasts_until_the_refresh() -> None:
    switches = Switches()
    switches.receive(Switch.PUSH, True, 2**62, 0)
    assert switches.refreshed(Switch.PUSH, False, 3, read_started_at=1, now=2)
    assert switches.receive(Switch.PUSH, True, 4, 3)


def test_what_was_heard_since_the_reading_began_stays() -> None:
    switches = Switches()
    switches.receive(Switch.PUSH, True, 5, 1.5)
    assert not switches.refreshed(Switch.PUSH, False, 4, read_started_at=1, now=2)
    assert switches.is_on(Switch.PUSH)


def test_nothing_is_allowed_before_the_switches_were_read() -> None:
    switches = Switches()
    switches.receive(Switch.PUSH, False, 1, 0)
    assert (switches.pushes_allowed, switches.pops_allowed) == (False, False)
    switches.refreshed(Switch.POP, True, 2, 1, 2)
    switches.all_read()
    assert (switches.pushes_allowed, switches.pops_allowed) == (True, False)
    switches.receive(Switch.POP, False, 3, 3)
    assert switches.pops_allowed
