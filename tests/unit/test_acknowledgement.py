"""Which acknowledgement requests may share a call."""

from __future__ import annotations

from queenmq.broker.ack import AckAdmission, AckRequest
from queenmq.core.acknowledgement import Acknowledgement


def ack(partition: str, status: str = "completed", group: str = "g") -> AckRequest:
    return AckRequest([Acknowledgement(partition, "t", group, None, status, None)])


def test_completing_requests_of_one_lane_share_a_call() -> None:
    merged = AckAdmission()
    assert merged.admit(ack("p"))
    assert merged.admit(ack("p"))


def test_a_failure_is_decided_alone_in_its_position() -> None:
    merged = AckAdmission()
    assert merged.admit(ack("p", "failed"))
    assert not merged.admit(ack("p"))
    assert merged.admit(ack("other"))


def test_a_failure_does_not_join_what_completes_in_its_position() -> None:
    merged = AckAdmission()
    assert merged.admit(ack("p"))
    assert not merged.admit(ack("p", "failed"))


def test_whoever_waits_keeps_its_lane_in_order() -> None:
    merged = AckAdmission()
    assert merged.admit(ack("p"))
    assert not merged.admit(ack("p", "failed"))
    assert not merged.admit(ack("p")), "it would overtake the failure"


def test_groups_are_lanes_of_their_own() -> None:
    merged = AckAdmission()
    assert merged.admit(ack("p", "failed"))
    assert merged.admit(ack("p", "failed", "another group"))
