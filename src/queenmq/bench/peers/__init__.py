"""Other brokers that can do the same work with the same durability: each started by us, with an adapter of its own."""

from __future__ import annotations

from pathlib import Path

from queenmq.bench.errors import BenchError
from queenmq.bench.subject import Contender


def find(name: str, scratch: Path | None) -> Contender:
    """The adapter of that name. Raises PeerMissing, saying what to install, if it cannot run here."""
    if name == "rabbitmq":
        from queenmq.bench.peers.rabbitmq import RabbitMq

        return RabbitMq(scratch)
    if name == "nats":
        from queenmq.bench.peers.nats import Nats

        return Nats(scratch)
    if name == "procrastinate":
        from queenmq.bench.peers.procrastinate import Procrastinate

        return Procrastinate(scratch)
    raise BenchError(f"there is no peer {name!r}")
