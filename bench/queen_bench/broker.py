"""What a scenario needs of a broker: producers and consumers. Queen over HTTP is one, each peer is another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Want:
    """How a consumer reads."""

    batch: int
    group: str = ""
    auto_ack: bool = False
    take: bool = False  # finish the last lease and pop in one request
    connected: bool = False  # over a consumer connection
    client: bool = False  # through our own Python client; the libraries of other brokers are used anyhow
    prefetch: int = 0  # batches that it fetches beyond those in hand
    queue: str | None = None  # instead of the first queue of the layout
    partition: str | None = None  # instead of any
    partitions: int = 1
    work_s: Callable[[], float] | None = None  # how long the work on a message takes
    wait_ms: int = 500  # short, because a run ends only when the last poll has ended


class Producer(Protocol):
    async def push(self, lane: int, first: int, count: int) -> None:
        """Push the messages `lane:first` and so on in one request; return when they are stored for good."""

    async def push_each(self, messages: Sequence[tuple[int, int]]) -> None:
        """The same for messages (lane, sequence) of several lanes."""

    async def close(self) -> None: ...


class Consumer(Protocol):
    async def pop(self) -> list[str]:
        """Up to a batch of ids in order, or nothing when the wait is over."""

    async def ack(self) -> None:
        """Finish what the last pop brought."""

    async def close(self) -> None: ...


class Broker(Protocol):
    async def producer(self, number: int, *, client: bool = False) -> Producer:
        """`client`: through our own Python client."""

    async def consumer(self, number: int, want: Want) -> Consumer:
        """A consumer; together those with the numbers from 0 up to the connections of the run read everything."""

    async def drainers(self, group: str, lanes: int, wait_ms: int) -> Sequence[Consumer]:
        """Consumers that finish at once what they pop, and that together empty everything in the first lanes."""
