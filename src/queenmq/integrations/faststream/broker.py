"""The broker: what is said once for all of its subscribers and publishers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, TypedDict, Unpack

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import BrokerRouter, SubscriberRoute
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from queenmq.client import PushResult, Queen, QueenError
from queenmq.integrations.faststream.message import QueenProducer, QueenPublishCommand
from queenmq.integrations.faststream.publisher import (
    PublisherConfig,
    PublisherSpecConfig,
    QueenPublisher,
    QueenPublisherSpecification,
)
from queenmq.integrations.faststream.subscriber import (
    QueenSubscriber,
    QueenSubscriberSpecification,
    SubscriberConfig,
    SubscriberSpecConfig,
)
from queenmq.integrations.tasks import TaskQueues

# Leases are renewed while a handler runs.
_OPTIONS: Final[Mapping[str, Any]] = {"leaseTime": 60}


@dataclass(kw_only=True)
class QueenConfig(BrokerConfig):
    queue_options: Mapping[str, Any] = field(default_factory=dict)
    producer: QueenProducer = field(default_factory=QueenProducer)
    _queues: TaskQueues | None = field(default=None, init=False, repr=False)

    @property
    def queen(self) -> Queen:
        return self._connected().queen

    async def declare(self, queue: str) -> None:
        """Make it if it is missing; one that exists keeps its options."""
        await self._connected().declare(queue)

    def connect(self, queen: Queen) -> None:
        self._queues = TaskQueues(queen, {**_OPTIONS, **self.queue_options})
        self.producer.connect(self._queues, self.fd_config._serializer, self.broker_codec)

    def disconnect(self) -> None:
        self._queues = None
        self.producer.disconnect()

    def _connected(self) -> TaskQueues:
        if self._queues is None:
            raise IncorrectState("the broker is not connected: await broker.connect() or start() first")
        return self._queues


class QueenRegistrator(Registrator):
    def subscriber(
        self,
        queue: str,
        *,
        group: str | None = None,
        since: str | None = None,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Callable[..., Any] | None = None,
        decoder: Callable[..., Any] | None = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> QueenSubscriber:
        """Read a queue, as a group if one is named; without one, all readers share the messages.

        `since` says where a new group begins: `all`, `now`, or an ISO 8601 timestamp. `max_workers` messages run at a
        time, of as many partitions.
        """
        calls = CallsCollection()
        config = SubscriberConfig(
            queue=queue,
            group=group,
            since=since,
            max_workers=max_workers,
            no_reply=no_reply,
            _outer_config=self.config,
            _ack_policy=ack_policy,
        )
        about = SubscriberSpecConfig(
            queue=queue, title_=title, description_=description, include_in_schema=include_in_schema
        )
        subscriber = QueenSubscriber(config, QueenSubscriberSpecification(self.config, about, calls), calls)
        super().subscriber(subscriber, persistent=persistent)
        made: QueenSubscriber = subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )
        return made

    def publisher(
        self,
        queue: str,
        *,
        partition: str = "",
        headers: Mapping[str, str] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> QueenPublisher:
        """Publish to a queue: by hand, or what a handler returns."""
        config = PublisherConfig(
            queue=queue, partition=partition, headers=dict(headers or {}), _outer_config=self.config
        )
        about = PublisherSpecConfig(
            queue=queue, schema_=schema, title_=title, description_=description, include_in_schema=include_in_schema
        )
        publisher = QueenPublisher(config, QueenPublisherSpecification(self.config, about))
        super().publisher(publisher, persistent=persistent)
        return publisher


class QueenRouter(QueenRegistrator, BrokerRouter):
    """Subscribers and publishers that a broker includes: `broker.include_router(router)`. `prefix` is put before the
    names of queues."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[SubscriberRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[QueenRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        config = QueenConfig(
            prefix=prefix,
            broker_dependencies=dependencies,
            broker_middlewares=middlewares,
            ack_policy=ack_policy,
            include_in_schema=include_in_schema,
        )
        super().__init__(config=config, handlers=handlers, routers=routers)


class BrokerOptions(TypedDict, total=False):
    """As of every broker of FastStream."""

    graceful_timeout: float | None
    ack_policy: AckPolicy
    dependencies: Sequence[Any]
    middlewares: Sequence[Any]
    parser: Callable[..., Any] | None
    decoder: Callable[..., Any] | None
    codec: Any


