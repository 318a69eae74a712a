"""The operation queue: order X, Y, Z under any interleaving, and no operation lost, doubled or stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from integration.queen import Queen, data, until
from queenmq.config import Settings
from queenmq.core.message import Message
from queenmq.engine.encryption import PayloadEncryption
from queenmq.engine.push import PushCall
from queenmq.overload.load_manager import Choice, Decision
from queenmq.server import Server
from queenmq.storage.statements import statement

NEVER_MS = 3_600_000
BUSY = Decision(Choice.QUEUE, "system_busy")

Json = dict[str, Any]


@pytest.fixture
def settings() -> Settings:
    """The worker never runs by itself: the tests say when."""
    return Settings(port=0, shutdown_grace_s=2, operation_interval_ms=NEVER_MS, push_queue_depth=50)


def item(number: int, partition: str = "p", queue: str = "q", **fields: Any) -> Json:
    return {"queue": queue, "partition": partition, "transactionId": str(number), "payload": number} | fields


async def push(http: httpx.AsyncClient, *items: Json) -> httpx.Response:
    return await http.post("/api/v1/push", json={"items": items})


@pytest.fixture
def busy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Switch the load of the server: `busy(True)` has every push queued."""
    decide = server.engine.load.decide_push

    def switch(on: bool) -> None:
        monkeypatch.setattr(server.engine.load, "decide_push", (lambda: BUSY) if on else decide)

    return switch


async def queued(http: httpx.AsyncClient, *items: Json) -> list[Json]:
    answer = await push(http, *items)
    assert answer.status_code == 202, answer.text
    results = answer.json()
    assert all(result["status"] == "queued" and UUID(result["operationId"]).version == 7 for result in results)
    return results


async def run_all(server: Server, partitions: int = 50, length: int = 100) -> int:
    total = 0
    while ran := await server.engine.operations.run(partitions, length):
        total += ran
    return total


