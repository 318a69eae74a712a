"""How servers come to believe each other: challenges that were sent, and greetings that were answered. Pure.

A challenge is a number that nobody can guess, sent to one address. A server that sends it back in a signed greeting has
the secret, lives now, and is reached at that address: so no recorded packet, in whichever life of whichever server,
makes another server believe in a new address or a new life.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.membership import Address, Stamp


class _Sent(NamedTuple):
    address: Address
    at: float


class Greetings:
    def __init__(self, bounds: ClusterBounds, token: Callable[[], bytes]) -> None:
        self._bounds = bounds
        self._token = token
        self._sent: OrderedDict[bytes, _Sent] = OrderedDict()  # by challenge, the oldest first
        self._answered: OrderedDict[str, Stamp] = OrderedDict()  # by sender, the least recent first

    def __len__(self) -> int:
        return len(self._sent) + len(self._answered)

    def challenge(self, address: Address, now: float) -> bytes:
        """A new challenge for the server at that address."""
        oldest = now - self._bounds.challenge_s
        while self._sent and (len(self._sent) >= self._bounds.max_challenges or self._first().at < oldest):
            self._sent.popitem(last=False)
        challenge = self._token()
        self._sent[challenge] = _Sent(address, now)
        return challenge

    def met(self, challenge: bytes, now: float) -> Address | None:
        """The address that the challenge was sent to, if it was sent a short time ago and not met before."""
        sent = self._sent.pop(challenge, None)
        return None if sent is None or now - sent.at > self._bounds.challenge_s else sent.address

    def is_newest(self, sender: str, stamp: Stamp) -> bool:
        """Whether a greeting is newer than all that were answered. A recorded one is never answered after a newer one,
        and none twice, so that nobody can make this server send packets for the asking."""
        if stamp <= self._answered.get(sender, (-1, -1)):
            return False
        self._answered[sender] = stamp
        self._answered.move_to_end(sender)
        if len(self._answered) > self._bounds.max_senders:
            self._answered.popitem(last=False)
        return True

    def _first(self) -> _Sent:
        return next(iter(self._sent.values()))
