"""Taskiq on Queen: `broker = QueenBroker("http://127.0.0.1:6632")`.

A task with the label `delay` (seconds) is a timer.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, Final

import msgspec
from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from queenmq.client import Queen
from queenmq.clock import utc_now
from queenmq.ids import uuid7_text
from queenmq.integrations.tasks import OPTIONS, PARTITIONS, Arrivals, TaskQueues, as_task

_AT_A_TIME: Final = 100


class QueenBroker(AsyncBroker):
    """`concurrency` is how many tasks a worker process holds at most. The options are those of the client."""

    def __init__(
        self,
        servers: str | list[str] | None = None,
        queue: str = "taskiq",
        *,
        concurrency: int = _AT_A_TIME,
        partitions: int = PARTITIONS,
        queue_options: dict[str, Any] | None = None,
        **client: Any,
    ) -> None:
        super().__init__()
        self._servers = servers
        self._client = client
        self._queue = queue
        self._concurrency = concurrency
        self._settings = {**OPTIONS, **(queue_options or {})}, partitions
        self._queues: TaskQueues | None = None
        self._arrivals: Arrivals | None = None

    async def startup(self) -> None:
        await super().startup()
        self._queues = TaskQueues(Queen(self._servers, **self._client), *self._settings)

    async def shutdown(self) -> None:
        await super().shutdown()
        if self._arrivals is not None:
            await self._arrivals.close()
        if self._queues is not None:
            await self._queues.queen.close()
        self._queues = self._arrivals = None

    async def kick(self, message: BrokerMessage) -> None:
        delay = message.labels.get("delay")
        at = None if delay is None else utc_now() + timedelta(seconds=float(delay))
        # Not the id of the task, which it has again when it is retried.
        await self._opened().send(self._queue, _stored(message.message), uuid7_text(), at)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        queues = self._opened()
        await queues.declare(self._queue)
        self._arrivals = Arrivals(queues, self._queue, self._concurrency)
        try:
            while (arrival := await self._arrivals.next()) is not None:
                yield AckableMessage(data=_sent(arrival.message.raw), ack=arrival.settle)
        finally:
            # Tasks that run are acknowledged later, or given back by shutdown.
            self._arrivals.stop()

    def _opened(self) -> TaskQueues:
        if self._queues is None:
            raise RuntimeError("the broker is not started: await broker.startup() first")
        return self._queues


def _stored(message: bytes) -> Any:
    """JSON as it is, so that people can read it; what another serializer has written, as base64."""
    try:
        msgspec.json.decode(message, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {"base64": b64encode(message).decode()}
    return as_task(message)


def _sent(raw: msgspec.Raw) -> bytes:
    stored = msgspec.json.decode(raw)
    if isinstance(stored, dict) and stored.keys() == {"base64"}:
        return b64decode(stored["base64"])
    return bytes(raw)
