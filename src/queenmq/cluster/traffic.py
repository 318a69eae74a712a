"""Counters of packets and bytes, sent, received and dropped by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from queenmq.cluster.refusal import Refusal


@dataclass(slots=True, kw_only=True)
class Traffic:
    packets_sent: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    bytes_received: int = 0
    signed: int = 0
    entries_too_large: int = 0
    conflicts: int = 0
    dropped: Counter[Refusal] = field(default_factory=Counter)

    def statistics(self) -> dict[str, object]:
        return {
            "packets_sent": self.packets_sent,
            "bytes_sent": self.bytes_sent,
            "packets_signed": self.signed,
            "packets_received": self.packets_received,
            "bytes_received": self.bytes_received,
            "packets_dropped": self.dropped.total(),
            "dropped": {refusal.value: self.dropped[refusal] for refusal in Refusal},
            "entries_too_large": self.entries_too_large,
            "conflicts": self.conflicts,
        }
