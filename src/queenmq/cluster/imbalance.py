"""How unevenly a cluster is loaded, as one number."""

from __future__ import annotations

from collections.abc import Sequence

BALANCED_BELOW = 0.2


def relief(load: float, other: float) -> float:
    """How much lower `other` is: a difference of scores, and beyond a full server a share of what it carries.

    Scores have no upper end. Between servers of 500 % and 510 % there is nothing to gain.
    """
    return (load - other) / max(1.0, other)


def imbalance(loads: Sequence[float]) -> float:
    """The difference between the most and the least loaded server; 0 for fewer than two."""
    return relief(max(loads), min(loads)) if len(loads) > 1 else 0.0
