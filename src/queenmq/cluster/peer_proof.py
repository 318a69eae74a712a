"""How a server shows that a request which it passes on comes from a server of the cluster.

The proof is a MAC with the cluster's secret over everything that the request says: who sends it, to whom, when, under
which id, the method, the target, the caller's token and the body. It is good for one request at one server: it names
the receiver, ends after half a minute, and its id is accepted once. Owns that decision; headers and connections are
the concern of others.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import NamedTuple

from queenmq.cluster.keys import KeyRing

WINDOW_MS = 30_000
MAX_REMEMBERED = 200_000

_LABEL = b"queen forwarded request"


class Envelope(NamedTuple):
    """What of a request the proof covers, beside time and id."""

    sender: bytes
    receiver: bytes
    method: bytes
    target: bytes
    authorization: bytes
    body: bytes

    def signed(self, at_ms: int, origin: str) -> bytes:
        # Neither part can have a line break: those that are free text go in as digests.
        return b"\n".join(
            (
                _LABEL,
                b"%d" % at_ms,
                origin.encode(),
                hashlib.sha256(self.sender).digest().hex().encode(),
                hashlib.sha256(self.receiver).digest().hex().encode(),
                self.method,
                hashlib.sha256(self.target).digest().hex().encode(),
                hashlib.sha256(self.authorization).digest().hex().encode(),
                hashlib.sha256(self.body).digest().hex().encode(),
            )
        )


def prove(ring: KeyRing, envelope: Envelope, origin: str, at_ms: int) -> bytes:
    key = ring.current
    mac = key.sign(envelope.signed(at_ms, origin), b"")
    return f"{key.id.hex()}.{at_ms}.{origin}.{mac.hex()}".encode()


class ProofChecker:
    """Remembers the ids it has accepted. When there are too many, it refuses everything that is as old as the
    forgotten ones, so that none is ever accepted twice."""

    def __init__(self, ring: KeyRing, max_remembered: int = MAX_REMEMBERED) -> None:
        self._ring = ring
        self._max = max_remembered
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._floor_ms = 0

    def __len__(self) -> int:
        return len(self._seen)

    def check(self, proof: bytes, envelope: Envelope, now_ms: int) -> str | None:
        """The id of a request that is proven and new; None for any other."""
        try:
            key_id, at, origin, mac = proof.decode("ascii").split(".")
            key = self._ring.find(bytes.fromhex(key_id))
            signature = bytes.fromhex(mac)
            at_ms = int(at)
        except ValueError:
            return None
        if key is None or not key.verifies(signature, envelope.signed(at_ms, origin), b""):
            return None
        if abs(now_ms - at_ms) > WINDOW_MS or at_ms <= self._floor_ms or origin in self._seen:
            return None
        self._remember(origin, at_ms, now_ms)
        return origin

    def _remember(self, origin: str, at_ms: int, now_ms: int) -> None:
        seen = self._seen
        seen[origin] = at_ms
        while seen:
            oldest = next(iter(seen))
            # What comes from a clock that is ahead stays valid for longer than it looks.
            if seen[oldest] + WINDOW_MS >= now_ms and len(seen) <= self._max:
                break
            if seen[oldest] + WINDOW_MS >= now_ms:
                self._floor_ms = max(self._floor_ms, seen[oldest])
            del seen[oldest]
