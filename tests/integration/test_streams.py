"""Streams: queries, their state, and cycles that are applied whole or not at all."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from integration.queen import Json, Message, Queen, data, expire_leases, leases, stored
from queenmq.config import Settings

GROUP = "streams.q"


class Engine:
    """One query of a stream engine, as a client would speak for it."""

    def __init__(self, queen: Queen, query_id: str) -> None:
        self.queen = queen
        self.query_id = query_id

    async def pop(self, batch: int = 10) -> list[Message]:
        return await self.queen.pop("source", consumerGroup=GROUP, batch=batch)

    async def cycle(self, partition: str, **body: Any) -> Json:
        body = {"query_id": self.query_id, "partition_id": partition, "consumer_group": GROUP} | body
        return await post(self.queen, "cycle", body)

    async def commit(self, message: Message, status: str = "completed", **body: Any) -> Json:
        ack = {"transactionId": message["transactionId"], "leaseId": message["leaseId"], "status": status, "count": 1}
        return await self.cycle(message["partitionId"], ack=ack, **body)

    async def state(self, partition_id: str, **body: Any) -> Json:
        found = await post(
            self.queen, "state/get", {"query_id": self.query_id, "partition_id": partition_id, "keys": []} | body
        )
        assert found["success"] is True
        return {row["key"]: row["value"] for row in found["rows"]}


async def post(queen: Queen, what: str, body: Json, status: int = 200) -> Json:
    answer = await queen.http.post(f"/streams/v1/{what}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def register(queen: Queen, config_hash: str = "h", status: int = 200, **body: Any) -> Json:
    return await post(
        queen, "queries", {"name": "q", "source_queue": "source", "config_hash": config_hash} | body, status
    )


@pytest.fixture
async def engine(queen: Queen) -> Engine:
    return Engine(queen, (await register(queen))["query_id"])


def upsert(key: str, value: Any) -> Json:
    return {"type": "upsert", "key": key, "value": value}


# Queries


async def test_a_query_is_made_and_found_again(queen: Queen) -> None:
    first = await register(queen)
    assert first == {
        "success": True,
        "query_id": first["query_id"],
        "name": "q",
        "config_hash": "h",
        "fresh": True,
        "reset": False,
    }
    assert await register(queen, sink_queue="sink", reset=True) == first | {"fresh": False}


async def test_another_configuration_needs_a_reset(queen: Queen, engine: Engine) -> None:
    await queen.push("source", 1)
    [message] = await engine.pop()
    assert (await engine.commit(message, state_ops=[upsert("k", 1)]))["success"] is True
    refused = await register(queen, "other", 409)
    assert (refused["success"], refused["query_id"]) == (False, engine.query_id)
    assert refused["error"].startswith("config_hash mismatch: ")
    assert await engine.state(message["partitionId"]) == {"k": 1}
    again = await register(queen, "other", reset=True)
    assert (again["query_id"], again["fresh"], again["reset"]) == (engine.query_id, False, True)
    assert await engine.state(message["partitionId"]) == {}
    assert await engine.pop() == []


# Cycles


async def test_a_cycle_pushes_keeps_state_and_acknowledges(
    queen: Queen, engine: Engine, sql: asyncpg.Connection
) -> None:
    await queen.push("source", *"abc")
    messages = await engine.pop()
    items = [{"queue": "sink", "partition": "p", "payload": {"n": n}} for n in range(3)]
    done = await engine.commit(messages[-1], state_ops=[upsert("k", {"sum": 3})], push_items=items)
    assert (done["success"], done["queueName"], done["state_ops_applied"]) == (True, "source", 1)
    assert [result["status"] for result in done["push_results"]] == ["queued"] * 3
    assert done["ack_result"] == {"success": True, "count": 3, "lease_released": True, "dlq": False}
    assert data(await queen.pop("sink", batch=5)) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert await engine.state(messages[0]["partitionId"]) == {"k": {"sum": 3}}
    assert await engine.pop() == []


async def test_a_cycle_that_is_repeated_changes_nothing(queen: Queen, engine: Engine, sql: asyncpg.Connection) -> None:
    await queen.push("source", *"ab")
    messages = await engine.pop()
    item = {"queue": "sink", "payload": 1}
    for release in (False, True):
        whole = messages[-1] if release else messages[0]
        assert (await engine.commit(whole, push_items=[item], release_lease=release))["success"] is True
        again = await engine.commit(whole, push_items=[item], state_ops=[upsert("k", 1)], release_lease=release)
        assert (again["success"], again["error"]) == (False, "Invalid or expired lease")
    assert await stored(sql, "sink") == 2
    assert await engine.state(messages[0]["partitionId"]) == {}


async def test_a_gate_acknowledges_a_part_and_gets_the_rest_after_the_lease(
    queen: Queen, engine: Engine, sql: asyncpg.Connection
) -> None:
    await queen.push("source", *"abcd")
    messages = await engine.pop()
    done = await engine.commit(messages[1], release_lease=False)
    assert done["ack_result"] == {"success": True, "count": 2, "lease_released": False, "dlq": False}
    assert await engine.pop() == []
    assert await leases(sql) == 1
    await expire_leases(sql)
    assert data(await engine.pop()) == ["c", "d"]


async def test_a_part_with_release_gives_the_rest_at_once(queen: Queen, engine: Engine) -> None:
    await queen.push("source", *"abc")
    messages = await engine.pop()
    assert (await engine.commit(messages[0]))["ack_result"]["lease_released"] is True
    assert data(await engine.pop()) == ["b", "c"]


@pytest.mark.parametrize("status", ["failed", "dlq"])
async def test_a_failed_cycle_buries_its_message(queen: Queen, engine: Engine, status: str) -> None:
    await queen.push("source", *"abc")
    messages = await engine.pop()
    ack = {"transactionId": "b", "leaseId": messages[0]["leaseId"], "status": status, "count": 2, "error": "broken"}
    done = await engine.cycle(messages[0]["partitionId"], ack=ack)
    assert (done["ack_result"]["dlq"], done["ack_result"]["lease_released"]) == (True, True)
    [letter] = await queen.dead_letters("source")
    assert (letter["data"], letter["errorMessage"], letter["consumerGroup"]) == ("b", "broken", GROUP)
    assert data(await engine.pop()) == ["c"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"ack": {"transactionId": "nobody", "leaseId": "{lease}"}}, "Message not found"),
        ({"ack": {"transactionId": "a", "leaseId": str(uuid4())}}, "Invalid or expired lease"),
        ({"ack": {"transactionId": "a", "leaseId": "no-uuid"}}, "Invalid or expired lease"),
        ({"ack": {"transactionId": "a"}, "consumer_group": "other"}, "Invalid or expired lease"),
        ({"ack": {"transactionId": "a", "status": "retry"}}, "Unknown ack.status retry"),
        ({"ack": {}}, "ack.transactionId is required"),
        ({"state_ops": [{"type": "merge", "key": "k"}]}, "Unknown state_op type merge"),
        ({"query_id": str(uuid4())}, "Query not found"),
        ({"partition_id": str(uuid4())}, "Partition not found"),
    ],
)
async def test_what_cannot_be_done_is_told_and_nothing_is_applied(
    queen: Queen, engine: Engine, sql: asyncpg.Connection, change: Json, error: str
) -> None:
    await queen.push("source", "a")
    [message] = await engine.pop()
    ack = change.get("ack")
    if ack and ack.get("leaseId") == "{lease}":
        change = {"ack": ack | {"leaseId": message["leaseId"]}}
    body = {"push_items": [{"queue": "sink"}], "state_ops": [upsert("j", 1)]} | change
    refused = await engine.cycle(message["partitionId"], **body)
    assert (refused["success"], refused["error"]) == (False, error)
    assert await stored(sql, "sink") == 0
    assert await engine.state(message["partitionId"]) == {}
    assert (await engine.commit(message))["success"] is True


async def test_an_expired_lease_is_refused(queen: Queen, engine: Engine, sql: asyncpg.Connection) -> None:
    await queen.push("source", "a")
    [message] = await engine.pop()
    await expire_leases(sql)
    assert (await engine.commit(message))["error"] == "Invalid or expired lease"


async def test_a_full_sink_refuses_the_whole_cycle(queen: Queen, engine: Engine) -> None:
    await queen.configure("sink", maxSize=1)
    await queen.push("source", "a")
    [message] = await engine.pop()
    refused = await engine.commit(message, push_items=[{"queue": "sink"}] * 2, state_ops=[upsert("k", 1)])
    assert (refused["success"], "max capacity" in refused["error"]) == (False, True)
    assert await engine.state(message["partitionId"]) == {}


async def test_a_duplicate_is_a_result_and_no_failure(queen: Queen, engine: Engine) -> None:
    await queen.push("source", "a")
    [message] = await engine.pop()
    done = await engine.commit(message, push_items=[{"queue": "sink", "transactionId": "t"}] * 2)
    assert [result["status"] for result in done["push_results"]] == ["queued", "duplicate"]


async def test_cycles_of_one_partition_come_one_after_the_other(queen: Queen, engine: Engine) -> None:
    await queen.push("source", "a")
    [message] = await engine.pop()
    done = await asyncio.gather(*(engine.commit(message, push_items=[{"queue": "sink"}]) for _ in range(8)))
    assert sorted(cycle["success"] for cycle in done) == [False] * 7 + [True]
    assert len(await queen.pop("sink", batch=10)) == 1


# State


async def test_state_is_narrowed_by_key_prefix_and_window(queen: Queen, engine: Engine) -> None:
    [pushed] = await queen.push("source", "a")
    partition = pushed["partition_id"]
    values = {
        "w|1": {"windowEnd": 100},
        "w|2": {"windowEnd": 200.5},
        "w|3": {"windowEnd": "300"},
        "v": [1, "\u0000", 2**53],
    }
    done = await engine.cycle(partition, state_ops=[upsert(key, value) for key, value in values.items()], ack=None)
    assert (done["success"], done["ack_result"], done["push_results"]) == (True, None, [])
    assert await engine.state(partition) == values
    assert (await engine.state(partition, keys=["v", "nobody"])).keys() == {"v"}
    assert (await engine.state(partition, key_prefix="w|")).keys() == {"w|1", "w|2", "w|3"}
    assert (await engine.state(partition, ripe_at_or_before=200)).keys() == {"w|1"}
    assert (await engine.state(partition, key_prefix="w|", ripe_at_or_before=1000)).keys() == {"w|1", "w|2"}
    assert (await engine.state(partition, keys=["w|2"], ripe_at_or_before=100)) == {}
    assert (await engine.state(str(uuid4()))) == {}


async def test_of_several_changes_of_a_key_the_last_counts(queen: Queen, engine: Engine) -> None:
    [pushed] = await queen.push("source", "a")
    partition = pushed["partition_id"]
    delete = {"type": "delete", "key": "k"}
    for operations, left in (
        ([upsert("k", 1), upsert("k", 2)], {"k": 2}),
        ([delete, upsert("k", 3)], {"k": 3}),
        ([upsert("k", 4), delete], {}),
        ([delete], {}),
    ):
        assert (await engine.cycle(partition, state_ops=operations))["state_ops_applied"] == len(operations)
        assert await engine.state(partition) == left


async def test_state_goes_with_its_queue(queen: Queen, engine: Engine, sql: asyncpg.Connection) -> None:
    [pushed] = await queen.push("source", "a")
    await engine.cycle(pushed["partition_id"], state_ops=[upsert("k", 1)])
    await queen.delete_queue("source")
    assert await sql.fetchval("SELECT count(*) FROM queen.stream_state") == 0


class TestEncrypted:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(port=0, shutdown_grace_s=2, encryption_key=bytes(32))

    async def test_what_goes_to_an_encrypted_queue_is_encrypted(
        self, queen: Queen, engine: Engine, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("sink", encryptionEnabled=True)
        await queen.push("source", "a")
        [message] = await engine.pop()
        await engine.commit(message, push_items=[{"queue": "sink", "payload": "secret", "producerSub": "mallory"}])
        row = await sql.fetchrow("SELECT payload, producer_sub FROM queen.messages WHERE is_encrypted")
        assert b"secret" not in row["payload"]
        assert row["producer_sub"] is None
        assert data(await queen.pop("sink")) == ["secret"]
