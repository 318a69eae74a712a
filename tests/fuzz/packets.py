"""Fuzzing of the packets between servers, by changing genuine ones:

    python tests/fuzz/packets.py 600        # seconds; prints its seed
    python tests/fuzz/packets.py 600 17     # the same packets again

Half of the packets are signed after the change, as by a server that has gone mad; the others are not, as by an
outsider. Nothing of it may raise, tables stay within their bounds, what is not signed has no effect, and a peer that
comes afterwards is a member within two heartbeats. The unit tests run a short form.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

from unit.cluster.pair import RING, Street

from queenmq.cluster.bounds import ClusterBounds
from queenmq.cluster.events import OtherVersion
from queenmq.cluster.frame import ANYBODY, MAX_FRAME, MAX_PAYLOAD, Frame, encode_sender, open, seal
from queenmq.cluster.messages import MessageType
from queenmq.cluster.outbox import Outgoing

EXTREMES = (0, 1, 2**31 - 1, 2**32, 2**63 - 1, 2**64 - 1)
BOUNDS = ClusterBounds(
    deregister_after_s=0,
    max_members=8,
    max_challenges=50,
    max_senders=16,
    max_epoch_floors=32,
    presence_max=60,
    lease_hints_max=25,
)
RENEW_AFTER = 2000  # packets; then the servers have met anew


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.packets = 0
        self._begin()

    def _begin(self) -> None:
        self._street = street = Street("a", "b", "c", bounds=BOUNDS).meet()
        self._genuine: list[bytes] = []
        for name in "bc":
            state = street[name]
            outgoing = [*state.tick(street.now + 10).outgoing, *state.pushed([("q", ["p"]), ("r", [])])]
            outgoing += state.consumer_registered("q")
            outgoing += state.lease_acquired([("q", "p", "g", 300)])
            outgoing += state.lease_released([("q", "p", "g")])
            outgoing += state.config_set("q", {"leaseTime": 5}, 3)
            outgoing += state.config_deleted([("q", 4)])
            outgoing += state.partition_deleted([("q", "p")])
            self._genuine += [packet.datagram for packet in outgoing]
        self._genuine += [packet.datagram for packet in street.boot("d", 1, ("10.0.0.9", 9)).tick(0).outgoing]

    def run(self, packets: int) -> None:
        for _ in range(packets):
            self._one()
            self.packets += 1
            if self.packets % RENEW_AFTER == 0:
                self._check_a_newcomer()
                self._begin()

    def _one(self) -> None:
        chance, street = self._chance, self._street
        street.now += chance.choice((0.0, 0.001, 0.1))
        state = street["a"]
        source = chance.choice([*street.servers, ("192.0.2.66", 6634), ("10.0.0.9", 77)])
        signed = chance.random() < 0.5
        datagram = self._signed() if signed else self._unsigned()
        dropped, members = state.traffic.dropped.total(), state.members.recipients("bc")
        events = state.receive(datagram, source, street.now)
        if not signed and datagram not in self._genuine:
            assert state.traffic.dropped.total() == dropped + 1
            assert all(isinstance(event, OtherVersion) for event in events)
            assert state.members.recipients("bc") == members
        if chance.random() < 0.1:
            outgoing: list[Outgoing] = state.tick(street.now).outgoing
            assert all(len(packet.datagram) <= MAX_FRAME for packet in outgoing)
        self._check_bounds()

    def _signed(self) -> bytes:
        chance, life = self._chance, self._street["a"]._life
        frame = open(RING, chance.choice(self._genuine))
        assert isinstance(frame, Frame)
        number = chance.choice((frame.type, frame.type, frame.type, chance.choice(list(MessageType))))
        sender = chance.choice((frame.sender, "a", "c", f"s{chance.randrange(2000)}"))
        epoch = chance.choice((frame.epoch, frame.epoch, chance.choice(EXTREMES)))
        sequence = chance.choice((frame.sequence + self.packets, self.packets + 100, chance.choice(EXTREMES)))
        receiver = chance.choice((life, life, life, ANYBODY, chance.randbytes(16)))
        payload = self._changed(frame.payload)[:MAX_PAYLOAD]
        return seal(RING, number, encode_sender(sender), receiver, epoch, min(sequence, 2**64 - 1), payload)

    def _unsigned(self) -> bytes:
        if self._chance.random() < 0.2:
            return self._chance.randbytes(self._chance.randrange(MAX_FRAME + 200))
        return self._changed(self._chance.choice(self._genuine))

    def _changed(self, data: bytes) -> bytes:
        chance, changed = self._chance, bytearray(data)
        for _ in range(chance.choice((0, 1, 1, 2, 8))):
            place = chance.randrange(len(changed) + 1)
            match chance.randrange(5):
                case 0 if changed:
                    changed[place % len(changed)] ^= 1 << chance.randrange(8)
                case 1:
                    del changed[place : place + chance.randrange(1, 20)]
                case 2:
                    changed[place:place] = chance.randbytes(chance.randrange(1, 20))
                case 3:
                    changed[place:place] = struct.pack(">BQ", chance.choice((0xCF, 0xD3)), chance.choice(EXTREMES))
                case 4:
                    changed[place:] = chance.choice(self._genuine)[chance.randrange(MAX_FRAME) :]
        return bytes(changed)

    def _check_bounds(self) -> None:
        state = self._street["a"]
        assert len(state.members) <= BOUNDS.max_members
        assert len(state.presence) <= BOUNDS.presence_max
        assert len(state.lease_hints) <= BOUNDS.lease_hints_max
        assert len(state.greetings) <= BOUNDS.max_challenges + BOUNDS.max_senders
        assert len(state.replay) <= BOUNDS.max_senders

    def _check_a_newcomer(self) -> None:
        """Whatever was believed, somebody who comes later is a member."""
        street = self._street
        street.servers[("10.0.0.9", 50)] = street.boot("newcomer", 1, ("10.0.0.9", 50))
        street.events["newcomer"] = []
        street.caches["newcomer"] = street.caches["b"]
        street.pass_time(2.5)
        assert street["a"].members.is_alive("newcomer")
        assert street["newcomer"].members.is_alive("a")


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**31)
    sys.stdout.write(f"seed {chosen}\n")
    fuzzer, began = Fuzzer(chosen), time.monotonic()
    halfway = 0.0
    while time.monotonic() < began + seconds:
        fuzzer.run(1000)
        if not halfway and time.monotonic() > began + seconds / 2:
            halfway = resident_mb()
    sys.stdout.write(
        f"{fuzzer.packets} packets, nothing found; {halfway:.0f} MB after half of the time, {resident_mb():.0f} MB at "
        "the end\n"
    )
