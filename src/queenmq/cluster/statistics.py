"""The counters of the shared state in one answer."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from queenmq.core.names import iso_millis

if TYPE_CHECKING:
    from queenmq.cluster.state import SharedState


def statistics(state: SharedState, now: float, wall: datetime) -> dict[str, object]:
    """Servers are the others: this one is not counted among them."""
    return {
        "server_id": state.server_id,
        "epoch": state.epoch,
        "consumer_presence": state.presence.statistics()
        | {
            "own_queues": len(state.own_consumers),
            "registrations_sent": state.registrations_sent,
            "deregistrations_sent": state.deregistrations_sent,
            "notifications_targeted": state.outbox.targeted,
            "notifications_broadcast": state.outbox.broadcast,
            "notifications_saved": state.outbox.saved,
        },
        "lease_hints": state.lease_hints.statistics(),
        "server_health": _server_health(state, now, wall),
        "transport": state.traffic.statistics() | {"senders_tracked": len(state.replay)},
    }


def _server_health(state: SharedState, now: float, wall: datetime) -> dict[str, object]:
    members = state.members.members()
    alive = sum(member.alive for member in members)
    return {
        "servers_tracked": len(members),
        "servers_alive": alive,
        "servers_dead": len(members) - alive,
        "silent": sorted(member.id for member in members if not member.alive),
        "heartbeats_received": state.members.heartbeats_received,
        "goodbyes_received": state.members.goodbyes_received,
        "restarts_detected": state.members.restarts_detected,
        "last_heartbeat": {m.id: iso_millis(wall - timedelta(seconds=now - m.heartbeat_at)) for m in members},
    }
