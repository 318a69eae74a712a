"""The open connections of a process: how many there may be, in all and of one address, and which ones make room.

Owns the counting and the choice. Connections are closed only when another one needs the room: first those that have
never sent anything, then those that have sent part of a request, then those that are idle between two requests; within
each kind those of the address with the most connections first, and of these the oldest. A connection with a running
request, such as a long poll, and one of another server of the cluster are never closed for that.
"""

from __future__ import annotations

import heapq
import ipaddress
import logging
from typing import Protocol

from queenmq.httpserver.limits import Limits

TELL_EVERY_S = 10.0
BATCH_SHARE = 32  # so large a part of the connections makes room at once: finding them examines every connection

EXAMINED_AGAIN = 8  # if that found nothing more to close: when so large a part of these has come anew

_log = logging.getLogger(__name__)


class Member(Protocol):
    """A connection, or one that is still in its TLS handshake."""

    @property
    def spare_rank(self) -> int | None:
        """How soon it may be closed when room is needed: 0 is first; None is never."""
        ...

    def make_room(self) -> None:
        """Close now."""
        ...


class Crowd:
    """Fronts of one process share it."""

    def __init__(self, limits: Limits) -> None:
        self.most = limits.max_connections
        self.most_per_address = limits.most_per_address
        self.refused = 0
        self.closed_for_room = 0
        self._places: dict[Member, str] = {}  # the oldest first
        self._counts: dict[str, int] = {}
        # Where nothing was left to close at a moment, and how many had entered by then.
        self._full: dict[str | None, int] = {}
        self._full_at = 0.0
        self._entered = 0
        self._told = (0, 0)
        self._told_at: float | None = None

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, connection: Member, address: str, now: float) -> bool:
        """Take note of a new connection, and make room for it; False if there is none."""
        place = place_of(address)
        self._entered += 1
        self._places[connection] = place
        count = self._counts[place] = self._counts.get(place, 0) + 1
        if (count <= self.most_per_address or self._make_room(connection, place, now)) and (
            len(self._places) <= self.most or self._make_room(connection, None, now)
        ):
            return True
        self.refused += 1
        return False

    def leave(self, connection: Member) -> None:
        place = self._places.pop(connection, None)
        if place is None:
            return
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]

    def tell(self, now: float) -> None:
        """Say in the log how many connections were refused or closed since it was said last."""
        refused, closed = self.refused - self._told[0], self.closed_for_room - self._told[1]
        if not refused and not closed:
            return
        if self._told_at is not None and now - self._told_at < TELL_EVERY_S:
            return
        self._told = self.refused, self.closed_for_room
        self._told_at = now
        place, count = max(self._counts.items(), key=lambda item: item[1], default=("", 0))
        _log.warning(
            "HTTP connections: %d refused and %d idle or incomplete ones closed to make room; %d are open of at most "
            "%d, most of them (%d of at most %d) from %s; the limits are QUEEN_MAX_CONNECTIONS, "
            "QUEEN_MAX_CONNECTIONS_PER_ADDRESS and the number of open files (ulimit -n)",
            *(refused, closed, len(self._places), self.most, count, self.most_per_address, place or "nowhere"),
        )

    def _make_room(self, newcomer: Member, place: str | None, now: float) -> bool:
        """Close connections of that place, or of any; False if each of them is in use."""
        if now != self._full_at:
            self._full.clear()
            self._full_at = now
        most = self.most if place is None else self.most_per_address
        batch = max(1, most // BATCH_SHARE)
        # Not for each newcomer: examining all of them costs more than a connection does.
        if self._entered - self._full.get(place, -most) < max(1, batch // EXAMINED_AGAIN):
            return False
        found = [
            (rank, -self._counts[its_place], index, connection)
            for index, (connection, its_place) in enumerate(self._places.items())
            if (place is None or its_place == place)
            and connection is not newcomer
            and (rank := connection.spare_rank) is not None
        ]
        if len(found) <= batch:
            self._full[place] = self._entered
        for *_, connection in heapq.nsmallest(batch, found, key=lambda item: item[:3]):
            self.leave(connection)
            self.closed_for_room += 1
            connection.make_room()
        return bool(found)


def place_of(address: str) -> str:
    """Whose connections count together: an IPv4 address, or the network of 64 bits that one machine has of IPv6."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
