"""Delete, clear, seek, redrive and retention in steps: what they do, and how they are stopped and go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from server_settings import changed, settings_with

from integration.queen import (
    Queen,
    age_messages,
    age_partitions,
    another_server,
    data,
    decide_pushes,
    expire_leases,
    leases,
    stored,
    until,
)
from queenmq.broker.load_manager import Choice
from queenmq.broker.operation_runner import OperationRunner
from queenmq.client import Queen as Client
from queenmq.config import Settings
from queenmq.operations.steps import Claimed, Step, SteppedOperations
from queenmq.server import Server
from queenmq.services.retention import Retention
from queenmq.storage.database import Database
from queenmq.storage.statements import statement
from queenmq.verify import check
from queenmq.verify.recorder import Recorder
from queenmq.verify.workload import Load, run

NEVER_MS = 3_600_000
FAR_PAST = "1970-01-01T00:00:00Z"
STEP = 10
KINDS = ("delete_queue", "clear", "seek", "redrive")

Json = dict[str, Any]


@pytest.fixture
def settings() -> Settings:
    """Small steps, no patience of answers, and no worker: the tests say when."""
    return settings_with(
        operations={"interval_ms": NEVER_MS, "step": STEP, "wait_ms": 1, "max_unfinished": 5},
        retention={"batch_size": STEP},
    )


@pytest.fixture
def steps(server: Server, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Operations go on only when the test takes a step."""
    monkeypatch.setattr(server.broker.operation_runner, "_has_room", lambda: False)
    return Steps(server.broker.operation_runner, server.database)


class Steps:
    def __init__(self, runner: OperationRunner, database: Database) -> None:
        self._runner = runner
        self._database = database
        self.run = runner._run

    async def claim(self) -> Claimed | None:
        claim = str(uuid4())
        claimed = await self._database.fetchval(statement("claim_administration"), "test", claim)
        return None if claimed is None else Claimed(str(claimed), claim)

    async def step(self, claimed: Claimed) -> Step | None:
        step = await self._runner.steps.step(claimed)
        if step is not None:
            self._runner._apply(step)
        return step

    async def take(self, count: int | None = None) -> tuple[str, list[Step]]:
        """So many steps of the next operation, or all; it waits for others afterwards."""
        claimed = await self.claim()
        assert claimed is not None, "nothing is to be done"
        done: list[Step] = []
        while (count is None or len(done) < count) and (step := await self.step(claimed)):
            done.append(step)
            if step.finished:
                break
        await self._database.fetch(statement("release_administration"), "test", [])
        return claimed.operation_id, done


