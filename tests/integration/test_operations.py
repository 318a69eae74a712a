"""The operation queue: order X, Y, Z under any interleaving, and no operation lost, doubled or stuck."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest
from server_settings import changed, settings_with

from integration.queen import Queen, age_partitions, data, until
from queenmq.broker.load_manager import Choice, Decision
from queenmq.config import Settings
from queenmq.core.message import Message
from queenmq.core.push_call import PushCall
from queenmq.server import Server
from queenmq.storage.statements import statement

NEVER_MS = 3_600_000
DROP_IDLE_PARTITIONS = "SELECT * FROM queen.drop_idle_partitions(clock_timestamp() - interval '30 days', 10)"
BUSY = Decision(Choice.QUEUE, "system_busy")

Json = dict[str, Any]


@pytest.fixture
def settings() -> Settings:
    """The worker never runs by itself: the tests say when."""
    return settings_with(operations={"interval_ms": NEVER_MS}, overload={"queue_depth": 50})


def item(number: int, partition: str = "p", queue: str = "q", **fields: Any) -> Json:
    return {"queue": queue, "partition": partition, "transactionId": str(number), "payload": number} | fields


async def push(http: httpx.AsyncClient, *items: Json) -> httpx.Response:
    return await http.post("/api/v1/push", json={"items": items})


@pytest.fixture
def busy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Switch the load of the server: `busy(True)` has every push queued."""
    decide = server.broker.load.decide_push

    def switch(on: bool) -> None:
        monkeypatch.setattr(server.broker.load, "is_calm", False)
        monkeypatch.setattr(server.broker.load, "decide_push", (lambda: BUSY) if on else decide)

    return switch


async def queued(http: httpx.AsyncClient, *items: Json) -> list[Json]:
    answer = await push(http, *items)
    assert answer.status_code == 202, answer.text
    results = answer.json()
    assert all(result["status"] == "queued" and UUID(result["operationId"]).version == 7 for result in results)
    return results


async def run_all(server: Server, partitions: int = 50, length: int = 100) -> int:
    total = 0
    while ran := await server.broker.operation_runner.run_pushes(partitions, length):
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


async def test_queues_of_higher_priority_come_first_and_partitions_keep_their_order(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
) -> None:
    for queue, priority in (("low", -9), ("usual", 0), ("high", 7)):
        await queen.configure(queue, priority=priority)
    busy(True)
    operations = {}
    for number, queue in enumerate(("low", "usual", "high", "low", "high")):
        [operations[number]] = await queued(http, item(number, queue=queue))
    shown = (await http.get("/api/v1/operations")).json()
    assert [(one["priority"], one["queuePosition"]) for one in reversed(shown["operations"])] == [
        *((9, 3), (5, 2), (1, 0)),
        *((9, 4), (1, 1)),
    ]
    ran = []
    while await server.broker.operation_runner.run_pushes(1, 1):
        states = [(await operation(http, one["operationId"]))["status"] for one in operations.values()]
        ran.append({number for number, status in enumerate(states) if status == "completed"})
    assert ran == [{2}, {2, 4}, {1, 2, 4}, {0, 1, 2, 4}, {0, 1, 2, 3, 4}]
    assert data(await queen.drain("low", "p")) == [0, 3]


async def test_a_listing_is_narrowed_to_a_partition_and_says_how_many_there_are(
    server: Server, http: httpx.AsyncClient, busy: Any
) -> None:
    busy(True)
    for number, partition in enumerate("aabab"):
        await queued(http, item(number, partition))
    listed = (await http.get("/api/v1/operations", params={"partition": "a", "limit": 2})).json()
    assert ([one["partition"] for one in listed["operations"]], listed["total"]) == (["a", "a"], 3)
    assert all(one["latencySeconds"] >= 0 for one in listed["operations"])
    depth = (await http.get("/api/v1/operations/stats")).json()["depth"]
    assert [(one["queue"], one["partition"], one["operations"]) for one in depth] == [("q", "a", 3), ("q", "b", 2)]
    await run_all(server)
    assert (await http.get("/api/v1/operations/stats")).json()["depth"] == []


