"""How much of a queue is delivered at once and in a second. No I/O."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from queenmq.errors import InvalidRequest

MOST_LEASES = 1000
HIGHEST_RATE = 1_000_000


class LimitPolicy(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """`leases` is how many leases may be open at once; `rate` how many messages are delivered a second, and `burst` how
    many at once after a pause (a second's worth unless it is given)."""

    leases: Annotated[int, Meta(ge=1, le=MOST_LEASES)] | None = None
    rate: Annotated[float, Meta(ge=0.001, le=HIGHEST_RATE)] | None = None
    burst: Annotated[int, Meta(ge=1, le=HIGHEST_RATE)] | None = None

    @property
    def most_at_once(self) -> float | None:
        """The size of the token bucket; None without a rate."""
        if self.rate is None:
            return None
        return max(1.0, self.rate) if self.burst is None else float(self.burst)

    def check(self) -> None:
        """Raise InvalidRequest for what limits nothing."""
        if self.leases is None and self.rate is None:
            raise InvalidRequest("limits: leases or rate is required, or null to take the limits back", "limits")
        if self.burst is not None and self.rate is None:
            raise InvalidRequest("limits: burst needs a rate", "limits.burst")
