"""Administration and listings: one method for each call of the HTTP API, which returns plain dicts and lists.

What an answer has is in the server's `/openapi.json`. A call that the server does not have raises NotFound.
The class is the same for both twins: `R` is an awaitable of the answer, or the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from queenmq.client.verbs import path_of

R = TypeVar("R")

_V1 = ("api", "v1")


class Admin(Generic[R]):
    def __init__(self, ask: Callable[[str, str, Any, Mapping[str, Any] | None], R]) -> None:
        self._ask = ask

    def _get(self, *path: str, **params: Any) -> R:
        return self._ask("GET", path_of(*path), None, params)

    def _post(self, *path: str, body: Any) -> R:
        return self._ask("POST", path_of(*path), body, None)

    def _delete(self, *path: str, **params: Any) -> R:
        return self._ask("DELETE", path_of(*path), None, params)

    # Queues and partitions

    def get_overview(self) -> R:
        """Counts of everything, lag and throughput."""
        return self._get(*_V1, "resources", "overview")

    def list_troubles(self) -> R:
        """What needs a person, each with a sentence that names the cause, and what to do about it."""
        return self._get(*_V1, "troubles")

    def list_queues(self, **filters: Any) -> R:
        """All queues; `namespace`, `task`, `limit`, `offset`, `search`, `sort`."""
        return self._get(*_V1, "resources", "queues", **filters)

    def get_queue(self, name: str, **page: Any) -> R:
        """A queue with its partitions; `limit`, `offset`."""
        return self._get(*_V1, "resources", "queues", name, **page)

    def clear_queue(self, name: str, partition: str | None = None) -> R:
        """Delete all messages of a queue, or of one of its partitions."""
        return self._delete(*_V1, "queues", name, "clear", partition=partition)

    def pause(
        self, queue: str, *, group: str | None = None, partition: str | None = None, reason: str | None = None
    ) -> R:
        """Deliver nothing more of a queue, to a group of it, or of one partition to that group. See `resume`."""
        body = {"queue": queue, "consumerGroup": group, "partition": partition, "reason": reason}
        return self._post(*_V1, "pause", body=body)

    def resume(self, queue: str, *, group: str | None = None, partition: str | None = None) -> R:
        """End the pause that was made with the same arguments."""
        return self._post(*_V1, "resume", body={"queue": queue, "consumerGroup": group, "partition": partition})

    def list_pauses(self, queue: str | None = None) -> R:
        """What is paused, the oldest first."""
        return self._get(*_V1, "pauses", queue=queue)

    def set_policy(self, queue: str, *, group: str | None = None, **parts: dict[str, Any] | None) -> R:
        """Say what a queue, or a group of it, does with messages that fail (`retry`, `breaker`), how much it gets
        (`limits`; `perKey` in them is for each key of the queue), and how that is shared out in a queue (`fairness`).
        A part that is left out stays as it is; None takes it back."""
        return self._post(*_V1, "policies", body={"queue": queue, "consumerGroup": group, **parts})

    def list_policies(self, queue: str | None = None) -> R:
        return self._get(*_V1, "policies", queue=queue)

    def list_skipped(self, queue: str, *, group: str | None = None) -> R:
        """Messages that failed and wait by themselves, or keep their partition waiting, by the policy of a group."""
        return self._get(*_V1, "queues", queue, "skipped", consumerGroup=group)

    def list_consumers(self, queue: str, *, group: str | None = None, within_s: int | None = None) -> R:
        """Who has popped from a queue not long ago, with the leases of each."""
        return self._get(*_V1, "queues", queue, "consumers", consumerGroup=group, withinSeconds=within_s)

    def set_filter(self, queue: str, group: str, filter: str | None) -> R:
        """Let a group get only the messages of a queue for which an expression is true; None: all of them."""
        return self._post(*_V1, "consumer-groups", group, "queues", queue, "filter", body={"filter": filter})

    def get_filter(self, queue: str, group: str) -> R:
        """The filter of a group, and how many messages it has kept from the group."""
        return self._get(*_V1, "consumer-groups", group, "queues", queue, "filter")

    def set_conflation(self, queue: str, group: str, enabled: bool) -> R:
        """Let a group get only the newest message of each partition; or, with False, all of them."""
        return self._post(*_V1, "consumer-groups", group, "queues", queue, "conflation", body={"enabled": enabled})

    def get_conflation(self, queue: str, group: str) -> R:
        """Whether a group gets only the newest messages, and how many older ones it was not given."""
        return self._get(*_V1, "consumer-groups", group, "queues", queue, "conflation")

    def get_namespaces(self) -> R:
        return self._get(*_V1, "resources", "namespaces")

    def get_tasks(self) -> R:
        return self._get(*_V1, "resources", "tasks")

    def get_partitions(self, **filters: Any) -> R:
        """Partitions; `queue`, `limit`, `offset`."""
        return self._get(*_V1, "resources", "partitions", **filters)

    def get_queue_depth(self, queue: str, group: str | None = None) -> R:
        """How many messages a group has not finished; without one, the group that is furthest behind."""
        return self._get(*_V1, "resources", "queues", queue, "depth", group=group)

    def get_partition_heads(self, queue: str, **filters: Any) -> R:
        """Partitions of a queue as they are now, with the state of each group; `search`, `partition`, or `state`
        (`failing`, `leased`, `waiting`, `dead_letters`, `unread`), the worst first; `limit`, `offset`."""
        return self._get(*_V1, "resources", "queues", queue, "partitions", **filters)

    def find(self, text: str, *, limit: int | None = None) -> R:
        """Queues, groups and partitions with a text in their name, and messages by transactionId or header
        (`name:value`)."""
        return self._get(*_V1, "find", q=text, limit=limit)

    # Messages

    def list_messages(self, **filters: Any) -> R:
        """Messages, newest first; `queue`, `partition`, `status`, `limit`, `offset`, `from_`, `to`, `header`
        (`name:value`)."""
        return self._get(*_V1, "messages", **{name.rstrip("_"): value for name, value in filters.items()})

    def get_message(self, partition_id: str, transaction_id: str) -> R:
        return self._get(*_V1, "messages", partition_id, transaction_id)

    def delete_message(self, partition_id: str, transaction_id: str) -> R:
        return self._delete(*_V1, "messages", partition_id, transaction_id)

    def retry_message(self, partition_id: str, transaction_id: str) -> R:
        """Take a message out of the dead letters and deliver it again."""
        return self._post(*_V1, "messages", partition_id, transaction_id, "retry", body={})

    def move_message_to_dlq(self, partition_id: str, transaction_id: str) -> R:
        return self._post(*_V1, "messages", partition_id, transaction_id, "dlq", body={})

    # Dead letters

    def list_dead_letters(self, **filters: Any) -> R:
        """Dead letters, newest failure first; `queue`, `consumerGroup`, `partition`, `limit`, `offset`, …"""
        return self._get(*_V1, "dlq", **{name.rstrip("_"): value for name, value in filters.items()})

    def redrive(self, queue: str, partition: str | None = None, consumer_group: str | None = None) -> R:
        """Have the dead letters of a queue, of one partition or of one group, delivered again in order."""
        body = {"queue": queue, "partition": partition, "consumerGroup": consumer_group}
        return self._post(
            *_V1, "dlq", "redrive", body={name: value for name, value in body.items() if value is not None}
        )

    def purge_dead_letters(self, queue: str, group: str | None = None, **filters: Any) -> R:
        """Forget dead letters, the oldest first, a bounded number at a time; `partition`, `to`, `limit`."""
        return self._delete(*_V1, "dlq", queue=queue, consumerGroup=group, **filters)

    # Traces

    def get_traces_for_message(self, partition_id: str, transaction_id: str) -> R:
        return self._get(*_V1, "traces", partition_id, transaction_id)

    def get_traces_by_name(self, name: str, **page: Any) -> R:
        return self._get(*_V1, "traces", "by-name", name, **page)

    def get_trace_names(self, **page: Any) -> R:
        return self._get(*_V1, "traces", "names", **page)

    # Consumer groups

    def list_consumer_groups(self, **page: Any) -> R:
        """The groups, one entry for each queue that they read; `search`, `queue`, `only`, `sort`, `limit`, `offset`."""
        return self._get(*_V1, "consumer-groups", **page)

    def get_consumer_group(self, name: str, **page: Any) -> R:
        """Where a group stands, by queue and partition; `limit`."""
        return self._get(*_V1, "consumer-groups", name, **page)

    def get_lagging_consumers(self, min_lag_seconds: int = 60) -> R:
        return self._get(*_V1, "consumer-groups", "lagging", minLagSeconds=min_lag_seconds)

    def delete_consumer_group(self, group: str, delete_metadata: bool = True) -> R:
        """Forget a group everywhere; its next pop starts as a new group."""
        return self._delete(*_V1, "consumer-groups", group, deleteMetadata=delete_metadata)

    def delete_consumer_group_for_queue(self, group: str, queue: str, delete_metadata: bool = True) -> R:
        """Forget a group in one queue."""
        return self._delete(*_V1, "consumer-groups", group, "queues", queue, deleteMetadata=delete_metadata)

    def update_consumer_group_timestamp(self, group: str, timestamp: str) -> R:
        """Change where a group starts in partitions that it has not read yet."""
        body = {"subscriptionTimestamp": timestamp}
        return self._post(*_V1, "consumer-groups", group, "subscription", body=body)

    def seek_consumer_group(
        self,
        group: str,
        queue: str,
        options: Mapping[str, Any] | None = None,
        *,
        timestamp: str | None = None,
        to_end: bool = False,
    ) -> R:
        """Move a group in a queue, behind the `timestamp` or `to_end`."""
        body = dict(options or {})
        if timestamp is not None:
            body["timestamp"] = timestamp
        if to_end:
            body["toEnd"] = True
        return self._post(*_V1, "consumer-groups", group, "queues", queue, "seek", body=body)

    def seek_effect(
        self,
        group: str,
        queue: str,
        *,
        timestamp: str | None = None,
        to_end: bool = False,
        partition: str | None = None,
    ) -> R:
        """What a seek would do: how many messages it would deliver again, and how many it would skip."""
        asked = {"timestamp": timestamp, "toEnd": "true" if to_end else None, "partition": partition}
        return self._get(*_V1, "consumer-groups", group, "queues", queue, "seek", **asked)

    def seek_partition_to_end(self, group: str, queue: str, partition: str) -> R:
        path = ("consumer-groups", group, "queues", queue, "partitions", partition, "seek")
        return self._post(*_V1, *path, body={})

    def seek_partition(
        self, group: str, queue: str, partition: str, *, timestamp: str | None = None, to_end: bool = False
    ) -> R:
        """Move a group in one partition, behind the `timestamp` or `to_end`."""
        path = ("consumer-groups", group, "queues", queue, "partitions", partition, "seek")
        return self._post(*_V1, *path, body={"toEnd": True} if to_end else {"timestamp": timestamp})

    def explain(self, queue: str, partition: str | None = None, group: str | None = None) -> R:
        """Why a group gets nothing from a queue or partition, and what to do."""
        return self._get(*_V1, "explain", queue, partition=partition, consumerGroup=group)

    def refresh_consumer_stats(self) -> R:
        return self._post(*_V1, "stats", "refresh", body={})

    # Keys and locks

    def list_key_namespaces(self, **page: Any) -> R:
        """Namespaces that have keys, by name; `prefix`, `after`, `limit`."""
        return self._get(*_V1, "kv", **page)

    def list_locks(self, **page: Any) -> R:
        """Locks that somebody holds, with their holders; `prefix`, `after`, `limit`."""
        return self._get(*_V1, "locks", **page)

    # The operation queue

    def get_operation_stats(self) -> R:
        return self._get(*_V1, "operations", "stats")

    def list_operations(self, **filters: Any) -> R:
        """Queued operations; `status`, `type`, `queue`, `limit`, `offset`."""
        return self._get(*_V1, "operations", **filters)

    def get_operation(self, operation_id: str) -> R:
        """A queued operation, with its result once there is one."""
        return self._get(*_V1, "operations", operation_id)

    def retry_operation(self, operation_id: str) -> R:
        return self._post(*_V1, "operations", operation_id, "retry", body={})

    def cancel_operation(self, operation_id: str) -> R:
        return self._post(*_V1, "operations", operation_id, "cancel", body={})

    # The system

    def health(self) -> R:
        return self._get("health")

    def metrics(self) -> R:
        return self._get("metrics")

    def get_maintenance_mode(self) -> R:
        return self._get(*_V1, "system", "maintenance")

    def set_maintenance_mode(self, enabled: bool) -> R:
        """Switch pushes off or on again, on every server."""
        return self._post(*_V1, "system", "maintenance", body={"enabled": enabled})

    def get_pop_maintenance_mode(self) -> R:
        return self._get(*_V1, "system", "maintenance", "pop")

    def set_pop_maintenance_mode(self, enabled: bool) -> R:
        """Switch pops off or on again, on every server."""
        return self._post(*_V1, "system", "maintenance", "pop", body={"enabled": enabled})

    def get_status(self, **filters: Any) -> R:
        return self._get(*_V1, "status", **filters)

    def get_queue_stats(self, **filters: Any) -> R:
        return self._get(*_V1, "status", "queues", **filters)

    def get_queue_detail(self, name: str, **filters: Any) -> R:
        return self._get(*_V1, "status", "queues", name, **filters)

    def get_analytics(self, **filters: Any) -> R:
        return self._get(*_V1, "status", "analytics", **filters)

    def get_system_metrics(self, **filters: Any) -> R:
        return self._get(*_V1, "analytics", "system-metrics", **filters)

    def get_worker_metrics(self, **filters: Any) -> R:
        return self._get(*_V1, "analytics", "worker-metrics", **filters)

    def get_queue_operations(self, **filters: Any) -> R:
        """What was done to each queue over time; `queue`, `from_`, `to`."""
        named = {name.rstrip("_"): value for name, value in filters.items()}
        return self._get(*_V1, "analytics", "queue-ops", **named)

    def get_cluster_balance(self) -> R:
        """How busy each server of the cluster is."""
        return self._get(*_V1, "cluster", "balance")

    def get_shared_state(self) -> R:
        """What the servers know of each other, with every counter."""
        return self._get(*_V1, "system", "shared-state")

    def get_postgres_stats(self) -> R:
        return self._get(*_V1, "analytics", "postgres-stats")

    # Tokens

    def create_token(self, name: str, role: str, **wanted: Any) -> R:
        """Make a token; `grants`, `expiresInSeconds`. The answer has it as `token`, and it is shown only once."""
        return self._post(*_V1, "tokens", body={"name": name, "role": role, **wanted})

    def list_tokens(self, **page: Any) -> R:
        """The tokens that Queen has made, without their texts; `limit`, `offset`."""
        return self._get(*_V1, "tokens", **page)

    def revoke_token(self, token_id: str) -> R:
        return self._delete(*_V1, "tokens", token_id)

    def set_quota(self, namespace: str, **most: Any) -> R:
        """Limit what the queues of a namespace may store, and how much may be asked for of them; `maxMessages`,
        `maxBytes`, `requestsPerSecond`, `messagesPerSecond`, `longPolls`."""
        return self._post(*_V1, "quotas", body={"namespace": namespace, **most})

    def list_quotas(self) -> R:
        """The quotas of namespaces, and how much of them is used."""
        return self._get(*_V1, "quotas")

    def remove_quota(self, namespace: str) -> R:
        return self._delete(*_V1, "quotas", namespace)

    def set_schema(self, queue: str, **wanted: Any) -> R:
        """Give a queue a new version of its schema, or change its rules; `schema`, `compatibility`, `check`."""
        return self._post(*_V1, "schemas", queue, body=wanted)

    def list_schemas(self, **page: Any) -> R:
        """The queues that have a schema; `after`, `limit`."""
        return self._get(*_V1, "schemas", **page)

    def get_schema(self, queue: str, version: int | None = None) -> R:
        """The schema of a queue, the newest or another version, and which versions it has."""
        return self._get(*_V1, "schemas", queue, version=version)

    def check_schema(self, queue: str, **wanted: Any) -> R:
        """Whether `payloads` fit the schema of a queue, or `schema`, and whether that may follow the newest."""
        return self._post(*_V1, "schemas", queue, "check", body=wanted)

    def remove_schema(self, queue: str) -> R:
        return self._delete(*_V1, "schemas", queue)

    def get_audit_log(self, **filters: Any) -> R:
        """Who has changed or was refused what, newest first; `subject`, `action`, `status`, `from_`, `to`, `limit`."""
        return self._get(*_V1, "audit", **{name.rstrip("_"): value for name, value in filters.items()})
