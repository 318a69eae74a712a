"""What the verbs of a broker have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queenmq.broker.activity import Activity
from queenmq.broker.lock_wait import LockWait
from queenmq.broker.long_polls import LongPolls
from queenmq.storage.database import Database


@dataclass(frozen=True, slots=True)
class Parts:
    database: Database
    activity: Activity
    long_polls: LongPolls[Any]
    locks: LockWait
