"""All metrics of a server, as families of samples."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from queenmq.broker.broker import Broker
from queenmq.core.histogram import Histogram
from queenmq.core.maintenance import Switch
from queenmq.errors import DatabaseUnavailable
from queenmq.http import overload_metrics as overload
from queenmq.http.exposition import Exposition
from queenmq.http.front_metrics import add_front
from queenmq.http.group_metrics import add_groups, add_queue_counters
from queenmq.http.pipeline_metrics import add_pipelines
from queenmq.http.route import Context
from queenmq.reports.activity import QueueMinute, Totals
from queenmq.reports.horizon import horizon
from queenmq.reports.metrics import StoredMetrics, stored
from queenmq.reports.overview import Overview

_MOST_QUEUES = 500
_MICROSECONDS = 1_000_000
_CLUSTER = {"scope": "cluster"}


async def collect(context: Context) -> Exposition:
    """All metrics of this server; while the database is away, without those that come from it."""
    broker = context.broker
    page = Exposition()
    _process(page, broker)
    add_front(page, context.memory)
    _sidecar(page, broker)
    _long_polls(page, broker)
    _worker(page, broker)
    add_queue_counters(page, broker.activity.busiest(context.settings.statistics.metrics_max_groups))
    overload.add_load(page, broker)
    overload.add_stepped_operations(page, broker)
    overload.add_timers(page, broker)
    overload.add_outbox(page, broker)
    overload.add_access(page, context)
    if broker.caches.switches.were_read:  # a server may start without its database
        _shared_state(page, broker)
        overload.add_forwards(page, broker)
    for queue, waiters in broker.long_polls.registry.parked().items():
        page.gauge(
            "queen_queue_parked_consumers",
            "Long polls that wait for messages of the queue on this server.",
            waiters,
            queue=queue,
        )
    # An outage is when the rest is needed most.
    with suppress(DatabaseUnavailable):
        most = context.settings.statistics.metrics_max_groups
        _stored(page, await stored(context.reports, _MOST_QUEUES, most), most)
        overload.add_horizon(page, await horizon(context.reports, context.first_seen))
    return page


def _stored(page: Exposition, found: StoredMetrics, most_groups: int) -> None:
    """What the database knows."""
    _cluster(page, found.totals)
    for minute in found.last_minute:
        _queue(page, minute)
    _backlog(page, found.overview)
    overload.add_operations(page, found.operations)
    for one in found.dead_letters:
        page.gauge("queen_dlq_depth_by_queue", "Dead letters of the queue.", one.letters, queue=one.name)
    for paused in found.pauses:
        page.gauge(
            "queen_queue_pauses",
            "Pauses of the queue, its groups and their partitions.",
            paused.pauses,
            queue=paused.name,
        )
    add_pipelines(page, found.pipelines)
    add_groups(page, found.groups, most_groups)


def _process(page: Exposition, broker: Broker) -> None:
    user, system = broker.vitals.processor_us()
    memory, database = broker.vitals.memory(), broker.database
    page.gauge("queen_uptime_seconds", "Seconds since this process started.", broker.vitals.uptime_s)
    page.counter("queen_cpu_user_microseconds_total", "CPU time of this process in user mode, in microseconds.", user)
    page.counter(
        "queen_cpu_system_microseconds_total", "CPU time of this process in kernel mode, in microseconds.", system
    )
    page.gauge("queen_process_resident_memory_bytes", "Resident memory of this process.", memory.resident)
    page.gauge("queen_process_virtual_memory_bytes", "Virtual memory of this process.", memory.virtual)
    page.gauge(
        "queen_event_loop_lag_milliseconds",
        "Delay of the event loop at the last measurement.",
        broker.vitals.loop_lag_ms,
    )
    page.gauge("queen_db_pool_size", "Open database connections.", database.pool_size)
    page.gauge("queen_db_pool_idle", "Open database connections that are idle.", database.pool_idle)
    page.gauge(
        "queen_db_pool_active", "Open database connections that are in use.", database.pool_size - database.pool_idle
    )
    page.counter("queen_db_calls_total", "Database calls, counted by borrowed connections.", database.calls)
    page.counter("queen_db_errors_total", "Database calls that failed.", database.errors)
    page.counter(
        "queen_db_clock_steps_total", "How often the clock of the database was set back.", database.clock.steps
    )
    for reason, connections in database.connections_cut.items():
        page.counter(
            "queen_db_connections_cut_total",
            "Database connections that were closed because they did not answer, or were suspected not to, by reason.",
            connections,
            reason=reason,
        )
    lanes = broker.lanes.values()
    pools = {"db": (sum(lane.in_flight for lane in lanes), sum(lane.pending for lane in lanes)), "system": (1, 0)}
    for pool, (size, queued) in pools.items():
        page.gauge("queen_threadpool_size", "Database calls in flight; Queen has no thread pools.", size, pool=pool)
        page.gauge(
            "queen_threadpool_queue_size",
            "Requests that wait for a database call; Queen has no thread pools.",
            queued,
            pool=pool,
        )
    waiters = broker.long_polls.registry.statistics()["waiters"]
    page.gauge("queen_live_streams", "Open streams of GET /api/v1/live.", broker.live.watchers)
    page.gauge(
        "queen_response_registry_size",
        "Long polls that wait on this server.",
        waiters,
        worker_id=broker.settings.server.worker_id,
    )
    overload.add_journal(page, broker)


def _sidecar(page: Exposition, broker: Broker) -> None:
    for lane in broker.lanes.values():
        op = {"op": lane.name}
        page.counter("queen_sidecar_op_count", "Merged database calls.", lane.calls, **op)
        page.counter(
            "queen_sidecar_op_latency_microseconds",
            "Total duration of merged database calls, in microseconds.",
            round(lane.seconds * _MICROSECONDS),
            **op,
        )
        page.counter(
            "queen_sidecar_op_items", "Messages and acknowledgements in merged database calls.", lane.items, **op
        )
        page.counter("queen_sidecar_op_requests", "Requests in merged database calls.", lane.requests, **op)
        merged = lane.requests / lane.calls if lane.calls else None
        page.gauge(
            "queen_sidecar_merge_size",
            "Average number of requests in a merged database call, since the start.",
            merged,
            **op,
        )
        sizes = Histogram.of(lane.merged)
        page.histogram("queen_sidecar_call_requests", "Number of requests in a merged database call.", sizes, **op)
        page.gauge("queen_sidecar_pending", "Requests that wait to be merged into a database call.", lane.pending, **op)
        page.gauge("queen_sidecar_in_flight", "Merged database calls that run now.", lane.in_flight, **op)
    locks = broker.locks
    page.gauge("queen_lock_waiters", "Requests that wait for rows which other transactions hold.", locks.waiting)
    page.gauge(
        "queen_lock_waiters_limit",
        "Maximum number of requests that may wait for rows which other transactions hold.",
        locks.limit,
    )
    page.gauge("queen_locked_rows", "Rows that are known to be held by other transactions.", len(locks.known))
    page.counter(
        "queen_lock_waits_total", "Requests that found a row held by another transaction.", locks.stepped_aside
    )
    page.counter(
        "queen_lock_wait_timeouts_total",
        "Requests answered with 503 because a row was held longer than DB_LOCK_TIMEOUT.",
        locks.given_up,
    )


def _long_polls(page: Exposition, broker: Broker) -> None:
    waiting = broker.long_polls.registry.statistics()
    page.gauge("queen_pop_wait_waiters", "Long polls that wait on this server.", waiting["waiters"])
    page.gauge(
        "queen_queue_backoff_groups",
        "Distinct targets (queue, partition, group) for which long polls wait on this server.",
        waiting["groups_tracked"],
    )
    page.gauge(
        "queen_queue_backoff_queues",
        "Queues for which long polls wait on this server.",
        len(broker.long_polls.registry.parked()),
    )
    page.gauge(
        "queen_pop_wait_backed_off",
        "Targets of long polls that are probed at longer intervals, because they were empty.",
        waiting["groups_backed_off"],
    )
    page.histogram(
        "queen_pop_wake_up_seconds",
        "Time from a wake-up until a waiting long poll has its messages.",
        broker.long_polls.latency,
    )
    page.gauge("queen_consumer_connections", "Open consumer connections.", len(broker.consumers))
    page.gauge(
        "queen_consumer_connections_limit",
        "Maximum number of consumer connections.",
        broker.settings.consumers.max_connections,
    )
    page.gauge(
        "queen_consumer_batches_in_flight",
        "Batches that the clients of consumer connections have not finished.",
        sum(consumer.leases for consumer in broker.consumers),
    )
    page.gauge(
        "queen_queue_backoff_avg_interval_milliseconds",
        "Average interval between two probes for a long poll.",
        broker.long_polls.registry.average_interval_s() * 1000,
    )


def _shared_state(page: Exposition, broker: Broker) -> None:
    on = broker.maintenance.is_on(Switch.PUSH)
    page.gauge("queen_maintenance_mode_enabled", "1 while pushes are switched off for maintenance.", int(on))
    page.gauge(
        "queen_pop_maintenance_mode_enabled",
        "1 while pops are switched off for maintenance.",
        int(broker.pops_are_paused),
    )
    state: dict[str, Any] = broker.shared_state()
    page.gauge(
        "queen_shared_state_enabled",
        "1 if this server exchanges packets with other servers.",
        int(bool(state["enabled"])),
    )
    configs, ids, hints = state["queue_config_cache"], state["partition_id_cache"], state["lease_hints"]
    page.gauge("queen_qc_cache_size", "Queues whose options are in the cache.", configs["size"])
    page.counter("queen_qc_cache_hits_total", "Lookups of queue options that the cache answered.", configs["hits"])
    page.counter(
        "queen_qc_cache_misses_total", "Lookups of queue options that the cache could not answer.", configs["misses"]
    )
    page.gauge("queen_partition_id_cache_size", "Partition ids in the cache.", ids["size"])
    page.counter(
        "queen_partition_id_cache_hits_total", "Lookups of partition ids that the cache answered.", ids["hits"]
    )
    page.counter(
        "queen_partition_id_cache_misses_total",
        "Lookups of partition ids that the cache could not answer.",
        ids["misses"],
    )
    page.gauge(
        "queen_lease_hints_size", "Leases taken on other servers of which this server has a hint.", hints["size"]
    )
    page.counter("queen_lease_hints_used_total", "Probes that a lease hint saved.", hints["hints_used"])
    page.counter(
        "queen_lease_hints_checked_total", "Lease hints that were checked against the database.", hints["hints_checked"]
    )
    page.counter(
        "queen_lease_hints_wrong_total",
        "Lease hints that were checked against the database and were wrong.",
        hints["hints_wrong"],
    )
    page.gauge(
        "queen_lease_hint_accuracy",
        "Share of correct lease hints among those that were checked, from 0 to 1.",
        hints["accuracy"],
    )
    presence = state["consumer_presence"]
    for kind in ("targeted", "broadcast", "saved"):
        page.counter(
            "queen_notifications_total",
            "Notifications of other servers about pushes, by kind: targeted, broadcast, or saved because no server "
            "needed one.",
            presence[f"notifications_{kind}"],
            kind=kind,
        )
    health = state["server_health"]
    for alive in ("alive", "dead"):
        page.gauge("queen_servers", "Other servers of the cluster, by state.", health[f"servers_{alive}"], state=alive)
    transport = state["transport"]
    for way in ("sent", "received"):
        page.counter(
            "queen_transport_messages_total",
            "Packets exchanged with other servers, by direction.",
            transport[f"packets_{way}"],
            dir=way,
        )
        page.counter(
            "queen_transport_bytes_total",
            "Bytes of packets exchanged with other servers, by direction.",
            transport[f"bytes_{way}"],
            dir=way,
        )
    for reason, count in transport["dropped"].items():
        page.counter(
            "queen_transport_dropped_total",
            "Packets from other servers that were dropped, by reason.",
            count,
            reason=reason,
        )


def _worker(page: Exposition, broker: Broker) -> None:
    vitals, counts = broker.vitals, broker.activity.now()
    who = {"hostname": vitals.hostname, "worker_id": broker.settings.server.worker_id, "pid": vitals.pid}
    for name, about in (
        ("push_requests", "Push requests"),
        ("push_messages", "Messages stored"),
        ("pop_requests", "Pop requests"),
        ("pop_messages", "Messages delivered"),
        ("pop_empty", "Pop requests that got no messages"),
        ("ack_requests", "Ack requests"),
        ("ack_success", "Acknowledgements that were applied"),
        ("ack_failed", "Acknowledgements that were refused"),
        ("dead_lettered", "Messages that became dead letters"),
        ("transactions", "Transactions, counted once for each queue in them,"),
    ):
        page.counter(
            f"queen_worker_{name}_total", f"{about} by this process since its start.", getattr(counts, name), **who
        )


def _cluster(page: Exposition, row: Totals) -> None:
    for operation, requests, messages in (
        ("push", row.push_requests, row.push_messages),
        ("pop", row.pop_requests, row.pop_messages),
        ("ack", row.ack_requests, row.ack_success),
    ):
        page.counter(
            f"queen_cluster_{operation}_requests_total",
            f"{operation.capitalize()} requests, on all servers.",
            requests,
            **_CLUSTER,
        )
        page.counter(
            f"queen_cluster_{operation}_messages_total",
            f"Messages in {operation} requests, on all servers.",
            messages,
            **_CLUSTER,
        )
    page.counter(
        "queen_cluster_transactions_total",
        "Transactions on all servers, counted once for each queue in them.",
        row.transactions,
        **_CLUSTER,
    )
    for result, acknowledgements in (("success", row.ack_success), ("failed", row.ack_failed)):
        page.counter(
            "queen_cluster_ack_total",
            "Acknowledgements on all servers, by result: success if they were applied, failed if they were refused.",
            acknowledgements,
            result=result,
            **_CLUSTER,
        )
    page.counter(
        "queen_cluster_db_errors_total", "Database calls that failed, on all servers.", row.db_errors, **_CLUSTER
    )
    page.counter(
        "queen_cluster_dlq_total", "Messages that became dead letters, on all servers.", row.dead_lettered, **_CLUSTER
    )


def _queue(page: Exposition, row: QueueMinute) -> None:
    queue = {"queue": row.queue_name}
    for name, about, count in (
        ("pop_messages", "Messages delivered in the last whole minute, on all servers.", row.pop_messages),
        ("push_requests", "Push requests in the last whole minute, on all servers.", row.push_requests),
        ("push_messages", "Messages stored in the last whole minute, on all servers.", row.push_messages),
        ("pop_empty", "Pop requests that got no messages in the last whole minute, on all servers.", row.pop_empty),
        ("transactions", "Transactions in the last whole minute, on all servers.", row.transactions),
    ):
        page.gauge(f"queen_queue_{name}_per_minute", about, count, **queue)
    for result, acknowledgements in (("success", row.ack_success), ("failed", row.ack_failed)):
        page.gauge(
            "queen_queue_ack_per_minute",
            "Acknowledgements in the last whole minute, on all servers: success if applied, failed if refused.",
            acknowledgements,
            **queue,
            result=result,
        )
    if row.lag_count:
        about = "Age of the first message of a pop at its delivery, in the last whole minute."
        page.gauge("queen_queue_pop_lag_milliseconds", about, row.average_lag_ms, **queue, stat="avg")
        page.gauge("queen_queue_pop_lag_milliseconds", about, row.lag_max_ms, **queue, stat="max")
    page.gauge(
        "queen_queue_metrics_age_seconds",
        "Seconds since the end of the minute that the per-minute metrics of the queue describe.",
        row.age_s,
        **queue,
    )


def _backlog(page: Exposition, row: Overview) -> None:
    for state, count in (("pending", row.pending), ("processing", row.processing), ("completed", row.completed)):
        page.gauge(
            "queen_messages", "Stored messages, by state for the slowest group of their partition.", count, state=state
        )
    page.gauge("queen_queues", "Number of queues.", row.queues)
    page.gauge("queen_partitions", "Number of partitions.", row.partitions)
    page.gauge("queen_leases", "Number of (partition, group) pairs under a lease.", row.leases)
    due = "How long the oldest message that a group has not read has been due."
    page.gauge("queen_lag_seconds", due, row.lag_max_s or 0.0)
    page.gauge("queen_statistics_age_seconds", "Age of the oldest statistics of queues in use.", row.age_s)
    page.gauge("queen_dlq_depth", "Dead letters of all queues.", row.dead_letters, **_CLUSTER)
