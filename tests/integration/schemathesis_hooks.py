"""What the schemathesis run of `test_openapi` must know that an OpenAPI document cannot say."""

from __future__ import annotations

import re
from typing import Any

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import Failure

_EMPTY = re.compile(r"[?&][^=&]+=(?:&|$)")

_NO_RANGE = (b"from must not be after to", b"must not be longer than a year", b"choose a wider interval")

_NO_CONDITION = (
    b"the request pushes nothing to this partition",
    b"the partition cannot have two last offsets",
    b"a timer cannot be pushed with expect",
    b"has both offset and since",
    b"partition needs consumerGroup",
    b'"error":"schema: ',
    b"retry: ",
    b"breaker: ",
    b"limits: ",
    b"fairness: ",
    b"fairness is of a queue",
    b"fairnessKey is not supported",
    b"has data and no payload",
    b"retry or breaker is required",
    b"filter: ",  # an expression has a grammar
    b"needs either ttlSeconds or forever",
    b" is required",  # of an operation of its kind
    b"is for locks",
    b"is not for transactions",
    b"what is required cannot be",
    b"headers has ",  # their sizes together
    b"conflation is for groups",
    b"conflation and autoAck exclude each other",
    b"only a group can conflate",
)
_NO_TIMER = (
    b"needs one of delayMs, deliverAt and schedule",
    b"needs its payload in data (JSON) or in payload (Base64)",
    b"must be the Base64 of JSON",
    b"compressed payloads are not supported",
    b"neither a cron expression",
    b"@every takes a duration",
    b"is not the name of a time zone",
    b"timeZone is only for",
    b"has both delay and deliverAt",
    b"are only for POST /api/v1/push",
)


@schemathesis.hook
def map_body(context: HookContext, body: Any) -> Any:
    """To a JSON schema 1.0 is an integer, to Queen it is not."""
    if isinstance(body, float) and body.is_integer():
        return int(body)
    if isinstance(body, list):
        return [map_body(context, element) for element in body]
    if isinstance(body, dict):
        return {key: map_body(context, value) for key, value in body.items()}
    return body


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """Keep a failure unless it is one of those that are meant so."""
    needs_one_of_two = b"namespace or task is required" in response.content
    empty_counts_as_absent = response.status_code < 300 and _EMPTY.search(response.request.url or "") is not None
    is_no_range = any(text in response.content for text in _NO_RANGE)
    is_no_timer = any(text in response.content for text in _NO_TIMER + _NO_CONDITION)
    has_no_lease = (case.path_parameters or {}).get("leaseId") == ""  # popped with autoAck
    was_switched_off = response.status_code == 503 and b'"code":"maintenance"' in response.content  # by an earlier case
    is_no_socket = response.status_code == 426  # what it sends is plain HTTP
    combined_wrongly = needs_one_of_two or is_no_range or is_no_timer or is_no_socket
    return not (combined_wrongly or empty_counts_as_absent or has_no_lease or was_switched_off)
