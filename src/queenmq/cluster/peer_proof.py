"""How servers of a cluster show each other that a forwarded request, and its answer, come from one of them.

A proof is a MAC with the cluster's secret over everything that is said. That of a request covers who sends it, to whom,
when, under which id, the method, the target, the caller's token and the digest of the body; it is good for one request
at one server: it names the receiver, ends after half a minute, and its id is accepted once. The digest stands in the
proof, so that the sender is known before the body is read. That of an answer covers the request's proof, the status,
the headers and the body: a program that has taken over the address of a server cannot answer for it. Owns those
decisions; headers and connections are the concern of others.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from queenmq.cluster.keys import KeyRing

WINDOW_MS = 30_000
MAX_REMEMBERED = 200_000

_LABEL = b"queen forwarded request 2"
_ANSWER_LABEL = b"queen forwarded answer"


class Envelope(NamedTuple):
    """What of the head of a request the proof covers, beside time, id and the digest of the body."""

    sender: bytes
    receiver: bytes
    method: bytes
    target: bytes
    authorization: bytes

    def signed(self, at_ms: int, origin: str, digest: str) -> bytes:
        # Neither part can have a line break: those that are free text go in as digests.
        return b"\n".join(
            (
                _LABEL,
                b"%d" % at_ms,
                origin.encode(),
                _hex(self.sender),
                _hex(self.receiver),
                self.method,
                _hex(self.target),
                _hex(self.authorization),
                digest.encode(),
            )
        )


class Proven(NamedTuple):
    """A request that comes from a server of the cluster, if its body is the one that the proof is about."""

    origin: str
    digest: str

    def covers(self, body: bytes) -> bool:
        return hmac.compare_digest(hashlib.sha256(body).hexdigest(), self.digest)


class Answer(NamedTuple):
    """What of an answer its proof covers; names of headers in lower case."""

    status: int
    content_type: bytes
    headers: Iterable[tuple[bytes, bytes]]
    body: bytes

    def signed(self, request_proof: bytes) -> bytes:
        headers = sorted(b"%b:%b" % (name, value) for name, value in self.headers)
        return b"\n".join(
            (
                _ANSWER_LABEL,
                _hex(request_proof),
                b"%d" % self.status,
                _hex(self.content_type),
                _hex(b"\n".join(headers)),
                _hex(self.body),
            )
        )


def prove(ring: KeyRing, envelope: Envelope, body: bytes, origin: str, at_ms: int) -> bytes:
    key = ring.current
    digest = hashlib.sha256(body).hexdigest()
    mac = key.sign(envelope.signed(at_ms, origin, digest), b"")
    return f"{key.id.hex()}.{at_ms}.{origin}.{digest}.{mac.hex()}".encode()


def prove_answer(ring: KeyRing, answer: Answer, request_proof: bytes) -> bytes:
    key = ring.current
    return f"{key.id.hex()}.{key.sign(answer.signed(request_proof), b'').hex()}".encode()


def is_proven_answer(ring: KeyRing, proof: bytes, answer: Answer, request_proof: bytes) -> bool:
    """Whether the answer was given by a server of the cluster to that very request."""
    try:
        key_id, mac = proof.decode("ascii").split(".")
        key = ring.find(bytes.fromhex(key_id))
        signature = bytes.fromhex(mac)
    except ValueError:
        return False
    return key is not None and key.verifies(signature, answer.signed(request_proof), b"")


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

    def check(self, proof: bytes, envelope: Envelope, now_ms: int) -> Proven | None:
        """What is known of a request that is proven and new; None for any other. The body is still to be compared."""
        try:
            key_id, at, origin, digest, mac = proof.decode("ascii").split(".")
            key = self._ring.find(bytes.fromhex(key_id))
            signature = bytes.fromhex(mac)
            at_ms = int(at)
        except ValueError:
            return None
        if key is None or not key.verifies(signature, envelope.signed(at_ms, origin, digest), b""):
            return None
        if abs(now_ms - at_ms) > WINDOW_MS or at_ms <= self._floor_ms or origin in self._seen:
            return None
        self._remember(origin, at_ms, now_ms)
        return Proven(origin, digest)

    def _remember(self, origin: str, at_ms: int, now_ms: int) -> None:
        seen = self._seen
        seen[origin] = at_ms
        while seen:
            oldest = next(iter(seen))
            # A proof from a clock that is ahead stays valid for longer than its time suggests.
            if seen[oldest] + WINDOW_MS >= now_ms and len(seen) <= self._max:
                break
            if seen[oldest] + WINDOW_MS >= now_ms:
                self._floor_ms = max(self._floor_ms, seen[oldest])
            del seen[oldest]


def _hex(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
