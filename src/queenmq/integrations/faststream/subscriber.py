"""A subscriber: a consumer of the client, whose handler is FastStream's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from queenmq.client import Consumer, Message, QueenError, Queue, Reject
from queenmq.integrations.faststream.message import Delivery, QueenMessage, decode, parse
from queenmq.integrations.faststream.publisher import Reply

_AGAIN_AFTER_S: Final = 5.0


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    queue: str
    group: str | None
    since: str | None
    max_workers: int

    @property
    def ack_policy(self) -> AckPolicy:
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class SubscriberSpecConfig(SubscriberSpecificationConfig):
    queue: str


class QueenSubscriberSpecification(SubscriberSpecification):
    @property
    def queue(self) -> str:
        return f"{self._outer_config.prefix}{self.config.queue}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.queue]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        message = MessageSpec(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        operation = Operation(message=message, bindings=None)
        about = self.description
        return {
            self.name: SubscriberSpec(address=self.queue, description=about, operation=operation, bindings=None),
        }


class QueenSubscriber(SubscriberUsecase):
    def __init__(self, config: SubscriberConfig, specification: QueenSubscriberSpecification, calls: Any) -> None:
        config.parser, config.decoder = parse, decode
        super().__init__(config, specification, calls)
        self._queue = config.queue
        self._group = config.group
        self._since = config.since
        self._max_workers = config.max_workers
        self._consumer: Consumer | None = None
        self._running: asyncio.Task[None] | None = None
        self._workers: set[asyncio.Task[Any] | None] = set()

    @property
    def queue(self) -> str:
        return f"{self._outer_config.prefix}{self._queue}"

    @property
    def group(self) -> str | None:
        return self._group

    async def start(self) -> None:
        await super().start()
        await self._outer_config.declare(self.queue)
        self._post_start()
        if self.calls:
            self._running = asyncio.create_task(self._consume())

    async def stop(self) -> None:
        """Handlers that run may end; those that take longer than the broker's `graceful_timeout` are cancelled, and
        what they had is given back."""
        if self._consumer is not None:
            self._consumer.stop()
        await super().stop()
        running, self._running = self._running, None
        if running is None or asyncio.current_task() in self._workers:
            return  # called by a handler, which the consumer waits for
        if self._consumer is None:
            running.cancel()
        elif self._workers:
            self._consumer.cancel()
        # Else it acknowledges what was handled.
        await asyncio.wait((running,))

    async def _consume(self) -> None:
        """Until it is stopped. What the server refuses now, as without the right to the queue, it may grant later."""
        manual = self.ack_policy is AckPolicy.MANUAL
        while self.running:
            queue = self._source().concurrency(self._max_workers)
            if manual:
                queue = queue.auto_ack(False)
            elif self.ack_policy is AckPolicy.ACK_FIRST:
                queue = queue.commit_on_delivery()
            self._consumer = queue.consume(self._handle, handle_signals=False)
            try:
                await self._consumer
            except QueenError as error:
                self._consumer = None
                self._log(logging.ERROR, f"consuming {self.queue}: {error}; again in {_AGAIN_AFTER_S:.0f} s")
                await asyncio.sleep(_AGAIN_AFTER_S)

    async def _handle(self, message: Message) -> None:
        if self.ack_policy is AckPolicy.MANUAL:
            await self._work(Delivery(message, self._acknowledge))
            return
        delivery = Delivery(message)
        await self._work(delivery)
        if delivery.status is None:
            # It has said nothing, or was not begun because the subscriber stops.
            raise Reject("the handler has not acknowledged it", "failed" if self.running else "retry")
        if delivery.status != "completed":
            error = delivery.error
            why = "rejected by the handler" if error is None else f"{type(error).__name__}: {error}"
            raise Reject(why, "dlq" if delivery.status == "dlq" else "failed") from error

    async def _work(self, delivery: Delivery) -> None:
        task = asyncio.current_task()
        self._workers.add(task)
        try:
            await self.consume(delivery)
        finally:
            self._workers.discard(task)

    async def process_message(self, msg: Delivery) -> Any:
        try:
            return await super().process_message(msg)
        except Exception as error:
            msg.error = error  # for the dead letter: FastStream only logs it
            raise

    async def _acknowledge(self, message: Message, status: str) -> None:
        result = await self._outer_config.queen.ack(message, status)
        if not result.success:
            raise RuntimeError(f"the message was not acknowledged, and may come again: {result.error}")

    def _source(self) -> Queue[Message]:
        queue: Queue[Message] = self._outer_config.queen.queue(self.queue)
        if self._group is not None:
            queue = queue.group(self._group)
        if self._since is not None:
            queue = queue.subscription_from(self._since) if self._since != "all" else queue.subscription_mode("all")
        return queue

    async def get_one(self, *, timeout: float = 5.0) -> QueenMessage | None:
        """The next message, or None if none comes in time. Acknowledge it yourself."""
        if self.calls:
            raise SetupError("get_one is for a subscriber without handlers")
        parser, decoder = self._get_parser_and_decoder()
        messages = await self._source().timeout_millis(max(1, round(timeout * 1000))).pop()
        delivery = Delivery(messages[0], self._acknowledge) if messages else None
        context = self._outer_config.context
        found: QueenMessage | None = await process_msg(
            msg=delivery,
            middlewares=(made(delivery, context=context) for made in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return found

    async def __aiter__(self) -> AsyncIterator[QueenMessage]:
        while True:
            if (message := await self.get_one()) is not None:
                yield message

    def _make_response_publisher(self, message: QueenMessage) -> Iterable[Reply]:
        return (Reply(self._outer_config.producer, message.reply_to),)

    def get_log_context(self, message: QueenMessage | None) -> dict[str, str]:
        return {"queue": self.queue, "group": self._group or "", "message_id": getattr(message, "message_id", "")}
