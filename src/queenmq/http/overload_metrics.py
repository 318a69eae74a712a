"""The metric families of overload, outage and the coordinator: journal, operations, load manager, forwards, horizon."""

from __future__ import annotations

from queenmq.broker.broker import Broker
from queenmq.broker.load_manager import Choice
from queenmq.cluster.circuit_breaker import Circuit
from queenmq.http.exposition import Exposition
from queenmq.http.route import Context
from queenmq.journal.board import JournalFigures
from queenmq.reports.horizon import KINDS, Horizon
from queenmq.reports.operations import OperationGauges


def add_journal(page: Exposition, broker: Broker) -> None:
    """What waits outside of the database, as published dashboards know it; and the journal itself."""
    journal = broker.journal
    figures = JournalFigures() if journal is None else journal.figures()
    page.gauge(
        "queen_file_buffer_pending",
        "Messages in the journal that are not stored in the database yet.",
        figures.messages,
    )
    page.gauge("queen_file_buffer_failed", "Records of the journal that are quarantined.", figures.quarantined)
    page.gauge("queen_file_buffer_db_healthy", "1 while the database answers.", int(broker.database.is_open))
    page.gauge("queen_journal_enabled", "1 if this server has a journal.", int(journal is not None))
    if journal is None:
        return
    bounds = journal.bounds
    page.gauge("queen_journal_healthy", "1 if the last write to the journal succeeded.", figures.healthy)
    page.gauge("queen_journal_bytes", "Size of the journal in bytes.", figures.bytes)
    page.gauge(
        "queen_journal_max_bytes", "Size of the journal in bytes beyond which pushes are refused.", bounds.max_bytes
    )
    page.gauge("queen_journal_records", "Pushes in the journal that are not replayed yet.", figures.operations)
    page.gauge(
        "queen_journal_max_records",
        "Number of pushes in the journal beyond which further pushes are refused.",
        bounds.max_records,
    )
    page.gauge("queen_journal_partitions_held", "Partitions that have messages in the journal.", figures.partitions)
    page.gauge(
        "queen_journal_stuck",
        "Journalled pushes that could not be stored at the last attempt and are retried, and the pushes behind them.",
        figures.stuck,
    )
    page.gauge(
        "queen_journal_waiting_for_key",
        "Journalled pushes that wait for the encryption key with which they were written.",
        figures.waiting_for_key,
    )
    page.gauge("queen_journal_replay_failing", "1 if the last attempt to replay the journal failed.", figures.failing)
    page.counter(
        "queen_journal_replay_failures_total", "Attempts to replay the journal that failed.", figures.replay_failures
    )
    page.counter(
        "queen_journal_replayed_messages_total",
        "Journalled messages that were stored in the database.",
        figures.replayed_messages,
    )
    page.counter("queen_journal_syncs_total", "How often the journal was synced to disk.", figures.syncs)
    page.counter(
        "queen_journal_damaged_total", "Records of the journal that were quarantined since the start.", figures.damaged
    )
    page.counter(
        "queen_journal_torn_bytes_total",
        "Bytes of incomplete records that were cut off the journal.",
        figures.torn_bytes,
    )
    page.gauge("queen_journal_quarantined", "Records in the quarantine of the journal.", figures.quarantined)
    page.gauge(
        "queen_journal_quarantined_bytes", "Size of the quarantine of the journal in bytes.", figures.quarantined_bytes
    )


def add_load(page: Exposition, broker: Broker) -> None:
    """What the load manager measures, and what it decided; and conditional pushes, which it never defers."""
    page.counter(
        "queen_push_offset_conflicts_total",
        "Pushes that were refused because a partition did not end where they expected.",
        broker.conditional_pusher.conflicts,
    )
    load = broker.load.measured()
    page.gauge(
        "queen_load_pool_used_ratio", "Share of the database connections that are in use, from 0 to 1.", load.pool_used
    )
    page.gauge("queen_load_pool_waiting", "Database calls that wait for a connection.", load.pool_waiting)
    page.gauge("queen_load_push_wait_seconds", "How long pushes wait for their database call.", load.wait_s)
    page.gauge("queen_load_loop_delay_seconds", "Average delay of the event loop.", load.loop_delay_s)
    for choice in Choice:
        page.counter(
            "queen_load_decisions_total",
            "Decisions of the load manager about requests: execute, queue or reject.",
            broker.load.decisions[choice],
            operation="push",
            decision=choice.value,
        )
    for reason, messages in sorted(broker.load.deferred.items()):
        page.counter(
            "queen_push_deferred_total",
            "Messages that were accepted with 202 to be stored later, by reason.",
            messages,
            reason=reason,
        )
    page.counter("queen_push_refused_total", "Messages that were refused with 429 for load.", broker.load.refused)
    page.gauge("queen_operations_drain_rate", "Operations finished a second, on all servers.", load.drain_rate)
    for result, operations in sorted(broker.operation_runner.pushes.finished.items()):
        page.counter(
            "queen_operations_run_total", "Deferred pushes that this server ran, by result.", operations, result=result
        )


def add_stepped_operations(page: Exposition, broker: Broker) -> None:
    """Stepped operations, as far as this server runs them."""
    runner, steps = broker.operation_runner, broker.operation_runner.steps
    page.gauge(
        "queen_long_operations_running",
        "Long operations that this server runs now.",
        runner.running,
    )
    page.counter("queen_long_operation_steps_total", "Steps of long operations that this server ran.", steps.steps)
    for result, operations in (("completed", steps.completed), ("failed", steps.failed)):
        about = "Stepped operations that ended on this server, by result."
        page.counter("queen_long_operations_total", about, operations, result=result)


