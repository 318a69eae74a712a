"""Administration that may take long: deleted queues, clear, seek, redrive and retention, done step by step.

What one step finishes is done in the request and leaves no operation. The rest is an operation in PostgreSQL: each step
and how far it came are one transaction, so that whoever goes on after a crash, here or on another server, goes on
behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg
import msgspec

from queenmq.cluster.node import Node
from queenmq.config import Settings
from queenmq.engine.activity import Activity
from queenmq.engine.load import LoadWatch
from queenmq.engine.wake_ups import Wake
from queenmq.errors import Conflict, DatabaseUnavailable, HttpError
from queenmq.ids import uuid7_text
from queenmq.storage.database import Database
from queenmq.storage.statements import statement

log = logging.getLogger(__name__)

_LOOK_S = 0.05
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Standing:
    """How far administration is: finished without an operation, or the operation that goes on with it."""

    done: int
    total: int | None = None
    operation_id: str | None = None
    status: Literal["completed", "running", "queued"] = "completed"
    unit: str = ""


class LongOperations:
    def __init__(
        self,
        database: Database,
        node: Node,
        settings: Settings,
        load: LoadWatch,
        activity: Activity,
        changed: Wake,
    ) -> None:
        self._database = database
        self._node = node
        self._settings = settings
        self._load = load
        self._activity = activity
        self._changed = changed
        self._running: dict[str, asyncio.Task[None]] = {}  # by claim
        self._claims: set[str] = set()  # of these, and of what is being claimed
        self._releasing = asyncio.Lock()
        self._interrupted = True  # by the end of an earlier process of the same name, perhaps
        self.steps = 0
        self.completed = 0
        self.failed = 0

    @property
    def running(self) -> int:
        return len(self._running)

    # Beginning

    async def begin(self, kind: str, queue: str, parameters: Mapping[str, Any]) -> Standing | None:
        """Do it, or as much as the time for an answer allows; None if there is no such queue."""
        deadline = self._deadline()
        await self._ready()
        with self._claiming() as claim:
            row = await self._database.fetchrow(
                statement("begin_operation"),
                kind,
                queue,
                _encode({name: value for name, value in parameters.items() if value is not None}).decode(),
                self._node.server_id,
                claim,
                self._settings.operation_step,
                self._settings.operation_most,
            )
            if row is None:
                raise AssertionError("queen.begin_operation returned no row")
            if not row["known"]:
                return None
            self._tell(kind, queue, None)
            if row["id"] is None:
                return Standing(row["done"])
            task = self._take_up(str(row["id"]), claim if row["running"] else None)
        return await self._answer(str(row["id"]), task, deadline)

    async def delete_queue(self, queue: str) -> tuple[bool, Standing]:
        """Delete a queue; False if there was none. After it the name is free, and nothing of the queue is reachable."""
        deadline = self._deadline()
        answer = {"answer": {"deleted": True, "queue": queue, "existed": True}}
        await self._ready()
        with self._claiming() as claim:
            row = await self._database.fetchrow(
                statement("delete_queue"),
                queue,
                _encode(answer).decode(),
                self._node.server_id,
                claim,
                self._settings.operation_step,
            )
            if row is None:
                raise AssertionError("queen.delete_queue returned no row")
            self._node.config_deleted(queue, row["version"])
            if row["id"] is None:
                return row["existed"], Standing(row["total"] or 0)
            task = self._take_up(str(row["id"]), claim)
        return True, await self._answer(str(row["id"]), task, deadline)

    async def retain(self, limit: int, idle_days: int) -> None:
        """A run of retention to its end, unless one runs or waits already. Looks for remains of deleted queues, too."""
        if await self._database.fetch(statement("adopt_remains")):
            self._load.tell_queued(1)
        parameters = _encode({"limit": limit, "idleDays": idle_days}).decode()
        await self._ready()
        task = await self._claim("begin_retention", parameters)
        if task is not None:
            await asyncio.wait((task,))

    @contextlib.contextmanager
    def _claiming(self) -> Iterator[str | None]:
        """A claim for as long as something is claimed with it; then it goes, or belongs to what runs."""
        claim = self._next_claim()
        try:
            yield claim
        finally:
            if claim is not None and claim not in self._running:
                self._claims.discard(claim)

    def _next_claim(self) -> str | None:
        """None if this server has enough to do: then a new operation waits for a worker."""
        return self._new_claim() if self.running < self._settings.operation_concurrent else None

    def _new_claim(self) -> str:
        claim = uuid7_text()
        self._claims.add(claim)
        return claim

    def _take_up(self, operation_id: str, claim: str | None) -> asyncio.Task[None] | None:
        if claim is not None:
            return self._start(operation_id, claim)
        self._load.tell_queued(1)
        return None

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._settings.operation_wait_ms / 1000

    async def _answer(self, operation_id: str, task: asyncio.Task[None] | None, deadline: float) -> Standing:
        """How the operation stands when it is finished or the time for an answer is over. It goes on by itself."""
        loop = asyncio.get_running_loop()
        if task is not None:
            await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
        while True:
            row = await self._database.fetchrow(statement("operation"), operation_id)
            if row is None or row["status"] in ("failed", "cancelled"):
                raise Conflict(f"operation {operation_id} was stopped: {row and row['error']}")
            if row["status"] == "completed":
                return Standing(row["done"])
            if loop.time() >= deadline:
                status: Literal["running", "queued"] = "running" if row["status"] == "processing" else "queued"
                return Standing(row["done"], row["total"], operation_id, status, row["unit"])
            await asyncio.sleep(_LOOK_S)

    # Running

    @property
    def may_have_work(self) -> bool:
        return self._interrupted or self._load.may_have_operations

    async def work(self) -> None:
        """Take up what waits or what a dead server left, as much as this one may run at once."""
        await self._ready()
        while self.running < self._settings.operation_concurrent:
            if await self._claim("claim_administration") is None:
                return

    async def _claim(self, name: str, *arguments: object) -> asyncio.Task[None] | None:
        """Run the operation that a statement finds or makes, if it does."""
        claim, found = self._new_claim(), None
        try:
            found = await self._database.fetchval(statement(name), *arguments, self._node.server_id, claim)
        finally:
            if found is None:
                self._claims.discard(claim)
        return None if found is None else self._start(str(found), claim)

    async def _ready(self) -> None:
        """Give back what was interrupted. Nobody claims meanwhile: the claim would be given back with it."""
        async with self._releasing:
            if self._interrupted:
                self._interrupted = False
                try:
                    await self._release()
                except BaseException:
                    self._interrupted = True
                    raise

    async def _release(self) -> None:
        await self._database.fetch(statement("release_administration"), self._node.server_id, list(self._claims))

    def _start(self, operation_id: str, claim: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run(operation_id, claim), name=f"operation {operation_id}")
        self._running[claim] = task
        task.add_done_callback(lambda _: self._ended(claim))
        return task

    def _ended(self, claim: str) -> None:
        self._running.pop(claim, None)
        self._claims.discard(claim)

    async def _run(self, operation_id: str, claim: str) -> None:
        """Step by step to the end, or until it is cancelled or another worker has it."""
        try:
            while row := await self._step(operation_id, claim):
                if row["finished"]:
                    self.completed += 1
                    log.info("operation %s (%s) is completed: %d", operation_id, row["kind"], row["done"])
                    return
        except DatabaseUnavailable as error:
            self._interrupted = True
            log.warning("operation %s is interrupted, it will go on: %s", operation_id, error)
        except HttpError as error:
            await self._fail(operation_id, claim, str(error.__cause__ or error))
        except Exception:
            self._interrupted = True
            log.exception("operation %s is interrupted, it will go on", operation_id)

    async def _step(self, operation_id: str, claim: str) -> asyncpg.Record | None:
        step = self._settings.operation_step
        row = await self._database.fetchrow(statement("step_operation"), operation_id, claim, step)
        if row is not None:
            self.steps += 1
            self._tell(row["kind"], row["queue_name"], row["told"])
        return row

    async def _fail(self, operation_id: str, claim: str, error: str) -> None:
        try:
            status = await self._database.fetchval(statement("fail_operation"), operation_id, claim, error)
        except DatabaseUnavailable:
            self._interrupted = True
            return
        self.failed += status == "failed"
        log.warning("a step of operation %s failed, it is %s: %s", operation_id, status, error)

    def _tell(self, kind: str, queue: str | None, told: str | None) -> None:
        """After the commit of a step: whoever waits for messages looks again, and counters count."""
        if kind == "retention":
            self._tell_retention(msgspec.json.decode(told or "{}"))
        elif queue is not None and kind != "delete_queue":
            self._activity.touched.add(queue)
            self._changed(queue)

    def _tell_retention(self, told: dict[str, Any]) -> None:
        if told.get("deleted"):
            self._activity.of(told["queue"]).retained += told["deleted"]
        if told.get("dropped"):
            self._node.partitions_deleted([(queue, partition) for queue, partition in told["dropped"]])

    async def close(self) -> None:
        """Stop in the middle, and leave the rest to another server or a later start."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            with contextlib.suppress(HttpError):
                await self._release()
