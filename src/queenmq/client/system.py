"""The calls of `queen.admin` that are not about messages: operations, the system, tokens, quotas, schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queenmq.client.answered import Answer, Calls, call
from queenmq.client.models import Json

if TYPE_CHECKING:
    from queenmq.client import answers

_V1 = ("api", "v1")


class SystemCalls(Calls):
    # The operation queue

    @call
    def get_operation_stats(self) -> Answer[answers.OperationStats]:
        return self._get(*_V1, "operations", "stats")

    @call
    def list_operations(self, /, **filters: Any) -> Answer[answers.OperationPage]:
        """Queued operations; `status`, `type`, `queue`, `limit`, `offset`."""
        return self._get(*_V1, "operations", **filters)

    @call
    def get_operation(self, operation_id: str) -> Answer[answers.OperationState]:
        """A queued operation, with its result once there is one."""
        return self._get(*_V1, "operations", operation_id)

    @call
    def retry_operation(self, operation_id: str) -> Answer[answers.OperationMoved]:
        return self._post(*_V1, "operations", operation_id, "retry", body={})

    @call
    def cancel_operation(self, operation_id: str) -> Answer[answers.OperationMoved]:
        return self._post(*_V1, "operations", operation_id, "cancel", body={})

    # The system

    @call
    def health(self) -> Answer[answers.Health]:
        return self._get("health")

    @call
    def metrics(self) -> Answer[Json]:
        return self._get("metrics")

    @call
    def get_maintenance_mode(self) -> Answer[answers.MaintenanceState]:
        return self._get(*_V1, "system", "maintenance")

    @call
    def set_maintenance_mode(self, enabled: bool) -> Answer[answers.MaintenanceMoved]:
        """Switch pushes off or on again, on every server."""
        return self._post(*_V1, "system", "maintenance", body={"enabled": enabled})

    @call
    def get_pop_maintenance_mode(self) -> Answer[answers.PopMaintenance]:
        return self._get(*_V1, "system", "maintenance", "pop")

    @call
    def set_pop_maintenance_mode(self, enabled: bool) -> Answer[answers.PopMaintenance]:
        """Switch pops off or on again, on every server."""
        return self._post(*_V1, "system", "maintenance", "pop", body={"enabled": enabled})

    @call
    def get_status(self, /, **filters: Any) -> Answer[Json]:
        return self._get(*_V1, "status", **filters)

    @call
    def get_queue_stats(self, /, **filters: Any) -> Answer[answers.QueuesPage]:
        return self._get(*_V1, "status", "queues", **filters)

    @call
    def get_queue_detail(self, /, name: str, **filters: Any) -> Answer[answers.QueueStatusDetail]:
        return self._get(*_V1, "status", "queues", name, **filters)

    @call
    def get_analytics(self, /, **filters: Any) -> Answer[Json]:
        return self._get(*_V1, "status", "analytics", **filters)

    @call
    def get_system_metrics(self, /, **filters: Any) -> Answer[Json]:
        return self._get(*_V1, "analytics", "system-metrics", **filters)

    @call
    def get_worker_metrics(self, /, **filters: Any) -> Answer[Json]:
        return self._get(*_V1, "analytics", "worker-metrics", **filters)

    @call
    def get_queue_operations(self, /, **filters: Any) -> Answer[Json]:
        """What was done to each queue over time; `queue`, `from_`, `to`."""
        named = {name.rstrip("_"): value for name, value in filters.items()}
        return self._get(*_V1, "analytics", "queue-ops", **named)

    @call
    def get_cluster_balance(self) -> Answer[answers.Balance]:
        """How busy each server of the cluster is."""
        return self._get(*_V1, "cluster", "balance")

    @call
    def get_shared_state(self) -> Answer[Json]:
        """What the servers know of each other, with every counter."""
        return self._get(*_V1, "system", "shared-state")

    @call
    def get_postgres_stats(self) -> Answer[Json]:
        return self._get(*_V1, "analytics", "postgres-stats")

    # Tokens

    @call
    def create_token(self, /, name: str, role: str, **wanted: Any) -> Answer[answers.TokenCreated]:
        """Make a token; `grants`, `expiresInSeconds`. The answer has it as `token`, and it is shown only once."""
        return self._post(*_V1, "tokens", body={"name": name, "role": role, **wanted})

    @call
    def list_tokens(self, /, **page: Any) -> Answer[answers.TokensListed]:
        """The tokens that Queen has made, without their texts; `limit`, `offset`."""
        return self._get(*_V1, "tokens", **page)

    @call
    def revoke_token(self, token_id: str) -> Answer[answers.TokenShown]:
        return self._delete(*_V1, "tokens", token_id)

    @call
    def set_quota(self, /, namespace: str, **most: Any) -> Answer[answers.QuotaShown]:
        """Limit what the queues of a namespace may store, and how much may be asked for of them; `maxMessages`,
        `maxBytes`, `requestsPerSecond`, `messagesPerSecond`, `longPolls`."""
        return self._post(*_V1, "quotas", body={"namespace": namespace, **most})

    @call
    def list_quotas(self) -> Answer[answers.QuotasListed]:
        """The quotas of namespaces, and how much of them is used."""
        return self._get(*_V1, "quotas")

    @call
    def remove_quota(self, namespace: str) -> Answer[answers.QuotaRemoved]:
        return self._delete(*_V1, "quotas", namespace)

    @call
    def set_schema(self, /, queue: str, **wanted: Any) -> Answer[answers.SchemaSetAnswer]:
        """Give a queue a new version of its schema, or change its rules; `schema`, `compatibility`, `check`."""
        return self._post(*_V1, "schemas", queue, body=wanted)

    @call
    def list_schemas(self, /, **page: Any) -> Answer[answers.SchemasListed]:
        """The queues that have a schema; `after`, `limit`."""
        return self._get(*_V1, "schemas", **page)

    @call
    def get_schema(self, queue: str, version: int | None = None) -> Answer[answers.SchemaFound]:
        """The schema of a queue, the newest or another version, and which versions it has."""
        return self._get(*_V1, "schemas", queue, version=version)

    @call
    def check_schema(self, /, queue: str, **wanted: Any) -> Answer[answers.SchemaChecked]:
        """Whether `payloads` fit the schema of a queue, or `schema`, and whether that may follow the newest."""
        return self._post(*_V1, "schemas", queue, "check", body=wanted)

    @call
    def remove_schema(self, queue: str) -> Answer[answers.SchemaRemoved]:
        return self._delete(*_V1, "schemas", queue)

    @call
    def get_audit_log(self, /, **filters: Any) -> Answer[answers.AuditPage]:
        """Who has changed or was refused what, newest first; `subject`, `action`, `status`, `from_`, `to`, `limit`."""
        return self._get(*_V1, "audit", **{name.rstrip("_"): value for name, value in filters.items()})
