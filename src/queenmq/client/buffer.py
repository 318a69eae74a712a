"""Batching in the client: messages wait until there are enough of them, or until the first has waited long enough.

A buffer sends one batch at a time, so the order of its messages is kept. A batch leaves the buffer when the server has
answered for it; until then it is sent again, with the same transactionIds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from queenmq.client.errors import (
    BufferNotFlushed,
    ClientClosed,
    InvalidResponse,
    InvalidUse,
    NetworkError,
    PushFailed,
    QueenError,
    TooLarge,
    Unavailable,
)
from queenmq.client.items import PushItem
from queenmq.client.models import BufferStats, PushResult, PushResults
from queenmq.clock import SYSTEM

logger = logging.getLogger("queenmq.client")

_MOST_BYTES = 4 * 1024 * 1024
_RETRY_S = 1.0
_FIRST_SWEEP = 1024
_NO_BOUND = 2**31

Push = Callable[[Sequence[PushItem]], Awaitable[PushResults]]


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Send after `message_count` messages or `time_millis`; a push waits while there are `max_size`."""

    message_count: int = 100
    time_millis: int = 1000
    max_size: int = 0

    def __post_init__(self) -> None:
        if self.message_count < 1 or self.time_millis < 0 or self.max_size < 0:
            raise InvalidUse("message_count must be at least 1, time_millis and max_size not negative")

    @property
    def most(self) -> int:
        return max(self.max_size or 10 * self.message_count, self.message_count)


class Buffer:
    """The waiting messages of one partition."""

    def __init__(self, limits: BufferLimits, push: Push) -> None:
        self.limits = limits
        self._push = push
        self._items: deque[PushItem] = deque()
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._adding = 0
        self._most_items = _NO_BOUND
        self._refusal: QueenError | None = None
        self._failure: QueenError | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost if this buffer were forgotten."""
        return not (self._items or self._adding or self._sending or self._refusal)

    @property
    def since(self) -> float:
        """When the oldest message came, by the monotonic clock."""
        return self._since

    async def add(self, items: Sequence[PushItem]) -> PushResults:
        """Take the messages. Waits while the buffer is full; raises what went wrong if it stays full."""
        self._adding += 1
        try:
            await self._make_room()
        finally:
            self._adding -= 1
        if not self._items:
            self._since = SYSTEM.monotonic()
        self._items.extend(items)
        if len(self._items) >= self.limits.message_count:
            self._start()
        else:
            self._arm(self.limits.time_millis / 1000)
        return PushResults(_pending(index, item) for index, item in enumerate(items))

    async def _make_room(self) -> None:
        while len(self._items) >= self.limits.most:
            await self._send()
            if self._failure is not None and len(self._items) >= self.limits.most:
                message = f"the buffer is full and cannot be sent: {self._failure}"
                raise BufferNotFlushed(message, len(self._items)) from self._failure

    async def flush(self) -> None:
        """Send everything. Raises what the server refused since the last time, or BufferNotFlushed."""
        if self._sending is not None:
            await self._send()
        if self._items:
            await self._send()
        refusal, self._refusal = self._refusal, None
        if self._items:
            message = f"{len(self._items)} messages are still in the buffer: {self._failure}"
            raise BufferNotFlushed(message, len(self._items)) from self._failure
        if refusal is not None:
            raise refusal

    def _arm(self, delay_s: float) -> None:
        if self._timer is None and self._items:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start)

    def _start(self) -> asyncio.Task[None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._drain())
        return self._sending

    async def _send(self) -> None:
        # A caller that is cancelled does not take the others' messages with it.
        await asyncio.shield(self._start())

    async def _drain(self) -> None:
        try:
            while self._items:
                batch = self._next_batch()
                for _ in range(await self._send_batch(batch)):
                    self._items.popleft()
                self._since = SYSTEM.monotonic()
            self._failure = None
        except (Unavailable, NetworkError, InvalidResponse, ClientClosed) as error:
            logger.warning("%d buffered messages could not be sent yet: %s", len(self._items), error)
            self._failure = error
        finally:
            self._sending = None
            if self._failure is not None and not isinstance(self._failure, ClientClosed):
                self._arm(_RETRY_S)

    async def _send_batch(self, batch: Sequence[PushItem]) -> int:
        """How many messages are settled: all, stored or refused, unless the batch must be made smaller."""
        try:
            results = await self._push(batch)
        except (Unavailable, NetworkError, InvalidResponse, ClientClosed):
            raise
        except TooLarge as error:
            if len(batch) == 1:
                self._refuse(error, 1)
                return 1
            # The server accepts fewer messages at once than the buffer is configured for.
            self._most_items = len(batch) // 2
            return 0
        except QueenError as error:
            # It would be refused again, and hold up everything behind it.
            self._refuse(error, len(batch))
        else:
            refused = results.with_status("failed")
            if refused:
                self._refuse(PushFailed(results), len(refused))
        return len(batch)

    def _refuse(self, error: QueenError, count: int) -> None:
        logger.error("the server refused %d buffered messages: %s", count, error)
        self._refusal = self._refusal or error

    def _next_batch(self) -> list[PushItem]:
        batch: list[PushItem] = []
        size = 0
        for item in islice(self._items, min(self.limits.message_count, self._most_items)):
            size += memoryview(item.payload).nbytes
            if batch and size > _MOST_BYTES:
                break
            batch.append(item)
        return batch

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _pending(index: int, item: PushItem) -> PushResult:
    return PushResult(
        status="pending", index=index, transaction_id=item.transaction_id, queue=item.queue, partition=item.partition
    )


class Buffers:
    """All buffers of a client, one for each partition that is pushed to through one."""

    def __init__(self, push: Push) -> None:
        self._push = push
        self._buffers: dict[tuple[str, str], Buffer] = {}
        self._sweep_at = _FIRST_SWEEP

    async def add(self, queue: str, partition: str, limits: BufferLimits, items: Sequence[PushItem]) -> PushResults:
        """The limits that were named last count."""
        buffer = self._buffers.get((queue, partition))
        if buffer is None:
            if len(self._buffers) >= self._sweep_at:
                self._forget_idle()
                self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._buffers))
            buffer = self._buffers[queue, partition] = Buffer(limits, self._push)
        buffer.limits = limits
        return await buffer.add(items)

    async def flush(self, queue: str, partition: str) -> None:
        buffer = self._buffers.get((queue, partition))
        if buffer is not None:
            await buffer.flush()

    async def flush_all(self) -> None:
        """Flush every buffer, also if one of them fails. Raises the first failure."""
        outcomes = await asyncio.gather(*(buffer.flush() for buffer in self._buffers.values()), return_exceptions=True)
        self._forget_idle()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def stats(self) -> BufferStats:
        busy = [buffer for buffer in self._buffers.values() if len(buffer)]
        now = SYSTEM.monotonic() if busy else 0.0
        return BufferStats(
            active_buffers=len(busy),
            buffered_messages=sum(map(len, busy)),
            oldest_age_s=max((now - buffer.since for buffer in busy), default=0.0),
        )

    def stop(self) -> None:
        for buffer in self._buffers.values():
            buffer.stop()

    def _forget_idle(self) -> None:
        for key in [key for key, buffer in self._buffers.items() if buffer.idle]:
            self._buffers.pop(key).stop()
