"""Pop: what is delivered, how much of it, from which partition, and in which order."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Message, Queen, another_server, data, leases
from queenmq.config import Settings


async def test_an_empty_or_unknown_queue_gives_nothing(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.configure("orders")
    assert await queen.pop("orders") == []
    assert await queen.pop("unknown") == []
    assert await queen.pop("unknown", "p") == []
    assert await queen.pop("orders", "unknown") == []
    names = await sql.fetch("SELECT q.name, p.name FROM queen.queues q JOIN queen.partitions p ON p.queue_id = q.id")
    assert [tuple(row) for row in names] == [("orders", "Default")]


async def test_the_whole_answer(queen: Queen) -> None:
    before = datetime.now(UTC)
    [pushed] = await queen.push_items({"queue": "orders", "partition": "eu", "payload": {"n": 1}, "transactionId": "t"})
    answer = await queen.pop_answer("orders", consumerGroup="billing", batch=5)
    [message] = answer.pop("messages")
    created_at = message.pop("createdAt")
    lease_id = answer["leaseId"]
    assert UUID(lease_id)
    assert answer == {
        "success": True,
        "queue": "orders",
        "partition": "eu",
        "partitionId": pushed["partition_id"],
        "leaseId": lease_id,
        "consumerGroup": "billing",
        "partitionsClaimed": 1,
    }
    assert message == {
        "id": pushed["message_id"],
        "transactionId": "t",
        "traceId": None,
        "data": {"n": 1},
        "producerSub": None,
        "partitionId": pushed["partition_id"],
        "partition": "eu",
        "leaseId": lease_id,
        "consumerGroup": "billing",
        "queue": "orders",
        "offset": 1,
        "retryCount": 0,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", created_at)
    assert abs((datetime.fromisoformat(created_at) - before).total_seconds()) < 60


async def test_texts_that_json_must_escape_arrive_as_they_are(queen: Queen) -> None:
    """The database writes the messages of an answer."""
    queue, group, partitions = 'o"\\r', 'g"\\\u2028ü', ('p"\n\\', "\x1e,{}")
    names = ['t"', "t\\", "t\x1f\x1e", "t\u2028é😀", "}],{"]
    data = [{"a\\": '"}\x1e'}, "\u0000", [], None, 1.5]
    for partition in partitions:
        items = zip(names, data, strict=True)
        shared = {"queue": queue, "partition": partition}
        await queen.push_items(*({**shared, "transactionId": name, "payload": payload} for name, payload in items))
    answer = await queen.pop_answer(queue, consumerGroup=group, batch=20, partitions=2, subscriptionMode="all")
    assert answer["partitionsClaimed"] == 2
    for partition in partitions:
        found = [message for message in answer["messages"] if message["partition"] == partition]
        assert [(one["transactionId"], one["data"], one["offset"]) for one in found] == [
            (name, payload, offset) for offset, (name, payload) in enumerate(zip(names, data, strict=True), 1)
        ]
        assert {(one["queue"], one["consumerGroup"], one["leaseId"]) for one in found} == {
            (queue, group, answer["leaseId"])
        }
    assert [one["success"] for one in await queen.ack_batch(answer["messages"])] == [True] * 10


async def test_without_a_group_it_is_the_queue_mode(queen: Queen) -> None:
    await queen.push("orders", 1)
    assert (await queen.pop_answer("orders"))["consumerGroup"] == "__QUEUE_MODE__"


async def test_the_batch_is_respected_and_order_kept(queen: Queen) -> None:
    await queen.push("orders", *range(7))
    assert [len(await _pop_and_ack(queen, batch=3)) for _ in range(4)] == [3, 3, 1, 0]
    await queen.push("orders", *range(3))
    assert data(await _pop_and_ack(queen)) == [0]
    assert data(await _pop_and_ack(queen, batch=0)) == [1]
    assert data(await _pop_and_ack(queen, batch=-5)) == [2]


async def _pop_and_ack(queen: Queen, **params: object) -> list[Message]:
    popped = await queen.pop("orders", **params)
    await queen.ack_batch(popped)
    return popped


async def test_one_lease_at_a_time_in_a_partition(queen: Queen) -> None:
    await queen.push("orders", 1, 2, 3)
    [first] = await queen.pop("orders")
    assert await queen.pop("orders") == []
    assert await queen.pop("orders", "Default") == []
    await queen.ack(first)
    assert data(await queen.pop("orders")) == [2]


async def test_after_everything_is_acked_the_queue_is_empty(queen: Queen) -> None:
    await queen.push("orders", *range(10))
    await queen.drain("orders", batch=4)
    assert await queen.pop("orders") == []
    await queen.push("orders", "again")
    assert data(await queen.pop("orders")) == ["again"]


async def test_the_partition_form_returns_only_that_partition(queen: Queen) -> None:
    for partition in ("a", "b", "c"):
        await queen.push("orders", partition, partition + "2", partition=partition)
    answer = await queen.pop_answer("orders", "b", batch=10, partitions=3)
    assert data(answer["messages"]) == ["b", "b2"]
    assert (answer["partition"], answer["partitionsClaimed"]) == ("b", 1)
    assert await queen.pop("orders", "b") == []


async def test_one_partition_per_pop_by_default(queen: Queen) -> None:
    for partition in ("a", "b", "c"):
        await queen.push("orders", 1, 2, partition=partition)
    answer = await queen.pop_answer("orders", batch=10)
    assert (len(answer["messages"]), answer["partitionsClaimed"]) == (2, 1)


async def test_several_partitions_share_one_lease(queen: Queen, sql: asyncpg.Connection) -> None:
    for partition in ("a", "b", "c"):
        await queen.push("orders", partition + "1", partition + "2", partition=partition)
    answer = await queen.pop_answer("orders", batch=10, partitions=3)
    messages = answer["messages"]
    assert (len(messages), answer["partitionsClaimed"]) == (6, 3)
    assert len({message["partitionId"] for message in messages}) == 3
    assert {message["leaseId"] for message in messages} == {answer["leaseId"]}
    assert (answer["partition"], answer["partitionId"]) == (messages[0]["partition"], messages[0]["partitionId"])
    for partition in ("a", "b", "c"):
        assert [m["data"] for m in messages if m["partition"] == partition] == [partition + "1", partition + "2"]
    assert await leases(sql) == 3
    for message in messages:
        assert (await queen.ack(message))["success"]
    assert await leases(sql) == 0


async def test_the_batch_is_a_cap_over_all_partitions(queen: Queen) -> None:
    await queen.push_items(*({"queue": "orders", "partition": f"p{n % 20}"} for n in range(60)))
    answer = await queen.pop_answer("orders", batch=10, partitions=20)
    assert len(answer["messages"]) == 10
    assert answer["partitionsClaimed"] == 4
    untouched = await queen.pop_answer("orders", batch=1000, partitions=20)
    assert untouched["partitionsClaimed"] == 16


async def test_partitions_is_a_cap_too(queen: Queen) -> None:
    await queen.push_items(*({"queue": "orders", "partition": f"p{n}"} for n in range(10)))
    answer = await queen.pop_answer("orders", batch=100, partitions=4)
    assert (len(answer["messages"]), answer["partitionsClaimed"]) == (4, 4)


async def test_merged_pops_get_different_partitions(queen: Queen) -> None:
    await queen.push_items(*({"queue": "orders", "partition": f"p{n}", "payload": n} for n in range(30)))
    single = [queen.pop("orders") for _ in range(15)]
    several = [queen.pop("orders", batch=5, partitions=3) for _ in range(10)]
    popped = await asyncio.gather(*single, *several)
    delivered = Counter(message["data"] for messages in popped for message in messages)
    assert set(delivered.values()) == {1}
    assert all(len({m["leaseId"] for m in messages}) == 1 for messages in popped if messages)
    assert len(delivered) == 30


async def test_auto_ack_consumes_at_delivery(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push("orders", *range(5))
    answer = await queen.pop_answer("orders", batch=3, autoAck=True)
    assert data(answer["messages"]) == [0, 1, 2]
    assert answer["leaseId"] == ""
    assert {message["leaseId"] for message in answer["messages"]} == {""}
    assert await leases(sql) == 0
    assert data(await queen.pop("orders", batch=10, autoAck=True)) == [3, 4]
    assert await queen.pop("orders", autoAck=True) == []


async def test_auto_ack_over_several_partitions(queen: Queen, sql: asyncpg.Connection) -> None:
    await queen.push_items(*({"queue": "orders", "partition": f"p{n % 4}"} for n in range(12)))
    assert len(await queen.pop("orders", batch=100, partitions=4, autoAck=True)) == 12
    assert await queen.pop("orders", partitions=4) == []
    assert await leases(sql) == 0


async def test_groups_are_independent_of_each_other_and_of_the_queue_mode(queen: Queen) -> None:
    await queen.push("orders", 1, 2)
    for group in ({"consumerGroup": "a"}, {"consumerGroup": "b"}, {}):
        [message] = await queen.pop("orders", **group)
        assert message["data"] == 1
    [other] = await queen.pop("orders", consumerGroup="c")
    await queen.ack(other)
    assert data(await queen.pop("orders", consumerGroup="c")) == [2]
    assert await queen.pop("orders", consumerGroup="a") == []


async def test_two_groups_from_the_beginning_both_get_everything(queen: Queen) -> None:
    await queen.push("orders", *range(100))
    for group in ("a", "b"):
        params = {"consumerGroup": group, "subscriptionMode": "from_beginning", "batch": 7}
        assert data(await queen.drain("orders", **params)) == list(range(100))


async def test_the_least_recently_served_partition_comes_first(queen: Queen) -> None:
    await queen.configure("orders")
    await queen.pop("orders")
    for n in range(3):
        for partition in ("a", "b", "c"):
            await queen.push("orders", n, partition=partition)
    served = []
    for _ in range(9):
        [message] = await queen.pop("orders")
        served.append((message["partition"], message["data"]))
        await queen.ack(message)
    assert served == [(partition, n) for n in range(3) for partition in ("a", "b", "c")]


async def test_a_huge_backlog_does_not_starve_other_partitions(queen: Queen) -> None:
    await queen.push("orders", *range(2000), partition="huge")
    for n in range(6):
        await queen.push("orders", n, partition="small")
        served = set()
        for _ in range(2):
            popped = await queen.pop("orders", batch=100)
            served.add(popped[0]["partition"])
            await queen.ack_batch(popped)
        assert served == {"huge", "small"}


async def test_partitions_that_become_ready_wait_in_line(queen: Queen) -> None:
    await queen.configure("orders")
    await queen.pop("orders")
    for partition in ("c", "a", "b"):
        await queen.push("orders", 1, partition=partition)
    assert [(await queen.pop("orders"))[0]["partition"] for _ in range(3)] == ["c", "a", "b"]


async def test_ten_workers_on_one_partition_see_everything_once_and_in_order(queen: Queen) -> None:
    await queen.push("orders", *range(100))
    seen: list[int] = []

    async def work() -> None:
        while popped := await queen.pop("orders", batch=3, wait=True, timeout=300):
            seen.extend(data(popped))
            await queen.ack_batch(popped)

    await asyncio.gather(*(work() for _ in range(10)))
    assert seen == list(range(100))


async def test_many_workers_on_many_partitions_see_everything_once_and_in_order(queen: Queen) -> None:
    items = [{"queue": "orders", "partition": f"p{n % 10}", "payload": n} for n in range(500)]
    await queen.push_items(*items)
    seen: dict[str, list[int]] = {}

    async def work(partitions: int) -> None:
        while popped := await queen.pop("orders", batch=5, partitions=partitions, wait=True, timeout=300):
            for message in popped:
                seen.setdefault(message["partition"], []).append(message["data"])
            await queen.ack_batch(popped)

    await asyncio.gather(*(work(1 + n % 3) for n in range(8)))
    assert seen == {f"p{p}": list(range(p, 500, 10)) for p in range(10)}


async def test_a_pop_sees_what_was_pushed_before_on_any_server(
    queen: Queen, settings: Settings, database_url: str
) -> None:
    async with another_server(settings, database_url) as other:
        for n in range(60):
            await queen.push("orders", n, partition=f"p{n % 7}")
            assert data(await other.pop("orders", autoAck=True)) == [n]


async def test_names_are_decoded_in_the_path(queen: Queen) -> None:
    await queen.push("sales/ü +1", 1, partition="a/b c")
    assert data(await queen.pop("sales%2F%C3%BC%20%2B1", "a%2Fb%20c")) == [1]
    assert (await queen.pop("sales%2F%C3%BC%20%2B1", consumerGroup="g/1 +"))[0]["consumerGroup"] == "g/1 +"


@pytest.mark.parametrize(
    "query", ["batch=many", "partitions=1.5", "timeout=-1", "subscriptionFrom=yesterday", "consumerGroup=%00"]
)
async def test_bad_parameters_are_refused(queen: Queen, query: str) -> None:
    refusal = await queen.refused(f"/api/v1/pop/queue/orders?{query}", None, "GET")
    assert refusal["field"] == query.partition("=")[0]


async def test_a_group_under_another_name_is_refused(queen: Queen) -> None:
    """Ignored, it would be a pop without a group, and a list or a deletion for every group."""
    await queen.push("orders", 1)
    asked = (
        ("GET", "/api/v1/pop/queue/orders?group=x"),
        ("GET", "/api/v1/pop/queue/orders/partition/Default?group=x"),
        ("GET", "/api/v1/pop?namespace=n&group=x"),
        ("GET", "/api/v1/dlq?group=x"),
        ("DELETE", "/api/v1/dlq?queue=orders&group=x"),
        ("GET", "/api/v1/queues/orders/consumers?group=x"),
        ("GET", "/api/v1/queues/orders/skipped?group=x"),
    )
    for method, path in asked:
        refusal = await queen.refused(path, None, method)
        assert refusal["error"] == "group is not a parameter here: name the group as consumerGroup", path
    assert data(await queen.pop("orders")) == [1]


async def test_autopilot_without_a_batch_gets_more_than_one(queen: Queen) -> None:
    await queen.push("orders", *range(10))
    assert len(await queen.pop("orders", autopilot=True)) == 10


class TestNamespaceAndTask:
    async def test_every_matching_queue_is_popped(self, queen: Queen) -> None:
        await queen.configure("one", "sales", "ship")
        await queen.configure("two", "sales", "bill")
        await queen.configure("three", "stock", "ship")
        for queue in ("one", "two", "three"):
            await queen.push(queue, queue)
        assert await _drain(queen, namespace="sales", task="ship", consumerGroup="a") == ["one"]
        assert sorted(await _drain(queen, namespace="sales", consumerGroup="b")) == ["one", "two"]
        assert sorted(await _drain(queen, task="ship", consumerGroup="c")) == ["one", "three"]
        assert await _drain(queen, namespace="nothing") == []

    async def test_messages_name_their_queue(self, queen: Queen) -> None:
        await queen.push("sales.ship", 1)
        answer = await queen._pop("/api/v1/pop", {"namespace": "sales"})
        assert (answer["queue"], answer["messages"][0]["queue"]) == ("sales.ship", "sales.ship")

    async def test_the_higher_priority_comes_first(self, queen: Queen) -> None:
        priorities = {"low": -1, "mid": 0, "high": 5, "top": 10}
        for queue, priority in priorities.items():
            await queen.configure(queue, "jobs", priority=priority)
            await queen.push(queue, queue, queue + " again")
        expected = [name for queue in ("top", "high", "mid", "low") for name in (queue, queue + " again")]
        assert await _drain(queen, namespace="jobs") == expected

    async def test_among_equals_the_oldest_pending_comes_first(self, queen: Queen) -> None:
        for queue in ("a", "b", "c"):
            await queen.configure(queue, "jobs")
        await queen.pop_matching(namespace="jobs")
        for queue in ("b", "c", "a"):
            await queen.push(queue, queue)
        assert await _drain(queen, namespace="jobs") == ["b", "c", "a"]

    async def test_among_equals_the_oldest_pending_comes_first_for_a_new_group(self, queen: Queen) -> None:
        for queue in ("a", "b", "c"):
            await queen.configure(queue, "jobs")
        for queue in ("b", "c", "a"):
            await queen.push(queue, queue)
        assert await _drain(queen, namespace="jobs", consumerGroup="fresh") == ["b", "c", "a"]

    async def test_the_partitions_of_one_queue_are_claimed_together(self, queen: Queen) -> None:
        await queen.push_items(*({"queue": "jobs.x", "partition": f"p{n}"} for n in range(5)))
        assert len(await queen.pop_matching(namespace="jobs", batch=10, partitions=3)) == 3

    async def test_neither_namespace_nor_task_is_refused(self, queen: Queen) -> None:
        await queen.refused("/api/v1/pop", None, "GET")

    async def test_a_queue_pop_ignores_them(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        assert data(await queen.pop("orders", namespace="elsewhere", task="other")) == [1]


async def _drain(queen: Queen, **params: object) -> list[object]:
    drained = []
    while popped := await queen.pop_matching(**params):
        drained += data(popped)
        await queen.ack_batch(popped)
    return drained


# How large an answer gets


class TestBytes:
    """Payloads of 10,000 bytes, and answers of at most 25,000: two messages."""

    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(limits={"max_answer_bytes": 25_000})

    @staticmethod
    async def push(queen: Queen, partition: str, *numbers: int) -> None:
        items = [{"queue": "big", "partition": partition, "payload": [n, "x" * 9_990]} for n in numbers]
        await queen.push_items(*items)

    @staticmethod
    def numbers(messages: list[Message]) -> list[int]:
        return [message["data"][0] for message in messages]

    async def test_an_answer_has_fewer_messages_and_the_rest_comes_in_order(self, queen: Queen) -> None:
        await self.push(queen, "p", *range(7))
        seen = []
        while popped := await queen.pop("big", consumerGroup="g", batch=100):
            assert len(popped) <= 2
            assert {message["retryCount"] for message in popped} == {0}
            seen += self.numbers(popped)
            await queen.ack_batch(popped)
        assert seen == list(range(7))

    async def test_what_is_left_out_is_not_leased(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await self.push(queen, "p", *range(5))
        first = await queen.pop("big", consumerGroup="g", batch=5)
        leased = await sql.fetchval(
            "SELECT lease_offsets::text FROM queen.partition_consumers WHERE lease_id IS NOT NULL"
        )
        assert (self.numbers(first), leased) == ([0, 1], "{[1,3)}")
        # A failure is of what was delivered, and costs the others nothing.
        await queen.ack(first[0])
        await queen.ack(first[1])
        assert self.numbers(await queen.pop("big", consumerGroup="g", batch=5)) == [2, 3]

    async def test_auto_ack_takes_no_more_than_it_delivers(self, queen: Queen) -> None:
        await self.push(queen, "p", *range(5))
        seen = [self.numbers(await queen.pop("big", consumerGroup="g", batch=5, autoAck=True)) for _ in range(4)]
        assert seen == [[0, 1], [2, 3], [4], []]

    async def test_a_message_over_the_bound_comes_alone(self, queen: Queen) -> None:
        await queen.push_items(*({"queue": "big", "payload": [n, "x" * 40_000]} for n in range(3)))
        for n in range(3):
            popped = await queen.pop("big", consumerGroup="g", batch=10)
            assert self.numbers(popped) == [n]
            await queen.ack_batch(popped)

    async def test_the_bound_is_over_all_partitions_of_a_request(self, queen: Queen) -> None:
        for partition in range(6):
            await self.push(queen, f"p{partition}", partition)
        seen: list[int] = []
        for _ in range(10):
            popped = await queen.pop("big", consumerGroup="g", batch=10, partitions=6)
            assert len(popped) <= 3
            seen += self.numbers(popped)
        assert sorted(seen) == list(range(6))

    async def test_messages_that_failed_in_between_leave_holes_that_are_respected(self, queen: Queen) -> None:
        await self.push(queen, "p", *range(6))
        popped = await queen.pop("big", consumerGroup="g", batch=6)
        await queen.ack(popped[1])
        await queen.ack(popped[0], "failed")
        await queen.wait("big", consumerGroup="other", batch=1)
        again = await queen.wait("big", consumerGroup="g", batch=6)
        assert self.numbers(again) == [0, 2]
        await queen.ack_batch(again)
        assert self.numbers(await queen.pop("big", consumerGroup="g", batch=6)) == [3, 4]

    @pytest.mark.parametrize("auto_ack", [False, True])
    async def test_merged_pops_are_all_served_although_a_call_brings_only_so_much(
        self, queen: Queen, auto_ack: bool
    ) -> None:
        """Twenty requests share calls of at most 50,000 bytes; none of them is told that there is nothing."""
        for partition in range(20):
            await self.push(queen, f"p{partition}", partition)
        [first] = self.numbers(await queen.pop("big", consumerGroup="g", batch=1, autoAck=True))
        ask = [queen.pop("big", consumerGroup="g", batch=2, autoAck=auto_ack) for _ in range(19)]
        answers = [self.numbers(popped) for popped in await asyncio.gather(*ask)]
        assert all(answers)
        assert sorted([first, *(n for numbers in answers for n in numbers)]) == list(range(20))

    async def test_merged_pops_of_several_groups(self, queen: Queen) -> None:
        await self.push(queen, "p", 0, 1, 2)
        groups = [f"g{number}" for number in range(8)]
        for group in groups:
            popped = await queen.pop("big", consumerGroup=group, batch=1)
            await queen.ack_batch(popped)
        answers = await asyncio.gather(*(queen.pop("big", consumerGroup=group, batch=5) for group in groups))
        assert [self.numbers(popped) for popped in answers] == [[1, 2]] * 8
