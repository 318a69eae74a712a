"""The administration of the client: every call answers, with what there is."""

from __future__ import annotations

from queen import Queen
from stage import IS_MODERN, ack_all, check, data_of, drain, fill, is_empty, play


@check
async def queues_and_partitions_are_told(queen: Queen, name: str) -> None:
    await fill(queen, name, 1, 2, partition="a")
    await fill(queen, name, 3, partition="b")
    admin = queen.admin
    await admin.refresh_consumer_stats()
    assert {q["name"]: q["partitions"] for q in (await admin.list_queues(limit=1000))["queues"]}[name] == 2
    described = await admin.get_queue(name)
    assert [p["name"] for p in described["partitions"]] == ["a", "b"]
    assert (await admin.get_queue_detail(name))["totals"]["pending"] == 3
    assert len((await admin.get_partitions(queue=name))["partitions"]) == 2
    assert name in {n["namespace"] for n in (await admin.get_namespaces())["namespaces"]}
    assert isinstance((await admin.get_tasks())["tasks"], list)
    assert (await admin.get_overview())["queues"] >= 1
    assert isinstance((await admin.get_queue_stats(limit=5))["queues"], list)


@check
async def messages_are_listed_retried_and_deleted(queen: Queen, name: str) -> None:
    await fill(queen, name, {"n": 1}, {"n": 2})
    admin = queen.admin
    messages = (await admin.list_messages(queue=name))["messages"]
    assert [message["status"] for message in messages] == ["pending", "pending"]
    newest, oldest = [(message["partitionId"], message["transactionId"]) for message in messages]
    assert (await admin.get_message(*oldest))["payload"] == {"n": 1}
    if not IS_MODERN:
        assert (await admin.move_message_to_dlq(*oldest))["success"] is True
        assert (await admin.get_message(*oldest))["status"] == "dead_letter"
        assert (await admin.retry_message(*oldest))["success"] is True
    assert (await admin.delete_message(*newest))["success"] is True
    assert await drain(queen, name) == [{"n": 1}]


@check
async def traces_are_found_again(queen: Queen, name: str) -> None:
    await fill(queen, name, 1)
    [message] = await queen.queue(name).pop()

    place = (message["partitionId"], message["transactionId"])
    assert (await queen.admin.get_traces_for_message(*place))["traces"] == []
    assert (await queen.admin.get_traces_by_name(name))["traces"] == []
    assert isinstance((await queen.admin.get_trace_names())["trace_names"], list)


@check
async def groups_are_told_and_moved(queen: Queen, name: str) -> None:
    await fill(queen, name, 1, 2)
    group, admin = f"{name}-group", queen.admin
    messages = await queen.queue(name).group(group).batch(2).wait(False).pop()
    assert data_of(messages) == [1, 2]
    await ack_all(queen, messages, {"group": group})
    await admin.refresh_consumer_stats()
    listed = [entry for entry in await admin.list_consumer_groups() if entry["name"] == group]
    assert [(entry["queueName"], entry["partitionsWithLag"]) for entry in listed] == [(name, 0)]
    assert (await admin.get_consumer_group(group))[name]["partitions"][0]["totalConsumed"] == 2
    assert isinstance(await admin.get_lagging_consumers(60), list)
    sought = await admin.seek_consumer_group(group, name, {"timestamp": "1970-01-01T00:00:00Z"})
    assert sought["partitionsUpdated"] == 1
    assert await drain(queen, name, group) == [1, 2]
    assert (await admin.delete_consumer_group_for_queue(group, name))["success"] is True
    assert await drain(queen, name, group) == [1, 2]


@check
async def histories_and_metrics_answer(queen: Queen, name: str) -> None:
    admin = queen.admin
    for answer in (
        await admin.get_status(),
        await admin.get_analytics(interval="minute"),
        await admin.get_system_metrics(),
        await admin.get_worker_metrics(),
        await admin.metrics(),
        await admin.health(),
    ):
        assert isinstance(answer, dict), answer
    if not IS_MODERN:
        assert (await admin.get_postgres_stats())["tableSizes"]


@check
async def a_queue_is_cleared(queen: Queen, name: str) -> None:
    await fill(queen, name, 1, 2)
    if IS_MODERN:
        return
    assert (await queen.admin.clear_queue(name))["deleted"] == 2
    assert await is_empty(queen, name)


if __name__ == "__main__":
    play()
