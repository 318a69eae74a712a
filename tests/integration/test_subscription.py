"""Where a consumer group starts, and that it is asked only once."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from server_settings import settings_with

from integration.queen import Json, Queen, data, parked
from queenmq.config import Settings
from queenmq.server import Server

FAR_PAST = "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "start", [{"subscriptionMode": "new"}, {"subscriptionMode": "new-only"}, {"subscriptionFrom": "now"}]
)
async def test_new_skips_history_and_sees_what_comes_later(queen: Queen, start: Json) -> None:
    await queen.push("orders", "history")
    assert await queen.pop("orders", consumerGroup="g", **start) == []
    await queen.push("orders", "later")
    assert data(await queen.drain("orders", consumerGroup="g", **start)) == ["later"]


@pytest.mark.parametrize("mode", ["all", "from_beginning", "", None])
async def test_everything_else_starts_at_the_first_stored_message(queen: Queen, mode: str | None) -> None:
    await queen.push("orders", 1, 2)
    start = {} if mode is None else {"subscriptionMode": mode}
    assert data(await queen.drain("orders", consumerGroup="g", **start)) == [1, 2]


async def test_the_queue_mode_always_starts_at_the_beginning(queen: Queen) -> None:
    await queen.push("orders", 1)
    assert data(await queen.pop("orders", subscriptionMode="new")) == [1]


class TestTimestamp:
    async def times(self, queen: Queen) -> list[str]:
        for n in range(4):
            await queen.push("orders", n)
        return [message["createdAt"] for message in await queen.drain("orders")]

    async def test_it_is_inclusive(self, queen: Queen) -> None:
        times = await self.times(queen)
        popped = await queen.drain("orders", consumerGroup="g", subscriptionFrom=times[2])
        assert data(popped) == [2, 3]

    async def test_it_may_lie_before_or_behind_everything(self, queen: Queen) -> None:
        times = await self.times(queen)
        assert len(await queen.drain("orders", consumerGroup="a", subscriptionFrom=FAR_PAST)) == 4
        behind = datetime.fromisoformat(times[3]) + timedelta(microseconds=1)
        assert await queen.drain("orders", consumerGroup="b", subscriptionFrom=behind.isoformat()) == []

    async def test_it_may_have_any_offset_or_none(self, queen: Queen) -> None:
        times = await self.times(queen)
        moment = datetime.fromisoformat(times[1])
        shifted = moment.astimezone(UTC) + timedelta(hours=2)
        spellings = (times[1].removesuffix("Z"), shifted.isoformat().replace("+00:00", "+02:00"))
        for number, spelling in enumerate(spellings):
            popped = await queen.drain("orders", consumerGroup=f"g{number}", subscriptionFrom=spelling)
            assert data(popped) == [1, 2, 3]

    async def test_it_wins_over_the_mode(self, queen: Queen) -> None:
        times = await self.times(queen)
        start = {"subscriptionFrom": times[3], "subscriptionMode": "all"}
        assert data(await queen.drain("orders", consumerGroup="g", **start)) == [3]


class TestTheFirstMessageIsNotHistory:
    """A group that waits with `new` is registered by its first pop, whether there is anything to claim or not."""

    async def test_on_an_empty_queue(self, queen: Queen) -> None:
        await queen.configure("orders")
        assert await queen.pop("orders", consumerGroup="g", subscriptionMode="new") == []
        await queen.push("orders", "first")
        assert data(await queen.pop("orders", consumerGroup="g", subscriptionMode="new")) == ["first"]

    async def test_on_a_queue_that_does_not_exist_yet(self, queen: Queen) -> None:
        assert await queen.pop("orders", consumerGroup="g", subscriptionMode="new") == []
        await queen.push("orders", "first")
        assert data(await queen.pop("orders", consumerGroup="g", subscriptionMode="new")) == ["first"]

    async def test_on_a_partition_that_does_not_exist_yet(self, queen: Queen) -> None:
        start = {"consumerGroup": "g", "subscriptionMode": "new"}
        assert await queen.pop("orders", "p", **start) == []
        await queen.push("orders", "first", partition="p")
        assert data(await queen.pop("orders", "p", **start)) == ["first"]

    async def test_for_a_long_poll(self, queen: Queen, server: Server) -> None:
        for n in range(10):
            start = {"consumerGroup": "g", "subscriptionMode": "new"}
            poll = asyncio.create_task(queen.wait(f"orders-{n}", **start))
            await parked(server)
            await queen.push(f"orders-{n}", "first")
            assert data(await poll) == ["first"]

    async def test_for_a_long_poll_over_a_namespace(self, queen: Queen, server: Server) -> None:
        start = {"consumerGroup": "g", "subscriptionMode": "new", "wait": True, "timeout": 2000}
        poll = asyncio.create_task(queen.pop_matching(namespace="sales", **start))
        await parked(server)
        await queen.push("sales.new", "first")
        assert data(await poll) == ["first"]


async def test_partitions_that_appear_later_are_read_from_their_first_message(queen: Queen) -> None:
    await queen.push("orders", "history", partition="old")
    start = {"consumerGroup": "g", "subscriptionMode": "new"}
    assert await queen.pop("orders", **start) == []
    await queen.push("orders", "m", partition="new")
    assert data(await queen.drain("orders", consumerGroup="g")) == ["m"]


async def test_follow_up_pops_keep_the_position_whatever_their_mode(queen: Queen) -> None:
    await queen.push("orders", 1, 2, 3)
    [first] = await queen.pop("orders", consumerGroup="g", subscriptionMode="all")
    await queen.ack(first)
    for start in ({}, {"subscriptionMode": "new"}, {"subscriptionFrom": "now"}, {"subscriptionFrom": FAR_PAST}):
        [message] = await queen.pop("orders", consumerGroup="g", **start)
        assert message["data"] == 2
        await queen.ack(message, "retry")
    assert data(await queen.drain("orders", consumerGroup="g")) == [2, 3]


async def test_the_first_registration_wins(queen: Queen) -> None:
    await queen.push("orders", "history")
    assert await queen.pop("orders", consumerGroup="g", subscriptionMode="new") == []
    assert await queen.pop("orders", consumerGroup="g", subscriptionMode="all") == []
    assert await queen.pop("orders", "Default", consumerGroup="g", subscriptionFrom=FAR_PAST) == []


class TestPartitionForm:
    async def test_it_subscribes_to_that_partition_alone(self, queen: Queen) -> None:
        for partition in ("x", "y"):
            await queen.push("orders", f"history {partition}", partition=partition)
        assert await queen.pop("orders", "x", consumerGroup="g", subscriptionMode="new") == []
        await queen.push("orders", "later x", partition="x")
        assert sorted(data(await queen.drain("orders", consumerGroup="g"))) == ["history y", "later x"]

    async def test_its_stored_timestamp_belongs_to_the_partition(self, queen: Queen) -> None:
        for partition in ("x", "y"):
            await queen.push("orders", f"history {partition}", partition=partition)
        await queen.pop("orders", "x", consumerGroup="g", subscriptionMode="new")
        await queen.delete_group("g", deleteMetadata=False)
        assert await queen.pop("orders", "x", consumerGroup="g") == []
        assert data(await queen.pop("orders", "y", consumerGroup="g")) == ["history y"]

    async def test_the_queue_wide_subscription_was_there_first(self, queen: Queen) -> None:
        await queen.push("orders", "history", partition="x")
        assert await queen.pop("orders", consumerGroup="g", subscriptionMode="new") == []
        assert await queen.pop("orders", "x", consumerGroup="g", subscriptionMode="all") == []


class TestDefaultMode:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(pop={"default_subscription_mode": "new"})

    async def test_it_is_for_groups_that_do_not_say(self, queen: Queen) -> None:
        await queen.push("orders", "history")
        assert await queen.pop("orders", consumerGroup="silent") == []
        assert data(await queen.pop("orders", consumerGroup="explicit", subscriptionMode="all")) == ["history"]
        assert data(await queen.pop("orders", consumerGroup="dated", subscriptionFrom=FAR_PAST)) == ["history"]
        assert data(await queen.pop("orders")) == ["history"]
        await queen.push("orders", "later")
        assert data(await queen.pop("orders", consumerGroup="silent")) == ["later"]


class TestFiveThousandPartitions:
    COUNT = 5000
    HISTORY = """
        WITH made AS (
            INSERT INTO queen.partitions (queue_id, name)
            SELECT q.id, 'p' || n FROM queen.queues q, generate_series(1, $1) AS n RETURNING id
        )
        SELECT count(*) FROM made
    """

    async def test_new_and_timestamp_register_within_seconds_and_get_exactly_the_new_ones(
        self, queen: Queen, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("orders")
        await sql.fetchval(self.HISTORY, self.COUNT)
        await sql.execute("INSERT INTO queen.messages (partition_id) SELECT id FROM queen.partitions")
        starts: list[Json] = [
            {"consumerGroup": "new", "subscriptionMode": "new"},
            {"consumerGroup": "dated", "subscriptionFrom": datetime.now(UTC).isoformat()},
        ]
        for start in starts:
            started = time.monotonic()
            assert await queen.pop("orders", **start) == []
            assert time.monotonic() - started < 10
        await self.push(queen)
        for start in starts:
            messages = await queen.drain("orders", partitions=250, **start)
            assert data(messages) == ["new"] * self.COUNT
            assert len({message["partition"] for message in messages}) == self.COUNT

    async def push(self, queen: Queen) -> None:
        items = [{"queue": "orders", "partition": f"p{n}", "payload": "new"} for n in range(1, self.COUNT + 1)]
        for start in range(0, self.COUNT, 500):
            await queen.push_items(*items[start : start + 500])


class TestTooManyGroups:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(limits={"max_groups": 2})

    async def test_a_further_one_is_refused_until_another_is_deleted(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        for group in ("a", "b", "a"):
            await queen.pop("orders", consumerGroup=group)
        for path in ("/api/v1/pop/queue/orders", "/api/v1/pop/queue/orders/partition/Default"):
            answer = await queen.http.get(path, params={"consumerGroup": "c"})
            assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
            assert "queue orders has 2 groups" in answer.json()["error"]
            assert answer.headers["Retry-After"] == "60"
        await queen.delete_group("b")
        assert data(await queen.pop("orders", consumerGroup="c")) == [1]

    async def test_a_queue_that_is_full_does_not_keep_a_group_from_others_of_the_namespace(self, queen: Queen) -> None:
        for queue in ("shop.full", "shop.free"):
            await queen.push(queue, queue)
        for group in ("a", "b"):
            await queen.pop("shop.full", consumerGroup=group)
        assert data(await queen.pop_matching(namespace="shop", consumerGroup="c")) == ["shop.free"]


class TestChangingIt:
    """POST …/subscription affects only partitions in which the group has no position."""

    async def test_a_group_without_positions_starts_there(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        await queen.pop("orders", consumerGroup="g", subscriptionMode="new")
        await queen.delete_group("g", deleteMetadata=False)
        answer = await queen.subscribe_from("g", "2020-01-02T03:04:05+01:00")
        assert answer == {
            "success": True,
            "consumerGroup": "g",
            "newTimestamp": "2020-01-02T02:04:05.000Z",
            "rowsUpdated": 1,
        }
        assert data(await queen.drain("orders", consumerGroup="g")) == [1]

    async def test_a_position_is_not_moved(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        await queen.pop("orders", consumerGroup="g", subscriptionMode="new")
        assert (await queen.subscribe_from("g", FAR_PAST))["rowsUpdated"] == 1
        assert await queen.pop("orders", consumerGroup="g") == []

    async def test_all_queues_of_the_group_are_changed(self, queen: Queen) -> None:
        for queue in ("a", "b"):
            await queen.push(queue, 1)
            await queen.pop(queue, consumerGroup="g", subscriptionMode="new")
        await queen.pop("a", "Default", consumerGroup="other", subscriptionMode="new")
        assert (await queen.subscribe_from("g", FAR_PAST))["rowsUpdated"] == 2
        assert (await queen.subscribe_from("unknown", FAR_PAST))["rowsUpdated"] == 0

    async def test_the_timestamp_is_required(self, queen: Queen) -> None:
        path = "/api/v1/consumer-groups/g/subscription"
        missing = "Missing subscriptionTimestamp in request body"
        assert (await queen.refused(path, {}))["error"] == missing
        assert (await queen.refused(path, None))["error"] == missing
        assert (await queen.refused(path, {"subscriptionTimestamp": "soon"}))["field"] == "subscriptionTimestamp"


class TestForgettingTheGroup:
    async def test_the_next_pop_starts_as_a_new_group(self, queen: Queen) -> None:
        for queue in ("a", "b"):
            await queen.push_items(*({"queue": queue, "partition": f"p{n}"} for n in range(3)))
            await queen.pop(queue, consumerGroup="g", subscriptionMode="new")
        answer = await queen.delete_group("g")
        expected = {"success": True, "consumerGroup": "g", "deletedPartitions": 6, "metadataDeleted": True}
        assert answer == expected
        for queue in ("a", "b"):
            assert len(await queen.drain(queue, consumerGroup="g", partitions=3)) == 3

    async def test_in_one_queue_only(self, queen: Queen) -> None:
        for queue in ("a", "b"):
            await queen.push(queue, 1, 2)
            await queen.drain(queue, consumerGroup="g")
        assert await queen.pop("a", consumerGroup="g") == []
        assert await queen.delete_group("g", "a") == {
            "success": True,
            "consumerGroup": "g",
            "queueName": "a",
            "deletedPartitions": 1,
            "metadataDeleted": True,
        }
        assert data(await queen.drain("a", consumerGroup="g")) == [1, 2]
        assert await queen.pop("b", consumerGroup="g") == []

    async def test_without_its_metadata_the_stored_timestamp_still_applies(self, queen: Queen) -> None:
        await queen.push("orders", "history")
        await queen.pop("orders", consumerGroup="g", subscriptionMode="new")
        await queen.push("orders", "later")
        await queen.drain("orders", consumerGroup="g")
        answer = await queen.delete_group("g", deleteMetadata="False")
        assert (answer["deletedPartitions"], answer["metadataDeleted"]) == (1, False)
        assert data(await queen.drain("orders", consumerGroup="g", subscriptionMode="all")) == ["later"]

    async def test_an_unknown_group_or_queue_is_no_error(self, queen: Queen) -> None:
        assert (await queen.delete_group("unknown"))["deletedPartitions"] == 0
        assert (await queen.delete_group("unknown", "unknown"))["deletedPartitions"] == 0

    async def test_other_groups_stay_and_leases_of_this_one_end(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        [mine] = await queen.pop("orders", consumerGroup="mine")
        [theirs] = await queen.pop("orders", consumerGroup="theirs")
        await queen.delete_group("mine")
        assert (await queen.ack(mine))["error"] == "Invalid or expired lease"
        assert (await queen.ack(theirs))["success"]

    async def test_the_queue_mode_can_be_forgotten_too(self, queen: Queen) -> None:
        await queen.push("orders", 1)
        await queen.drain("orders")
        assert (await queen.delete_group("__QUEUE_MODE__", "orders"))["deletedPartitions"] == 1
        assert data(await queen.drain("orders")) == [1]

    async def test_a_name_is_decoded(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1)
        await queen.pop("orders", consumerGroup="a/b c")
        assert (await queen.delete_group("a%2Fb%20c"))["deletedPartitions"] == 1
        assert await sql.fetchval("SELECT count(*) FROM queen.consumer_groups") == 0
