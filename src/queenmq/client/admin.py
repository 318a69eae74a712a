"""Administration and listings: one method for each call of the HTTP API, which returns plain dicts and lists.

`answers` has their types, which are those of the server's `/openapi.json`. A call that the server does not have raises
NotFound. Both twins have the same methods; which one is asked decides what comes back (see `Answer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from queenmq.client.answered import Answer, call
from queenmq.client.system import SystemCalls

if TYPE_CHECKING:
    from queenmq.client import answers

_V1 = ("api", "v1")


class Administration(SystemCalls):
    """What both twins can be asked; `Admin` and `BlockingAdmin` say how the answer comes."""

    # Queues and partitions

    @call
    def get_overview(self) -> Answer[answers.Overview]:
        """Counts of everything, lag and throughput."""
        return self._get(*_V1, "resources", "overview")

    @call
    def list_troubles(self) -> Answer[answers.TroublesListed]:
        """What needs a person, each with a sentence that names the cause, and what to do about it."""
        return self._get(*_V1, "troubles")

    @call
    def list_queues(self, /, **filters: Any) -> Answer[answers.QueuesListed]:
        """All queues; `namespace`, `task`, `limit`, `offset`, `search`, `only`, `sort`."""
        return self._get(*_V1, "resources", "queues", **filters)

    @call
    def get_queue(self, /, name: str, **page: Any) -> Answer[answers.QueueDescribed]:
        """A queue with its partitions; `limit`, `offset`."""
        return self._get(*_V1, "resources", "queues", name, **page)

    @call
    def clear_queue(self, name: str, partition: str | None = None) -> Answer[answers.Cleared]:
        """Delete all messages of a queue, or of one of its partitions."""
        return self._delete(*_V1, "queues", name, "clear", partition=partition)

    @call
    def pause(
        self, queue: str, *, group: str | None = None, partition: str | None = None, reason: str | None = None
    ) -> Answer[answers.PauseMade]:
        """Deliver nothing more of a queue, to a group of it, or of one partition to that group. See `resume`."""
        body = {"queue": queue, "consumerGroup": group, "partition": partition, "reason": reason}
        return self._post(*_V1, "pause", body=body)

    @call
    def resume(self, queue: str, *, group: str | None = None, partition: str | None = None) -> Answer[answers.Resumed]:
        """End the pause that was made with the same arguments."""
        return self._post(*_V1, "resume", body={"queue": queue, "consumerGroup": group, "partition": partition})

    @call
    def list_pauses(self, queue: str | None = None) -> Answer[answers.PausesListed]:
        """What is paused, the oldest first."""
        return self._get(*_V1, "pauses", queue=queue)

    @call
    def set_policy(
        self, /, queue: str, *, group: str | None = None, **parts: dict[str, Any] | None
    ) -> Answer[answers.PolicySet]:
        """Say what a queue, or a group of it, does with messages that fail (`retry`, `breaker`), how much it gets
        (`limits`; `perKey` in them is for each key of the queue), and how that is shared out in a queue (`fairness`).
        A part that is left out stays as it is; None takes it back."""
        return self._post(*_V1, "policies", body={"queue": queue, "consumerGroup": group, **parts})

    @call
    def list_policies(self, queue: str | None = None) -> Answer[answers.PoliciesListed]:
        return self._get(*_V1, "policies", queue=queue)

    @call
    def list_skipped(self, queue: str, *, group: str | None = None) -> Answer[answers.SkippedListed]:
        """Messages that failed and wait by themselves, or keep their partition waiting, by the policy of a group."""
        return self._get(*_V1, "queues", queue, "skipped", consumerGroup=group)

    @call
    def list_consumers(
        self, queue: str, *, group: str | None = None, within_s: int | None = None
    ) -> Answer[answers.ConsumersListed]:
        """Who has popped from a queue not long ago, with the leases of each."""
        return self._get(*_V1, "queues", queue, "consumers", consumerGroup=group, withinSeconds=within_s)

    @call
    def set_filter(self, queue: str, group: str, filter: str | None) -> Answer[answers.FilterShown]:
        """Let a group get only the messages of a queue for which an expression is true; None: all of them."""
        return self._post(*_V1, "consumer-groups", group, "queues", queue, "filter", body={"filter": filter})

    @call
    def get_filter(self, queue: str, group: str) -> Answer[answers.FilterShown]:
        """The filter of a group, and how many messages it has kept from the group."""
        return self._get(*_V1, "consumer-groups", group, "queues", queue, "filter")

    @call
    def set_conflation(self, queue: str, group: str, enabled: bool) -> Answer[answers.ConflationShown]:
        """Let a group get only the newest message of each partition; or, with False, all of them."""
        return self._post(*_V1, "consumer-groups", group, "queues", queue, "conflation", body={"enabled": enabled})

    @call
    def get_conflation(self, queue: str, group: str) -> Answer[answers.ConflationShown]:
        """Whether a group gets only the newest messages, and how many older ones it was not given."""
        return self._get(*_V1, "consumer-groups", group, "queues", queue, "conflation")

    @call
    def get_namespaces(self) -> Answer[answers.NamespacesListed]:
        return self._get(*_V1, "resources", "namespaces")

    @call
    def get_tasks(self) -> Answer[answers.TasksListed]:
        return self._get(*_V1, "resources", "tasks")

    @call
    def get_partitions(self, /, **filters: Any) -> Answer[answers.PartitionsListed]:
        """Partitions; `queue`, `limit`, `offset`."""
        return self._get(*_V1, "resources", "partitions", **filters)

    @call
    def get_queue_depth(self, queue: str, group: str | None = None) -> Answer[answers.QueueDepth]:
        """How many messages a group has not finished; without one, the group that is furthest behind."""
        return self._get(*_V1, "resources", "queues", queue, "depth", group=group)

    @call
    def get_partition_heads(self, /, queue: str, **filters: Any) -> Answer[answers.PartitionHeads]:
        """Partitions of a queue as they are now, with the state of each group; `search`, `partition`, or `state`
        (`failing`, `leased`, `waiting`, `dead_letters`, `unread`), the worst first; `group`, `limit`, `offset`."""
        return self._get(*_V1, "resources", "queues", queue, "partitions", **filters)

    @call
    def find(self, text: str, *, limit: int | None = None) -> Answer[answers.Found]:
        """Queues, groups and partitions with a text in their name, and messages by transactionId or header
        (`name:value`)."""
        return self._get(*_V1, "find", q=text, limit=limit)

    # Messages

    @call
    def list_messages(self, /, **filters: Any) -> Answer[answers.MessagesListed]:
        """Messages, newest first; `queue`, `partition`, `status`, `limit`, `offset`, `from_`, `to`, `header`
        (`name:value`)."""
        return self._get(*_V1, "messages", **{name.rstrip("_"): value for name, value in filters.items()})

    @call
    def get_message(self, partition_id: str, transaction_id: str) -> Answer[answers.MessageDescribed]:
        return self._get(*_V1, "messages", partition_id, transaction_id)

    @call
    def delete_message(self, partition_id: str, transaction_id: str) -> Answer[answers.MessageDone]:
        return self._delete(*_V1, "messages", partition_id, transaction_id)

    @call
    def retry_message(self, partition_id: str, transaction_id: str) -> Answer[answers.MessageDone]:
        """Take a message out of the dead letters and deliver it again."""
        return self._post(*_V1, "messages", partition_id, transaction_id, "retry", body={})

    @call
    def move_message_to_dlq(self, partition_id: str, transaction_id: str) -> Answer[answers.MessageDone]:
        return self._post(*_V1, "messages", partition_id, transaction_id, "dlq", body={})

    # Dead letters

    @call
    def list_dead_letters(self, /, **filters: Any) -> Answer[answers.DeadLetters]:
        """Dead letters, newest failure first; `queue`, `consumerGroup`, `partition`, `limit`, `offset`, …"""
        return self._get(*_V1, "dlq", **{name.rstrip("_"): value for name, value in filters.items()})

    @call
    def redrive(
        self,
        queue: str,
        partition: str | None = None,
        consumer_group: str | None = None,
        *,
        error: str | None = None,
        fingerprint: str | None = None,
        from_: str | None = None,
        to: str | None = None,
    ) -> Answer[answers.Redriven]:
        """Have the dead letters of a queue, of one partition or of one group, delivered again in order; only those with
        a text in their error, with errors of one cause or that failed between two moments, if given."""
        body = {
            "queue": queue,
            "partition": partition,
            "consumerGroup": consumer_group,
            "error": error,
            "fingerprint": fingerprint,
            "from": from_,
            "to": to,
        }
        return self._post(
            *_V1, "dlq", "redrive", body={name: value for name, value in body.items() if value is not None}
        )

    @call
    def purge_dead_letters(self, /, queue: str, group: str | None = None, **filters: Any) -> Answer[answers.Purged]:
        """Forget dead letters, the oldest first, a bounded number at a time; `partition`, `to`, `limit`."""
        return self._delete(*_V1, "dlq", queue=queue, consumerGroup=group, **filters)

    # Leases

    @call
    def release_lease(self, lease_id: str, *, error: str | None = None) -> Answer[answers.LeaseFinished]:
        """End the lease of a consumer that is gone: what it has not finished is delivered again. Raises NotFound if it
        has ended already."""
        return self._post(*_V1, "lease", lease_id, "finish", body={"status": "retry", "error": error})

    # Traces

    @call
    def get_traces_for_message(self, partition_id: str, transaction_id: str) -> Answer[answers.TracesShown]:
        return self._get(*_V1, "traces", partition_id, transaction_id)

    @call
    def get_traces_by_name(self, /, name: str, **page: Any) -> Answer[answers.NamedTraces]:
        return self._get(*_V1, "traces", "by-name", name, **page)

    @call
    def get_trace_names(self, /, **page: Any) -> Answer[answers.TraceNames]:
        return self._get(*_V1, "traces", "names", **page)

    # Consumer groups

    @call
    def list_consumer_groups(self, /, **page: Any) -> Answer[list[answers.GroupListed]]:
        """The groups, one entry for each queue that they read; `search`, `queue`, `only`, `sort`, `limit`, `offset`."""
        return self._get(*_V1, "consumer-groups", **page)

    @call
    def get_consumer_group(self, /, name: str, **page: Any) -> Answer[dict[str, answers.GroupInQueue]]:
        """Where a group stands, by queue and partition; `limit`."""
        return self._get(*_V1, "consumer-groups", name, **page)

    @call
    def get_lagging_consumers(self, min_lag_seconds: int = 60) -> Answer[list[answers.LaggingPartition]]:
        return self._get(*_V1, "consumer-groups", "lagging", minLagSeconds=min_lag_seconds)

    @call
    def delete_consumer_group(self, group: str, delete_metadata: bool = True) -> Answer[answers.GroupDeleted]:
        """Forget a group everywhere; its next pop starts as a new group."""
        return self._delete(*_V1, "consumer-groups", group, deleteMetadata=delete_metadata)

    @call
    def delete_consumer_group_for_queue(
        self, group: str, queue: str, delete_metadata: bool = True
    ) -> Answer[answers.GroupDeleted]:
        """Forget a group in one queue."""
        return self._delete(*_V1, "consumer-groups", group, "queues", queue, deleteMetadata=delete_metadata)

    @call
    def update_consumer_group_timestamp(self, group: str, timestamp: str) -> Answer[answers.SubscriptionMoved]:
        """Change where a group starts in partitions that it has not read yet."""
        body = {"subscriptionTimestamp": timestamp}
        return self._post(*_V1, "consumer-groups", group, "subscription", body=body)

    @call
    def seek_consumer_group(
        self,
        group: str,
        queue: str,
        options: Mapping[str, Any] | None = None,
        *,
        timestamp: str | None = None,
        to_end: bool = False,
    ) -> Answer[answers.Sought]:
        """Move a group in a queue, behind the `timestamp` or `to_end`."""
        body = dict(options or {})
        if timestamp is not None:
            body["timestamp"] = timestamp
        if to_end:
            body["toEnd"] = True
        return self._post(*_V1, "consumer-groups", group, "queues", queue, "seek", body=body)

    @call
    def seek_effect(
        self,
        group: str,
        queue: str,
        *,
        timestamp: str | None = None,
        to_end: bool = False,
        partition: str | None = None,
    ) -> Answer[answers.SeekEffect]:
        """What a seek would do: how many messages it would deliver again, and how many it would skip."""
        asked = {"timestamp": timestamp, "toEnd": "true" if to_end else None, "partition": partition}
        return self._get(*_V1, "consumer-groups", group, "queues", queue, "seek", **asked)

    @call
    def seek_partition_to_end(self, group: str, queue: str, partition: str) -> Answer[answers.PartitionSought]:
        path = ("consumer-groups", group, "queues", queue, "partitions", partition, "seek")
        return self._post(*_V1, *path, body={})

    @call
    def seek_partition(
        self, group: str, queue: str, partition: str, *, timestamp: str | None = None, to_end: bool = False
    ) -> Answer[answers.PartitionSought]:
        """Move a group in one partition, behind the `timestamp` or `to_end`."""
        path = ("consumer-groups", group, "queues", queue, "partitions", partition, "seek")
        return self._post(*_V1, *path, body={"toEnd": True} if to_end else {"timestamp": timestamp})

    @call
    def explain(self, queue: str, partition: str | None = None, group: str | None = None) -> Answer[answers.Explained]:
        """Why a group gets nothing from a queue or partition, and what to do."""
        return self._get(*_V1, "explain", queue, partition=partition, consumerGroup=group)

    @call
    def refresh_consumer_stats(self) -> Answer[answers.Refreshed]:
        return self._post(*_V1, "stats", "refresh", body={})

    # Keys and locks

    @call
    def list_key_namespaces(self, /, **page: Any) -> Answer[answers.KeyNamespaces]:
        """Namespaces that have keys, by name; `prefix`, `after`, `limit`."""
        return self._get(*_V1, "kv", **page)

    @call
    def list_locks(self, /, **page: Any) -> Answer[answers.LocksListed]:
        """Locks that somebody holds, with their holders; `prefix`, `after`, `limit`."""
        return self._get(*_V1, "locks", **page)


class Admin(Administration):
    """`queen.admin` of the client for asyncio: every call is awaited."""


class BlockingAdmin(Administration):
    """`queen.admin` of the blocking twin."""
