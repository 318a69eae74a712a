"""What the words of the fluent grammar have said so far, and which requests follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from queenmq.client.buffer import BufferLimits
from queenmq.client.models import Json
from queenmq.client.options import ConsumerOptions
from queenmq.client.verbs import path_of, with_query

_DEFAULT_WAIT_MS = 30_000


@dataclass(slots=True, kw_only=True)
class Said:
    """Everything that the words of the grammar can say."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    config: Json = field(default_factory=dict)
    is_created: bool = True  # False: options were named that no `create` has sent yet
    buffer: BufferLimits | None = None
    group: str | None = None
    batch: int | None = 1  # None: the server chooses the size of a pop, and the client that of batches to consume
    partitions: int | None = None
    wait: bool = True
    wait_ms: int = _DEFAULT_WAIT_MS
    auto_ack: bool | None = None
    commit_on_delivery: bool = False
    subscription_mode: str | None = None
    subscription_from: str | None = None
    consumer: ConsumerOptions = field(default_factory=ConsumerOptions)

    def path(self) -> str:
        """Where a pop goes: a partition, a queue, or every queue of a namespace and task."""
        if self.queue is None:
            return "/api/v1/pop"
        pop = ("api", "v1", "pop", "queue", self.queue)
        return path_of(*pop) if self.partition is None else path_of(*pop, "partition", self.partition)

    def params(self, *, consume_at_delivery: bool) -> Json:
        return {
            "batch": self.batch,
            "autopilot": True if self.batch is None else None,
            "wait": self.wait,
            "timeout": self.wait_ms if self.wait else None,
            "consumerGroup": self.group,
            "partitions": self.partitions if self.partitions != 1 else None,
            "autoAck": True if consume_at_delivery else None,
            "subscriptionMode": self.subscription_mode,
            "subscriptionFrom": self.subscription_from,
            "namespace": self.namespace if self.queue is None else None,
            "task": self.task if self.queue is None else None,
        }

    def connecting(self) -> str | None:
        """Where a consumer connection goes; None if what is asked for needs long polls."""
        how = self.consumer
        if how.connection is False or self.queue is None or self.commit_on_delivery or not self.wait:
            return None
        # One that ends after so many messages must not get more. On a connection, acknowledgements are not waited for.
        if how.limit is not None or (how.each and self.batch != 1 and not how.ack_millis):
            return None
        params = self.params(consume_at_delivery=False) | {"wait": None, "timeout": None, "partition": self.partition}
        path = path_of("api", "v1", "consume", "queue", self.queue)
        return with_query(path, params | {"inFlight": how.concurrency + how.prefetch})

    def taking(self) -> Json:
        """The same pop as part of a request that finishes a lease."""
        params = self.params(consume_at_delivery=False)
        return params | {"queue": self.queue, "partition": self.partition}
