"""Coverage-guided fuzzing of what comes in, where atheris is installed:

    python tests/fuzz/frame.py -max_total_time=60

The first byte chooses: raw bytes, which must be refused; or a payload, which is signed, and may do anything but raise.
"""

from __future__ import annotations

import sys

try:
    import atheris
except ImportError:
    sys.exit("atheris is not installed; tests/unit/cluster/test_frame.py covers the same with hypothesis")

with atheris.instrument_imports():
    from queenmq.cluster import frame
    from queenmq.cluster.bounds import ClusterBounds
    from queenmq.cluster.keys import KeyRing, parse_secret
    from queenmq.cluster.membership import Meeting
    from queenmq.cluster.messages import Heartbeat
    from queenmq.cluster.refusal import Refusal
    from queenmq.cluster.state import SharedState

RING = KeyRing(parse_secret("5e" * 32))
SENDER = frame.encode_sender("b")


def one_input(data: bytes) -> None:
    if len(data) < 2 or data[0] % 2:
        assert isinstance(frame.open(RING, data[1:]), Refusal)
        return
    state = SharedState(ClusterBounds(), RING, "a", 1, random=lambda: 0.5)
    state.members.met(Meeting("b", ("10.0.0.1", 1), bytes(16), True), (1, 1), Heartbeat("", 1, []), 0.0)
    payload = data[2 : 2 + frame.MAX_PAYLOAD]
    state.receive(frame.seal(RING, data[1], SENDER, state._life, 1, 2, payload), ("10.0.0.1", 1), 0.0)
    state.tick(1.0)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
