"""A short run of the fuzzer of packets; `python tests/fuzz/packets.py 600` is a long one."""

from __future__ import annotations

import os
import random

from fuzz.packets import Fuzzer

PACKETS = 200_000 if os.environ.get("QUEEN_LONG", "") not in ("", "0") else 6_000


def test_changed_packets_do_no_harm() -> None:
    seed = random.getrandbits(31)
    try:
        Fuzzer(seed).run(PACKETS)
    except Exception as failure:
        failure.add_note(f"to run it again: python tests/fuzz/packets.py 60 {seed}")
        raise
