"""Answers to administration: as ever if it is finished, 202 with its operation if it goes on behind the answer."""

from __future__ import annotations

from queenmq.broker.operation_runner import OperationProgress
from queenmq.http.schemas import Administered, Progress
from queenmq.httpserver.messages import Response


def administered(progress: OperationProgress, answer: Administered) -> Response:
    if progress.status == "completed" or progress.operation_id is None:
        return Response(200, answer)
    answer.status = progress.status
    answer.operation_id = progress.operation_id
    answer.progress = Progress(done=progress.done, total=progress.total, unit=progress.unit)
    return Response(202, answer)
