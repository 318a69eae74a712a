"""Listings that come a page at a time: the parameters that choose the page."""

from __future__ import annotations

from typing import Final

from queenmq.config import Settings
from queenmq.http.decoding import query_count
from queenmq.http.openapi import COUNT, Parameter
from queenmq.httpserver.messages import Request

_MOST_OFFSET: Final = 2**62


def page_parameters(default: int, what: str = "entries") -> tuple[Parameter, Parameter]:
    """`limit` and `offset`, for the document."""
    return (
        Parameter("limit", COUNT, f"Most {what}; cut to the server's limit.", default),
        Parameter("offset", COUNT, "How many to leave out.", 0),
    )


def page(request: Request, settings: Settings, default: int) -> tuple[int, int]:
    """The limit and the offset that a request asks for."""
    limit = query_count(request.query, "limit", default, settings.limits.max_items)
    return limit, query_count(request.query, "offset", 0, _MOST_OFFSET)
