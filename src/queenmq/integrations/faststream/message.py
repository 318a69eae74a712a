"""How a message of FastStream is stored in Queen, and read again.

What FastStream encodes as JSON is stored as it is, text as a JSON string, other bytes as base64. The rest is in
headers, so that people can read them and filters can use them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.message import StreamMessage, decode_message
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from queenmq.client import Item, Message, PushResult
from queenmq.client.own_transaction import OwnTransaction
from queenmq.integrations.tasks import TaskQueues

CONTENT_TYPE: Final = "content-type"
CORRELATION: Final = "correlation-id"
REPLY_TO: Final = "reply-to"
ENCODING: Final = "content-encoding"
_TEXT: Final = "text/plain"
_BASE64: Final = "base64"
_DEFAULT_PARTITION: Final = "Default"


class Delivery:
    """A message that has come, and what becomes of it: None until that is said."""

    def __init__(self, message: Message, say: Callable[[Message, str], Awaitable[None]] | None = None) -> None:
        self.message = message
        self.status: str | None = None
        self.error: Exception | None = None  # of the handler
        self._say = say

    async def settle(self, status: str) -> None:
        """`completed`, `failed` or `dlq`: with the end of the handler, or at once where nobody waits for that."""
        if self._say is not None:
            await self._say(self.message, status)
        self.status = status

    def __repr__(self) -> str:
        return f"<message {self.message.id} of {self.message.queue}, partition {self.message.partition}>"


class QueenMessage(StreamMessage):
    """`raw_message` is the message of the client: its `offset`, `partition`, `retry_count` and so on."""

    raw_message: Message

    def __init__(self, delivery: Delivery, **known: Any) -> None:
        super().__init__(delivery.message, **known)
        self._delivery = delivery

    async def ack(self) -> None:
        await self._settle("completed")
        await super().ack()

    async def nack(self) -> None:
        """It comes again, as the queue retries messages that fail; at last it is a dead letter."""
        await self._settle("failed")
        await super().nack()

    async def reject(self) -> None:
        """It is a dead letter at once."""
        await self._settle("dlq")
        await super().reject()

    def transaction(self, connection: Any) -> OwnTransaction:
        """What is written in it and the acknowledgement are one commit: of a subscriber with `AckPolicy.MANUAL`."""
        return self.raw_message.transaction(connection)

    async def _settle(self, status: str) -> None:
        if self.committed is None:
            await self._delivery.settle(status)


async def parse(delivery: Delivery) -> QueenMessage:
    message = delivery.message
    headers = message.headers
    return QueenMessage(
        delivery,
        body=_body(message.raw, headers),
        headers=dict(headers),
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=headers.get(CORRELATION),
        reply_to=headers.get(REPLY_TO, ""),
        message_id=message.id,
        path={"queue": message.queue, "partition": message.partition},
    )


async def decode(message: QueenMessage) -> Any:
    return decode_message(message)


def _body(raw: msgspec.Raw, headers: Mapping[str, str]) -> bytes:
    if headers.get(ENCODING) == _BASE64:
        return b64decode(msgspec.json.decode(raw, type=str))
    if headers.get(CONTENT_TYPE) == _TEXT:
        return msgspec.json.decode(raw, type=str).encode()
    return bytes(raw)


class QueenPublishCommand(BatchPublishCommand):
    """`destination` is the queue."""

    def __init__(
        self, *bodies: Any, queue: str = "", partition: str = "", transaction_id: str | None = None, **more: Any
    ) -> None:
        super().__init__(*(bodies or (None,)), destination=queue, **more)
        self.partition = partition
        self.transaction_id = transaction_id

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> QueenPublishCommand:
        if isinstance(cmd, QueenPublishCommand):
            return cmd
        return cls(
            cmd.body,
            queue=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )


class QueenResponse(Response):
    """What a handler returns if its result needs more than a body."""

    def __init__(self, body: Any, *, partition: str = "", transaction_id: str | None = None, **more: Any) -> None:
        super().__init__(body, **more)
        self.partition = partition
        self.transaction_id = transaction_id

    def as_publish_command(self) -> QueenPublishCommand:
        return QueenPublishCommand(
            self.body,
            partition=self.partition,
            transaction_id=self.transaction_id,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
        )


async def items_of(cmd: QueenPublishCommand, codec: Any, serializer: Any) -> list[Item]:
    return [await _item(cmd, body, codec, serializer) for body in cmd.batch_bodies or (None,)]


async def _item(cmd: QueenPublishCommand, body: Any, codec: Any, serializer: Any) -> Item:
    encoded, kind = await codec.encode(body, serializer)
    headers = {name: str(value) for name, value in cmd.headers.items()}
    about = {CONTENT_TYPE: kind, CORRELATION: cmd.correlation_id, REPLY_TO: cmd.reply_to}
    headers |= {name: value for name, value in about.items() if value}
    payload: Any
    if kind == _TEXT:
        payload = encoded.decode()
    elif not encoded:
        payload = None
    elif _is_json(encoded):
        payload = msgspec.Raw(encoded)
    else:
        headers[ENCODING] = _BASE64
        payload = b64encode(encoded).decode()
    return Item(payload, transaction_id=cmd.transaction_id, headers=headers)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


class QueenProducer(ProducerProto):
    _parser = staticmethod(parse)
    _decoder = staticmethod(decode)

    def __init__(self) -> None:
        self.codec: Any = DefaultCodec()
        self._serializer: Any = None
        self._queues: TaskQueues | None = None

    def connect(self, queues: TaskQueues, serializer: Any, codec: Any) -> None:
        self._queues, self._serializer, self.codec = queues, serializer, codec or DefaultCodec()

    def disconnect(self) -> None:
        self._queues = None

    async def publish(self, cmd: QueenPublishCommand) -> PushResult:
        [result] = await self.publish_batch(cmd)
        return result

    async def publish_batch(self, cmd: QueenPublishCommand) -> list[PushResult]:
        """In one request, in order."""
        if self._queues is None:
            raise IncorrectState("the broker is not connected: await broker.connect() or start() first")
        items = await items_of(cmd, self.codec, self._serializer)
        await self._queues.declare(cmd.destination)
        queue = self._queues.queen.queue(cmd.destination).partition(cmd.partition or _DEFAULT_PARTITION)
        return await queue.push(items)

    async def request(self, cmd: QueenPublishCommand) -> Any:
        raise FeatureNotSupportedException(
            "Queen answers no requests: publish with reply_to, and subscribe to that queue"
        )
