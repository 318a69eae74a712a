"""The messages of a pop of the broker, one by one."""

from __future__ import annotations

import json
from dataclasses import dataclass

from queenmq.broker.pop import Delivered
from queenmq.core.message import BETWEEN


@dataclass(frozen=True)
class Delivery:
    partition_id: str
    partition: str
    transaction_id: str


def messages_of(delivered: Delivered) -> list[Delivery]:
    return [
        Delivery(run.partition_id, run.partition, one["transactionId"])
        for run in delivered.runs
        for one in json.loads(b"[%b}]" % run.glued.replace(BETWEEN, b"},"))
    ]
