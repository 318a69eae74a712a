"""The metric families of overload, outage and the coordinator: journal, operations, load manager, forwards."""

from __future__ import annotations

import asyncpg

from queenmq.cluster.circuit_breaker import Circuit
from queenmq.engine.engine import Engine
from queenmq.http.exposition import Exposition
from queenmq.overload.load_manager import Choice


def tell_buffer(told: Exposition, engine: Engine) -> None:
    """What waits outside of the database, as published dashboards know it; and the journal itself."""
    buffer = engine.buffer
    aside = [] if buffer is None else buffer.journal.set_aside_sizes()
    told.gauge(
        "queen_file_buffer_pending",
        "Messages that wait outside of the database.",
        0 if buffer is None else buffer.messages,
    )
    told.gauge("queen_file_buffer_failed", "Records that were set aside, because nothing can store them.", len(aside))
    told.gauge("queen_file_buffer_db_healthy", "Whether the database answers.", int(engine.database.is_open))
    told.gauge("queen_journal_enabled", "Whether this server has a journal.", int(buffer is not None))
    if buffer is None:
        return
    journal, bounds = buffer.journal, buffer.bounds
    told.gauge("queen_journal_healthy", "Whether the disk took the last record.", int(journal.healthy))
    told.gauge("queen_journal_bytes", "Size of the journal.", journal.size)
    told.gauge("queen_journal_max_bytes", "Size beyond which pushes are refused.", bounds.max_bytes)
    told.gauge("queen_journal_records", "Pushes in it that are not replayed.", buffer.pending)
    told.gauge("queen_journal_max_records", "Number of them beyond which pushes are refused.", bounds.max_records)
    told.gauge("queen_journal_partitions_held", "Partitions with messages in it.", buffer.partitions_held)
    told.counter("queen_journal_replayed_messages_total", "Messages of it that the database took.", buffer.replayed)
    told.counter("queen_journal_syncs_total", "Times that it was synced to disk.", journal.syncs)
    told.counter("queen_journal_damaged_total", "Records that were set aside since the start.", journal.damaged)
    told.counter("queen_journal_torn_bytes_total", "Bytes of unfinished records, cut off.", journal.torn_bytes)
    told.gauge("queen_journal_quarantined", "Records in its quarantine.", len(aside))
    told.gauge("queen_journal_quarantined_bytes", "Their size.", sum(aside))


def tell_load(told: Exposition, engine: Engine) -> None:
    """What the load manager measures, and what it decided."""
    load = engine.load.measured()
    told.gauge("queen_load_pool_used_ratio", "Share of the connections in use.", load.pool_used)
    told.gauge("queen_load_pool_waiting", "Calls that wait for a connection.", load.pool_waiting)
    told.gauge("queen_load_push_wait_seconds", "How long pushes wait for their call.", load.wait_s)
    told.gauge("queen_load_loop_delay_seconds", "Delay of the event loop, averaged.", load.loop_delay_s)
    for choice in Choice:
        told.counter(
            "queen_load_decisions_total",
            "Decisions of the load manager.",
            engine.load.decisions[choice],
            operation="push",
            decision=choice.value,
        )
    for reason, messages in sorted(engine.pusher.deferred.items()):
        told.counter("queen_push_deferred_total", "Messages answered with 202.", messages, reason=reason)
    told.counter("queen_push_refused_total", "Messages answered with 429.", engine.pusher.refused)
    told.gauge("queen_operations_drain_rate", "Operations finished in a second, on all servers.", load.drain_rate)
    for result, operations in sorted(engine.operations.finished.items()):
        told.counter("queen_operations_run_total", "Operations that this server ran.", operations, result=result)


def tell_long_operations(told: Exposition, engine: Engine) -> None:
    """Administration in steps, as far as this server does it."""
    long = engine.long_operations
    told.gauge("queen_long_operations_running", "Long operations that this server runs.", long.running)
    told.counter("queen_long_operation_steps_total", "Steps of long operations that this server did.", long.steps)
    for result, operations in (("completed", long.completed), ("failed", long.failed)):
        about = "Long operations that ended on this server."
        told.counter("queen_long_operations_total", about, operations, result=result)


def tell_operations(told: Exposition, row: asyncpg.Record) -> None:
    """The operation queue, which all servers share."""
    for state in ("pending", "processing", "failed"):
        told.gauge("queen_operations", "Operations that are not completed.", row[state], state=state)
    told.gauge("queen_operations_oldest_age_seconds", "Age of the oldest open one.", row["oldest_s"] or 0.0)


def tell_forwards(told: Exposition, engine: Engine) -> None:
    """Requests that other servers served for this one."""
    coordinator, now = engine.node.coordinator, engine.node.now
    told.gauge("queen_coordinator_enabled", "Whether requests are passed on.", int(coordinator.enabled))
    for outcome, requests in (("served", coordinator.forwarded), ("fell_back", coordinator.fallbacks)):
        told.counter("queen_forwards_total", "Requests passed on, by what became of them.", requests, outcome=outcome)
    for reason, attempts in sorted(coordinator.failed_attempts.items()):
        told.counter("queen_forward_attempts_failed_total", "Attempts that failed.", attempts, reason=reason)
    peers = [load for load in coordinator.tracker if load is not coordinator.local]
    states = [load.breaker.state(now) for load in peers]
    for circuit in Circuit:
        told.gauge("queen_circuits", "Circuits to other servers.", states.count(circuit), state=circuit.value)
    told.gauge("queen_affinity_routes", "Consumer groups with a server of their own.", len(coordinator.consumers))
    for event in ("assigned", "migrated", "broken"):
        told.counter(
            "queen_affinity_changes_total", "Changes of them.", getattr(coordinator.consumers, event), change=event
        )
