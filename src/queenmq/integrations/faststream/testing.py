"""FastStream's tests without a server: `async with TestQueenBroker(broker) as broker: ...`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

from faststream._internal.testing.broker import TestBroker, change_producer

from queenmq.client import Message, PushResult
from queenmq.client.items import to_push_item
from queenmq.ids import uuid7_text
from queenmq.integrations.faststream.broker import QueenBroker
from queenmq.integrations.faststream.message import Delivery, QueenProducer, QueenPublishCommand, items_of
from queenmq.integrations.faststream.publisher import QueenPublisher
from queenmq.integrations.faststream.subscriber import QueenSubscriber


class TestQueenBroker(TestBroker, broker=QueenBroker):  # type: ignore[call-arg]
    """What is published goes to the handlers at once, in this process; what they raise, the test gets."""

    def create_publisher_fake_subscriber(
        self, broker: QueenBroker, publisher: QueenPublisher
    ) -> tuple[QueenSubscriber, bool]:
        for other in (subscriber for one in self.brokers for subscriber in one.subscribers):
            if other.queue == publisher.queue:
                return other, True
        return broker.subscriber(publisher.queue, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: QueenBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, _Producer(self.brokers)):
            yield

    async def _fake_connect(self, broker: QueenBroker, *_args: Any, **_options: Any) -> MagicMock:
        return MagicMock()


class _Producer(QueenProducer):
    def __init__(self, brokers: Sequence[QueenBroker]) -> None:
        super().__init__()
        self._brokers = brokers
        first = brokers[0].config
        self.codec = first.broker_codec or self.codec
        self._serializer = first.fd_config._serializer

    async def publish_batch(self, cmd: QueenPublishCommand) -> list[PushResult]:
        return [await self._deliver(cmd, item) for item in await items_of(cmd, self.codec, self._serializer)]

    async def _deliver(self, cmd: QueenPublishCommand, item: Any) -> PushResult:
        sent = to_push_item(item, cmd.destination, cmd.partition or "Default")
        message = Message(
            raw=sent.payload,
            id=uuid7_text(),
            transaction_id=sent.transaction_id,
            partition_id="",
            partition=sent.partition,
            queue=sent.queue,
            headers=dict(item.headers or {}),
        )
        groups: set[str | None] = set()
        for subscriber in [subscriber for broker in self._brokers for subscriber in broker.subscribers]:
            # Readers of a group share the messages.
            if subscriber.queue == cmd.destination and subscriber.group not in groups:
                groups.add(subscriber.group)
                await subscriber.process_message(Delivery(message))
        return PushResult(status="queued", transaction_id=sent.transaction_id, message_id=message.id)
