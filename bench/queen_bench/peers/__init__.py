"""Other brokers that can do the same work with the same durability: each started by us, with an adapter of its own."""

from __future__ import annotations

from pathlib import Path

from queen_bench.errors import BenchError
from queen_bench.subject import Contender


def find(name: str, scratch: Path | None) -> Contender:
    """The adapter of that name. Raises PeerMissing, saying what to install, if it cannot run here."""
    if name == "rabbitmq":
        from queen_bench.peers.rabbitmq import RabbitMq

        return RabbitMq(scratch)
    if name == "nats":
        from queen_bench.peers.nats import Nats

        return Nats(scratch)
    if name == "procrastinate":
        from queen_bench.peers.procrastinate import Procrastinate

        return Procrastinate(scratch)
    raise BenchError(f"there is no peer {name!r}")
