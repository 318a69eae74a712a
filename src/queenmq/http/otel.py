"""Traces and metrics for OpenTelemetry: the only module of the server that imports its SDK.

A request becomes a span, in the trace that its `traceparent` names or in a new one. A stored message becomes a span
whose id follows from the message's (`core/trace_context`), so that the pop which delivers it, hours later and on
another server, adds its span to the same trace. Exporting happens in threads of the SDK.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence

import msgspec
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

import queenmq
from queenmq.broker.broker import Broker
from queenmq.broker.pop import Delivered
from queenmq.clock import SYSTEM
from queenmq.core.trace_context import parse_traceparent, span_id_of
from queenmq.errors import HttpError
from queenmq.http.exposition import Exposition, Sample
from queenmq.http.metrics import collect
from queenmq.http.route import Context
from queenmq.http.schemas import Popped, PoppedMessage, PushResult
from queenmq.httpserver.messages import Application, Request, Response
from queenmq.services.service import Service

_TRACED = ("/api/", "/streams/")
_POP = "/api/v1/pop"
_PUSH = "/api/v1/push"
_NANOSECONDS = 1_000_000_000
_SERVER_ERROR = 500
MOST_MESSAGES = 100  # of one request that get spans of their own
_decode = msgspec.json.Decoder(Popped).decode


class _SpanIds(RandomIdGenerator):
    """Random ids, but for the spans of messages. Spans are only started in the thread of the event loop."""

    chosen: int | None = None

    def generate_span_id(self) -> int:
        chosen, self.chosen = self.chosen, None
        return super().generate_span_id() if chosen is None else chosen


class OpenTelemetry:
    def __init__(self, context: Context, traces: str, metrics: str) -> None:
        resource = _resource(context.broker)
        self._ids = _SpanIds()
        self._traces: TracerProvider | None = None
        if traces:
            self._traces = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
            self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces)))
            self._tracer = self._traces.get_tracer("queenmq", queenmq.__version__)
        self._metrics = _Metrics(context, resource, metrics) if metrics else None

    def start(self) -> None:
        if self._metrics is not None:
            self._metrics.start()

    async def stop(self) -> None:
        """Export what is left. The SDK waits for its threads, for at most some seconds."""
        if self._metrics is not None:
            await self._metrics.stop()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.shutdown)

    def traced(self, handler: Application) -> Application:
        """The same handler with spans; the very same if only metrics are exported."""
        if self._traces is None:
            return handler

        async def handle(request: Request) -> Response:
            path = request.path
            if not path.startswith(_TRACED):
                return await handler(request)
            if request.method == "GET" and path.startswith(_POP):
                return await self._pop(handler, request)
            return await self._call(handler, request, path)

        return handle

    async def _call(self, handler: Application, request: Request, path: str) -> Response:
        started = self._now()
        span = self._start(_name(request.method, path), SpanKind.SERVER, _parent(request), started)
        context = span.get_span_context()
        # What is made by this request, here or on the server that it is forwarded to, belongs to this span.
        request.headers[b"traceparent"] = _written(context)
        try:
            response = await handler(request)
        except BaseException as error:
            _failed(span, error)
            raise
        else:
            _ended(span, response.status)
            if path == _PUSH and isinstance(response.value, list):
                self._created(response.value, context, started)
            return response
        finally:
            span.end(self._now())

    def _created(self, results: list[PushResult], context: SpanContext, started: int) -> None:
        """A span for each message that was stored, whose context a pop can derive from the message."""
        if not context.trace_flags.sampled:
            return
        parent = set_span_in_context(NonRecordingSpan(context))
        for pushed in results[:MOST_MESSAGES]:
            if pushed.status == "queued" and pushed.message_id and _trace(pushed.trace_id or None) == context.trace_id:
                self._ids.chosen = int(span_id_of(pushed.message_id), 16)
                about = _message(pushed.queue, pushed.message_id, "create")
                self._start(f"create {pushed.queue}", SpanKind.PRODUCER, parent, started, about).end(self._now())

    async def _pop(self, handler: Application, request: Request) -> Response:
        """Only if it delivers: a long poll that ends with nothing is no event."""
        started = self._now()
        parent = _parent(request)
        response = await handler(request)
        # What another server has served has no value here, and that server exports it.
        if isinstance(response.value, Delivered):
            messages = [message for message in _decode(response.body).messages if message.trace_id]
            span = self._start(_name("GET", _POP), SpanKind.SERVER, parent, started)
            _ended(span, response.status)
            for message in messages[:MOST_MESSAGES]:
                self._received(message, span.get_span_context(), started)
            span.end(self._now())
        return response

    def _received(self, message: PoppedMessage, pop: SpanContext, started: int) -> None:
        trace = _trace(message.trace_id)
        if trace is None:
            return
        maker = SpanContext(trace, int(span_id_of(message.id), 16), is_remote=True, trace_flags=TraceFlags(1))
        about = _message(message.queue, message.id, "receive") | {
            "messaging.destination.partition.id": message.partition
        }
        context = set_span_in_context(NonRecordingSpan(maker))
        name = f"receive {message.queue}"
        self._start(name, SpanKind.CONSUMER, context, started, about, [Link(pop)]).end(self._now())

    def _start(
        self,
        name: str,
        kind: SpanKind,
        context: object,
        started: int,
        attributes: dict[str, str] | None = None,
        links: Sequence[Link] = (),
    ) -> Span:
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, links=links, start_time=started
        )

    def _now(self) -> int:
        return int(SYSTEM.wall() * _NANOSECONDS)


class _Metrics(Service):
    """The metrics of Prometheus, collected in the event loop and read by the threads of the SDK."""

    name = "telemetry"

    def __init__(self, context: Context, resource: Resource, endpoint: str) -> None:
        settings = context.settings
        super().__init__(max(settings.telemetry.metric_interval_ms // 2, 1))
        self._context = context
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=endpoint), export_interval_millis=settings.telemetry.metric_interval_ms
        )
        self._provider = MeterProvider(resource=resource, metric_readers=[reader], shutdown_on_exit=False)
        self._meter = self._provider.get_meter("queenmq", queenmq.__version__)
        self._samples: dict[str, list[Sample]] = {}
        self._known: set[str] = set()

    async def work(self) -> None:
        self._take(await collect(self._context))

    def _take(self, page: Exposition) -> None:
        samples: dict[str, list[Sample]] = {}
        for family in page.families():
            for sample in family.samples:
                if "le" not in sample.labels:
                    samples.setdefault(sample.name, []).append(sample)
            for name in {sample.name for sample in family.samples} - self._known:
                self._known.add(name)
                is_gauge = family.kind == "gauge"
                make = self._meter.create_observable_gauge if is_gauge else self._meter.create_observable_counter
                make(name, callbacks=[self._observe(name)], description=family.about)
        self._samples = samples

    def _observe(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_: CallbackOptions) -> list[Observation]:
            found = self._samples.get(name, ())
            return [Observation(s.value, {label: str(text) for label, text in s.labels.items()}) for s in found]

        return observed

    async def stop(self) -> None:
        await super().stop()
        await asyncio.to_thread(self._provider.shutdown)


def _resource(broker: Broker) -> Resource:
    attributes = {
        "service.version": queenmq.__version__,
        "service.instance.id": broker.node.server_id,
        "host.name": broker.vitals.hostname,
    }
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create(attributes if named else attributes | {"service.name": "queen"})


def _parent(request: Request) -> object:
    """The span of the caller, if it names one."""
    parsed = parse_traceparent(request.headers.get(b"traceparent", b""))
    if parsed is None:
        return set_span_in_context(NonRecordingSpan(SpanContext(0, 0, is_remote=False)))
    trace, span, flags = parsed
    state = TraceState.from_header([request.headers.get(b"tracestate", b"").decode("latin-1")])
    context = SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(flags), state)
    return set_span_in_context(NonRecordingSpan(context))


def _written(context: SpanContext) -> bytes:
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags & 1)


def _name(method: str, path: str) -> str:
    """Without names and ids, which would make a name for each request."""
    return f"{method} {'/'.join(path.split('/')[:4])}"


def _message(queue: str, message_id: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": "queen",
        "messaging.destination.name": queue,
        "messaging.message.id": message_id,
        "messaging.operation.type": operation,
    }


def _trace(trace_id: str | None) -> int | None:
    return int(trace_id.replace("-", ""), 16) or None if trace_id else None


def _ended(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= _SERVER_ERROR:
        span.set_status(Status(StatusCode.ERROR))


def _failed(span: Span, error: BaseException) -> None:
    if isinstance(error, HttpError):
        _ended(span, error.status)
        span.set_attribute("error.type", error.code)
    else:
        span.set_status(Status(StatusCode.ERROR))
