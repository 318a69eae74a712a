"""procrastinate, the job queue on PostgreSQL: jobs with a lock per partition, on a bundled PostgreSQL of its own.

A lock keeps the jobs of a partition in order, one at a time, as a lease does here. Jobs are fetched and finished
through its job manager, one a call as its worker does, but without the cost of running a task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import asyncpg

from queen_bench.broker import Consumer, Want
from queen_bench.layout import Layout
from queen_bench.peers.daemon import library, temporary
from queen_bench.processes import Watch
from queenmq.storage.embedded import EmbeddedPostgres

TASK: Final = "bench"
POOL_CONNECTIONS: Final = 64
# It has no batches of jobs to fetch.
SCENARIOS: Final = ("push-1", "push-10", "push-100", "pop-ack-1")
LEFT: Final = "SELECT args ->> 'id' AS name FROM procrastinate_jobs WHERE status = 'todo' ORDER BY id"


class JobProducer:
    def __init__(self, app: Any, layout: Layout) -> None:
        self._manager = app.job_manager
        self._layout = layout
        self._text = layout.text

    async def push(self, lane: int, first: int, count: int) -> None:
        await self.push_each([(lane, sequence) for sequence in range(first, first + count)])

    async def push_each(self, messages: Sequence[tuple[int, int]]) -> None:
        await self._manager.batch_defer_jobs_async([self._job(lane, sequence) for lane, sequence in messages])

    def _job(self, lane: int, sequence: int) -> Any:
        from procrastinate.jobs import Job

        return Job(
            id=None,
            queue=self._layout.queue(lane),
            lock=self._layout.partition(lane),
            queueing_lock=None,
            task_name=TASK,
            task_kwargs={"id": f"{lane}:{sequence}", "x": self._text},
        )

    async def close(self) -> None:
        pass


class JobConsumer:
    def __init__(self, app: Any, layout: Layout, worker: int) -> None:
        self._manager = app.job_manager
        self._queue = layout.queue()
        self._worker = worker
        self._job: Any = None

    async def pop(self) -> list[str]:
        self._job = await self._manager.fetch_job([self._queue], self._worker)
        return [] if self._job is None else [self._job.task_kwargs["id"]]

    async def ack(self) -> None:
        from procrastinate.jobs import Status

        await self._manager.finish_job(self._job, Status.SUCCEEDED, delete_job=False)

    async def close(self) -> None:
        pass


class JobDrainer:
    """Reads what is left with one statement, because fetching job by job would take longer than the measurement."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def pop(self) -> list[str]:
        connection = await asyncpg.connect(self._url)
        try:
            async with connection.transaction():
                names = [row["name"] for row in await connection.fetch(LEFT)]
                await connection.execute("TRUNCATE procrastinate_jobs CASCADE")
        finally:
            await connection.close()
        return names

    async def ack(self) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class JobBroker:
    app: Any
    url: str
    layout: Layout

    async def producer(self, number: int, *, client: bool = False) -> JobProducer:
        return JobProducer(self.app, self.layout)

    async def consumer(self, number: int, want: Want) -> JobConsumer:
        return JobConsumer(self.app, self.layout, await self.app.job_manager.register_worker())

    async def drainers(self, group: str, lanes: int, wait_ms: int) -> Sequence[Consumer]:
        return [JobDrainer(self.url)]


@dataclass(frozen=True)
class JobSubject:
    app: Any
    url: str
    watch: Watch

    def broker(self, layout: Layout, connections: int) -> JobBroker:
        return JobBroker(self.app, self.url, layout)


class Procrastinate:
    name = "procrastinate"

    def __init__(self, scratch: Path | None) -> None:
        self._scratch = scratch
        self._procrastinate = library("procrastinate")
        self._psycopg = library("psycopg")

    def takes(self, scenario: str, peers: bool) -> bool:
        return scenario in SCENARIOS

    def facts(self) -> dict[str, str]:
        return {
            "version": version("procrastinate"),
            "psycopg": f"{version('psycopg')} ({self._psycopg.pq.__impl__})",
            "durability": "bundled PostgreSQL, fsync on",
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[JobSubject]:
        async with temporary(self._scratch, self.name) as folder:
            database = EmbeddedPostgres(folder)
            url = await database.start()
            try:
                async with self._app(url).open_async() as app:
                    await app.schema_manager.apply_schema_async()
                    yield JobSubject(app, url, Watch(None, database.pid))
            finally:
                await database.stop()

    def _app(self, url: str) -> Any:
        """With all connections opened before anything is measured: each costs a password check."""
        connector = self._procrastinate.PsycopgConnector(
            conninfo=url, min_size=POOL_CONNECTIONS, max_size=POOL_CONNECTIONS
        )
        return self._procrastinate.App(connector=connector)
