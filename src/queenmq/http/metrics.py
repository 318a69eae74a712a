"""Everything that is measured of a server, as families of samples."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import asyncpg

from queenmq.cluster.maintenance import Switch
from queenmq.engine.engine import Engine
from queenmq.errors import DatabaseUnavailable
from queenmq.http.exposition import Exposition
from queenmq.http.overload_metrics import tell_buffer, tell_forwards, tell_load, tell_long_operations, tell_operations

_MOST_QUEUES = 500
_MICROSECONDS = 1_000_000
_CLUSTER = {"scope": "cluster"}


async def collect(engine: Engine) -> Exposition:
    """Everything that Prometheus is told of this server; without what the database knows while it is away."""
    told = Exposition()
    _process(told, engine)
    _sidecar(told, engine)
    _shared_state(told, engine)
    _worker(told, engine)
    tell_load(told, engine)
    tell_long_operations(told, engine)
    tell_forwards(told, engine)
    for queue, waiters in engine.popper.waiting.registry.parked().items():
        told.gauge("queen_queue_parked_consumers", "Long polls parked on this server.", waiters, queue=queue)
    # An outage is when the rest is needed most.
    with suppress(DatabaseUnavailable):
        await _stored(told, engine)
    return told


async def _stored(told: Exposition, engine: Engine) -> None:
    """What the database knows. Raises DatabaseUnavailable."""
    reports = engine.reports
    _cluster(told, await reports.one("activity_totals"))
    for row in await reports.rows("activity_last_minute", _MOST_QUEUES):
        _queue(told, row)
    _backlog(told, await reports.one("overview", None, None, None))
    tell_operations(told, await reports.one("operation_metrics"))
    for row in await reports.rows("dead_letters_by_queue", _MOST_QUEUES):
        told.gauge("queen_dlq_depth_by_queue", "Dead letters of a queue.", row["letters"], queue=row["name"])


def _process(told: Exposition, engine: Engine) -> None:
    user, system = engine.vitals.processor_us()
    memory, database = engine.vitals.memory(), engine.database
    told.gauge("queen_uptime_seconds", "Since this process started.", engine.vitals.uptime_s)
    told.counter("queen_cpu_user_microseconds_total", "Processor time of the process.", user)
    told.counter("queen_cpu_system_microseconds_total", "Processor time of the kernel for it.", system)
    told.gauge("queen_process_resident_memory_bytes", "Memory in use.", memory.resident)
    told.gauge("queen_process_virtual_memory_bytes", "Address space in use.", memory.virtual)
    told.gauge(
        "queen_event_loop_lag_milliseconds",
        "How late the event loop ran, when last measured.",
        engine.vitals.loop_lag_ms,
    )
    told.gauge("queen_db_pool_size", "Open database connections.", database.pool_size)
    told.gauge("queen_db_pool_idle", "Of these, idle.", database.pool_idle)
    told.gauge("queen_db_pool_active", "Of these, in use.", database.pool_size - database.pool_idle)
    told.counter("queen_db_calls_total", "Times that a database connection was borrowed.", database.calls)
    told.counter("queen_db_errors_total", "Database calls that failed.", database.errors)
    lanes = engine.sidecar.lanes
    pools = {"db": (sum(lane.in_flight for lane in lanes), sum(lane.pending for lane in lanes)), "system": (1, 0)}
    for pool, (size, queued) in pools.items():
        told.gauge("queen_threadpool_size", "Calls in flight; there are no threads.", size, pool=pool)
        told.gauge("queen_threadpool_queue_size", "Requests that wait for a call.", queued, pool=pool)
    waiters = engine.popper.waiting.registry.statistics()["waiters"]
    told.gauge("queen_live_streams", "Open streams of GET /api/v1/live.", engine.live.watchers)
    told.gauge(
        "queen_response_registry_size", "Long polls that are held.", waiters, worker_id=engine.settings.worker_id
    )
    tell_buffer(told, engine)
    on = engine.maintenance.is_on(Switch.PUSH)
    told.gauge("queen_maintenance_mode_enabled", "Whether pushes are switched off.", int(on))
    told.gauge("queen_pop_maintenance_mode_enabled", "Whether pops are switched off.", int(engine.popper.paused))


def _sidecar(told: Exposition, engine: Engine) -> None:
    for lane in engine.sidecar.lanes:
        op = {"op": lane.name}
        told.counter("queen_sidecar_op_count", "Merged database calls.", lane.calls, **op)
        told.counter(
            "queen_sidecar_op_latency_microseconds", "Time spent in them.", round(lane.seconds * _MICROSECONDS), **op
        )
        told.counter("queen_sidecar_op_items", "Messages and acknowledgements in them.", lane.items, **op)
        told.counter("queen_sidecar_op_requests", "Requests in them.", lane.requests, **op)
        merged = lane.requests / lane.calls if lane.calls else None
        told.gauge("queen_sidecar_merge_size", "Requests a call, on average since the start.", merged, **op)
        told.histogram("queen_sidecar_call_requests", "Requests a call.", lane.merged, **op)
        told.gauge("queen_sidecar_pending", "Requests that wait.", lane.pending, **op)
        told.gauge("queen_sidecar_in_flight", "Calls that run.", lane.in_flight, **op)


def _shared_state(told: Exposition, engine: Engine) -> None:
    state: dict[str, Any] = engine.node.statistics()
    waiting = engine.popper.waiting.registry.statistics()
    told.gauge("queen_pop_wait_waiters", "Long polls that are held.", waiting["waiters"])
    told.gauge("queen_queue_backoff_groups", "Places that long polls wait for.", waiting["groups_tracked"])
    told.gauge(
        "queen_queue_backoff_queues", "Queues that long polls wait for.", len(engine.popper.waiting.registry.parked())
    )
    told.gauge("queen_pop_wait_backed_off", "Places that are looked at less often.", waiting["groups_backed_off"])
    told.histogram(
        "queen_pop_wake_up_seconds",
        "Time from a wake-up until a long poll that was parked has its messages.",
        engine.popper.waiting.latency,
    )
    told.gauge(
        "queen_queue_backoff_avg_interval_milliseconds",
        "Pause between looks at a place, on average.",
        engine.popper.waiting.registry.average_interval_s() * 1000,
    )
    told.gauge("queen_shared_state_enabled", "Whether there are other servers.", int(bool(state["enabled"])))
    configs, ids, hints = state["queue_config_cache"], state["partition_id_cache"], state["lease_hints"]
    told.gauge("queen_qc_cache_size", "Queues whose options are remembered.", configs["size"])
    told.counter("queen_qc_cache_hits_total", "Options that were remembered.", configs["hits"])
    told.counter("queen_qc_cache_misses_total", "Options that were not.", configs["misses"])
    told.gauge("queen_partition_id_cache_size", "Partition ids that are remembered.", ids["size"])
    told.counter("queen_partition_id_cache_hits_total", "Partition ids that were remembered.", ids["hits"])
    told.counter("queen_partition_id_cache_misses_total", "Partition ids that were not.", ids["misses"])
    told.gauge("queen_lease_hints_size", "Leases of other servers that are known.", hints["size"])
    told.counter("queen_lease_hints_used_total", "Looks that a hint saved.", hints["hints_used"])
    told.counter("queen_lease_hints_checked_total", "Hints that were checked.", hints["hints_checked"])
    told.counter("queen_lease_hints_wrong_total", "Of these, wrong ones.", hints["hints_wrong"])
    told.gauge("queen_lease_hint_accuracy", "Share of right ones among those checked.", hints["accuracy"])
    presence = state["consumer_presence"]
    for kind in ("targeted", "broadcast", "saved"):
        told.counter(
            "queen_notifications_total", "Notifications of pushes.", presence[f"notifications_{kind}"], kind=kind
        )
    health = state["server_health"]
    for alive in ("alive", "dead"):
        told.gauge("queen_servers", "Other servers.", health[f"servers_{alive}"], state=alive)
    transport = state["transport"]
    for way in ("sent", "received"):
        told.counter("queen_transport_messages_total", "Packets.", transport[f"packets_{way}"], dir=way)
        told.counter("queen_transport_bytes_total", "Bytes in packets.", transport[f"bytes_{way}"], dir=way)
    for reason, count in transport["dropped"].items():
        told.counter("queen_transport_dropped_total", "Packets that were not believed.", count, reason=reason)


def _worker(told: Exposition, engine: Engine) -> None:
    vitals, counts = engine.vitals, engine.activity.now()
    who = {"hostname": vitals.hostname, "worker_id": engine.settings.worker_id, "pid": vitals.pid}
    for name, about in (
        ("push_requests", "Push requests."),
        ("push_messages", "Messages stored."),
        ("pop_requests", "Pops."),
        ("pop_messages", "Messages delivered."),
        ("pop_empty", "Pops that found nothing."),
        ("ack_requests", "Ack requests."),
        ("ack_success", "Acknowledgements that were applied."),
        ("ack_failed", "Acknowledgements that were refused."),
        ("dead_lettered", "Messages that became dead letters."),
        ("transactions", "Transactions, once for each queue."),
    ):
        told.counter(
            f"queen_worker_{name}_total", f"{about} Of this process, since its start.", getattr(counts, name), **who
        )


def _cluster(told: Exposition, row: asyncpg.Record) -> None:
    for operation, done in (("push", "push_messages"), ("pop", "pop_messages"), ("ack", "ack_success")):
        asked = row[f"{operation}_requests"]
        told.counter(f"queen_cluster_{operation}_requests_total", "Requests, on all servers.", asked, **_CLUSTER)
        told.counter(f"queen_cluster_{operation}_messages_total", "Messages, on all servers.", row[done], **_CLUSTER)
    told.counter("queen_cluster_transactions_total", "Transactions, once a queue.", row["transactions"], **_CLUSTER)
    for result in ("success", "failed"):
        told.counter(
            "queen_cluster_ack_total",
            "Acknowledgements, by what became of them.",
            row[f"ack_{result}"],
            result=result,
            **_CLUSTER,
        )
    told.counter("queen_cluster_db_errors_total", "Database calls that failed.", row["db_errors"], **_CLUSTER)
    told.counter("queen_cluster_dlq_total", "Messages that became dead letters.", row["dead_lettered"], **_CLUSTER)


def _queue(told: Exposition, row: asyncpg.Record) -> None:
    queue = {"queue": row["queue_name"]}
    for name, about in (
        ("pop_messages", "Messages delivered in the last whole minute."),
        ("push_requests", "Push requests in the last whole minute."),
        ("push_messages", "Messages stored in the last whole minute."),
        ("pop_empty", "Pops that found nothing in the last whole minute."),
        ("transactions", "Transactions in the last whole minute."),
    ):
        told.gauge(f"queen_queue_{name}_per_minute", about, row[name], **queue)
    for result in ("success", "failed"):
        told.gauge(
            "queen_queue_ack_per_minute",
            "Acknowledgements in the last whole minute.",
            row[f"ack_{result}"],
            **queue,
            result=result,
        )
    if row["lag_count"]:
        average = row["lag_sum_ms"] / row["lag_count"]
        about = "Age of the first message of a pop when it was delivered, in the last whole minute."
        told.gauge("queen_queue_pop_lag_milliseconds", about, average, **queue, stat="avg")
        told.gauge("queen_queue_pop_lag_milliseconds", about, row["lag_max_ms"], **queue, stat="max")
    told.gauge("queen_queue_metrics_age_seconds", "How long that minute has been over.", row["age_s"], **queue)


def _backlog(told: Exposition, row: asyncpg.Record) -> None:
    for state in ("pending", "processing", "completed"):
        told.gauge("queen_messages", "Messages that are stored.", row[state], state=state)
    told.gauge("queen_queues", "Queues.", row["queues"])
    told.gauge("queen_partitions", "Partitions.", row["partitions"])
    told.gauge("queen_leases", "Partitions of groups under a lease.", row["leases"])
    told.gauge("queen_lag_seconds", "Age of the oldest message that a group has not read.", row["lag_max_s"] or 0.0)
    told.gauge("queen_statistics_age_seconds", "Age of the oldest of these figures.", row["age_s"])
    told.gauge("queen_dlq_depth", "Dead letters.", row["dead_letters"], **_CLUSTER)
