"""The end of every run: pop what is left, look whether there is more than was sent, and close the audit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from queenmq.bench.audit import Audit
from queenmq.bench.broker import Broker, Consumer
from queenmq.bench.tasks import cancelled

# What has not come after this long will not come.
DRAIN_WAIT_MS: Final = 3000
LAST_LOOK_MS: Final = 0


async def drain(broker: Broker, audit: Audit) -> None:
    """Pop until every group has got everything or nothing comes any more."""
    for group in audit.groups:
        consumers = await broker.drainers(group, audit.lanes, DRAIN_WAIT_MS)
        tasks = [asyncio.ensure_future(_drain(consumer, audit, group)) for consumer in consumers]
        try:
            await _until_complete(tasks, audit, group)
        finally:
            await cancelled(tasks)
            for consumer in consumers:
                await consumer.close()


async def _until_complete(tasks: Iterable[asyncio.Future[None]], audit: Audit, group: str) -> None:
    """Wait for the first that leaves nothing behind, or for all of them; the rest would wait in vain."""
    waiting = set(tasks)
    while waiting and audit.pending_of(group):
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _drain(consumer: Consumer, audit: Audit, group: str) -> None:
    while audit.pending_of(group) > 0 and await _take(consumer, audit, group):
        pass


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
