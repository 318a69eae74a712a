"""Which acknowledgement requests may share a call, and how a batch is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenmq.broker.ack import AckAdmission, AckRequest
from queenmq.core.acknowledgement import Acknowledgement, Run, runs_of
from queenmq.errors import InvalidRequest
from queenmq.http.requests import AckBatchItem
from queenmq.http.routes.ack import read_ack, read_runs


def ack(partition: str, status: str = "completed", group: str = "g") -> AckRequest:
    return AckRequest([Run(Acknowledgement(partition, "t", group, None, status, None), ["t"])], messages=1)


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


ONE, OTHER = "0198c3c1-0000-7000-8000-00000000000A", "0198c3c1-0000-7000-8000-00000000000b"
ITEMS = st.builds(
    AckBatchItem,
    transaction_id=st.sampled_from(["a", "b", "c", "d", "ä", "x" * 255, "a\x1fb"])
    | st.sampled_from(["", "\0", "\ud800", "x" * 256]),
    partition_id=st.sampled_from([ONE, ONE, OTHER, "no uuid"]),
    status=st.sampled_from([None, "completed", "failed", "unheard of"]),
    lease_id=st.sampled_from([None, "", ONE, "no uuid"]),
    error=st.sampled_from([None, None, "it broke", "\0"]),
)


@given(st.lists(ITEMS, max_size=8) | ITEMS.map(lambda item: [item] * 5))
def test_a_batch_is_read_like_its_items(items: list[AckBatchItem]) -> None:
    def one_by_one() -> list[Run]:
        return runs_of(read_ack(item, "g", f"acknowledgments[{i}].") for i, item in enumerate(items))

    try:
        expected = one_by_one()
    except InvalidRequest as refusal:
        with pytest.raises(InvalidRequest) as caught:
            read_runs(items, "g")
        assert str(caught.value) == str(refusal)
    else:
        assert _said(read_runs(items, "g")) == _said(expected)


def _said(runs: list[Run]) -> list[Acknowledgement]:
    """Of each message. Where runs are cut matters only to their cost."""
    return [
        Acknowledgement(r.first.partition_id, name, r.first.group, r.first.lease_id, r.first.status, r.first.error)
        for r in runs
        for name in r.transactions
    ]


def test_a_batch_that_names_all_messages_of_a_lease_is_one_run() -> None:
    items = [AckBatchItem(transaction_id=f"t{n}", partition_id=ONE, lease_id=OTHER) for n in range(100)]
    [run] = read_runs(items, "g")
    assert run.transactions == [f"t{n}" for n in range(100)]
    assert (run.first.partition_id, run.first.status) == (ONE.lower(), "completed")
