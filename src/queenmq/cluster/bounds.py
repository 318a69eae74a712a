"""Sizes and times of the cluster layer. Every table that grows has its bound here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBounds:
    heartbeat_s: float = 1.0
    dead_after_s: float = 5.0
    forget_after_s: float = 300.0  # a dead server is remembered so long
    max_members: int = 256
    max_greeted: int = 1024  # addresses of siblings that others have named

    challenge_s: float = 5.0  # so long an answer to a challenge is waited for
    max_challenges: int = 4096

    replay_window: int = 1024  # sequences
    replay_age_s: float = 10.0  # overtaken for twice as long, a packet is refused even within the window
    max_senders: int = 1024
    max_epoch_floors: int = 4096

    presence_snapshot_s: float = 5.0
    presence_fade_s: float = 20.0  # unconfirmed by four snapshots
    presence_max: int = 50_000
    deregister_after_s: float = 1.0  # a consumer that polls again at once is not announced twice

    lease_hints_max: int = 10_000
    lease_hint_share: float = 0.2  # of the lease time
    lease_hint_longest_s: float = 600.0
    lease_release_memory_s: float = 10.0  # so long a release holds against an acquisition that it overtook
    verify_share: float = 0.01
    verify_after_s: float = 1.0  # believed for longer, a hint is checked; so the word of a release may get lost
