"""The metric families of groups, and of queues on this server. How many series there are is bounded by a setting."""

from __future__ import annotations

from collections.abc import Mapping

from queenmq.broker.activity import Counts
from queenmq.http.exposition import Exposition
from queenmq.reports.groups import GroupMetrics


def add_groups(page: Exposition, found: list[GroupMetrics], most: int) -> None:
    """Every server says the same. The namespace of the queue lets alerts go to the team whose queue it is."""
    if most:
        left_out = max(0, found[0].groups - len(found)) if found else 0
        page.gauge("queen_groups_left_out", "Groups in queues without metrics, because there are too many.", left_out)
    for one in found:
        who = {"queue": one.queue, "namespace": one.namespace, "group": one.consumer_group}
        page.gauge(
            "queen_group_lag_seconds", "How long the oldest unread message of the group has been due.", one.lag_s, **who
        )
        page.gauge("queen_group_unread_messages", "Stored messages that the group has not finished.", one.unread, **who)
        page.gauge("queen_group_due_messages", "Unread messages that wait only for a consumer.", one.lag, **who)
        page.counter("queen_group_finished_total", "Deliveries that the group has finished.", one.consumed, **who)
        page.gauge("queen_group_leases", "Leases that the group holds.", one.leases, **who)
        page.gauge(
            "queen_group_consumers",
            "Consumers of the group that have popped within two minutes.",
            one.consumers,
            **who,
        )
        page.gauge(
            "queen_group_failing_partitions", "Partitions whose head has failed for the group.", one.failing, **who
        )
        page.gauge("queen_group_dead_letters", "Messages that the group has given up.", one.dead_letters, **who)


def add_queue_counters(page: Exposition, totals: Mapping[str, Counts]) -> None:
    """What this process has done to each queue since its start."""
    for queue, counts in totals.items():
        page.counter(
            "queen_worker_queue_pushed_messages_total",
            "Messages of the queue that this process has pushed.",
            counts.push_messages,
            queue=queue,
        )
        page.counter(
            "queen_worker_queue_popped_messages_total",
            "Messages of the queue that this process has delivered.",
            counts.pop_messages,
            queue=queue,
        )
        for result, count in (("success", counts.ack_success), ("failed", counts.ack_failed)):
            page.counter(
                "queen_worker_queue_acks_total",
                "Acknowledgements of messages of the queue that this process has applied, or refused.",
                count,
                queue=queue,
                result=result,
            )
