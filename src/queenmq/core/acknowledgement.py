"""The words of acknowledgement. No I/O.

What an acknowledgement does to a position is decided in SQL: `queen.ack`, and `queen.finish_leased` for whole leases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from queenmq.core.names import are_plain_names, check_text

COMPLETED = frozenset({"completed", "success"})
STATUSES = COMPLETED | {"failed", "dlq", "retry"}
TRANSACTION_STATUSES = COMPLETED | {"failed", "dlq"}
MAX_ERROR = 2000  # characters


def read_error(text: str | None, field: str) -> str | None:
    """What a consumer says of a failure, cut to MAX_ERROR characters: it may be stored for each message of a lease, and
    who is refused would lose the acknowledgement. Raises InvalidRequest if it cannot be stored."""
    if text is None:
        return None
    text = text[:MAX_ERROR]
    check_text(text, field)
    return text


@dataclass(slots=True)
class Acknowledgement:
    partition_id: str
    transaction_id: str
    group: str | None  # None only in a transaction: the group that holds one of the required leases
    lease_id: str | None
    status: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Excepted:
    """A message of a lease of which something else is said than of the rest."""

    transaction_id: str
    partition_id: str | None  # None: in any partition of the lease
    status: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Finish:
    """The acknowledgement of everything that a lease has delivered and that is not finished."""

    lease_id: str
    status: str
    error: str | None
    excepted: tuple[Excepted, ...] = ()


SEPARATOR = "\x1f"  # between the transaction ids of a run; `queen.ack_runs` knows it, too


@dataclass(slots=True)
class Run:
    """Acknowledgements next to each other that differ only in their message: `first` has what is said of all."""

    first: Acknowledgement
    transactions: list[str] = field(default_factory=list)

    @property
    def joined(self) -> str:
        return SEPARATOR.join(self.transactions)

    @property
    def is_plain(self) -> bool:
        """Whether its transaction ids can be ones for certain, and none has the separator in it."""
        joined = self.joined
        return are_plain_names(self.transactions, joined) and joined.count(SEPARATOR) == len(self.transactions) - 1


def runs_of(items: Iterable[Acknowledgement]) -> list[Run]:
    """The runs of a request, in order. A transaction id that has the separator in it is a run of its own."""
    runs: list[Run] = []
    first: Acknowledgement | None = None
    for item in items:
        if (
            first is None
            or item.partition_id != first.partition_id
            or item.lease_id != first.lease_id
            or item.status != first.status
            or item.group != first.group
            or item.error != first.error
            or SEPARATOR in item.transaction_id
        ):
            first = item
            runs.append(Run(item))
        runs[-1].transactions.append(item.transaction_id)
        if SEPARATOR in item.transaction_id:
            first = None
    return runs