async def operation(http: httpx.AsyncClient, operation_id: str) -> Json:
    answer = await http.get(f"/api/v1/operations/{operation_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def redrive(queen: Queen, status: int = 200, **body: Any) -> Json:
    return await queen._call("POST", "/api/v1/dlq/redrive", status, body)


async def begin(queen: Queen, kind: str, queue: str = "q", **narrowed: Any) -> httpx.Response:
    if kind == "delete_queue":
        return await queen.http.delete(f"/api/v1/resources/queues/{queue}")
    if kind == "clear":
        return await queen.http.delete(f"/api/v1/queues/{queue}/clear", params=narrowed)
    if kind == "seek":
        body = narrowed or {"toEnd": True}
        return await queen.http.post(f"/api/v1/consumer-groups/g/queues/{queue}/seek", json=body)
    return await queen.http.post("/api/v1/dlq/redrive", json={"queue": queue} | narrowed)


async def begun(queen: Queen, kind: str, queue: str = "q", **narrowed: Any) -> Json:
    answer = await begin(queen, kind, queue, **narrowed)
    assert answer.status_code == 202, answer.text
    assert answer.json()["status"] == "queued"
    return answer.json()


async def fill(queen: Queen, queue: str = "q", partitions: int = 25, each: int = 2) -> None:
    items = [
        {"queue": queue, "partition": f"p{p:02}", "transactionId": f"{p}:{n}", "payload": n}
        for p in range(partitions)
        for n in range(each)
    ]
    await queen.push_items(*items)


async def bury(queen: Queen, queue: str = "q", **params: Any) -> int:
    """Make dead letters of everything that the group has not read."""
    buried = 0
    while popped := await queen.pop(queue, **({"batch": 1000, "partitions": 100, "consumerGroup": "g"} | params)):
        await queen.ack_batch(popped, "dlq")
        buried += len(popped)
    return buried


# Small ones


@pytest.mark.parametrize("kind", KINDS)
async def test_what_fits_into_a_step_is_done_at_once_and_leaves_no_operation(
    server: Server, queen: Queen, sql: asyncpg.Connection, kind: str
) -> None:
    await fill(queen, partitions=2)
    await bury(queen)
    answer = await begin(queen, kind)
    assert answer.status_code == 200
    expected: dict[str, Json] = {
        "delete_queue": {"deleted": True, "queue": "q", "existed": True},
        "clear": {"cleared": True, "queue": "q", "partition": None, "deleted": 4},
        "seek": {
            "success": True,
            "consumerGroup": "g",
            "queueName": "q",
            "seekToEnd": True,
            "targetTimestamp": None,
            "partitionsUpdated": 2,
        },
        "redrive": {"success": True, "queue": "q", "partition": None, "consumerGroup": None, "redriven": 4},
    }
    assert answer.json() == expected[kind]
    assert await sql.fetchval("SELECT count(*) FROM queen.operation_queue") == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_large_one_that_is_finished_in_time_is_answered_as_ever(
    database_url: str, settings: Settings, kind: str, queen: Queen, sql: asyncpg.Connection
) -> None:
    await fill(queen)
    await bury(queen)
    async with another_server(changed(settings, operations={"wait_ms": 60_000}), database_url) as patient:
        answer = await begin(patient, kind)
    assert answer.status_code == 200, answer.text
    counts = {"clear": ("deleted", 50), "seek": ("partitionsUpdated", 25), "redrive": ("redriven", 50)}
    name, count = counts.get(kind, ("existed", True))
    assert answer.json()[name] == count
    assert "operationId" not in answer.json()
    [row] = await sql.fetch("SELECT kind, status, done, total FROM queen.operation_queue")
    assert tuple(row)[:2] == (kind, "completed")
    assert row["done"] == row["total"]


# Each kind, over several steps


async def test_clear_deletes_what_was_there_and_nothing_that_came_later(
    queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    await fill(queen, partitions=15)
    await queen.push("q", *range(35), partition="large")
    await queen.pop("q", "large", batch=3, consumerGroup="holder")
    answer = await begun(queen, "clear")
    assert (answer["cleared"], answer["deleted"]) == (False, answer["progress"]["done"])
    await queen.push("q", "later", partition="large")
    await queen.push("q", "later", partition="p01")
    await queen.push("q", "new", partition="new")
    progress = [answer["progress"]["done"]]
    total = answer["progress"]["total"]
    assert total == 65
    while (await operation(queen.http, answer["operationId"]))["status"] != "completed":
        await steps.take(1)
        shown = await operation(queen.http, answer["operationId"])
        progress.append(shown["progress"]["done"])
        assert shown["progress"]["unit"] == "messages"
    assert progress == sorted(progress)
    assert len(set(progress)) > 4
    assert shown["result"] == {"cleared": True, "queue": "q", "partition": None, "deleted": 65}
    assert shown["progress"] == {"done": 65, "total": 65, "unit": "messages"}
    assert await leases(sql) == 0
    assert sorted(data(await queen.drain("q", consumerGroup="late", partitions=20))) == ["later", "later", "new"]
    assert data(await queen.drain("q", "large", consumerGroup="holder")) == ["later"]


async def test_clear_of_one_large_partition_leaves_the_others(queen: Queen, steps: Steps) -> None:
    await queen.push("q", *range(25), partition="large")
    await queen.push("q", "stays", partition="other")
    answer = await begun(queen, "clear", partition="large")
    await steps.take()
    shown = await operation(queen.http, answer["operationId"])
    assert (shown["partition"], shown["result"]["deleted"]) == ("large", 25)
    assert data(await queen.drain("q")) == ["stays"]


async def test_a_deleted_queue_cannot_be_reached_and_its_name_is_free_at_once(
    server: Server, queen: Queen, sql: asyncpg.Connection, steps: Steps, settings: Settings, database_url: str
) -> None:
    await queen.configure("q", namespace="space", task="work", leaseTime=77)
    await fill(queen)
    held = await queen.pop("q", consumerGroup="g")
    buried = await queen.pop("q", consumerGroup="g")
    await queen.ack_batch(buried, "dlq")
    await queen.trace(held[0], {"n": 1}, traceNames=["named"])
    async with another_server(settings, database_url) as unaware:
        # It knows the partitions, and nobody tells it that they are gone.
        await unaware.push("q", "before", partition="p00")
        answer = await begun(queen, "delete_queue")
        assert (answer["deleted"], answer["existed"]) == (True, True)
        assert answer["progress"]["unit"] == "messages and partitions"
        assert await queen.pop("q", consumerGroup="g") == []
        assert await queen.pop_matching(namespace="space") == []
        assert (await queen.ack(held[0]))["error"] == "Message not found"
        assert await queen.dead_letters() == []
        assert (await queen.http.get("/api/v1/resources/queues")).json()["queues"] == []
        assert (await queen.http.get("/api/v1/resources/overview")).json()["queues"] == 0
        assert (await queen.http.get("/api/v1/resources/partitions")).json()["partitions"] == []
        assert (await queen.http.get("/api/v1/traces/by-name/named")).json()["traces"] == []
        assert (await queen.http.get("/api/v1/messages", params={"queue": "q"})).json()["messages"] == []
        gone = f"/api/v1/messages/{held[0]['partitionId']}/{held[0]['transactionId']}"
        assert (await queen.http.get(gone)).status_code == 404
        assert (await queen.http.get(f"/api/v1/traces/{gone.removeprefix('/api/v1/messages/')}")).json()["traces"] == []
        assert (await queen.extend(held[0]["leaseId"], 60, 404))["error"] == "Lease not found"
        dead = f"/api/v1/messages/{buried[0]['partitionId']}/{buried[0]['transactionId']}"
        for method, path in (("POST", f"{gone}/dlq"), ("POST", f"{dead}/retry"), ("DELETE", gone), ("DELETE", dead)):
            assert (await queen.http.request(method, path)).status_code == 404, path
        await unaware.push("q", "new", partition="p00")
        assert (await begin(queen, "delete_queue", "another")).json()["existed"] is False
        before, [step] = await steps.take(1)
        assert (before, step.finished) == (answer["operationId"], False)
        await queen.push("q", "newer", partition="p00")
        _, done = await steps.take()
        assert done[-1].finished
        assert data(await queen.drain("q", "p00")) == ["new", "newer"]
    shown = await operation(queen.http, answer["operationId"])
    assert shown["result"] == {"deleted": True, "queue": "q", "existed": True}
    assert shown["progress"]["done"] == 51 + 26
    assert await sql.fetchval("SELECT count(*) FROM queen.queues") == 1
    assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 2
    for table in ("dead_letter_queue", "dead_letter_counts", "message_traces", "partition_subscriptions"):
        assert await sql.fetchval(f"SELECT count(*) FROM queen.{table}") == 0, table
    assert await sql.fetchval("SELECT count(*) FROM queen.partitions") == 1


async def test_a_push_that_was_queued_for_a_deleted_queue_is_not_done(
    server: Server, queen: Queen, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(queen)
    decide_pushes(server, monkeypatch, Choice.QUEUE)
    item = {"queue": "q", "partition": "p00", "payload": "queued"}
    assert (await queen.http.post("/api/v1/push", json={"items": [item]})).status_code == 202
    monkeypatch.undo()
    monkeypatch.setattr(server.broker.operation_runner, "_has_room", lambda: False)
    await begun(queen, "delete_queue")
    await queen.push("q", "new", partition="p00")
    assert await server.broker.operation_runner.run_pushes(10, 10) == 0
    await steps.take()
    assert data(await queen.drain("q")) == ["new"]


async def test_a_large_partition_of_a_deleted_queue_goes_in_portions(
    queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    await queen.push("q", *range(95))
    await queen.pop("q", batch=50)
    answer = await begun(queen, "delete_queue")
    _, done = await steps.take()
    assert len(done) > 9
    assert (await operation(queen.http, answer["operationId"]))["progress"]["done"] == 96
    assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 0
    assert await sql.fetchval("SELECT count(*) FROM queen.queues") == 0


async def test_seek_to_the_end_is_the_end_of_the_moment_of_the_call(
    queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    await fill(queen)
    [held] = await queen.pop("q", consumerGroup="g")
    answer = await begun(queen, "seek")
    assert answer["partitionsUpdated"] == answer["progress"]["done"] == STEP
    assert answer["progress"]["total"] == 25
    # One partition is read beyond that end meanwhile, others get something, and one is new.
    farthest = "SELECT name FROM queen.partitions WHERE name <> $1 ORDER BY id DESC LIMIT 1"
    last = await sql.fetchval(farthest, held["partition"])
    await queen.push("q", "later", partition=last)
    read = [message async for message in _read(queen, last)]
    assert read == [0, 1, "later"]
    await queen.push("q", "later", partition=held["partition"])
    await queen.push("q", "new", partition="new")
    _, done = await steps.take()
    assert [step.done for step in done][-1] == 25
    shown = await operation(queen.http, answer["operationId"])
    assert shown["result"]["partitionsUpdated"] == 25
    assert (await queen.ack(held))["success"] is False
    assert sorted(data(await queen.drain("q", consumerGroup="g", partitions=30))) == ["later", "new"]


async def test_seek_in_one_partition_ends_with_the_answer_of_an_immediate_one(queen: Queen, steps: Steps) -> None:
    await fill(queen)
    await queen.pop("q", consumerGroup="g")
    path = "/api/v1/consumer-groups/{}/queues/q/partitions/p00/seek"
    expected = {"success": True, "queueName": "q", "partitionName": "p00"}
    for group, updated, moved_to in (("g", True, 2), ("stranger", False, None)):
        await begun(queen, "seek", timestamp=FAR_PAST)  # comes first
        answer = await queen.http.post(path.format(group))
        assert answer.status_code == 202
        assert (answer.json()["updated"], answer.json()["cursorMovedTo"]) == (False, None)
        while (await operation(queen.http, answer.json()["operationId"]))["status"] != "completed":
            await steps.take()
        result = (await operation(queen.http, answer.json()["operationId"]))["result"]
        assert result == expected | {"consumerGroup": group, "updated": updated, "cursorMovedTo": moved_to}
        immediate = await queen.http.post(path.format(group))
        assert (immediate.status_code, immediate.json()) == (200, result)


async def _read(queen: Queen, partition: str) -> Any:
    for message in await queen.drain("q", partition, consumerGroup="g"):
        yield message["data"]


async def test_seek_back_moves_every_partition_that_the_group_had(queen: Queen, steps: Steps) -> None:
    await fill(queen)
    await queen.drain("q", consumerGroup="g", partitions=30)
    answer = await begun(queen, "seek", timestamp=FAR_PAST)
    await queen.push("q", "new", partition="new")
    await queen.drain("q", "new", consumerGroup="g")
    await steps.take()
    result = (await operation(queen.http, answer["operationId"]))["result"]
    assert result == {
        "success": True,
        "consumerGroup": "g",
        "queueName": "q",
        "seekToEnd": False,
        "targetTimestamp": "1970-01-01T00:00:00.000Z",
        "partitionsUpdated": 25,
    }
    again = await queen.drain("q", consumerGroup="g", partitions=30)
    assert sorted(data(again)) == [0] * 25 + [1] * 25


async def test_a_history_in_which_a_group_is_moved_after_the_answer_is_valid(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients of `queen verify` wait for the operation: until then nobody knows which partitions have moved."""
    step, complete = SteppedOperations.step, Recorder.complete
    answered = asyncio.Event()
    steps = 0

    def noted(self: Recorder, *given: Any, **named: Any) -> None:
        complete(self, *given, **named)
        answered.set()

    async def late(self: SteppedOperations, claimed: Claimed) -> Step | None:
        nonlocal steps
        steps += 1
        with suppress(TimeoutError):  # no calls of the clients come any more when they only wait for this operation
            async with asyncio.timeout(1):
                for _ in range(10):
                    answered.clear()
                    await answered.wait()
        return await step(self, claimed)

    monkeypatch.setattr(Recorder, "complete", noted)
    monkeypatch.setattr(SteppedOperations, "step", late)
    host, port = server.address
    load = Load(seconds=3, producers=1, consumers=3, partitions=2 * STEP, lease_s=1, drain_s=0.1, quiet_s=0.1)
    verdict = check(await run([f"http://{host}:{port}"], "seek", "moved", load))
    assert steps
    assert verdict.violations == []


async def test_redrive_is_in_order_and_once_also_for_messages_that_are_not_stored_any_more(
    queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    for name in ("stored", "gone"):
        await queen.push("q", *[f"{name} {n:02}" for n in range(25)], partition=name)
    assert await bury(queen) == 50
    await queen.push("q", "last", partition="gone")
    await sql.execute(
        "SELECT queen.trim(p.id, 25) FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id "
        "WHERE p.name = 'gone' AND q.name = 'q'"
    )
    answer = await begun(queen, "redrive")
    assert answer["progress"] == {"done": STEP, "total": 50, "unit": "dead letters"}
    seen: dict[str, list[str]] = {"stored": [], "gone": []}

    async def read() -> None:
        for message in await queen.drain("q", consumerGroup="g", partitions=5):
            seen[message["partition"]].append(message["data"])

    await read()
    for _ in range(20):
        _, done = await steps.take(1)
        await read()
        if done[-1].finished:
            break
    assert seen["stored"] == [f"stored {n:02}" for n in range(25)]
    assert seen["gone"] == ["last"] + [f"gone {n:02}" for n in range(25)]
    assert (await operation(queen.http, answer["operationId"]))["result"]["redriven"] == 50
    assert await queen.dead_letters("q") == []


async def test_redrive_leaves_a_lease_alone_that_lies_before_it_and_what_fails_again(
    queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    await queen.push("q", *[f"{n:02}" for n in range(25)])
    await bury(queen)
    await begun(queen, "redrive")
    held = await queen.pop("q", consumerGroup="g", batch=5)
    assert data(held) == ["00", "01", "02", "03", "04"]
    _, done = await steps.take(1)
    assert not done[-1].finished
    assert all(result["success"] for result in await queen.ack_batch(held, "dlq"))
    _, done = await steps.take()
    assert done[-1].done == 25
    assert sorted(letter["data"] for letter in await queen.dead_letters("q")) == data(held)
    assert data(await queen.drain("q", consumerGroup="g")) == [f"{n:02}" for n in range(5, 25)]


async def test_redrive_of_one_group_and_partition(queen: Queen) -> None:
    for partition in ("a", "b"):
        await queen.push("q", f"{partition}1", f"{partition}2", partition=partition)
    await bury(queen)
    await bury(queen, consumerGroup="other")
    assert (await redrive(queen, queue="q", partition="a", consumerGroup="g"))["redriven"] == 2
    assert data(await queen.drain("q", consumerGroup="g", partitions=5)) == ["a1", "a2"]
    assert await queen.drain("q", consumerGroup="other", partitions=5) == []
    assert len(await queen.dead_letters("q")) == 6
    assert (await redrive(queen, queue="q"))["redriven"] == 6
    assert sorted(data(await queen.drain("q", consumerGroup="g", partitions=5))) == ["b1", "b2"]
    assert (await redrive(queen, queue="q"))["redriven"] == 0
    await redrive(queen, 404, queue="unknown")
    await redrive(queen, 400)
    await redrive(queen, 400, queue="q", partition="")


async def bury_with(queen: Queen, partition: str, *errors: str) -> None:
    """A dead letter with each error, whose payload is its error."""
    await queen.push("q", *errors, partition=partition)
    for message in await queen.pop("q", partition, consumerGroup="g", batch=len(errors)):
        await queen.ack(message, "dlq", error=message["data"])


async def test_redrive_of_what_failed_with_an_error_or_at_a_time(queen: Queen, sql: asyncpg.Connection) -> None:
    await bury_with(queen, "a", "timeout after 3 s", "no such mailbox", "Timeout after 20 s")
    await bury_with(queen, "b", "timeout after 7 s", "timeout: refused")

    async def delivered() -> list[str]:
        return sorted(data(await queen.drain("q", consumerGroup="g", partitions=5)))

    assert (await redrive(queen, queue="q", fingerprint="timeout after * s"))["redriven"] == 2
    assert await delivered() == ["timeout after 3 s", "timeout after 7 s"]
    assert (await redrive(queen, queue="q", error="TIMEOUT", partition="a"))["redriven"] == 1
    assert await delivered() == ["Timeout after 20 s"]
    await sql.execute("UPDATE queen.dead_letter_queue SET failed_at = '2020-01-01' WHERE error_message ~ 'mailbox'")
    at = {"from": "2019-12-31T00:00:00Z", "to": "2020-01-01T00:00:00Z"}
    assert (await redrive(queen, queue="q", error="refused", **at))["redriven"] == 0
    assert (await redrive(queen, queue="q", **{"from": "2020-01-02T00:00:00Z"}, consumerGroup="h"))["redriven"] == 0
    assert (await redrive(queen, queue="q", **at))["redriven"] == 1
    assert await delivered() == ["no such mailbox"]
    assert [letter["errorMessage"] for letter in await queen.dead_letters("q")] == ["timeout: refused"]


@pytest.mark.parametrize(
    ("field", "value"), [("error", ""), ("error", "x" * 1001), ("fingerprint", ""), ("from", "soon"), ("to", "")]
)
async def test_redrive_refuses_what_narrows_nothing(queen: Queen, field: str, value: str) -> None:
    """Ignored, it would have all others redriven, too."""
    await bury_with(queen, "a", "no")
    assert (await queen.refused("/api/v1/dlq/redrive", {"queue": "q", field: value}))["field"] == field
    assert len(await queen.dead_letters("q")) == 1


async def test_redrive_of_a_part_reads_only_so_many_letters_in_a_step(queen: Queen, steps: Steps) -> None:
    """Those that do not fit stay, so it must not read them again and again."""
    rare = [4, 44, 45, 70]
    await bury_with(queen, "a", *(f"rare {n}" if n in rare else f"usual {n}" for n in range(75)))
    await bury_with(queen, "b", *(f"rarely {n}" for n in range(25)))
    answer = await begun(queen, "redrive", error="rare")
    shown = await operation(queen.http, answer["operationId"])
    assert (shown["operationType"], shown["progress"]["total"]) == ("redrive_matching", None)
    await bury_with(queen, "c", "rare, but later")
    _, done = await steps.take()
    assert shown["progress"]["done"] == 1
    assert [step.done for step in done] == [1, 3, 9, 19, 29]
    assert (await operation(queen.http, answer["operationId"]))["result"]["redriven"] == 29
    back = data(await queen.drain("q", consumerGroup="g", partitions=5))
    assert [each for each in back if each in [f"rare {n}" for n in rare]] == [f"rare {n}" for n in rare]
    assert len(back) == 29
    left = {letter["errorMessage"].split(" ")[0] for letter in await queen.dead_letters("q")}
    assert left == {"usual", "rare,"}


async def test_redrive_makes_a_partition_anew_that_was_cleaned_up(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", "a", "b", partition="idle")
    await bury(queen)
    await sql.execute("DELETE FROM queen.partitions WHERE name = 'idle'")
    assert (await redrive(queen, queue="q"))["redriven"] == 2
    assert data(await queen.drain("q", "idle", consumerGroup="g")) == ["a", "b"]


async def test_redrive_leaves_what_a_new_partition_has_already(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("q", "a", "b", partition="idle")
    await bury(queen)
    await sql.execute("DELETE FROM queen.partitions WHERE name = 'idle'")
    await queen.push_items({"queue": "q", "partition": "idle", "transactionId": "a", "payload": "another"})
    assert (await redrive(queen, queue="q"))["redriven"] == 1
    assert data(await queen.drain("q", "idle", consumerGroup="g")) == ["another", "b"]
    assert data(await queen.dead_letters("q")) == ["a"]


async def test_dead_letters_stay_if_their_queue_is_full(queen: Queen, sql: asyncpg.Connection, steps: Steps) -> None:
    await queen.push("q", *[f"{n:02}" for n in range(15)])
    [letter, *_] = await queen.pop("q", consumerGroup="g", batch=15)
    await queen.ack_batch([letter], "dlq", consumerGroup="g")
    await bury(queen)
    await expire_leases(sql)
    await bury(queen)
    await sql.execute("SELECT queen.trim(id, 15) FROM queen.partitions")
    await queen.configure("q", maxSize=1)
    await queen.push("q", "full")
    assert (await queen.http.post("/api/v1/dlq/redrive", json={"queue": "q"})).status_code == 429
    retry = f"/api/v1/messages/{letter['partitionId']}/{letter['transactionId']}/retry"
    assert (await queen.http.post(retry)).status_code == 429
    assert len(await queen.dead_letters("q")) == 15
    await queen.configure("q", maxSize=12)
    answer = await begun(queen, "redrive")
    for _ in range(3):
        claimed = await steps.claim()
        assert claimed is not None
        await steps.run(claimed)
        await sql.execute("UPDATE queen.operation_queue SET next_attempt_at = NULL")
    shown = await operation(queen.http, answer["operationId"])
    assert (shown["status"], shown["retryCount"], shown["progress"]["done"]) == ("failed", 2, 10)
    assert "maxSize" in shown["errorMessage"]
    assert len(await queen.dead_letters("q")) == 5
    await queen.configure("q", maxSize=100)
    assert (await queen.http.post(f"/api/v1/operations/{answer['operationId']}/retry")).status_code == 200
    await steps.take()
    assert data(await queen.drain("q", consumerGroup="g")) == ["full"] + [f"{n:02}" for n in range(15)]


# Failures


async def test_a_step_that_fails_for_an_unknown_reason_is_tried_for_as_long_as_it_takes(
    queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    """And what was to be done to the queue after it waits for it."""
    await queen.push("q", *range(25))
    await sql.execute(
        "CREATE FUNCTION public.fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION USING ERRCODE = '53200', MESSAGE = 'out of memory'; END $$"
    )
    first = await begun(queen, "clear")
    await sql.execute("CREATE TRIGGER fault BEFORE DELETE ON queen.messages EXECUTE FUNCTION public.fault()")
    second = await begun(queen, "clear")
    for attempt in range(6):
        claimed = await steps.claim()
        assert claimed is not None
        assert claimed.operation_id == first["operationId"]
        await steps.run(claimed)
        shown = await operation(queen.http, first["operationId"])
        assert (shown["status"], shown["retryCount"]) == ("pending", attempt)
        assert shown["errorMessage"] == "out of memory (SQLSTATE 53200)"
        assert shown["nextAttemptAt"] is not None
        await sql.execute("UPDATE queen.operation_queue SET next_attempt_at = next_attempt_at + interval '1 hour'")
        assert await steps.claim() is None
        assert (await queen.http.post(f"/api/v1/operations/{first['operationId']}/retry")).status_code == 200
        await sql.execute("UPDATE queen.operation_queue SET attempts = $1 WHERE error IS NOT NULL", attempt + 1)
    await sql.execute("DROP TRIGGER fault ON queen.messages")
    assert (await steps.take())[0] == first["operationId"]
    assert (await steps.take())[0] == second["operationId"]
    assert await stored(sql, "q") == 0


# Retention


async def test_retention_is_one_operation_a_run_with_progress(
    server: Server, queen: Queen, sql: asyncpg.Connection, settings: Settings
) -> None:
    await queen.configure("old", retentionEnabled=True, retentionSeconds=10)
    await queen.configure("kept")
    for queue in ("old", "kept"):
        await fill(queen, queue)
        await queen.push(queue, *range(35), partition="large")
        await age_messages(sql, queue, 11)
    await age_partitions(sql, "old", 60)
    await queen.push("old", "young", partition="large")
    retention = Retention(server.broker.operation_runner, settings.retention)
    await retention.work()
    [shown] = (await queen.http.get("/api/v1/operations", params={"type": "retention"})).json()["operations"]
    assert (shown["status"], shown["queue"], shown["progress"]["unit"]) == ("completed", None, "partitions")
    assert shown["progress"]["done"] == 26  # those with something to delete
    assert shown["result"] == {"deleted": 85, "partitionsDropped": 26}
    assert (await stored(sql, "old"), await stored(sql, "kept")) == (1, 85)
    assert server.broker.activity.now().retained == 85


async def test_a_second_run_of_retention_does_not_wait_behind_the_first(
    server: Server, queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    await queen.configure("old", retentionEnabled=True, retentionSeconds=10)
    await fill(queen, "old")
    await age_messages(sql, "old", 11)
    parameters = f'{{"limit": {STEP}, "idleDays": 30}}'
    first = await sql.fetchval(statement("begin_retention"), parameters, "dead", uuid4())
    assert await sql.fetchval(statement("begin_retention"), parameters, "other", uuid4()) is None
    await server.broker.operation_runner.retain(STEP, 30)
    assert await stored(sql, "old") == 50
    await sql.execute("UPDATE queen.operation_queue SET claimed_at = claimed_at - interval '31 seconds'")
    before, _ = await steps.take(2)
    assert before == str(first)
    assert 0 < await stored(sql, "old") < 50
    cancelled = (await queen.http.post(f"/api/v1/operations/{first}/cancel")).json()
    assert cancelled["message"].startswith("Cancelled after ")
    await server.broker.operation_runner.retain(STEP, 30)
    assert await stored(sql, "old") == 0


# Stopping and going on


@pytest.mark.parametrize("kind", KINDS)
async def test_cancel_stops_between_steps_and_retry_goes_on_from_there(
    queen: Queen, sql: asyncpg.Connection, steps: Steps, kind: str
) -> None:
    await fill(queen)
    await bury(queen)
    answer = await begun(queen, kind)
    path = f"/api/v1/operations/{answer['operationId']}"
    claimed = await steps.claim()
    assert claimed is not None
    step = await steps.step(claimed)
    assert step is not None
    assert step.done > 0
    cancelled = (await queen.http.post(path + "/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert f"Cancelled after {step.done} of " in cancelled["message"]
    assert await steps.step(claimed) is None
    assert await steps.claim() is None
    shown = await operation(queen.http, answer["operationId"])
    assert (shown["status"], shown["errorMessage"], shown["result"]) == ("cancelled", cancelled["message"], None)
    assert shown["progress"]["done"] == step.done < shown["progress"]["total"]
    assert (await queen.http.post(path + "/cancel")).status_code == 409
    assert (await queen.http.post(path + "/retry")).json()["status"] == "pending"
    _, done = await steps.take()
    assert done[0].done > step.done
    shown = await operation(queen.http, answer["operationId"])
    assert shown["status"] == "completed"
    assert shown["progress"]["done"] == {"delete_queue": 75, "clear": 50, "seek": 25, "redrive": 50}[kind]
    assert (await queen.http.post(path + "/retry")).status_code == 409


async def test_remains_of_a_deleted_queue_that_nobody_removes_are_found_by_retention(
    server: Server, queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    await fill(queen)
    answer = await begun(queen, "delete_queue")
    await queen.http.post(f"/api/v1/operations/{answer['operationId']}/cancel")
    await server.broker.operation_runner.retain(STEP, 30)
    assert await steps.claim() is None
    await sql.execute("DELETE FROM queen.operation_queue")
    await server.broker.operation_runner.retain(STEP, 30)
    await steps.take()
    assert await sql.fetchval("SELECT count(*) FROM queen.queues") == 0


async def test_operations_on_a_queue_are_done_one_after_the_other_and_other_queues_do_not_wait(
    queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    await fill(queen)
    await fill(queen, "other")
    await bury(queen)
    first = await begun(queen, "seek", timestamp=FAR_PAST)
    second = await begun(queen, "seek")
    small = await begun(queen, "clear", partition="p00")
    elsewhere = await begun(queen, "clear", "other")
    assert (await operation(queen.http, small["operationId"]))["queuePosition"] == 2
    claims = [await steps.claim() for _ in range(3)]
    assert [claim and claim.operation_id for claim in claims] == [first["operationId"], elsewhere["operationId"], None]
    await sql.execute(statement("release_administration"), "test", [])
    for expected in (first, second, small):
        finished, done = await steps.take()
        assert (finished, done[-1].finished) == (expected["operationId"], True)
    assert await queen.drain("q", consumerGroup="g", partitions=30) == []
    assert await stored(sql, "q") == 48


async def test_deleting_a_queue_cancels_what_was_to_be_done_to_it(queen: Queen, steps: Steps) -> None:
    await fill(queen)
    clear = await begun(queen, "clear")
    await begun(queen, "delete_queue")
    shown = await operation(queen.http, clear["operationId"])
    assert shown["status"] == "cancelled"
    assert shown["errorMessage"].endswith("The queue was deleted.")
    assert "Cancelled after 10 of 50 messages" in shown["errorMessage"]


async def test_a_claim_that_timed_out_is_taken_over_and_the_late_step_changes_nothing(
    queen: Queen, sql: asyncpg.Connection, steps: Steps
) -> None:
    await fill(queen)
    await begun(queen, "clear")
    late = await steps.claim()
    assert late is not None
    assert await steps.claim() is None
    await sql.execute("UPDATE queen.operation_queue SET claimed_at = claimed_at - interval '31 seconds'")
    claimed = await steps.claim()
    assert claimed is not None
    assert claimed.operation_id == late.operation_id
    assert await steps.step(late) is None
    assert await stored(sql, "q") == 40
    assert (await steps.step(claimed)) is not None
    assert await stored(sql, "q") == 30


async def test_a_queue_has_only_so_many_unfinished_operations(queen: Queen, steps: Steps, settings: Settings) -> None:
    await fill(queen)
    for _ in range(settings.operations.max_unfinished):
        await begun(queen, "clear")
    refused = await begin(queen, "clear")
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    listed = (await queen.http.get("/api/v1/operations", params={"type": "clear", "status": "pending"})).json()
    assert len(listed["operations"]) == settings.operations.max_unfinished
    assert (await queen.http.get("/api/v1/operations", params={"type": "push"})).json()["operations"] == []
    assert (await queen.http.get("/api/v1/operations", params={"type": "nonsense"})).status_code == 400


class TestByItself:
    """With a worker, and another server."""

    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(operations={"interval_ms": 10, "step": STEP, "wait_ms": 1}, overload={"enabled": False})

    async def test_it_goes_on_behind_the_answer_while_others_push_and_pop(
        self, server: Server, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, partitions=50, each=10)
        answers = [await begin(queen, "clear"), await begin(queen, "seek", timestamp=FAR_PAST)]
        pushed = 0

        async def completed() -> bool:
            nonlocal pushed
            pushed += 1
            await queen.push("q", f"m{pushed}", partition="busy")
            await queen.push("other", f"m{pushed}")
            assert data(await queen.pop("other", autoAck=True)) == [f"m{pushed}"]
            states = await sql.fetch("SELECT status FROM queen.operation_queue WHERE kind <> 'push'")
            return all(row["status"] == "completed" for row in states)

        await until(completed, 60)
        assert {answer.status_code for answer in answers} <= {200, 202}
        assert data(await queen.drain("q", partitions=60)) == [f"m{n + 1}" for n in range(pushed)]

    async def test_a_client_that_polls_gets_the_answer_at_the_end(self, server: Server, queen: Queen) -> None:
        await fill(queen, partitions=60)
        await bury(queen)
        host, port = server.address
        async with Client(f"http://{host}:{port}", queued_operation_behavior="poll") as client:
            redriven = await client.admin.redrive("q", consumer_group="g")
            assert redriven == {"success": True, "queue": "q", "partition": None, "consumerGroup": "g", "redriven": 120}
            assert (await client.admin.clear_queue("q"))["deleted"] == 120
            assert (await client.admin.clear_queue("q"))["deleted"] == 0
            assert (await client.queue("q").delete())["existed"] is True

    async def test_a_server_that_stops_leaves_the_rest_to_another(
        self, queen: Queen, settings: Settings, database_url: str, sql: asyncpg.Connection
    ) -> None:
        await fill(queen, partitions=100, each=5)
        async with another_server(settings, database_url) as leaving:
            answer = await begin(leaving, "delete_queue")
        assert answer.status_code in (200, 202)
        await until(_all_completed(sql), 60)
        assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 0
        assert await sql.fetchval("SELECT count(*) FROM queen.queues") == 0


def _all_completed(sql: asyncpg.Connection) -> Callable[[], Any]:
    async def completed() -> bool:
        return await sql.fetchval("SELECT coalesce(bool_and(status = 'completed'), true) FROM queen.operation_queue")

    return completed


# The result is that of one transaction

PLACES = """
    SELECT p.name, c.consumer_group, c.position, c.done::text, c.ready_at IS NULL AS asleep, c.lease_id IS NULL AS free
    FROM queen.partition_consumers c JOIN queen.partitions p ON p.id = c.partition_id
    JOIN queen.queues q ON q.id = c.queue_id WHERE q.name = $1 ORDER BY 1, 2
"""
MESSAGES = """
    SELECT p.name, m."offset", m.transaction_id FROM queen.messages m JOIN queen.partitions p ON p.id = m.partition_id
    JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 ORDER BY 1, 2
"""
LETTERS = """
    SELECT d.partition_name, d.consumer_group, d.transaction_id FROM queen.dead_letter_queue d
    JOIN queen.queues q ON q.id = d.queue_id WHERE q.name = $1 ORDER BY 1, 2, 3
"""
WAITING = """
    SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())
"""
TRIM = """
    SELECT queen.trim(p.id, $2) FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id
    WHERE q.name = $1 AND p.name = $3
"""


async def history(queen: Queen, sql: asyncpg.Connection, queue: str, seed: int) -> None:
    """The same things done to any queue that is given the same seed."""
    chance = random.Random(seed)
    for number in range(6):
        partition = f"p{number}"
        await queen.push(queue, *[f"{number}:{n}" for n in range(chance.randint(0, 7))], partition=partition)
        for group in ("g", "other"):
            popped = await queen.pop(queue, partition, consumerGroup=group, batch=chance.randint(1, 6))
            statuses = [chance.choice(("completed", "dlq", "dlq")) for _ in popped]
            if popped and chance.random() < 0.8:
                kept = chance.randint(1, len(popped))
                await queen.ack_batch(popped[:kept], *(statuses[:kept]))
        if chance.random() < 0.3:
            await sql.execute(TRIM, queue, chance.randint(1, 4), partition)


@pytest.mark.parametrize("kind", ["clear", "seek", "redrive"])
@pytest.mark.parametrize("seed", range(4))
async def test_many_steps_do_what_one_does(
    server: Server, queen: Queen, sql: asyncpg.Connection, kind: str, seed: int
) -> None:
    parameters = '{"group": "g"}' if kind != "clear" else "{}"
    if kind == "seek" and seed % 2:
        parameters = '{"group": "g", "at": "1970-01-01T00:00:00Z"}'
    outcomes = []
    for queue, step in (("one", 1_000_000), ("many", 2)):
        await history(queen, sql, queue, seed)
        row = await sql.fetchrow(statement("begin_operation"), kind, queue, parameters, "w", uuid4(), step, 5)
        assert (row["id"] is None) == (step > 2)
        if row["id"] is not None:
            claim = await sql.fetchval("SELECT claim FROM queen.operation_queue WHERE id = $1", row["id"])
            while not (taken := await sql.fetchrow(statement("step_operation"), row["id"], claim, step))["finished"]:
                assert taken["done"] <= taken["total"]
            row = taken
        if kind == "clear":
            # Groups that were awake fall asleep at their next pop.
            for group in ("g", "other"):
                assert await queen.pop(queue, consumerGroup=group, partitions=10, batch=100) == []
        states = [await sql.fetch(query, queue) for query in (PLACES, MESSAGES, LETTERS)]
        outcomes.append((row["done"], states))
    assert outcomes[0] == outcomes[1]


# What writes messages past the servers


async def test_the_pipeline_does_not_overtake_a_queued_push(
    server: Server, queen: Queen, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_pushes(server, monkeypatch, Choice.QUEUE)
    item = {"queue": "q", "partition": "p", "payload": "first"}
    assert (await queen.http.post("/api/v1/push", json={"items": [item]})).status_code == 202
    await sql.execute(
        "INSERT INTO queen.pipeline_staged (attempt, place, queue, partition, message_id, is_encrypted, payload) "
        "VALUES (1, 1, 'q', 'p', gen_random_uuid()::text, false, '\"second\"')"
    )
    promote = "SELECT written FROM queen.promote('behind', 1, ARRAY[1], 1)"
    with pytest.raises(asyncpg.LockNotAvailableError, match="queued operations"):
        await sql.fetchval(promote)
    assert await server.broker.operation_runner.run_pushes(10, 10) == 1
    assert await sql.fetchval(promote) == 1
    assert data(await queen.drain("q")) == ["first", "second"]


async def test_a_queue_is_not_deleted_between_the_names_and_the_rows_of_the_pipeline(
    server: Server, queen: Queen, sql: asyncpg.Connection, database_url: str, steps: Steps
) -> None:
    await fill(queen)
    await sql.execute(
        "INSERT INTO queen.pipeline_staged (attempt, place, queue, partition, message_id, is_encrypted, payload) "
        "VALUES (1, 1, 'q', 'p00', gen_random_uuid()::text, false, '1')"
    )
    async with sql.transaction():
        assert await sql.fetchval("SELECT written FROM queen.promote('between', 1, ARRAY[1], 1)") == 1
        delete = asyncio.create_task(begin(queen, "delete_queue"))
        other = await asyncpg.connect(database_url)
        try:
            await until(lambda: other.fetchval(WAITING))
        finally:
            await other.close()
    assert (await delete).status_code == 202
    await steps.take()
    assert await sql.fetchval("SELECT count(*) FROM queen.messages") == 0
