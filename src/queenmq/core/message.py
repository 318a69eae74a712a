"""A message on its way into a partition."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass


@dataclass(slots=True)
class Message:
    queue: str
    partition: str
    payload: bytes
    id: str
    transaction_id: str
    _: KW_ONLY
    trace_id: str | None = None
    producer: str | None = None
