"""Ports for processes that tests start: each is given out once, and neither outgoing connections nor bundled databases
take one of them between the moment it is chosen and the moment the process listens on it."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

from queenmq.storage import embedded

FIRST = 10_000
LAST = embedded.PORTS.start
# Runs of the tests that go on side by side begin at different places, and the workers of one run take turns.
_SPREAD = 97
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_RUN = os.getppid() if _WORKERS > 1 else os.getpid()
_next = itertools.count(_RUN * _SPREAD % (LAST - FIRST) // _WORKERS * _WORKERS + _WORKER, _WORKERS)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    for number in itertools.islice(_next, LAST - FIRST):
        port = FIRST + number % (LAST - FIRST)
        if port not in _OUTGOING and _is_free(port, kind):
            return port
    raise AssertionError(f"no port from {FIRST} to {LAST} is free")


def free_udp_port() -> int:
    return free_port(socket.SOCK_DGRAM)


def _is_free(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _outgoing() -> range:
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    # Where nearly every port may be an outgoing one, there is nothing better than those.
    return range(int(first), int(last) + 1) if int(first) > FIRST + 1000 else range(0)


_OUTGOING = _outgoing()
