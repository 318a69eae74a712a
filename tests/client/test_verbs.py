"""Pop, ack, renew, dead letters, groups, administration: each verb against a real server."""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import getmembers, isfunction
from typing import Any

import asyncpg
import pytest
from integration.queen import expire_leases, leases

from client.faults import Answer, Scripted
from queenmq.client import EmptyTransaction, Item, Message, NotFound, Queen, RequestError, TransactionFailed
from queenmq.client.admin import Administration


def data(messages: Any) -> list[Any]:
    return [message.data for message in messages]


async def test_an_empty_pop(queen: Queen) -> None:
    assert await queen.queue("nobody").wait(False).pop() == []
    assert await queen.queue("nobody").timeout_millis(50).pop() == []


async def test_a_partition_can_be_named_also_the_default_one(queen: Queen) -> None:
    await queen.queue("q").partition("eu").push("eu")
    assert await queen.queue("q").partition("Default").wait(False).pop() == []
    assert data(await queen.queue("q").partition("eu").pop()) == ["eu"]


async def test_several_partitions_share_a_lease(queen: Queen) -> None:
    for name in "abc":
        await queen.queue("q").partition(name).push([name])
    messages = await queen.queue("q").batch(10).partitions(3).pop()
    assert sorted(data(messages)) == ["a", "b", "c"]
    [renewed] = await queen.renew(messages)
    assert (renewed.success, renewed.lease_id) == (True, messages[0].lease_id)
    assert renewed.new_expires_at
    assert [result.success for result in await queen.ack(messages)] == [True] * 3


