"""Answers to stepped operations: 200 if one is finished, 202 with its operation if it goes on after the answer.

The result of a completed operation is the answer that its request would have got, so both are made here.
"""

from __future__ import annotations

from datetime import datetime

from queenmq.broker.operation_runner import OperationProgress
from queenmq.core.names import optional_iso_millis
from queenmq.http.answers.groups import PartitionSought
from queenmq.http.answers.queues import Cleared
from queenmq.http.schemas import Administered, Progress, QueueDeleted, Redriven, Sought
from queenmq.httpserver.messages import Response


def administered(progress: OperationProgress, answer: Administered) -> Response:
    if progress.status == "completed" or progress.operation_id is None:
        return Response(200, answer)
    answer.status = progress.status
    answer.operation_id = progress.operation_id
    answer.progress = Progress(done=progress.done, total=progress.total, unit=progress.unit)
    return Response(202, answer)


def queue_deleted(queue: str, existed: bool) -> QueueDeleted:
    return QueueDeleted(deleted=True, queue=queue, existed=existed)


def cleared(queue: str, partition: str | None, deleted: int, finished: bool) -> Cleared:
    return Cleared(cleared=finished, queue=queue, partition=partition, deleted=deleted)


def redriven(queue: str, partition: str | None, group: str | None, taken: int) -> Redriven:
    return Redriven(success=True, queue=queue, partition=partition, consumer_group=group, redriven=taken)


def sought(group: str, queue: str, at: datetime | None, partitions: int) -> Sought:
    return Sought(
        success=True,
        consumer_group=group,
        queue_name=queue,
        seek_to_end=at is None,
        target_timestamp=optional_iso_millis(at),
        partitions_updated=partitions,
    )


def partition_sought(group: str, queue: str, partition: str, *, updated: bool, position: int | None) -> PartitionSought:
    return PartitionSought(
        success=True,
        consumer_group=group,
        queue_name=queue,
        partition_name=partition,
        updated=updated,
        cursor_moved_to=position,
    )
