"""Single messages: listed, looked at, deleted, taken out of the dead letters and put there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Json, Message, Queen, age_messages, data, expire_leases, leases
from integration.test_statistics import get, totals
from queenmq.config import Settings


async def listed(queen: Queen, **params: Any) -> list[Json]:
    return (await get(queen, "messages", **params))["messages"]


async def transactions(queen: Queen, **params: Any) -> list[str]:
    return [message["transactionId"] for message in await listed(queen, **params)]


def path(message: Message) -> str:
    return f"/api/v1/messages/{message['partitionId']}/{message['transactionId']}"


async def act(queen: Queen, message: Message, verb: str, status: int = 200) -> Json:
    method, target = ("DELETE", path(message)) if verb == "delete" else ("POST", f"{path(message)}/{verb}")
    answer = await queen.http.request(method, target)
    assert answer.status_code == status, answer.text
    return answer.json()


# List


async def test_messages_are_listed_newest_first(queen: Queen) -> None:
    for n, partition in enumerate("abab"):
        await queen.push("orders", f"t{n}", partition=partition)
    await queen.push("shop.bills", "other")
    assert await transactions(queen, queue="orders") == ["t3", "t2", "t1", "t0"]
    assert await transactions(queen) == ["other", "t3", "t2", "t1", "t0"]
    assert await transactions(queen, queue="orders", partition="b") == ["t3", "t1"]
    assert await transactions(queen, partition="a") == ["t2", "t0"]
    assert (
        await transactions(queen, ns="shop") == await transactions(queen, namespace="shop", task="bills") == ["other"]
    )
    assert await transactions(queen, queue="orders", ns="shop") == []
    assert await transactions(queen, queue="orders", limit=2, offset=1) == ["t2", "t1"]
    assert await transactions(queen, queue="nobody") == []
    short = await get(queen, "status/queues/orders/messages", limit=3)
    assert [(m["transactionId"], m["queuePath"], m["status"]) for m in short] == [
        ("t3", "orders/b", "pending"),
        ("t2", "orders/a", "pending"),
        ("t1", "orders/b", "pending"),
    ]


async def test_a_listing_over_many_partitions_has_the_newest(queen: Queen) -> None:
    for n in range(30):
        await queen.push("orders", f"t{n:02}", partition=f"p{n % 7}")
    for limit in (1, 3, 7, 10, 30):
        assert await transactions(queen, queue="orders", limit=limit) == [f"t{n:02}" for n in range(29, 29 - limit, -1)]


async def test_only_a_stretch_of_time_is_listed(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", "old")
    await age_messages(sql, "orders", 7200)
    await queen.push("orders", "young")
    await queen.push("orders", "elsewhere", partition="b")
    assert await transactions(queen, queue="orders") == ["elsewhere", "young"]
    now = datetime.now(UTC)
    long_ago = (now - timedelta(hours=3)).isoformat()
    assert await transactions(queen, queue="orders", **{"from": long_ago}) == ["elsewhere", "young", "old"]
    hour_ago = (now - timedelta(hours=1)).isoformat()
    assert await transactions(queen, queue="orders", **{"from": long_ago, "to": hour_ago}) == ["old"]
    assert "young" in await transactions(queen, queue="orders", to=now.isoformat())
    ever = {"from": "1970-01-01T00:00:00Z", "to": "9999-12-31T23:59:59Z"}
    assert await transactions(queen, queue="orders", **ever) == ["elsewhere", "young", "old"]


async def test_a_message_is_in_one_of_four_states(queen: Queen) -> None:
    await queen.push("orders", "done", "dead", "leased", "waiting")
    first = await queen.pop("orders", batch=2)
    await queen.ack_batch(first, "completed", "dlq")
    [leased] = await queen.pop("orders")
    states = {m["transactionId"]: m for m in await listed(queen, queue="orders")}
    assert {name: m["status"] for name, m in states.items()} == {
        "done": "completed",
        "dead": "dead_letter",
        "leased": "processing",
        "waiting": "pending",
    }
    assert states["leased"]["queueStatus"] == "processing"
    assert states["leased"]["leaseExpiresAt"] is not None
    assert states["waiting"]["leaseExpiresAt"] is None
    for status, name in (
        ("completed", "done"),
        ("dead_letter", "dead"),
        ("processing", "leased"),
        ("pending", "waiting"),
    ):
        assert await transactions(queen, status=status) == [name]
    await queen.ack(leased)


async def test_a_state_is_found_behind_many_messages_in_another_one(queen: Queen) -> None:
    await queen.push("orders", *[f"t{n:02}" for n in range(20)])
    await queen.ack_batch(await queen.pop("orders", batch=2), "completed", "completed")
    assert await transactions(queen, status="completed", limit=1) == ["t01"]
    assert await transactions(queen, status="completed", limit=1, offset=1) == ["t00"]
    assert await transactions(queen, status="completed", limit=5) == ["t01", "t00"]


async def test_the_groups_that_have_read_a_message_are_counted(queen: Queen) -> None:
    await queen.push("orders", "t", "u")
    await queen.drain("orders", consumerGroup="fast")
    [held] = await queen.pop("orders", consumerGroup="slow")
    answer = await get(queen, "messages", queue="orders")
    assert [m["busStatus"] for m in answer["messages"]] == [{"consumedBy": 1, "totalGroups": 2}] * 2
    assert answer["mode"] == {"hasQueueMode": False, "busGroupsCount": 2, "type": "bus"}
    await queen.pop("orders")
    assert (await get(queen, "messages"))["mode"]["type"] == "hybrid"
    await queen.ack(held)
    bus = {m["transactionId"]: m["busStatus"]["consumedBy"] for m in await listed(queen, queue="orders")}
    assert bus == {"t": 2, "u": 1}


# One


async def test_a_message_is_described(queen: Queen) -> None:
    await queen.configure("shop.orders", namespace="shop", task="orders", leaseTime=7)
    await queen.push_items(
        {"queue": "shop.orders", "partition": "p", "transactionId": "t", "payload": {"n": [1, None]}}
    )
    [message] = await queen.pop("shop.orders", consumerGroup="g")
    described = (await queen.http.get(path(message))).json()
    assert described["payload"] == {"n": [1, None]}
    assert (described["queuePath"], described["namespace"], described["task"]) == ("shop.orders/p", "shop", "orders")
    assert (described["status"], described["errorMessage"], described["retryCount"]) == ("processing", None, 0)
    assert described["queueConfig"] == {
        "leaseTime": 7,
        "retryLimit": 3,
        "retryDelay": 1000,
        "ttl": 3600,
        "priority": 0,
    }
    [group] = described["consumerGroups"]
    assert (group["name"], group["consumed"], group["leaseExpiresAt"] is not None) == ("g", False, True)
    assert described["mode"] == {"hasQueueMode": False, "busGroupsCount": 1, "consumedByGroups": 0, "type": "bus"}


async def test_a_message_and_explain_tell_the_same_attempts(queen: Queen) -> None:
    await queen.configure("orders", retryLimit=3, retryDelay=0)
    await queen.push("orders", "bad", "good")
    for failures in (1, 2):
        [message] = await queen.pop("orders", consumerGroup="g")
        await queen.ack(message, "failed", error="no")
        path = f"/api/v1/messages/{message['partitionId']}"
        [place] = (await queen.http.get("/api/v1/explain/orders", params={"group": "g"})).json()["partitions"]
        bad, good = [(await queen.http.get(f"{path}/{name}")).json() for name in ("bad", "good")]
        assert place["attempts"] == bad["retryCount"] == failures
        assert (good["retryCount"], good["consumerGroups"][0]["attempts"]) == (0, 0)
        assert (bad["consumerGroups"][0]["attempts"], bad["status"]) == (failures, "pending")


@pytest.mark.parametrize("how", ["failed", "dlq", "expired", "by hand"])
async def test_a_dead_letter_has_all_its_attempts(queen: Queen, sql: asyncpg.Connection, how: str) -> None:
    """Also when its message, and what is remembered of each attempt, is gone."""
    await queen.configure("orders", retryLimit=1, retryDelay=0, dlqAfterMaxRetries=True)
    await queen.push("orders", "t")
    for _ in range(2 if how in ("failed", "expired") else 1):
        [message] = await queen.pop("orders", consumerGroup="g")
        match how:
            case "failed" | "dlq":
                await queen.ack(message, how, error="no")
            case "expired":
                await expire_leases(sql)
            case "by hand":
                await queen.ack(message, "failed", error="no")
                await act(queen, message, "dlq")
    assert await queen.pop("orders", consumerGroup="g") == []
    await queen.pop("orders", consumerGroup="other")
    failed = 2 if how in ("failed", "expired") else 1
    shown = (await queen.http.get(path(message))).json()
    assert (shown["status"], shown["retryCount"], len(shown["attempts"])) == ("dead_letter", failed, failed)
    assert [
        (group["name"], group["status"], group["consumed"], group["attempts"]) for group in shown["consumerGroups"]
    ] == [
        ("g", "dead_letter", True, failed),
        ("other", "processing", False, 0),
    ]
    await queen.http.delete("/api/v1/queues/orders/clear")
    assert (await queen.http.get(path(message))).json()["retryCount"] == failed


async def test_a_group_that_reads_a_dead_letter_again_has_not_finished_it(queen: Queen) -> None:
    await queen.push("orders", "t")
    [message] = await queen.pop("orders", consumerGroup="g")
    await queen.ack(message, "dlq", error="no")
    await queen.seek("g", "orders", timestamp="2020-01-01T00:00:00Z")
    [group] = (await queen.http.get(path(message))).json()["consumerGroups"]
    assert (group["status"], group["consumed"]) == ("pending", False)


async def test_a_dead_letter_that_is_not_stored_any_more_is_described(queen: Queen) -> None:
    await queen.push("orders", "t")
    [message] = await queen.pop("orders")
    await queen.ack(message, "dlq", error="broken")
    await queen.http.delete("/api/v1/queues/orders/clear")
    described = (await queen.http.get(path(message))).json()
    assert (described["status"], described["errorMessage"], described["payload"]) == ("dead_letter", "broken", "t")


@pytest.mark.parametrize("verb", ["delete", "retry", "dlq"])
async def test_an_unknown_message_is_not_found(queen: Queen, verb: str) -> None:
    await queen.push("orders", "t")
    [message] = await listed(queen)
    for wrong in ({"transactionId": "u"}, {"partitionId": str(uuid4())}):
        assert "not found" in (await act(queen, message | wrong, verb, 404))["error"]
        assert (await queen.http.get(path(message | wrong))).status_code == 404


class TestEncrypted:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(server={"encryption_key": bytes(32)})

    async def test_the_payload_is_shown_in_clear(self, queen: Queen) -> None:
        await queen.configure("orders", encryptionEnabled=True)
        await queen.push("orders", "t")
        [message] = await listed(queen)
        described = (await queen.http.get(path(message))).json()
        assert (described["payload"], described["isEncrypted"], described["undecryptable"]) == ("t", True, False)
        [popped] = await queen.pop("orders")
        await queen.ack(popped, "dlq")
        await queen.http.delete("/api/v1/queues/orders/clear")
        await act(queen, message, "retry")
        assert data(await queen.pop("orders")) == ["t"]


# Delete


async def test_a_deleted_message_is_gone_with_its_dead_letters_and_traces(
    queen: Queen, sql: asyncpg.Connection
) -> None:
    await queen.push("orders", "t", "u")
    [message] = await queen.pop("orders")
    await queen.trace(message, {})
    await queen.ack(message, "dlq")
    answer = await act(queen, message, "delete")
    assert answer.items() >= {"success": True, "transactionId": "t", "partitionId": message["partitionId"]}.items()
    assert await queen.dead_letters() == []
    assert await sql.fetchval("SELECT count(*) FROM queen.message_traces") == 0
    assert await transactions(queen) == ["u"]
    assert data(await queen.drain("orders")) == ["u"]


@pytest.mark.parametrize("deleted", ["0", "2", "4", "01", "24", "0123", "01234", "13"])
async def test_the_figures_are_right_after_deletes(queen: Queen, sql: asyncpg.Connection, deleted: str) -> None:
    await queen.push("orders", *"01234")
    messages = {m["transactionId"]: m for m in await listed(queen)}
    for name in deleted:
        await act(queen, messages[name], "delete")
    left = [name for name in "01234" if name not in deleted]
    assert (await totals(queen, "orders"))["total"] == len(left)
    await queen.push("orders", "5")
    assert data(await queen.drain("orders")) == [*left, "5"]
    figures = await totals(queen, "orders")
    assert (figures["total"], figures["completed"]) == (len(left) + 1, len(left) + 1)
    assert await sql.fetchval("SELECT count(*) FROM queen.stale_lookup()") == 0
    partition = messages["0"]["partitionId"]
    await sql.fetchval("SELECT queen.trim($1, 3)", partition)
    assert (await totals(queen, "orders"))["total"] == len([name for name in left if name > "2"]) + 1


async def test_a_lease_goes_on_without_a_deleted_message(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", "t", "u")
    first, second = await queen.pop("orders", batch=2)
    await act(queen, first, "delete")
    assert (await queen.ack(second))["leaseReleased"] is True
    await queen.push("orders", "v")
    [third] = await queen.pop("orders")
    await act(queen, third, "delete")
    assert await leases(sql) == 0
    assert await queen.pop("orders") == []


# Dead letters


async def test_a_dead_letter_is_delivered_again_to_its_group_alone(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", *"abcd")
    await queen.drain("orders", consumerGroup="other")
    messages = await queen.pop("orders", consumerGroup="g", batch=4)
    await queen.ack_batch(messages, "completed", "dlq", "completed", "completed")
    assert await queen.pop("orders", consumerGroup="g") == []
    await act(queen, messages[1], "retry")
    assert await queen.dead_letters() == []
    assert await queen.pop("orders", consumerGroup="other") == []
    again = await queen.pop("orders", consumerGroup="g", batch=10)
    assert data(again) == ["b"]
    assert (await queen.ack(again[0]))["success"] is True
    assert await queen.pop("orders", consumerGroup="g") == []
    row = await sql.fetchrow("SELECT position, done FROM queen.partition_consumers WHERE consumer_group = 'g'")
    assert (row["position"], row["done"]) == (4, [])
    assert (await act(queen, messages[1], "retry", 404))["error"] == "Dead letter not found"


async def test_a_retry_wakes_whoever_waits(queen: Queen) -> None:
    await queen.push("orders", "a")
    [message] = await queen.pop("orders")
    await queen.ack(message, "dlq")
    await act(queen, message, "retry")
    assert data(await queen.wait("orders")) == ["a"]


async def test_a_retry_while_the_group_is_at_work_loses_nothing(queen: Queen) -> None:
    await queen.push("orders", *"abcd")
    [first] = await queen.pop("orders")
    await queen.ack(first, "dlq")
    held = await queen.pop("orders", batch=2)
    await queen.ack(held[0])
    await act(queen, first, "retry")
    assert (await queen.ack(held[1]))["error"] == "Invalid or expired lease"
    assert data(await queen.drain("orders")) == ["a", "c", "d"]


async def test_two_dead_letters_are_delivered_in_their_order(queen: Queen) -> None:
    await queen.push("orders", *"abcde")
    messages = await queen.pop("orders", batch=5)
    await queen.ack_batch(messages, "completed", "dlq", "completed", "dlq", "completed")
    await act(queen, messages[3], "retry")
    await act(queen, messages[1], "retry")
    assert data(await queen.drain("orders")) == ["b", "d"]


async def test_a_dead_letter_that_is_not_stored_any_more_is_pushed_anew(queen: Queen) -> None:
    await queen.push("orders", "a", "b")
    [message] = await queen.pop("orders")
    await queen.ack(message, "dlq")
    await queen.http.delete("/api/v1/queues/orders/clear")
    await act(queen, message, "retry")
    [again] = await queen.pop("orders")
    assert (again["transactionId"], again["data"]) == ("a", "a")


async def test_a_dead_letter_stays_when_another_message_has_its_place(queen: Queen) -> None:
    """Its key is free when retention has taken its message: neither is mistaken for the other."""
    first = await dead_and_gone(queen, "first")
    await queen.push_items({"queue": "orders", "transactionId": "key", "payload": "second"})
    [second] = await queen.drain("orders")
    assert [m["status"] for m in await listed(queen, queue="orders")] == ["completed"]
    refusal = await queen.http.post(f"/api/v1/messages/{first['partitionId']}/key/retry")
    assert (refusal.status_code, refusal.json()["code"]) == (409, "conflict")
    assert (await queen._call("POST", "/api/v1/dlq/redrive", 200, {"queue": "orders"}))["redriven"] == 0
    assert await queen.pop("orders") == []
    assert data(await queen.dead_letters("orders")) == ["first"]
    await queen.http.delete("/api/v1/queues/orders/clear")
    await act(queen, second, "retry")
    assert data(await queen.drain("orders")) == ["first"]


@pytest.mark.parametrize("together", [False, True])
async def test_of_two_dead_letters_with_one_key_the_later_one_comes_back(queen: Queen, together: bool) -> None:
    for payload in ("first", "second"):
        message = await dead_and_gone(queen, payload)
    if together:
        assert (await queen._call("POST", "/api/v1/dlq/redrive", 200, {"queue": "orders"}))["redriven"] == 1
    else:
        await act(queen, message, "retry")
    assert data(await queen.drain("orders")) == ["second"]
    assert data(await queen.dead_letters("orders")) == ["first"]


async def test_a_message_pushed_anew_for_one_group_takes_the_place_of_the_others_dead_letters(queen: Queen) -> None:
    """All groups get it, also the one whose dead letter stays."""
    await queen.push("orders", "a")
    for group in "gh":
        [message] = await queen.pop("orders", consumerGroup=group)
        await queen.ack(message, "dlq")
    await queen.http.delete("/api/v1/queues/orders/clear")
    redriven = await queen._call("POST", "/api/v1/dlq/redrive", 200, {"queue": "orders", "consumerGroup": "g"})
    assert redriven["redriven"] == 1
    [letter] = await queen.dead_letters("orders")
    assert letter["consumerGroup"] == "h"
    await act(queen, letter, "retry", 409)
    assert data(await queen.drain("orders", consumerGroup="h")) == ["a"]
    assert data(await queen.dead_letters("orders")) == ["a"]
    await queen.http.delete("/api/v1/queues/orders/clear")
    await act(queen, letter, "retry")
    assert data(await queen.drain("orders", consumerGroup="h")) == ["a"]


async def dead_and_gone(queen: Queen, payload: str) -> Message:
    """A dead letter whose message is not stored any more."""
    await queen.push_items({"queue": "orders", "transactionId": "key", "payload": payload})
    [message] = await queen.pop("orders")
    await queen.ack(message, "dlq")
    await queen.http.delete("/api/v1/queues/orders/clear")
    return message


async def test_a_message_is_put_to_the_dead_letters(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", *"abc")
    await queen.drain("orders", consumerGroup="done")
    held = await queen.pop("orders", consumerGroup="g", batch=2)
    await act(queen, held[0], "dlq")
    [letter] = await queen.dead_letters()
    assert (letter["consumerGroup"], letter["data"], letter["errorMessage"]) == (
        "g",
        "a",
        "Dead-lettered by an operator",
    )
    assert (await queen.ack(held[1]))["leaseReleased"] is True
    waiting = (await listed(queen, queue="orders"))[0]
    await act(queen, waiting, "dlq")
    assert len(await queen.dead_letters()) == 2
    assert await queen.pop("orders", consumerGroup="g") == []
    assert await leases(sql) == 0
    assert await sql.fetchval("SELECT count(*) FROM queen.stale_lookup()") == 0


async def test_a_message_that_nobody_reads_goes_to_the_dead_letters_of_the_queue(queen: Queen) -> None:
    await queen.push("orders", "a")
    [message] = await listed(queen)
    await act(queen, message, "dlq")
    assert [letter["consumerGroup"] for letter in await queen.dead_letters()] == ["__QUEUE_MODE__"]


# Traces


async def test_traces_of_a_message_are_told_oldest_first(queen: Queen) -> None:
    await queen.push("orders", "t", "u")
    message, other = await queen.pop("orders", batch=2)
    await queen.trace(message, {"n": 1}, eventType="step", traceNames=["b", "a"], consumerGroup="g")
    await queen.trace(message, None)
    await queen.trace(other, "other", traceNames="a")
    traces = (await get(queen, f"traces/{message['partitionId']}/t"))["traces"]
    assert [(t["event_type"], t["data"], t["consumer_group"], t["trace_names"]) for t in traces] == [
        ("step", {"n": 1}, "g", ["a", "b"]),
        ("info", None, None, []),
    ]
    assert traces[0]["worker_id"] == "worker-1"
    assert await get(queen, f"traces/{uuid4()}/t") == {"traces": []}
    named = await get(queen, "traces/by-name/a")
    assert [
        (t["transaction_id"], t["message_payload"], t["queue_name"], t["partition_name"]) for t in named["traces"]
    ] == [
        ("u", "u", "orders", "Default"),
        ("t", "t", "orders", "Default"),
    ]
    assert (named["total"], named["pagination"]) == (2, {"limit": 100, "offset": 0})
    assert len((await get(queen, "traces/by-name/a", limit=1, offset=1))["traces"]) == 1
    names = await get(queen, "traces/names")
    assert [(n["trace_name"], n["trace_count"], n["message_count"]) for n in names["trace_names"]] == [
        ("a", 2, 2),
        ("b", 1, 1),
    ]
    assert (names["total"], names["pagination"]) == (2, {"limit": 50, "offset": 0})
    assert [n["trace_name"] for n in (await get(queen, "traces/names", offset=1))["trace_names"]] == ["b"]


async def test_there_may_be_no_traces_at_all(queen: Queen) -> None:
    assert (await get(queen, "traces/names"))["trace_names"] == []
    assert (await get(queen, "traces/by-name/a"))["total"] == 0


# Seek of one partition


async def test_a_seek_moves_one_partition(queen: Queen) -> None:
    for partition in ("a", "b"):
        await queen.push("orders", 1, 2, partition=partition)
        await queen.pop("orders", partition, consumerGroup="g")
    target = "/api/v1/consumer-groups/g/queues/orders/partitions/{}/seek"
    answer = await queen.http.post(target.format("a"))
    assert answer.json() == {
        "success": True,
        "consumerGroup": "g",
        "queueName": "orders",
        "partitionName": "a",
        "updated": True,
        "cursorMovedTo": 2,
    }
    assert await queen.pop("orders", "a", consumerGroup="g") == []
    answer = await queen.http.post(target.format("a"), json={"timestamp": "1970-01-01T00:00:00Z"})
    assert answer.json()["cursorMovedTo"] == 0
    assert data(await queen.pop("orders", "a", consumerGroup="g", batch=5)) == [1, 2]
    answer = await queen.http.post(target.format("nobody"), json={})
    assert (answer.status_code, answer.json()["error"]) == (404, "Partition not found")
    answer = await queen.http.post(target.format("a").replace("/g/", "/stranger/"))
    assert (answer.json()["updated"], answer.json()["cursorMovedTo"]) == (False, None)


# Payloads in the listing


async def test_the_listing_tells_payloads_if_asked_to(queen: Queen) -> None:
    await queen.push("orders", {"n": 1}, partition="a")
    [without] = (await get(queen, "messages", queue="orders"))["messages"]
    assert "payload" not in without
    [listed] = (await get(queen, "messages", queue="orders", payload="true"))["messages"]
    assert listed == without | {"payload": {"n": 1}}
    answer = await queen.http.get("/api/v1/messages?payload=perhaps")
    assert (answer.status_code, answer.json()["field"]) == (400, "payload")
