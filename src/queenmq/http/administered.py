"""Answers to administration: as ever if it is finished, 202 with its operation if it goes on behind the answer."""

from __future__ import annotations

from queenmq.engine.long_operations import Standing
from queenmq.http.messages import Response, json_response
from queenmq.http.schemas import Administered, Progress


def administered(standing: Standing, answer: Administered) -> Response:
    if standing.status == "completed" or standing.operation_id is None:
        return json_response(200, answer)
    answer.status = standing.status
    answer.operation_id = standing.operation_id
    answer.progress = Progress(done=standing.done, total=standing.total, unit=standing.unit)
    return json_response(202, answer)
