"""Filters and conflation: which messages of a queue a group gets"""

from __future__ import annotations

import msgspec

from queenmq.access.permissions import Verb
from queenmq.broker.conflation import GroupConflation
from queenmq.broker.filters import GroupFilter
from queenmq.core.filters import parse_filter
from queenmq.core.names import QUEUE_MODE, check_name, optional_iso_millis
from queenmq.errors import InvalidRequest
from queenmq.http.answers.groups import ConflationShown, FilterShown
from queenmq.http.decoding import decode
from queenmq.http.openapi import documented
from queenmq.http.requests import FilterBody, SwitchBody
from queenmq.http.roles import Role
from queenmq.http.route import Context, Route
from queenmq.http.schemas import Error
from queenmq.http.scopes import group_in_path
from queenmq.httpserver.messages import Request, Response

_PATH = "/api/v1/consumer-groups/{group}/queues/{queue}/filter"
_CONFLATION_PATH = "/api/v1/consumer-groups/{group}/queues/{queue}/conflation"
_TEXTS = {"filter": "filter is required; null removes it"}
_SWITCH_TEXTS = {"enabled": "enabled (boolean) is required"}
_decoder = msgspec.json.Decoder(FilterBody)
_switch_decoder = msgspec.json.Decoder(SwitchBody)


@documented({200: FilterShown, 404: Error}, body=FilterBody)
async def set_filter(request: Request, context: Context) -> Response:
    """Let the group get only the messages for which the filter is true, from the next pop on; null: all of them.

    What the filter does not let through is passed over and counted, never delivered. What was passed over stays so.
    """
    group, queue = _names(request)
    text = decode(request.body, _decoder, _TEXTS).filter
    given = None if text is None else parse_filter(text)
    if group == QUEUE_MODE:
        raise InvalidRequest("only a group can have a filter: name one", "group")
    return _shown(group, queue, await context.broker.filters.set(queue, group, given, request.subject))


@documented({200: FilterShown, 404: Error})
async def get_filter(request: Request, context: Context) -> Response:
    """The filter of a group in a queue, and how many messages it has kept from the group."""
    group, queue = _names(request)
    return _shown(group, queue, await context.broker.filters.find(queue, group))


@documented({200: ConflationShown, 404: Error}, body=SwitchBody)
async def set_conflation(request: Request, context: Context) -> Response:
    """Let the group get only the newest message of each partition, from the next pop on; or all of them again.

    Older ones are passed over and counted, never delivered. What was passed over stays so.
    """
    group, queue = _names(request)
    enabled = decode(request.body, _switch_decoder, _SWITCH_TEXTS).enabled
    if group == QUEUE_MODE:
        raise InvalidRequest("only a group can conflate: name one", "group")
    return _conflated(group, queue, await context.broker.conflation.set(queue, group, enabled, request.subject))


@documented({200: ConflationShown, 404: Error})
async def get_conflation(request: Request, context: Context) -> Response:
    """Whether a group gets only the newest message of each partition, and how many older ones it was not given."""
    group, queue = _names(request)
    return _conflated(group, queue, await context.broker.conflation.find(queue, group))


def _names(request: Request) -> tuple[str, str]:
    group, queue = request.params
    check_name(group, "group")
    check_name(queue, "queue")
    return group, queue


def _shown(group: str, queue: str, found: GroupFilter) -> Response:
    shown = FilterShown(
        queue=queue,
        consumer_group=group,
        filter=found.text,
        set_at=optional_iso_millis(found.set_at),
        set_by=found.set_by,
        passed_over=found.passed_over,
    )
    return Response(200, shown)


def _conflated(group: str, queue: str, found: GroupConflation) -> Response:
    shown = ConflationShown(
        queue=queue,
        consumer_group=group,
        enabled=found.enabled,
        set_at=optional_iso_millis(found.set_at),
        set_by=found.set_by,
        passed_over=found.passed_over,
    )
    return Response(200, shown)


ROUTES = (
    Route("POST", _PATH, set_filter, Role.READ_WRITE, scope=group_in_path(Verb.ACK), audited=True),
    Route("GET", _PATH, get_filter, Role.READ_ONLY, scope=group_in_path(Verb.READ)),
    Route("POST", _CONFLATION_PATH, set_conflation, Role.READ_WRITE, scope=group_in_path(Verb.ACK), audited=True),
    Route("GET", _CONFLATION_PATH, get_conflation, Role.READ_ONLY, scope=group_in_path(Verb.READ)),
)