async def test_popping_and_consuming_at_once(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.queue("q").push([1, 2])
    assert data(await queen.queue("q").auto_ack().pop()) == [1]
    assert data(await queen.queue("q").commit_on_delivery().pop()) == [2]
    assert await leases(sql) == 0


async def test_namespace_and_task(queen: Queen) -> None:
    await queen.queue("mails").namespace("shop").task("send").create()
    await queen.queue("mails").push("mail")
    await queen.queue("other").push("other")
    assert await queen.queue().namespace("shop").task("print").wait(False).pop() == []
    [message] = await queen.queue().namespace("shop").task("send").pop()
    assert (message.data, message.queue) == ("mail", "mails")
    with pytest.raises(ValueError, match="name a queue"):
        await queen.queue().create()


async def test_the_words_of_an_ack(queen: Queen) -> None:
    await queen.queue("q").config(retry_limit=0, retry_delay=1).create()
    await queen.queue("q").push([1, 2, 3, 4])
    [one] = await queen.queue("q").pop()
    assert (await queen.ack(one, "retry")).success
    [one] = await queen.queue("q").pop()
    done = await queen.ack(one)
    assert (done.success, done.lease_released, done.dlq) == (True, True, False)
    assert (done.queue, done.partition, done.transaction_id) == ("q", "Default", one.transaction_id)
    [two] = await queen.queue("q").pop()
    assert (await queen.ack(two, False, {"error": "as queen-mq says it"})).dlq
    [three] = await queen.queue("q").pop()
    assert (await queen.ack(three, "dlq", error="poison")).dlq
    dead = await queen.queue("q").dlq().get()
    assert [(letter.data, letter.error_message) for letter in dead] == [(3, "poison"), (2, "as queen-mq says it")]
    [four] = await queen.queue("q").pop()
    with pytest.raises(ValueError, match="'done' is no status"):
        await queen.ack(four, "done")  # type: ignore[call-overload]


async def test_messages_of_several_groups_in_one_call(queen: Queen) -> None:
    await queen.queue("q").push([1])
    messages: list[Message] = []
    for group in ("billing", "audit"):
        messages += await queen.queue("q").group(group).pop()
    messages += await queen.queue("q").pop()
    assert [result.success for result in await queen.ack(messages)] == [True] * 3
    assert await queen.ack([]) == []


async def test_an_expired_lease_is_a_result(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.queue("q").push(1)
    [message] = await queen.queue("q").pop()
    assert (await queen.renew(message, 120)).success
    assert (await queen.renew(message.lease_id)).success
    await expire_leases(sql)
    lost = await queen.renew(message)
    assert (lost.success, lost.error, lost.new_expires_at) == (False, "Lease not found", None)
    refused = await queen.ack(message)
    assert (refused.success, refused.error) == (False, "Invalid or expired lease")


async def test_a_transaction(queen: Queen) -> None:
    await queen.queue("q").push([1, 2])
    [message] = await queen.queue("q").group("g").pop()
    transaction = queen.transaction().ack(message)
    transaction.queue("sink").partition("eu").push([Item("a", "key"), "b"])
    result = await transaction.commit()
    assert [(step.type, step.success) for step in result.results] == [("ack", True), ("push", True), ("push", True)]
    assert result.results[1].transaction_id == "key"
    assert data(await queen.queue("sink").partition("eu").batch(5).pop()) == ["a", "b"]
    assert data(await queen.queue("q").group("g").pop()) == [2]


async def test_a_transaction_as_a_context(queen: Queen) -> None:
    async with queen.transaction() as transaction:
        transaction.queue("q").push(1)
    with pytest.raises(ZeroDivisionError):
        async with queen.transaction() as transaction:
            transaction.queue("q").push(1 // 0)
    assert data(await queen.queue("q").batch(5).pop()) == [1]


async def test_a_transaction_is_all_or_nothing(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.queue("q").push([1])
    [message] = await queen.queue("q").pop()
    await expire_leases(sql)
    with pytest.raises(TransactionFailed, match="Invalid or expired lease") as caught:
        await queen.transaction().ack(message).queue("sink").push("never").commit()
    assert not caught.value.uncertain
    assert await queen.queue("sink").wait(False).pop() == []
    once = queen.transaction().queue("sink").push("once")
    await once.commit()
    with pytest.raises(TransactionFailed, match="already used"):
        await once.commit()
    with pytest.raises(EmptyTransaction):
        await queen.transaction().commit()


async def test_dead_letters_are_filtered(queen: Queen) -> None:
    await queen.queue("q").config(retry_limit=0).create()
    for name in ("eu", "us"):
        await queen.queue("q").partition(name).push(name)
        [message] = await queen.queue("q").group("g").partition(name).pop()
        await queen.ack(message, False)
    assert (await queen.queue("q").dlq("g").get()).total == 2
    assert (await queen.queue("q").dlq("other").get()).total == 0
    assert data(await queen.queue("q").partition("eu").dlq().get()) == ["eu"]
    page = await queen.queue("q").dlq().limit(1).offset(1).get()
    assert (len(page), page.total, data(page)) == (1, 2, ["eu"])
    assert (await queen.queue("q").dlq().from_("2100-01-01T00:00:00Z").get()).total == 0
    assert (await queen.queue("q").dlq().to("2100-01-01T00:00:00Z").get()).total == 2


async def test_where_a_group_starts_and_seeking(queen: Queen) -> None:
    await queen.queue("q").push("past")
    late = queen.queue("q").group("late").subscription_mode("new").batch(5).wait(False)
    later = queen.queue("q").group("later").subscription_from("now").batch(5).wait(False)
    assert (await late.pop(), await later.pop()) == ([], [])
    await queen.queue("q").push("future")
    assert data(await later.pop()) == ["future"]
    await queen.admin.seek_consumer_group("late", "q", timestamp="1970-01-01T00:00:00Z")
    assert data(await late.pop()) == ["past", "future"]
    sought = await queen.admin.seek_consumer_group("late", "q", to_end=True)
    assert sought["seekToEnd"] is True
    assert await late.pop() == []
    with pytest.raises(RequestError, match="Must specify"):
        await queen.admin.seek_consumer_group("late", "q")
    assert (await queen.delete_consumer_group("late"))["success"] is True
    assert (await queen.update_consumer_group_timestamp("later", "2024-01-01T00:00:00Z"))["success"] is True
    assert (await queen.admin.delete_consumer_group_for_queue("later", "q"))["queueName"] == "q"


@pytest.mark.parametrize("given", [{"transactionId": "t"}, ["t"], "t"])
async def test_only_messages_can_be_acknowledged(queen: Queen, given: Any) -> None:
    with pytest.raises(TypeError, match="as pop returns it"):
        await queen.ack(given)


async def test_queue_options_in_both_spellings(queen: Queen) -> None:
    answer = await queen.queue("q").config({"leaseTime": 60}, retry_limit=7, retry_delay=5).create()
    assert answer["configured"] is True
    assert (answer["options"]["leaseTime"], answer["options"]["retryLimit"]) == (60, 7)
    assert answer["options"]["retryDelay"] == 5


async def test_an_option_that_the_server_ignores_is_told(queen: Queen, caplog: pytest.LogCaptureFixture) -> None:
    answer = await queen.queue("q").config({"leasTime": 60}, retry_limit=7).create()
    assert answer["options"]["retryLimit"] == 7
    assert [record.args for record in caplog.records if record.name == "queenmq.client"] == [("leasTime",)]


async def test_maintenance_and_health(queen: Queen) -> None:
    assert (await queen.admin.health())["status"] == "healthy"
    await queen.admin.set_pop_maintenance_mode(True)
    assert (await queen.admin.get_maintenance_mode())["popMaintenanceMode"] is True
    await queen.queue("q").push(1)
    assert await queen.queue("q").wait(False).pop() == []
    assert (await queen.admin.set_pop_maintenance_mode(False))["popMaintenanceMode"] is False
    assert data(await queen.queue("q").pop()) == [1]


async def test_every_call_of_the_administration_is_well_formed() -> None:
    """Against a server that answers everything: what is sent is what the contract says."""
    calls = {name: call for name, call in getmembers(Administration, isfunction) if not name.startswith("_")}
    async with Scripted(default=Answer(200, {"n": 2**63 + 1})) as server, Queen(server.url) as queen:
        for name, call in calls.items():
            count = call.__code__.co_argcount - 1 - len(call.__defaults__ or ())
            arguments = [True] if name.endswith("maintenance_mode") and count else ["a/ b"] * count
            answer: Awaitable[Any] = call(queen.admin, *arguments)
            assert (await answer)["n"] == 2**63 + 1
    assert len(server.seen) == len(calls) > 40
    for seen in server.seen:
        assert seen.method in ("GET", "POST", "DELETE")
        assert " " not in seen.target
        assert "a/" not in seen.target
    targets = [f"{seen.method} {seen.target}" for seen in server.seen]
    assert "GET /api/v1/traces/by-name/a%2F%20b" in targets
    assert "DELETE /api/v1/consumer-groups/a%2F%20b?deleteMetadata=true" in targets
    assert "GET /api/v1/consumer-groups/lagging?minLagSeconds=60" in targets


async def test_what_the_server_does_not_have_is_not_found(queen: Queen) -> None:
    with pytest.raises(NotFound) as caught:
        await queen.admin._get("api", "v1", "nothing", "of", "the", "kind")
    assert caught.value.status == 404