_NAMES: Final = {name: f"broker_{name}" for name in ("dependencies", "middlewares", "parser", "decoder", "codec")}


class QueenBroker(QueenRegistrator, BrokerUsecase):
    """`queue_options` are those of queues that are made; `client`, options of the client."""

    _connection: Queen | None

    def __init__(
        self,
        servers: str | list[str] | None = None,
        *,
        queue_options: Mapping[str, Any] | None = None,
        client: Mapping[str, Any] | None = None,
        routers: Iterable[QueenRegistrator] = (),
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        description: str | None = None,
        **options: Unpack[BrokerOptions],
    ) -> None:
        self._servers = servers
        self._client = client or {}
        others: dict[str, Any] = {_NAMES.get(name, name): value for name, value in options.items()}
        config = QueenConfig(
            queue_options=queue_options or {},
            logger=make_logger_state(logger=logger, log_level=log_level, default_storage_cls=LoggerStorage),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=serializer,
                provider=dependency_provider,
                context=ContextRepo(),
            ),
            extra_context={"broker": self},
            **others,
        )
        urls = [servers] if isinstance(servers, str) else servers or ["http://127.0.0.1:6632"]
        about = BrokerSpec(
            url=urls, protocol="http", protocol_version=None, description=description, tags=(), security=None
        )
        super().__init__(config=config, specification=about, routers=routers)

    async def _connect(self) -> Queen:
        queen = Queen(self._servers, **self._client)
        try:
            await queen.admin.health()
        except BaseException:
            await queen.close()
            raise
        self.config.broker_config.connect(queen)
        return queen

    async def start(self) -> None:
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        await super().stop(exc_type, exc_val, exc_tb)
        queen, self._connection = self._connection, None
        self.config.broker_config.disconnect()
        if queen is not None:
            await queen.close()

    async def ping(self, timeout: float | None = None) -> bool:
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._connection.admin.health()
        except (QueenError, TimeoutError):
            return False
        return True

    async def publish(
        self,
        message: Any = None,
        queue: str = "",
        *,
        partition: str = "",
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        transaction_id: str | None = None,
    ) -> PushResult:
        """Returns when the message is stored, or accepted by a server that is overloaded or without its database.

        Messages of a partition (`Default` if none is named) are in order, and handled one at a time by a group. With a
        `transaction_id` that the partition has already, it is not stored again.
        """
        cmd = self._command(message, queue=queue, partition=partition, headers=headers, reply_to=reply_to)
        cmd.transaction_id = transaction_id
        cmd.correlation_id = correlation_id or cmd.correlation_id
        result: PushResult = await self._basic_publish(cmd, producer=self._producer)
        return result

    async def publish_batch(
        self, *messages: Any, queue: str, partition: str = "", headers: Mapping[str, str] | None = None
    ) -> list[PushResult]:
        """In one request, in order."""
        cmd = self._command(*messages, queue=queue, partition=partition, headers=headers)
        results: list[PushResult] = await self._basic_publish_batch(cmd, producer=self._producer)
        return results

    async def request(self, message: Any, queue: str = "", *, timeout: float = 0.5) -> Any:
        raise FeatureNotSupportedException(
            "Queen answers no requests: publish with reply_to, and subscribe to that queue"
        )

    def _command(self, *messages: Any, headers: Mapping[str, str] | None, **options: Any) -> QueenPublishCommand:
        correlation = self.config.id_generator()
        kind = PublishType.PUBLISH
        return QueenPublishCommand(
            *messages, headers=dict(headers or {}), correlation_id=correlation, _publish_type=kind, **options
        )


class LoggerStorage(DefaultLoggerStorage):
    """The form of FastStream's log lines, as wide as the longest names."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"queue": 4, "group": 0}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        self._widths = {name: max(width, len(params.get(name, ""))) for name, width in self._widths.items()}

    def get_logger(self, *, context: ContextRepo) -> logging.Logger:
        logger: logging.Logger | None = self._get_logger_ref()
        if logger is None:
            columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items() if width)
            logger = get_broker_logger(
                name="queen",
                default_context={"queue": "", "group": ""},
                message_id_ln=36,
                fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-36s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger
