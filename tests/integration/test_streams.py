"""Streams: queries, their state, and cycles that are applied whole or not at all."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Json, Message, Queen, data, expire_leases, leases, stored
from queenmq.config import Settings

GROUP = "streams.q"


class Broker:
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
async def broker(queen: Queen) -> Broker:
    return Broker(queen, (await register(queen))["query_id"])


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


async def test_another_configuration_needs_a_reset(queen: Queen, broker: Broker) -> None:
    await queen.push("source", 1)
    [message] = await broker.pop()
    assert (await broker.commit(message, state_ops=[upsert("k", 1)]))["success"] is True
    refused = await register(queen, "other", 409)
    assert (refused["success"], refused["query_id"]) == (False, broker.query_id)
    assert refused["error"].startswith("config_hash mismatch: ")
    assert await broker.state(message["partitionId"]) == {"k": 1}
    again = await register(queen, "other", reset=True)
    assert (again["query_id"], again["fresh"], again["reset"]) == (broker.query_id, False, True)
    assert await broker.state(message["partitionId"]) == {}
    assert await broker.pop() == []


# Cycles


async def test_a_cycle_pushes_keeps_state_and_acknowledges(
    queen: Queen, broker: Broker, sql: asyncpg.Connection
) -> None:
    await queen.push("source", *"abc")
    messages = await broker.pop()
    items = [{"queue": "sink", "partition": "p", "payload": {"n": n}} for n in range(3)]
    done = await broker.commit(messages[-1], state_ops=[upsert("k", {"sum": 3})], push_items=items)
    assert (done["success"], done["queueName"], done["state_ops_applied"]) == (True, "source", 1)
    assert [result["status"] for result in done["push_results"]] == ["queued"] * 3
    assert done["ack_result"] == {"success": True, "count": 3, "lease_released": True, "dlq": False}
    assert data(await queen.pop("sink", batch=5)) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert await broker.state(messages[0]["partitionId"]) == {"k": {"sum": 3}}
    assert await broker.pop() == []


async def test_a_cycle_that_is_repeated_changes_nothing(queen: Queen, broker: Broker, sql: asyncpg.Connection) -> None:
    await queen.push("source", *"ab")
    messages = await broker.pop()
    item = {"queue": "sink", "payload": 1}
    for release in (False, True):
        whole = messages[-1] if release else messages[0]
        assert (await broker.commit(whole, push_items=[item], release_lease=release))["success"] is True
        again = await broker.commit(whole, push_items=[item], state_ops=[upsert("k", 1)], release_lease=release)
        assert (again["success"], again["error"]) == (False, "Invalid or expired lease")
    assert await stored(sql, "sink") == 2
    assert await broker.state(messages[0]["partitionId"]) == {}


async def test_success_is_the_same_as_completed(queen: Queen, broker: Broker) -> None:
    await queen.push("source", *"ab")
    messages = await broker.pop()
    done = await broker.commit(messages[-1], "success", push_items=[{"queue": "sink", "payload": 1}])
    assert done["success"] is True
    assert done["ack_result"] == {"success": True, "count": 2, "lease_released": True, "dlq": False}
    assert await broker.pop() == []
    assert await queen.dead_letters() == []


async def test_a_gate_acknowledges_a_part_and_gets_the_rest_after_the_lease(
    queen: Queen, broker: Broker, sql: asyncpg.Connection
) -> None:
    await queen.push("source", *"abcd")
    messages = await broker.pop()
    done = await broker.commit(messages[1], release_lease=False)
    assert done["ack_result"] == {"success": True, "count": 2, "lease_released": False, "dlq": False}
    assert await broker.pop() == []
    assert await leases(sql) == 1
    await expire_leases(sql)
    assert data(await broker.pop()) == ["c", "d"]


async def test_a_part_with_release_gives_the_rest_at_once(queen: Queen, broker: Broker) -> None:
    await queen.push("source", *"abc")
    messages = await broker.pop()
    assert (await broker.commit(messages[0]))["ack_result"]["lease_released"] is True
    assert data(await broker.pop()) == ["b", "c"]


@pytest.mark.parametrize("status", ["failed", "dlq"])
async def test_a_failed_cycle_buries_its_message(queen: Queen, broker: Broker, status: str) -> None:
    await queen.push("source", *"abc")
    messages = await broker.pop()
    ack = {"transactionId": "b", "leaseId": messages[0]["leaseId"], "status": status, "count": 2, "error": "broken"}
    done = await broker.cycle(messages[0]["partitionId"], ack=ack)
    assert (done["ack_result"]["dlq"], done["ack_result"]["lease_released"]) == (True, True)
    [letter] = await queen.dead_letters("source")
    assert (letter["data"], letter["errorMessage"], letter["consumerGroup"]) == ("b", "broken", GROUP)
    assert data(await broker.pop()) == ["c"]


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
    queen: Queen, broker: Broker, sql: asyncpg.Connection, change: Json, error: str
) -> None:
    await queen.push("source", "a")
    [message] = await broker.pop()
    ack = change.get("ack")
    if ack and ack.get("leaseId") == "{lease}":
        change = {"ack": ack | {"leaseId": message["leaseId"]}}
    body = {"push_items": [{"queue": "sink"}], "state_ops": [upsert("j", 1)]} | change
    refused = await broker.cycle(message["partitionId"], **body)
    assert (refused["success"], refused["error"]) == (False, error)
    assert await stored(sql, "sink") == 0
    assert await broker.state(message["partitionId"]) == {}
    assert (await broker.commit(message))["success"] is True


async def test_an_expired_lease_is_refused(queen: Queen, broker: Broker, sql: asyncpg.Connection) -> None:
    await queen.push("source", "a")
    [message] = await broker.pop()
    await expire_leases(sql)
    assert (await broker.commit(message))["error"] == "Invalid or expired lease"


async def test_a_full_sink_refuses_the_whole_cycle(queen: Queen, broker: Broker) -> None:
    await queen.configure("sink", maxSize=1)
    await queen.push("source", "a")
    [message] = await broker.pop()
    refused = await broker.commit(message, push_items=[{"queue": "sink"}] * 2, state_ops=[upsert("k", 1)])
    assert (refused["success"], "max capacity" in refused["error"]) == (False, True)
    assert await broker.state(message["partitionId"]) == {}


async def test_a_duplicate_is_a_result_and_no_failure(queen: Queen, broker: Broker) -> None:
    await queen.push("source", "a")
    [message] = await broker.pop()
    done = await broker.commit(message, push_items=[{"queue": "sink", "transactionId": "t"}] * 2)
    assert [result["status"] for result in done["push_results"]] == ["queued", "duplicate"]


async def test_cycles_of_one_partition_come_one_after_the_other(queen: Queen, broker: Broker) -> None:
    await queen.push("source", "a")
    [message] = await broker.pop()
    done = await asyncio.gather(*(broker.commit(message, push_items=[{"queue": "sink"}]) for _ in range(8)))
    assert sorted(cycle["success"] for cycle in done) == [False] * 7 + [True]
    assert len(await queen.pop("sink", batch=10)) == 1


# Flushes: cycles without a message, which only their deletes can fence


def delete(key: str) -> Json:
    return {"type": "delete", "key": key}


def window(total: int, end: int = 100) -> Json:
    return {"windowEnd": end, "acc": total}


class Flush:
    """What a stream engine does beside its cycles: windows that have ended are pushed and their state is deleted."""

    def __init__(self, broker: Broker, partition: str) -> None:
        self.broker = broker
        self.partition = partition
        self.rows: Json = {}

    async def read(self) -> Flush:
        self.rows = await self.broker.state(self.partition, ripe_at_or_before=1000)
        return self

    async def commit(self) -> Json:
        items = [{"queue": "sink", "payload": [key, value["acc"]]} for key, value in self.rows.items()]
        return await self.broker.cycle(self.partition, state_ops=[delete(key) for key in self.rows], push_items=items)


async def open_window(queen: Queen, broker: Broker, key: str = "w", total: int = 1) -> str:
    """One message is folded into a window. Returns the partition."""
    await queen.push("source", str(uuid4()))
    [message] = await broker.pop()
    assert (await broker.commit(message, state_ops=[upsert(key, window(total))]))["success"]
    return message["partitionId"]


async def emitted(queen: Queen) -> list[Any]:
    return data(await queen.pop("sink", batch=100, autoAck="true"))


def assert_nothing_done(answer: Json) -> None:
    """And yet a success, so that a client goes on."""
    assert (answer["success"], answer["stale"]) == (True, True)
    assert (answer["state_ops_applied"], answer["push_results"], answer["ack_result"]) == (0, [], None)


async def test_a_flush_that_is_repeated_pushes_once(queen: Queen, broker: Broker) -> None:
    partition = await open_window(queen, broker)
    flush = await Flush(broker, partition).read()
    done = await flush.commit()
    assert (done["success"], done["state_ops_applied"], len(done["push_results"])) == (True, 1, 1)
    assert "stale" not in done
    for _ in range(3):
        assert_nothing_done(await flush.commit())
    assert await emitted(queen) == [["w", 1]]


async def test_of_many_flushes_at_once_one_pushes(queen: Queen, broker: Broker) -> None:
    partition = await open_window(queen, broker)
    flush = await Flush(broker, partition).read()
    done = await asyncio.gather(*(flush.commit() for _ in range(8)))
    assert sorted(answer.get("stale", False) for answer in done) == [False] + [True] * 7
    assert await emitted(queen) == [["w", 1]]


async def test_a_window_that_a_cycle_has_emitted_is_not_flushed(queen: Queen, broker: Broker) -> None:
    partition = await open_window(queen, broker)
    flush = await Flush(broker, partition).read()
    await queen.push("source", "y")
    [message] = await broker.pop()
    item = {"queue": "sink", "payload": ["w", 1]}
    assert (await broker.commit(message, state_ops=[delete("w")], push_items=[item]))["success"]
    assert_nothing_done(await flush.commit())
    assert await emitted(queen) == [["w", 1]]


async def test_a_flush_waits_while_a_cycle_is_under_way(queen: Queen, broker: Broker) -> None:
    """The cycle has read the window, too, and is about to emit it or to add to it."""
    partition = await open_window(queen, broker)
    await queen.push("source", "y")
    [message] = await broker.pop()
    flush = await Flush(broker, partition).read()
    assert_nothing_done(await flush.commit())
    assert (await broker.commit(message, state_ops=[upsert("w", window(2))]))["success"]
    assert_nothing_done(await flush.commit())
    assert await broker.state(partition) == {"w": window(2)}
    await (await flush.read()).commit()
    assert await emitted(queen) == [["w", 2]]


async def test_a_lease_that_nobody_ends_holds_up_flushes_until_it_expires(
    queen: Queen, broker: Broker, sql: asyncpg.Connection
) -> None:
    partition = await open_window(queen, broker)
    await queen.push("source", "y")
    await broker.pop()
    flush = await Flush(broker, partition).read()
    assert_nothing_done(await flush.commit())
    await expire_leases(sql)
    assert "stale" not in await flush.commit()
    assert await emitted(queen) == [["w", 1]]


async def test_a_flush_of_what_has_changed_since_it_was_read_loses_nothing(queen: Queen, broker: Broker) -> None:
    partition = await open_window(queen, broker)
    flush = await Flush(broker, partition).read()
    await open_window(queen, broker, total=2)
    assert_nothing_done(await flush.commit())
    assert await emitted(queen) == []
    await (await flush.read()).commit()
    assert await emitted(queen) == [["w", 2]]


async def test_a_flush_repeated_after_its_window_was_opened_again_changes_nothing(queen: Queen, broker: Broker) -> None:
    partition = await open_window(queen, broker)
    flush = await Flush(broker, partition).read()
    assert "stale" not in await flush.commit()
    await open_window(queen, broker, total=7)
    assert_nothing_done(await flush.commit())
    assert await broker.state(partition) == {"w": window(7)}
    assert await emitted(queen) == [["w", 1]]


async def test_of_a_flush_all_windows_are_there_or_nothing_is_pushed(queen: Queen, broker: Broker) -> None:
    for key in "ab":
        partition = await open_window(queen, broker, key)
    flush = await Flush(broker, partition).read()
    assert (await broker.cycle(partition, state_ops=[delete("a")]))["state_ops_applied"] == 1
    assert_nothing_done(await flush.commit())
    assert (await broker.state(partition)).keys() == {"b"}
    assert await emitted(queen) == []
    await (await flush.read()).commit()
    assert await emitted(queen) == [["b", 1]]


async def test_deletes_alone_may_be_repeated(queen: Queen, broker: Broker) -> None:
    """There is nothing that could happen twice, and a client may delete what it is not sure of."""
    partition = await open_window(queen, broker)
    for _ in range(2):
        answer = await broker.cycle(partition, state_ops=[delete("w"), delete("never")])
        assert (answer["success"], answer["state_ops_applied"]) == (True, 2)


async def test_a_cycle_with_a_message_may_delete_what_is_not_there(queen: Queen, broker: Broker) -> None:
    """Its message is the fence: it is finished once."""
    await queen.push("source", "x")
    [message] = await broker.pop()
    item = {"queue": "sink", "payload": 1}
    assert (await broker.commit(message, state_ops=[delete("never")], push_items=[item]))["success"]
    assert await emitted(queen) == [1]


# State


async def test_state_is_narrowed_by_key_prefix_and_window(queen: Queen, broker: Broker) -> None:
    [pushed] = await queen.push("source", "a")
    partition = pushed["partition_id"]
    values = {
        "w|1": {"windowEnd": 100},
        "w|2": {"windowEnd": 200.5},
        "w|3": {"windowEnd": "300"},
        "v": [1, "\u0000", 2**53],
    }
    done = await broker.cycle(partition, state_ops=[upsert(key, value) for key, value in values.items()], ack=None)
    assert (done["success"], done["ack_result"], done["push_results"]) == (True, None, [])
    assert await broker.state(partition) == values
    assert (await broker.state(partition, keys=["v", "nobody"])).keys() == {"v"}
    assert (await broker.state(partition, key_prefix="w|")).keys() == {"w|1", "w|2", "w|3"}
    assert (await broker.state(partition, ripe_at_or_before=200)).keys() == {"w|1"}
    assert (await broker.state(partition, key_prefix="w|", ripe_at_or_before=1000)).keys() == {"w|1", "w|2"}
    assert (await broker.state(partition, keys=["w|2"], ripe_at_or_before=100)) == {}
    assert (await broker.state(str(uuid4()))) == {}


async def test_of_several_changes_of_a_key_the_last_counts(queen: Queen, broker: Broker) -> None:
    [pushed] = await queen.push("source", "a")
    partition = pushed["partition_id"]
    delete = {"type": "delete", "key": "k"}
    for operations, left in (
        ([upsert("k", 1), upsert("k", 2)], {"k": 2}),
        ([delete, upsert("k", 3)], {"k": 3}),
        ([upsert("k", 4), delete], {}),
        ([delete], {}),
    ):
        assert (await broker.cycle(partition, state_ops=operations))["state_ops_applied"] == len(operations)
        assert await broker.state(partition) == left


async def test_state_goes_with_its_queue(queen: Queen, broker: Broker, sql: asyncpg.Connection) -> None:
    [pushed] = await queen.push("source", "a")
    await broker.cycle(pushed["partition_id"], state_ops=[upsert("k", 1)])
    await queen.delete_queue("source")
    assert await sql.fetchval("SELECT count(*) FROM queen.stream_state") == 0


class TestEncrypted:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(server={"encryption_key": bytes(32)})

    async def test_what_goes_to_an_encrypted_queue_is_encrypted(
        self, queen: Queen, broker: Broker, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("sink", encryptionEnabled=True)
        await queen.push("source", "a")
        [message] = await broker.pop()
        await broker.commit(message, push_items=[{"queue": "sink", "payload": "secret", "producerSub": "mallory"}])
        row = await sql.fetchrow("SELECT payload, producer_sub FROM queen.messages WHERE is_encrypted")
        assert b"secret" not in row["payload"]
        assert row["producer_sub"] is None
        assert data(await queen.pop("sink")) == ["secret"]