def add_operations(page: Exposition, row: OperationGauges) -> None:
    """The operation queue, which all servers share."""
    for state, count in (
        ("pending", row.pending),
        ("processing", row.processing),
        ("blocked", row.blocked),
        ("failed", row.failed),
    ):
        page.gauge(
            "queen_operations", "Operations that have not completed, on all servers, by state.", count, state=state
        )
    page.gauge(
        "queen_operations_retrying",
        "Operations that failed and are retried; later ones of their partition wait.",
        row.retrying,
    )
    page.gauge(
        "queen_operations_oldest_age_seconds",
        "Age of the oldest operation that has not completed.",
        row.oldest_s or 0.0,
    )


def add_forwards(page: Exposition, broker: Broker) -> None:
    """Requests that other servers served for this one."""
    coordinator, now = broker.node.coordinator, broker.node.now
    page.gauge(
        "queen_coordinator_enabled", "1 if this server forwards requests to other servers.", int(coordinator.enabled)
    )
    for outcome, requests in (("served", coordinator.forwarded), ("fell_back", coordinator.fallbacks)):
        page.counter(
            "queen_forwards_total",
            "Forwarded requests, by outcome: served by another server, or fell back to this one.",
            requests,
            outcome=outcome,
        )
    for reason, attempts in sorted(coordinator.failed_attempts.items()):
        page.counter(
            "queen_forward_attempts_failed_total",
            "Attempts to forward a request that failed, by reason.",
            attempts,
            reason=reason,
        )
    peers = [load for load in coordinator.tracker if load is not coordinator.local]
    states = [load.breaker.state(now) for load in peers]
    for circuit in Circuit:
        page.gauge(
            "queen_circuits",
            "Circuit breakers for other servers, by state.",
            states.count(circuit),
            state=circuit.value,
        )
    page.gauge("queen_affinity_routes", "Consumer groups that are assigned to a server.", len(coordinator.consumers))
    for event in ("assigned", "migrated", "broken", "gathered"):
        page.counter(
            "queen_affinity_changes_total",
            "Assignments of consumer groups to servers, by change.",
            getattr(coordinator.consumers, event),
            change=event,
        )


def add_horizon(page: Exposition, found: Horizon) -> None:
    """Of each kind the oldest holder; 0 if there is none."""
    for kind in KINDS:
        holders = [holder for holder in found.holders if holder.kind == kind]
        page.gauge(
            "queen_horizon_held_seconds",
            "How long the oldest transaction has kept VACUUM from removing dead rows, by kind of its holder: session, "
            "standby, slot or prepared.",
            max((holder.seconds or 0.0 for holder in holders), default=0.0),
            kind=kind,
        )
        page.gauge(
            "queen_horizon_held_transactions",
            "Transactions since the oldest one that keeps VACUUM from removing dead rows, by kind of its holder: "
            "session, standby, slot or prepared.",
            max((holder.transactions for holder in holders), default=0),
            kind=kind,
        )


def add_timers(page: Exposition, broker: Broker) -> None:
    timers = broker.timers
    page.counter("queen_timers_pushed_total", "Timers that this server has pushed.", timers.pushed)
    page.counter(
        "queen_timers_failed_total",
        "Attempts of this server to push a timer that failed; it is tried again.",
        timers.failed,
    )
    page.gauge(
        "queen_timers_late_seconds", "How late the most overdue timer of this server's last batch was.", timers.late_s
    )


def add_outbox(page: Exposition, broker: Broker) -> None:
    outbox = broker.outbox
    page.counter(
        "queen_outbox_pushed_total", "Messages sent with queen.send that this server has pushed.", outbox.pushed
    )
    page.counter(
        "queen_outbox_failed_total",
        "Messages sent with queen.send that this server could not push; they are kept and tried again.",
        outbox.failed,
    )
    page.gauge(
        "queen_outbox_waiting",
        "Messages sent with queen.send that wait to be pushed, counted once a minute up to 100,000.",
        outbox.waiting,
    )
    page.gauge(
        "queen_outbox_held_partitions",
        "Partitions whose messages sent with queen.send could not be pushed and wait, counted once a minute.",
        outbox.held,
    )
    page.gauge(
        "queen_outbox_late_seconds",
        "How long the oldest message of this server's last batch had waited since it was sent.",
        outbox.late_s,
    )


def add_access(page: Exposition, context: Context) -> None:
    """What was refused to callers, and what is recorded of them."""
    for kind, refused in (*context.rates.refused.items(), ("stored", context.quotas.refused)):
        page.counter(
            "queen_rate_limited_requests_total",
            "Requests that were refused because a token or a namespace has used up its share, by what it was.",
            refused,
            limit=kind,
        )
    page.counter(
        "queen_schema_refused_messages_total",
        "Messages that were refused because they do not fit the schema of their queue.",
        context.broker.schemas.refused,
    )
    page.counter(
        "queen_audit_lost_total",
        "Entries of the audit log that were lost because the database was away.",
        context.audit.lost,
    )
    reports = context.reports
    page.gauge("queen_searches", "Searches that run, or wait for their turn.", reports.searches)
    page.gauge("queen_searches_limit", "Searches beyond which further ones are refused.", reports.most_searches)
    page.counter(
        "queen_searches_refused_total", "Searches that were refused because too many wait.", reports.searches_refused
    )
