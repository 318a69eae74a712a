"""A publisher: a queue to which a handler's result goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.exceptions import FeatureNotSupportedException
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from queenmq.client import PushResult
from queenmq.integrations.faststream.message import QueenPublishCommand


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    queue: str
    partition: str
    headers: dict[str, str]


@dataclass(kw_only=True)
class PublisherSpecConfig(PublisherSpecificationConfig):
    queue: str


class QueenPublisherSpecification(PublisherSpecification):
    @property
    def queue(self) -> str:
        return f"{self._outer_config.prefix}{self.config.queue}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.queue}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = MessageSpec(title=f"{self.name}:Message", payload=payload)
        operation = Operation(message=message, bindings=None)
        about = self.config.description_
        return {
            self.name: PublisherSpec(address=self.queue, description=about, operation=operation, bindings=None),
        }


class QueenPublisher(PublisherUsecase):
    def __init__(self, config: PublisherConfig, specification: QueenPublisherSpecification) -> None:
        super().__init__(config, specification)
        self._queue = config.queue
        self.partition = config.partition
        self.headers = config.headers

    @property
    def queue(self) -> str:
        return f"{self._outer_config.prefix}{self._queue}"

    async def publish(
        self,
        message: Any,
        *,
        partition: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        transaction_id: str | None = None,
    ) -> PushResult:
        cmd = QueenPublishCommand(
            message,
            queue=self.queue,
            partition=partition or self.partition,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
            transaction_id=transaction_id,
            _publish_type=PublishType.PUBLISH,
        )
        result: PushResult = await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())
        return result

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        """The result of a handler."""
        cmd = QueenPublishCommand.from_cmd(cmd)
        cmd.destination = self.queue
        cmd.partition = cmd.partition or self.partition
        cmd.add_headers(self.headers, override=False)
        await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(self, message: Any, **options: Any) -> Any:
        raise FeatureNotSupportedException(
            "Queen answers no requests: publish with reply_to, and subscribe to that queue"
        )


class Reply(FakePublisher):
    """Sends the result of a handler to the queue that the message has named."""

    def __init__(self, producer: Any, queue: str) -> None:
        super().__init__(producer=producer)
        self._queue = queue

    def patch_command(self, cmd: PublishCommand) -> QueenPublishCommand:
        reply = QueenPublishCommand.from_cmd(super().patch_command(cmd))
        reply.destination = self._queue
        return reply
