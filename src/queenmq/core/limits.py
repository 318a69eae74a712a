"""How much of a queue is delivered at once and in a second. No I/O."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from queenmq.errors import InvalidRequest

MOST_LEASES = 1000
MOST_KEY_LEASES = 100
HIGHEST_RATE = 1_000_000

Rate = Annotated[float, Meta(ge=0.001, le=HIGHEST_RATE)]
Burst = Annotated[int, Meta(ge=1, le=HIGHEST_RATE)]


class KeyLimits(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The same for each key. Keys are those of the fairness of the queue: the beginnings of names of partitions."""

    leases: Annotated[int, Meta(ge=1, le=MOST_KEY_LEASES)] | None = None
    rate: Rate | None = None
    burst: Burst | None = None


class LimitPolicy(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`leases` is how many leases may be open at once; `rate` how many messages are delivered a second, and `burst` how
    many at once after a pause (a second's worth unless it is given)."""

    leases: Annotated[int, Meta(ge=1, le=MOST_LEASES)] | None = None
    rate: Rate | None = None
    burst: Burst | None = None
    per_key: KeyLimits | None = None

    def check(self) -> None:
        """Raise InvalidRequest for what limits nothing."""
        if self.leases is None and self.rate is None and self.per_key is None:
            what = "leases, rate or perKey is required, or null to take the limits back"
            raise InvalidRequest(f"limits: {what}", "limits")
        if self.per_key is not None and self.per_key.leases is None and self.per_key.rate is None:
            raise InvalidRequest("limits: leases or rate of perKey is required", "limits.perKey")
        if self.burst is not None and self.rate is None:
            raise InvalidRequest("limits: burst needs a rate", "limits.burst")
        if self.per_key is not None and self.per_key.burst is not None and self.per_key.rate is None:
            raise InvalidRequest("limits: burst of perKey needs a rate", "limits.perKey.burst")


def most_at_once(limits: LimitPolicy | KeyLimits) -> float | None:
    """The size of the token bucket; None without a rate."""
    if limits.rate is None:
        return None
    return max(1.0, limits.rate) if limits.burst is None else float(limits.burst)
