"""Sizes and times of the cluster layer. Every table that grows has its bound here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    forget_after_s: float = 300.0  # a dead server is remembered so long
    max_members: int = 256
    max_greeted: int = 1024  # addresses of siblings that others have named

    replay_window: int = 1024  # sequences
    replay_age_s: float = 10.0  # overtaken for twice as long, a packet is refused even within the window
    max_senders: int = 1024
    max_epoch_floors: int = 4096

    queue_configs_max: int = 10_000
    refresh_s: float = 60.0
    tombstone_s: float = 180.0  # longer than two refreshes
    tombstones_max: int = 10_000

    presence_snapshot_s: float = 5.0
    presence_fade_s: float = 20.0  # unconfirmed by four snapshots
    presence_max: int = 50_000
    deregister_after_s: float = 1.0  # a consumer that polls again at once is not announced twice

    partition_ids_max: int = 10_000
    partition_id_ttl_s: float = 300.0

    lease_hints_max: int = 10_000
    lease_hint_share: float = 0.2  # of the lease time
    lease_hint_longest_s: float = 600.0
    lease_release_memory_s: float = 10.0  # so long a release holds against an acquisition that it overtook
    verify_share: float = 0.01
    verify_after_s: float = 1.0  # believed for longer, a hint is checked; so the word of a release may get lost
