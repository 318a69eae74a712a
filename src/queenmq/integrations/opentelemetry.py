"""Spans of the client, for `opentelemetry-instrument` or `QueenInstrumentor().instrument()`.

`send <queue>` for what is pushed, of kind producer; `process <queue>` around a handler, of kind consumer, as a child of
the push of its message (of a batch, with links to those). The client carries the context also without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.trace import Link, SpanKind

from queenmq.client import Message, handling
from queenmq.client.items import PushItem
from queenmq.client.verbs import Verbs

_SYSTEM = {"messaging.system": "queen"}
_HANDLING = "in_trace_of"  # what is entered around a handler


class QueenInstrumentor(BaseInstrumentor):  # type: ignore[misc, unused-ignore]
    def instrumentation_dependencies(self) -> Collection[str]:
        return ("queenmq >= 0.1",)

    def _instrument(self, **options: Any) -> None:
        tracer = trace.get_tracer("queenmq.client", tracer_provider=options.get("tracer_provider"))
        push, in_trace_of = Verbs.push, vars(handling)[_HANDLING]
        self._originals = push, in_trace_of

        async def traced_push(self: Verbs, items: Sequence[PushItem], expected: int | None = None) -> Any:
            queues = sorted({item.queue for item in items})
            attributes = _SYSTEM | _about("send", queues, len(items))
            with tracer.start_as_current_span(
                f"send {', '.join(queues)}", kind=SpanKind.PRODUCER, attributes=attributes
            ):
                return await push(self, items, expected)

        @contextmanager
        def traced_handler(messages: Sequence[Message]) -> Iterator[None]:
            queue = messages[0].queue
            attributes = _SYSTEM | _about("process", [queue], len(messages))
            links = _links(messages) if len(messages) > 1 else ()
            with (
                in_trace_of(messages),
                tracer.start_as_current_span(
                    f"process {queue}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
                ),
            ):
                yield

        Verbs.push = traced_push  # type: ignore[method-assign]
        vars(handling)[_HANDLING] = traced_handler

    def _uninstrument(self, **_options: Any) -> None:
        Verbs.push, vars(handling)[_HANDLING] = self._originals  # type: ignore[method-assign]


def _about(operation: str, queues: list[str], messages: int) -> dict[str, Any]:
    about: dict[str, Any] = {"messaging.operation.name": operation, "messaging.batch.message_count": messages}
    return about | ({"messaging.destination.name": queues[0]} if len(queues) == 1 else {})


def _links(messages: Sequence[Message]) -> list[Link]:
    contexts = [propagate.extract({"traceparent": one.traceparent}) for one in messages if one.traceparent is not None]
    return [Link(trace.get_current_span(context).get_span_context()) for context in contexts]
