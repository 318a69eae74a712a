"""The backend: how a task is enqueued, and how a worker runs it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from random import randrange
from typing import Any, Final

from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from queenmq.client import Queen, Reject
from queenmq.ids import uuid7_text
from queenmq.integrations.tasks import OPTIONS, PARTITIONS, TaskQueues, ThreadedTaskQueues, as_task

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # Django before 6.0
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.signals import task_enqueued, task_finished, task_started

log = logging.getLogger("queenmq.django")

_SEND: Final = "SELECT queen.send(%s, %s, %s::jsonb, %s)"


class QueenBackend(BaseTaskBackend):
    """OPTIONS: `servers`, `client` (options of the client), `prefix` (before names of queues), `queue_options`,
    `partitions`, and `database`: the alias of the database in whose transactions tasks are enqueued, by queen.send."""

    supports_defer = True
    supports_async_task = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        given: Mapping[str, Any] = self.options
        self._prefix: str = given.get("prefix", "django.")
        self._database: str | None = given.get("database")
        self._partitions: int = given.get("partitions", PARTITIONS)
        self._task_queues = ThreadedTaskQueues(self.make_queues)

    def make_queues(self) -> TaskQueues:
        """With a client of their own."""
        given: Mapping[str, Any] = self.options
        options = {**OPTIONS, **given.get("queue_options", {})}
        return TaskQueues(Queen(given.get("servers"), **given.get("client", {})), options, self._partitions)

    def queue_of(self, queue_name: str) -> str:
        """The queue of Queen."""
        return f"{self._prefix}{queue_name}"

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        if self._database is not None and task.run_after is not None:
            raise InvalidTask("A task that is enqueued in a transaction cannot have run_after: leave `database` out.")

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        result = _result(task, uuid7_text(), args, kwargs, self.alias)
        object.__setattr__(result, "enqueued_at", timezone.now())
        body = json.dumps({"id": result.id, "task": task.module_path, "args": args, "kwargs": kwargs})
        queue = self.queue_of(task.queue_name)
        if self._database is not None:
            with connections[self._database].cursor() as cursor:
                partition = str(randrange(self._partitions))  # noqa: S311 - not a secret
                cursor.execute(_SEND, [queue, partition, body, result.id])
        else:
            self._task_queues.run(lambda queues: queues.send(queue, as_task(body.encode()), result.id, task.run_after))
        task_enqueued.send(type(self), task_result=result)
        return result

    def run(self, body: Mapping[str, Any], worker: str) -> None:
        """Run a task that has come. Raises Reject if it fails, for a dead letter: Django tries none again."""
        task = import_string(body["task"])
        result = _result(task, body["id"], body["args"], body["kwargs"], self.alias)
        _set(result, status=TaskResultStatus.RUNNING, started_at=timezone.now(), last_attempted_at=timezone.now())
        result.worker_ids.append(worker)
        task_started.send(sender=type(self), task_result=result)
        try:
            context = (TaskContext(task_result=result),) if task.takes_context else ()
            value = task.call(*context, *result.args, **result.kwargs)
        except Exception as error:
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            result.errors.append(TaskError(exception_class_path=path, traceback=_traceback(error)))
            _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
            task_finished.send(type(self), task_result=result)
            log.exception("task %s (%s) failed", body["id"], body["task"])
            raise Reject(f"{type(error).__name__}: {error}") from error
        _set(result, _return_value=value, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now())
        task_finished.send(type(self), task_result=result)


def _result(task: Any, result_id: str, args: Any, kwargs: Any, backend: str) -> Any:
    moments: dict[str, datetime | None] = dict.fromkeys(
        ("enqueued_at", "started_at", "last_attempted_at", "finished_at")
    )
    return TaskResult(
        task=task,
        id=result_id,
        status=TaskResultStatus.READY,
        args=list(args),
        kwargs=dict(kwargs),
        backend=backend,
        errors=[],
        worker_ids=[],
        **moments,
    )


def _set(result: Any, **values: Any) -> None:
    """A result is frozen for those who get it."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _traceback(error: BaseException) -> str:
    from traceback import format_exception

    return "".join(format_exception(error))
