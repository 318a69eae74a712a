"""The end of every run: pop what is left, look whether there is more than was sent, and close the audit."""

from __future__ import annotations

import time
from typing import Final

from queen_bench.audit import Audit
from queen_bench.broker import Broker, Consumer
from queen_bench.tasks import together

# What has not come after this long will not come.
LONGEST_SILENCE_S: Final = 3.0
# Short, because every poll is waited for: one with autoAck that is given up may have taken messages that nobody sees.
DRAIN_POLL_MS: Final = 200
LAST_LOOK_MS: Final = 0


async def drain(broker: Broker, audit: Audit) -> None:
    """Pop until every group has got everything or nothing comes any more."""
    for group in audit.groups:
        consumers = await broker.drainers(group, audit.lanes, DRAIN_POLL_MS)
        try:
            await together(_drain(consumer, audit, group) for consumer in consumers)
        finally:
            for consumer in consumers:
                await consumer.close()


async def _drain(consumer: Consumer, audit: Audit, group: str) -> None:
    heard = time.perf_counter()
    while audit.pending_of(group) > 0 and time.perf_counter() - heard < LONGEST_SILENCE_S:
        if await _take(consumer, audit, group):
            heard = time.perf_counter()


async def last_look(broker: Broker, audit: Audit) -> None:
    """Everything has arrived; whatever comes now came twice."""
    for group in audit.groups:
        consumers = await broker.drainers(group, audit.lanes, LAST_LOOK_MS)
        for consumer in consumers:
            await _take(consumer, audit, group)
            await consumer.close()


async def _take(consumer: Consumer, audit: Audit, group: str) -> bool:
    began = time.perf_counter()
    ids = await consumer.pop()
    audit.groups[group].received(ids, began, time.perf_counter(), leased=False)
    return bool(ids)