async def test_the_result_of_a_deferred_push_has_the_shape_that_published_clients_read(
    server: Server, http: httpx.AsyncClient, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    [deferred] = await queued(http, item(1))
    [again] = await queued(http, item(1))
    await run_all(server)
    [first] = (await operation(http, deferred["operationId"]))["result"]
    message = first["messageId"]
    ids = {"transaction_id": "1", "transactionId": "1", "message_id": message, "messageId": message}
    assert first == {"index": 0, "status": "queued"} | ids
    [second] = (await operation(http, again["operationId"]))["result"]
    assert second == {"index": 0, "status": "duplicate"} | ids
    recorded = await sql.fetchval("SELECT result::text FROM queen.operation_queue WHERE id = $1", again["operationId"])
    assert json.loads(recorded) == [{"status": "duplicate", "transactionId": "1", "messageId": message}]


async def test_results_that_older_versions_have_recorded_are_shown_as_they_were(
    http: httpx.AsyncClient, sql: asyncpg.Connection
) -> None:
    ids = {"transaction_id": "1", "transactionId": "1", "message_id": str(uuid4())}
    full = {"error": "the queue is full: the message would exceed max capacity (maxSize)"}
    moved = {"messageId": ids["message_id"], "operationId": str(uuid4())}
    results = {
        "push": [
            {"index": 0, "status": "queued", **ids, **moved},
            {"index": 1, "status": "failed", **ids, "messageId": ids["message_id"], **full},
        ],
        "clear": {"cleared": True, "queue": "q", "partition": None, "deleted": 7},
        "retention": {"deleted": 3, "partitionsDropped": 1},
    }
    for kind, result in results.items():
        operation_id = await sql.fetchval(
            "INSERT INTO queen.operation_queue (id, kind, queue_name, status, result, finished_at) "
            "VALUES (gen_random_uuid(), $1, 'q', 'completed', $2, now()) RETURNING id",
            kind,
            json.dumps(result),
        )
        assert (await operation(http, str(operation_id)))["result"] == result


async def test_producers_race_with_the_load_and_the_worker_and_keep_their_order(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, settings: Settings, database_url: str
) -> None:
    """Two servers, a load that comes and goes, and two workers: whoever waits for an answer is never overtaken."""
    other = Server(changed(settings, overload={"queue_depth": 100_000}), database_url)
    server.broker.load._limits = other.broker.load._limits
    await other.start()
    done = asyncio.Event()

    async def produce(partition: str, turns: list[httpx.AsyncClient]) -> None:
        for number in range(60):
            answer = await push(turns[number % 2], item(number, partition))
            assert answer.status_code in (201, 202)

    async def worker(which: Server) -> None:
        while not done.is_set():
            await which.broker.operation_runner.run_pushes(3, 2)
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
    return await sql.fetch(statement("claim_operations"), worker, str(uuid4()), partitions, run, most, 1)


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
    await server.broker.operation_runner.pushes._store(str(row["claim"]), [row], 100)
    assert data(await queen.drain("q", "p")) == [1]
    shown = await operation(http, str(row["id"]))
    assert (shown["status"], shown["retryCount"]) == ("completed", 1)


async def test_a_worker_takes_back_what_it_had_claimed_before_it_was_interrupted(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    await claim(sql, server.node.server_id)
    await server.broker.operation_runner.pushes.release()
    assert await run_all(server) == 1


# Failures


FAULTS = """
    CREATE SEQUENCE IF NOT EXISTS public.faults;
    CREATE OR REPLACE FUNCTION public.fault() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.transaction_id = TG_ARGV[0] AND nextval('public.faults') <= TG_ARGV[2]::integer THEN
            RAISE EXCEPTION USING ERRCODE = TG_ARGV[1], MESSAGE = 'injected fault', DETAIL = 'the secret row';
        END IF;
        RETURN NEW;
    END $$;
"""
FOR_EVER = 1_000_000


async def fault(sql: asyncpg.Connection, transaction: str, sqlstate: str, times: int = FOR_EVER) -> None:
    """The next `times` inserts of a transaction id fail. The sequence counts also what is rolled back."""
    await sql.execute(FAULTS)
    await sql.execute(
        f"CREATE TRIGGER fault_{transaction} BEFORE INSERT ON queen.messages "
        f"FOR EACH ROW EXECUTE FUNCTION public.fault('{transaction}', '{sqlstate}', '{times}')"
    )


async def mend(sql: asyncpg.Connection, transaction: str) -> None:
    await sql.execute(f"DROP TRIGGER fault_{transaction} ON queen.messages")


@pytest.fixture
async def patience(sql: asyncpg.Connection) -> None:
    """A pause lasts an hour longer, so that it ends when the test says so, however slow the machine is."""
    await sql.execute("""
        CREATE FUNCTION public.patience() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            NEW.next_attempt_at := NEW.next_attempt_at + interval '1 hour';
            RETURN NEW;
        END $$;
        CREATE TRIGGER patience BEFORE UPDATE ON queen.operation_queue FOR EACH ROW
            WHEN (NEW.next_attempt_at > OLD.next_attempt_at OR OLD.next_attempt_at IS NULL)
            EXECUTE FUNCTION public.patience();
    """)


async def let_pauses_end(sql: asyncpg.Connection) -> None:
    await sql.execute("UPDATE queen.operation_queue SET next_attempt_at = NULL WHERE next_attempt_at < 'infinity'")


async def three(http: httpx.AsyncClient) -> list[str]:
    """The ids of three queued pushes to one partition."""
    return [(await queued(http, item(number)))[0]["operationId"] for number in (1, 2, 3)]


# out of memory, internal error, deadlock, raised by somebody's trigger, cancelled, no permission, duplicate key
UNKNOWN = ("53200", "XX000", "40P01", "P0001", "57014", "42501", "23505")


@pytest.mark.parametrize("sqlstate", UNKNOWN)
@pytest.mark.usefixtures("patience")
async def test_nothing_of_a_partition_overtakes_a_push_that_fails(
    sqlstate: str, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    await fault(sql, "1", sqlstate, times=5)  # run with all, with its partition, alone; then with its partition, alone
    busy(True)
    [first, second, _] = await three(http)
    await queued(http, item(9, "other"))
    for attempt in (1, 2):
        await run_all(server)
        assert data(await queen.drain("q", "p")) == []
        shown = await operation(http, first)
        assert (shown["status"], shown["retryCount"]) == ("pending", attempt - 1)
        assert shown["errorMessage"] == f"injected fault (SQLSTATE {sqlstate})"
        assert shown["nextAttemptAt"] is not None
        behind = await operation(http, second)
        assert (behind["status"], behind["retryCount"], behind["errorMessage"]) == ("pending", 0, None)
        await let_pauses_end(sql)
    busy(False)
    [late] = await queued(http, item(4))
    assert late["reason"] == "maintaining_order"
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [1, 2, 3, 4]
    assert data(await queen.drain("q", "other")) == [9]
    shown = await operation(http, first)
    assert (shown["status"], shown["errorMessage"], shown["nextAttemptAt"]) == ("completed", None, None)


@pytest.mark.usefixtures("patience")
async def test_the_pauses_between_attempts_grow_and_it_never_gives_up(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    await fault(sql, "1", "53200")
    busy(True)
    [first] = await queued(http, item(1))
    pauses = []
    for _ in range(12):
        assert await run_all(server) == 1
        pauses.append(
            await sql.fetchval(
                "SELECT round(extract(epoch FROM next_attempt_at - interval '1 hour' - failed_at), 1)::float8 "
                "FROM queen.operation_queue"
            )
        )
        await let_pauses_end(sql)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30], abs=0.05)
    shown = await operation(http, first["operationId"])
    assert (shown["status"], shown["retryCount"]) == ("pending", 11)
    await mend(sql, "1")
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [1]


@pytest.mark.usefixtures("patience")
async def test_a_pause_holds_also_on_another_worker_and_a_retry_ends_it(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    await fault(sql, "1", "XX000", times=2)
    busy(True)
    [first, *_] = await three(http)
    await run_all(server)
    assert await claim(sql, "another", run=10) == []
    answer = (await http.post(f"/api/v1/operations/{first}/retry")).json()
    assert (answer["status"], answer.get("message")) == ("pending", None)
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [1, 2, 3]


@pytest.mark.usefixtures("patience")
async def test_a_push_with_content_that_cannot_be_stored_blocks_its_partition_and_no_other(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    await push(http, item(0))
    await sql.execute("ALTER TABLE queen.messages ADD CONSTRAINT choosy CHECK (payload <> '2')")
    busy(True)
    [_, bad, behind] = await three(http)
    await queued(http, item(9, "other"))
    for _ in range(5):
        await run_all(server)
        await let_pauses_end(sql)
    assert data(await queen.drain("q", "p")) == [0, 1]
    assert data(await queen.drain("q", "other")) == [9]
    shown = await operation(http, bad)
    assert (shown["status"], shown["retryCount"], shown["nextAttemptAt"]) == ("blocked", 2, None)
    assert "choosy" in shown["errorMessage"]
    assert "Failing row" not in shown["errorMessage"]
    listed = (await http.get("/api/v1/operations", params={"status": "blocked", "queue": "q"})).json()
    assert [one["id"] for one in listed["operations"]] == [bad]
    assert (await operation(http, behind))["status"] == "pending"
    explained = (await http.get("/api/v1/explain/q", params={"partition": "p"})).json()
    assert "choosy" in str(explained)
    samples = (await http.get("/metrics/prometheus")).text
    assert 'queen_operations{state="blocked"} 1' in samples
    await sql.execute("ALTER TABLE queen.messages DROP CONSTRAINT choosy")
    answer = (await http.post(f"/api/v1/operations/{bad}/retry")).json()
    assert (answer["status"], answer.get("message")) == ("pending", None)
    assert (await http.post(f"/api/v1/operations/{bad}/retry")).status_code == 409
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [2, 3]


@pytest.mark.usefixtures("patience")
async def test_a_blocked_push_can_be_cancelled_and_the_others_go_on(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    await fault(sql, "1", "22P02")
    busy(True)
    [first, *_] = await three(http)
    for _ in range(3):
        await run_all(server)
        await let_pauses_end(sql)
    assert (await operation(http, first))["status"] == "blocked"
    assert (await http.post(f"/api/v1/operations/{first}/cancel")).json()["status"] == "cancelled"
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [2, 3]


@pytest.mark.usefixtures("patience")
async def test_a_queue_may_have_failed_pushes_set_aside(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    await queen.configure("q", setAsideFailedPushes=True)
    await fault(sql, "1", "23514")
    busy(True)
    [bad, *_] = await three(http)
    for _ in range(2):
        await run_all(server)
        assert data(await queen.drain("q", "p")) == []
        await let_pauses_end(sql)
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [2, 3]
    shown = await operation(http, bad)
    assert (shown["status"], shown["items"], shown["retryCount"]) == ("failed", 1, 2)
    # Neither time nor the end of its partition takes it away.
    await sql.execute("UPDATE queen.operation_queue SET finished_at = finished_at - interval '1 year'")
    await server.broker.operations.forget(1, 1, 100)
    await sql.execute("SELECT queen.trim(partition_id, last_offset) FROM queen.partition_lookup WHERE last_offset > 0")
    await age_partitions(sql, "q", 90)
    await sql.fetch(DROP_IDLE_PARTITIONS)
    await mend(sql, "1")
    answer = (await http.post(f"/api/v1/operations/{bad}/retry")).json()
    assert answer["status"] == "pending"
    assert "behind what has come after" in answer["message"]
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [1]


@pytest.mark.usefixtures("patience")
async def test_a_younger_push_is_not_run_although_it_is_claimed(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    """Its worker was slow: meanwhile the older one, claimed with it, has failed and waits."""
    busy(True)
    await three(http)
    rows = await claim(sql, run=10)
    taken = str(rows[0]["claim"])
    await sql.fetch(statement("fail_operation"), rows[0]["id"], taken, "slow", False)
    await server.broker.operation_runner.pushes._store(taken, rows[1:], 100)
    assert data(await queen.drain("q", "p")) == []
    assert await claim(sql, run=10) == []
    await let_pauses_end(sql)
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [1, 2, 3]


@pytest.mark.usefixtures("patience")
async def test_a_locked_partition_does_not_hold_up_the_others(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    await push(http, item(0))
    busy(True)
    [first, *_] = await three(http)
    await queued(http, item(9, "other"))
    async with sql.transaction():
        await sql.execute("INSERT INTO queen.messages (partition_id) SELECT id FROM queen.partitions WHERE name = 'p'")
        await run_all(server)
        assert data(await queen.drain("q", "other")) == [9]
        assert (await operation(http, first))["status"] == "pending"
    await let_pauses_end(sql)
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [0, None, 1, 2, 3]


async def test_two_workers_keep_the_order_whatever_fails(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection, settings: Settings,
    database_url: str,
) -> None:  # fmt: skip
    """Every third insert of any message fails, with an error that says nothing about it."""
    await sql.execute(FAULTS)
    await sql.execute(
        "CREATE FUNCTION public.often() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('public.faults') % 3 = 0 THEN RAISE EXCEPTION USING ERRCODE = '53200'; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER often BEFORE INSERT ON queen.messages FOR EACH ROW EXECUTE FUNCTION public.often()"
    )
    other = Server(settings, database_url)
    await other.start()
    busy(True)
    try:
        for number in range(8):
            await asyncio.gather(*[queued(http, item(number, f"p{n}")) for n in range(4)])

        async def is_drained() -> bool:
            await asyncio.gather(*[which.broker.operation_runner.run_pushes(3, 3) for which in (server, other)])
            await let_pauses_end(sql)
            return not await sql.fetchval("SELECT count(*) FROM queen.operation_queue WHERE status <> 'completed'")

        await until(is_drained)
        await sql.execute("DROP TRIGGER often ON queen.messages")
        for number in range(4):
            assert data(await queen.drain("q", f"p{number}")) == list(range(8))
    finally:
        await other.stop()


@pytest.mark.usefixtures("patience")
async def test_a_blocked_partition_leaves_most_of_the_operation_queue_to_others(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection, settings: Settings
) -> None:
    await fault(sql, "0", "22P02")
    busy(True)
    most = settings.overload.queue_depth // 10
    for number in range(most):
        await queued(http, item(number))
    for _ in range(3):
        await run_all(server)
        await let_pauses_end(sql)
    refused = await push(http, item(99))
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    await queued(http, item(99, "other"))
    # What a journal has accepted finds a place all the same: else it would hold up the whole journal.
    [[late]] = await server.broker.store_accepted([[Message("q", "p", b"100", str(uuid4()), "100")]], "1000")
    assert late.deferral is not None


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


async def test_pushes_of_a_low_priority_are_stored_although_more_of_a_higher_one_always_wait(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
) -> None:
    """One of ten claims begins at another priority, at each of them in turn."""
    for queue, priority in (("low", -4), ("usual", 0), ("high", 4)):
        await queen.configure(queue, priority=priority)
    busy(True)
    waiting = {(await queued(http, item(1, queue=queue)))[0]["operationId"] for queue in ("low", "usual")}
    await queued(http, item(0, queue="high"))
    for number in range(1, 91):
        await queued(http, item(number, queue="high"))
        assert await server.broker.operation_runner.run_pushes(1, 1) == 1
    assert {(await operation(http, one))["status"] for one in waiting} == {"completed"}


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
    for number in range(settings.overload.queue_depth):
        await queued(http, item(number, f"p{number % 5}"))
    refused = await push(http, item(99, "p0"))
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert int(refused.headers["retry-after"]) == 1
    assert refused.json()["queueDepth"] == settings.overload.queue_depth
    busy(False)
    mixed = await push(http, item(100, "p0"), item(101, "free"))
    assert [result["status"] for result in mixed.json()] == ["failed", "queued"]
    assert (await push(http, item(102, "p1"))).status_code == 429
    await run_all(server)
    assert (await push(http, item(103, "p0"))).status_code == 201
    stored = [number for n in range(5) for number in data(await queen.drain("q", f"p{n}"))]
    assert sorted(stored) == [*range(settings.overload.queue_depth), 103]


class TestSizeLimit:
    """maxSize is decided when a push is accepted, with the answer that a direct push gets; then it is stored."""

    async def test_what_does_not_fit_is_refused_before_the_202_and_what_was_accepted_is_stored(
        self, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
    ) -> None:
        await queen.configure("q", maxSize=5)
        busy(True)
        answers = [await push(http, item(number, f"p{number % 2}")) for number in range(10)]
        assert [answer.status_code for answer in answers] == [202] * 5 + [201] * 5
        results = [result for answer in answers for result in answer.json()]
        assert [result["status"] for result in results] == ["queued"] * 5 + ["failed"] * 5
        assert all("would exceed max capacity" in result["error"] for result in results[5:])
        assert await run_all(server) == 5
        assert data(await queen.drain("q", "p0")) == [0, 2, 4]
        assert data(await queen.drain("q", "p1")) == [1, 3]

    async def test_one_push_is_accepted_in_part(
        self, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
    ) -> None:
        await queen.configure("q", maxSize=3)
        busy(True)
        answer = await push(http, *[item(number) for number in range(5)], item(9, queue="other"))
        assert answer.status_code == 202
        assert [result["status"] for result in answer.json()] == ["queued"] * 3 + ["failed"] * 2 + ["queued"]
        assert ["operationId" in result for result in answer.json()] == [True] * 3 + [False] * 2 + [True]
        await run_all(server)
        assert data(await queen.drain("q", "p")) == [0, 1, 2]
        assert data(await queen.drain("other")) == [9]

    async def test_what_waits_counts_also_for_a_direct_push(
        self, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
    ) -> None:
        await queen.configure("q", maxSize=2)
        busy(True)
        await queued(http, item(1), item(2))
        busy(False)
        [direct] = (await push(http, item(3, "elsewhere"))).json()
        assert direct["status"] == "failed"
        await run_all(server)
        assert sorted(data(await queen.drain("q"))) == [1, 2]
        assert (await push(http, item(3, "elsewhere"))).json()[0]["status"] == "queued"

    async def test_it_is_stored_although_the_limit_was_lowered_meanwhile(
        self, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
    ) -> None:
        await queen.configure("q", maxSize=10)
        busy(True)
        await queued(http, *[item(number) for number in range(8)])
        await queen.configure("q", maxSize=1)
        await run_all(server)
        assert data(await queen.drain("q", "p")) == list(range(8))

    async def test_a_repeat_of_what_is_stored_or_waits_needs_no_room(
        self, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
    ) -> None:
        await queen.configure("q", maxSize=2)
        await push(http, item(1))
        busy(True)
        await queued(http, item(2))
        answer = await push(http, item(1), item(2), item(3))
        assert [result["status"] for result in answer.json()] == ["queued", "queued", "failed"]
        await run_all(server)
        assert data(await queen.drain("q", "p")) == [1, 2]

    async def test_concurrent_queued_pushes_do_not_share_the_room(
        self, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
    ) -> None:
        await queen.configure("q", maxSize=10)
        busy(True)
        answers = await asyncio.gather(*[push(http, item(number, f"p{number % 4}")) for number in range(30)])
        assert [answer.status_code for answer in answers].count(202) == 10
        await run_all(server)
        assert len(data(await queen.drain("q"))) == 10


async def test_finished_operations_are_forgotten_after_their_time(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    [waiting] = await queued(http, item(2, "other"))
    assert await server.broker.operation_runner.run_pushes(1, 1) == 1
    forget = server.broker.operations.forget
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
    await age_partitions(sql, "q", 90)
    assert await sql.fetch(DROP_IDLE_PARTITIONS) == []
    await run_all(server)
    assert data(await queen.drain("q", "p")) == [1]


class TestWithItsWorker:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(operations={"interval_ms": 20})

    async def test_the_worker_drains_and_the_statistics_tell(
        self, server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any
    ) -> None:
        busy(True)
        [one] = await queued(http, item(1))

        async def completed() -> bool:
            return (await operation(http, one["operationId"]))["status"] == "completed"

        await until(completed)
        assert data(await queen.wait("q", "p")) == [1]
        await until(lambda: server.broker.load.load.drain_rate > 0)
        stats = (await http.get("/api/v1/operations/stats")).json()
        [totals] = stats["stats"]
        assert (totals["operationType"], totals["status"], totals["count"]) == ("push", "completed", 1)
        assert server.broker.load.estimated_wait_s(10) == pytest.approx(100)
        assert stats["systemHealth"]["queueDepth"] == 0
        assert stats["journal"] is None


@pytest.fixture(autouse=True)
async def nothing_is_left_claimed(server: Server) -> AsyncIterator[None]:
    yield
    await server.broker.operation_runner.pushes.release()


async def test_a_caller_who_knows_nothing_of_operations_is_refused_and_not_queued(
    server: Server, http: httpx.AsyncClient, queen: Queen, busy: Any, sql: asyncpg.Connection
) -> None:
    busy(True)
    await queued(http, item(1))
    call = PushCall.merge([Message("q", "p", b"2", str(uuid4()), "2")])
    with pytest.raises(asyncpg.LockNotAvailableError):
        arguments = call.arguments()
        await sql.fetchrow(statement("push_or_queue"), *arguments, "refuse", [0], None, None, "1s")
    assert await sql.fetchval("SELECT count(*) FROM queen.operation_queue") == 1
