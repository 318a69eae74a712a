"""The W3C trace context, if the program uses OpenTelemetry: its span goes along with each request, and a handler runs
in the trace of the message that it gets. A program that does not use it pays one lookup in a dictionary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from queenmq.client.models import Message

_LOADED = "opentelemetry.trace"


def inject(headers: dict[str, str]) -> dict[str, str]:
    """Add the context of the current span."""
    if _LOADED in sys.modules:
        from opentelemetry import propagate

        propagate.inject(headers)
    return headers


@contextmanager
def in_trace_of(messages: Sequence[Message]) -> Iterator[None]:
    """What is traced inside is a child of the push of the message; of several messages none is the parent."""
    if _LOADED not in sys.modules or len(messages) != 1 or messages[0].traceparent is None:
        yield
        return
    from opentelemetry import context, propagate

    token = context.attach(propagate.extract({"traceparent": messages[0].traceparent}))
    try:
        yield
    finally:
        context.detach(token)
