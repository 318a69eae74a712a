"""`manage.py queen_worker`: run the tasks of a backend of Queen until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import json
import signal
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections

from queenmq.client import Message
from queenmq.ids import uuid7_text
from queenmq.integrations.django.backend import QueenBackend
from queenmq.integrations.tasks import TaskQueues

try:
    from django.tasks import task_backends
except ImportError:  # Django before 6.0
    from django_tasks import task_backends


class Command(BaseCommand):
    help = "Run the tasks that wait in Queen. SIGTERM and SIGINT end it when those at work are done."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="Alias of the backend in TASKS (default).")
        parser.add_argument("--queue", action="append", help="Queue to work on; may be repeated (all of the backend).")
        parser.add_argument("--threads", type=int, default=4, help="Number of tasks of a queue at a time (4).")

    def handle(self, *_args: Any, backend: str, queue: list[str] | None, threads: int, **_options: Any) -> None:
        chosen = task_backends[backend]
        if not isinstance(chosen, QueenBackend):
            raise CommandError(f"the backend {backend!r} is not of Queen")
        if threads < 1:
            raise CommandError("--threads must be at least 1")
        asyncio.run(work(chosen, queue or sorted(chosen.queues), threads))


async def work(backend: QueenBackend, names: list[str], threads: int) -> None:
    loop, worker = asyncio.get_running_loop(), uuid7_text()
    pool = ThreadPoolExecutor(threads * len(names), thread_name_prefix="queen-task")
    queues: TaskQueues = backend.make_queues()

    def run(message: Message) -> None:
        close_old_connections()
        try:
            backend.run(json.loads(bytes(message.raw)), worker)
        finally:
            close_old_connections()

    async def handle(message: Message) -> None:
        await loop.run_in_executor(pool, run, message)

    async with queues.queen:
        for name in names:
            await queues.declare(backend.queue_of(name))
        consumers = [queues.consume(backend.queue_of(name), handle, threads) for name in names]

        def stop() -> None:
            for consumer in consumers:
                consumer.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        await asyncio.gather(*consumers)
    pool.shutdown()
