"""What the load looks like: names of queues and partitions, the payload, and which lane goes where."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field
from typing import Final

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_FRAME: Final = '{"x":""}'
_WORDS: Final = '"customer":"c-1204","status":"paid","currency":"EUR","items":[{"article":"a-17","count":2}],'
_NOTE: Final = '"note":""'

JSON, RANDOM = "json", "random"
"""Kinds of payloads: one that looks like those of applications, and one that cannot be compressed."""


@dataclass(frozen=True)
class Layout:
    """Lanes are dealt over the partitions of one queue.

    A cold layout goes on to a further queue when every partition of one has been used, and never comes back.
    """

    partitions: int
    payload_bytes: int
    cold: bool = False
    kind: str = RANDOM
    keys: int = 0  # which the names of partitions begin with; 0: none
    run: str = field(default_factory=lambda: f"bench-{secrets.token_hex(4)}")

    @property
    def text(self) -> str:
        """The text in every payload, the same in every run; by it a consumer checks that payloads arrive whole."""
        if self.kind == JSON:
            # Whole fields, as many as fit, and one that fills up.
            fields = _WORDS * ((self.payload_bytes - len(_NOTE) - 2) // len(_WORDS))
            return fields + _NOTE[:-1] + " " * max(self.payload_bytes - len(fields) - len(_NOTE) - 2, 0) + '"'
        length = max(self.payload_bytes - len(_FRAME), 1)
        return "".join(random.Random(self.payload_bytes).choices(_ALPHABET, k=length))  # noqa: S311 - no secret

    @property
    def payload(self) -> str:
        """JSON of exactly the wanted size."""
        return "{" + self.text + "}" if self.kind == JSON else '{"x":"' + self.text + '"}'

    def queue(self, lane: int = 0) -> str:
        return f"{self.run}-{lane // self.partitions}" if self.cold else self.run

    def queues(self, lanes: int) -> list[str]:
        """All queues that the first `lanes` lanes have used."""
        return list(dict.fromkeys(self.queue(lane) for lane in range(0, max(lanes, 1), self.partitions)))

    def partition(self, lane: int) -> str:
        number = lane % self.partitions
        return f"k{number % self.keys}:p{number}" if self.keys else f"p{number}"