async def operation(http: httpx.AsyncClient, operation_id: str) -> Json:
    answer = await http.get(f"/api/v1/operations/{operation_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


# Order


async def test_x_direct_y_queued_z_behind_it(server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any) -> None:
    assert (await push(http, item(1), item(2))).status_code == 201
    busy(True)
    [y] = await queued(http, item(3))
    assert (y["reason"], y["queuePosition"]) == ("system_busy", 0)
    busy(False)
    [z, _] = await queued(http, item(4), item(5))
    assert (z["reason"], z["queuePosition"]) == ("maintaining_order", 1)
    assert data(await queen.pop("q", "p", batch=10, autoAck=True)) == [1, 2]
    assert await run_all(server) == 2
    assert (await push(http, item(6))).status_code == 201
    assert data(await queen.drain("q", "p")) == [3, 4, 5, 6]
    done = await operation(http, z["operationId"])
    assert (done["status"], done["items"], done["queuePosition"]) == ("completed", 2, None)
    assert [result["status"] for result in done["result"]] == ["queued", "queued"]
    assert [result["transactionId"] for result in done["result"]] == ["4", "5"]


async def test_producers_race_with_the_load_and_the_worker_and_keep_their_order(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, settings: Settings, database_url: str
) -> None:
    """Two servers, a load that comes and goes, and two workers: whoever waits for an answer is never overtaken."""
    other = Server(replace(settings, push_queue_depth=100_000), database_url)
    server.engine.load._limits = other.engine.load._limits
    await other.start()
    done = asyncio.Event()

    async def produce(partition: str, turns: list[httpx.AsyncClient]) -> None:
        for number in range(60):
            answer = await push(turns[number % 2], item(number, partition))
            assert answer.status_code in (201, 202)

    async def worker(which: Server) -> None:
        while not done.is_set():
            await which.engine.operations.run(3, 2)
            await asyncio.sleep(0.002)

    async def weather() -> None:
        on = False
        while not done.is_set():
            on = not on
            busy(on)
            await asyncio.sleep(0.01)

    try:
        host, port = other.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as second:
            helpers = [asyncio.create_task(work) for work in (worker(server), worker(other), weather())]
            await asyncio.gather(*[produce(f"p{n}", [http, second] if n % 2 else [second, http]) for n in range(6)])
            done.set()
            await asyncio.gather(*helpers)
            await run_all(server)
            for number in range(6):
                assert data(await queen.drain("q", f"p{number}")) == list(range(60))
    finally:
        await other.stop()


async def test_a_push_over_several_partitions_answers_for_each(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
) -> None:
    busy(True)
    results = await queued(http, item(1, "a"), item(2, "b"), item(3, "a"))
    assert results[0]["operationId"] == results[2]["operationId"] != results[1]["operationId"]
    busy(False)
    answer = await push(http, item(4, "a"), item(5, "c"))
    assert answer.status_code == 202
    behind, stored = answer.json()
    assert behind["operationId"]
    assert stored["message_id"]
    assert "operationId" not in stored
    assert data(await queen.pop("q", "c")) == [5]
    await run_all(server)
    assert data(await queen.drain("q", "a")) == [1, 3, 4]
    assert data(await queen.drain("q", "b")) == [2]


async def test_requests_of_one_merged_call_have_operations_of_their_own(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
) -> None:
    busy(True)
    answers = await asyncio.gather(*[queued(http, item(n), item(n + 100)) for n in range(10)])
    ids = {result["operationId"] for results in answers for result in results}
    assert len(ids) == 10
    await run_all(server, length=3)
    for [first, second] in answers:
        shown = await operation(http, first["operationId"])
        assert [r["transactionId"] for r in shown["result"]] == [first["transactionId"], second["transactionId"]]


async def test_repeats_are_found_when_the_operation_runs(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
) -> None:
    await push(http, item(1))
    busy(True)
    [first, _] = await queued(http, item(1), item(2))
    [second] = await queued(http, item(2))
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [1, 2]
    results = (await operation(http, first["operationId"]))["result"]
    assert [result["status"] for result in results] == ["duplicate", "queued"]
    [result] = (await operation(http, second["operationId"]))["result"]
    assert (result["status"], result["messageId"]) == ("duplicate", results[1]["messageId"])


async def test_a_transaction_never_passes_an_operation(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
) -> None:
    busy(True)
    await queued(http, item(1))
    body = {"operations": [{"type": "push", "items": [item(2)]}]}
    answer = await http.post("/api/v1/transaction", json=body)
    assert answer.status_code == 503
    await run_all(server)
    assert (await http.post("/api/v1/transaction", json=body)).json()["success"]
    assert data(await queen.drain("q", "p")) == [1, 2]


# Claims


async def claim(
    sql: asyncpg.Connection, worker: str = "w", partitions: int = 10, run: int = 1, most: int = 10**6
) -> list[asyncpg.Record]:
    return await sql.fetch(statement("claim_operations"), worker, str(uuid4()), partitions, run, most)


async def test_nothing_is_claimable_while_an_older_one_of_its_partition_is_unfinished(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    [first] = await queued(http, item(1))
    await queued(http, item(2))
    [other] = await queued(http, item(3, "another"))
    assert [str(row["id"]) for row in await claim(sql)] == [first["operationId"], other["operationId"]]
    assert await claim(sql) == []


async def test_a_claim_that_timed_out_is_taken_over_and_the_late_run_changes_nothing(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    [row] = await claim(sql, "crashed")
    assert await run_all(server) == 0
    await sql.execute("UPDATE queen.operation_queue SET claimed_at = claimed_at - interval '31 seconds'")
    assert await run_all(server) == 1
    await server.engine.operations._run(str(row["claim"]), [row])
    assert data(await queen.drain("q", "p")) == [1]
    shown = await operation(http, str(row["id"]))
    assert (shown["status"], shown["retryCount"]) == ("completed", 1)


async def test_a_worker_takes_back_what_it_had_claimed_before_it_was_interrupted(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    await claim(sql, server.node.server_id)
    await server.engine.operations.release()
    assert await run_all(server) == 1


async def test_an_operation_that_fails_keeps_its_error_and_lets_the_others_go_on(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    await push(http, item(0))
    await sql.execute("ALTER TABLE queen.messages ADD CONSTRAINT choosy CHECK (payload <> '2')")
    busy(True)
    [_] = await queued(http, item(1))
    [bad] = await queued(http, item(2))
    [_] = await queued(http, item(3))
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [0, 1, 3]
    shown = await operation(http, bad["operationId"])
    assert (shown["status"], shown["retryCount"]) == ("failed", 2)
    assert "choosy" in shown["errorMessage"]
    listed = (await http.get("/api/v1/operations", params={"status": "failed", "queue": "q"})).json()
    assert [one["id"] for one in listed["operations"]] == [bad["operationId"]]
    await sql.execute("ALTER TABLE queen.messages DROP CONSTRAINT choosy")
    assert (await http.post(f"/api/v1/operations/{bad['operationId']}/retry")).json()["status"] == "pending"
    assert (await http.post(f"/api/v1/operations/{bad['operationId']}/retry")).status_code == 409
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [2]


async def test_an_operation_that_waits_can_be_cancelled_and_a_finished_one_cannot(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
) -> None:
    busy(True)
    [one] = await queued(http, item(1))
    [two] = await queued(http, item(2))
    assert (await http.post(f"/api/v1/operations/{one['operationId']}/cancel")).json()["status"] == "cancelled"
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [2]
    assert (await http.post(f"/api/v1/operations/{two['operationId']}/cancel")).status_code == 409
    assert (await http.post(f"/api/v1/operations/{uuid4()}/cancel")).status_code == 404
    assert (await http.get(f"/api/v1/operations/{uuid4()}")).status_code == 404
    assert (await http.get("/api/v1/operations/nonsense")).status_code == 400


async def test_priority_comes_first_and_then_age(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    [_] = await queued(http, item(1, "a"))
    [urgent] = await queued(http, item(2, "b"))
    await sql.execute("UPDATE queen.operation_queue SET priority = 1 WHERE id = $1", urgent["operationId"])
    [row] = await claim(sql, partitions=1)
    assert str(row["id"]) == urgent["operationId"]


async def test_a_claim_is_bounded_in_bytes_and_has_at_least_one(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    for number in range(3):
        await queued(http, item(number, payload="x" * 1000))
    await queued(http, item(9, "other"))
    assert len(await claim(sql, run=10, most=1)) == 1
    await sql.execute(statement("release_operations"), "w")
    claimed = await claim(sql, run=10, most=2000)
    assert [row["partition_name"] for row in claimed] == ["p", "p"]
    await sql.execute(statement("release_operations"), "w")
    assert len(await claim(sql, run=10)) == 4


# Bounds


async def test_a_full_operation_queue_answers_429_until_it_is_drained(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, settings: Settings
) -> None:
    busy(True)
    for number in range(settings.push_queue_depth):
        await queued(http, item(number, f"p{number % 5}"))
    refused = await push(http, item(99, "p0"))
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    busy(False)
    mixed = await push(http, item(100, "p0"), item(101, "free"))
    assert [result["status"] for result in mixed.json()] == ["failed", "queued"]
    assert (await push(http, item(102, "p1"))).status_code == 429
    await run_all(server)
    assert (await push(http, item(103, "p0"))).status_code == 201
    stored = [number for n in range(5) for number in data(await queen.drain("q", f"p{n}"))]
    assert sorted(stored) == [*range(settings.push_queue_depth), 103]


async def test_finished_operations_are_forgotten_after_their_time(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    [waiting] = await queued(http, item(2, "other"))
    assert await server.engine.operations.run(1, 1) == 1
    forget = server.engine.operations.forget
    assert await forget(3600, 604_800, 10) == 0
    await sql.execute("UPDATE queen.operation_queue SET finished_at = finished_at - interval '61 minutes'")
    assert await forget(3600, 604_800, 10) == 1
    assert (await operation(http, waiting["operationId"]))["status"] == "pending"


async def test_a_deleted_queue_takes_its_operations_with_it(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    await queen.delete_queue("q")
    assert await sql.fetchval("SELECT count(*) FROM queen.operation_queue") == 0
    assert await run_all(server) == 0


async def test_a_partition_with_operations_is_not_idle(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    await sql.execute("UPDATE queen.partitions SET created_at = created_at - interval '90 days'")
    assert await sql.fetch(statement("drop_idle_partitions"), 30, 10) == []
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [1]


class TestWithItsWorker:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(port=0, shutdown_grace_s=2, operation_interval_ms=20)

    async def test_the_worker_drains_and_the_statistics_tell(
        self, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
    ) -> None:
        busy(True)
        [one] = await queued(http, item(1))

        async def completed() -> bool:
            return (await operation(http, one["operationId"]))["status"] == "completed"

        await until(completed)
        assert data(await queen.wait("q", "p")) == [1]
        await until(lambda: server.engine.load.load.drain_rate > 0)
        stats = (await http.get("/api/v1/operations/stats")).json()
        [totals] = stats["stats"]
        assert (totals["operationType"], totals["status"], totals["count"]) == ("push", "completed", 1)
        assert server.engine.load.estimated_wait_s(10) == pytest.approx(100)
        assert stats["systemHealth"]["queueDepth"] == 0
        assert stats["journal"] is None


@pytest.fixture(autouse=True)
async def nothing_is_left_claimed(server: Server) -> AsyncIterator[None]:
    yield
    await server.engine.operations.release()


async def test_a_caller_who_knows_nothing_of_operations_is_refused_and_not_queued(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    call = PushCall.merge([Message("q", "p", b"2", str(uuid4()), "2")])
    with pytest.raises(asyncpg.LockNotAvailableError):
        await sql.fetchrow(statement("push"), *call.arguments(PayloadEncryption(None, lambda _: False)))
    assert await sql.fetchval("SELECT count(*) FROM queen.operation_queue") == 1
