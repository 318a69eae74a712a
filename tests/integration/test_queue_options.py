"""The options of a queue that have no file of their own: size, time to live, dead-letter policies."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from integration.queen import Queen, age_messages, data, expire_leases, stored
from queenmq.server import Server
from queenmq.services.retention import Retention


class TestMaxSize:
    async def test_what_does_not_fit_is_refused_and_the_rest_is_stored(self, queen: Queen) -> None:
        await queen.configure("small", maxSize=3)
        results = await queen.push_items(
            *({"queue": "small", "payload": n, "transactionId": f"t{n}"} for n in range(5)), {"queue": "other"}
        )
        assert [result["status"] for result in results] == ["queued"] * 3 + ["failed"] * 2 + ["queued"]
        for index in (3, 4):
            assert (results[index]["index"], results[index]["transaction_id"]) == (index, f"t{index}")
            assert "would exceed max capacity" in results[index]["error"]
        assert data(await queen.pop("small", batch=10)) == [0, 1, 2]

    async def test_it_counts_over_all_partitions(self, queen: Queen) -> None:
        await queen.configure("small", maxSize=3)
        results = await queen.push_items(*({"queue": "small", "partition": f"p{n}"} for n in range(5)))
        assert [result["status"] for result in results].count("queued") == 3

    async def test_there_is_room_again_when_everyone_has_read(self, queen: Queen) -> None:
        await queen.configure("small", maxSize=2)
        await queen.push("small", 1, 2)
        await queen.pop("small", consumerGroup="slow")
        [first, second] = await queen.pop("small", consumerGroup="fast", batch=2)
        await queen.ack_batch([first, second])
        assert await self.push(queen) == "failed"
        await expire_and_drain(queen, "slow")
        assert await self.push(queen) == "queued"

    async def test_messages_in_progress_still_count(self, queen: Queen) -> None:
        await queen.configure("small", maxSize=1)
        await queen.push("small", 1)
        [message] = await queen.pop("small")
        assert await self.push(queen) == "failed"
        await queen.ack(message)
        assert await self.push(queen) == "queued"

    async def test_a_duplicate_is_a_duplicate_also_in_a_full_queue(self, queen: Queen) -> None:
        await queen.configure("small", maxSize=1)
        await queen.push("small", "there")
        results = await queen.push("small", "there", "new")
        assert [result["status"] for result in results] == ["duplicate", "failed"]

    async def test_concurrent_pushes_do_not_share_the_room(self, queen: Queen) -> None:
        await queen.configure("small", maxSize=10)
        answers = await asyncio.gather(
            *(queen.push_items({"queue": "small", "partition": f"p{n % 4}"}) for n in range(30))
        )
        assert [result["status"] for [result] in answers].count("queued") == 10

    async def test_a_larger_limit_lets_more_in(self, queen: Queen) -> None:
        await queen.configure("small", maxSize=1)
        await queen.push("small", 1)
        assert await self.push(queen) == "failed"
        await queen.configure("small", maxSize=0)
        assert await self.push(queen) == "queued"

    @staticmethod
    async def push(queen: Queen) -> str:
        [result] = await queen.push("small", {"another": True})
        return result["status"]


async def expire_and_drain(queen: Queen, group: str) -> None:
    await queen.seek(group, "small", timestamp="1970-01-01T00:00:00Z")
    await queen.drain("small", consumerGroup=group)


class TestTtl:
    async def test_expired_messages_are_not_delivered(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", ttl=60)
        await queen.push("orders", "expired", "expired too")
        await age_messages(sql, "orders", 61)
        await queen.push("orders", "fresh")
        assert data(await queen.drain("orders")) == ["fresh"]
        assert data(await queen.drain("orders", consumerGroup="another")) == ["fresh"]
        assert await queen.dead_letters() == []

    async def test_it_is_exact(self, queen: Queen) -> None:
        await queen.configure("orders", ttl=1, leaseTime=1)
        await queen.push("orders", "m")
        assert data(await queen.pop("orders")) == ["m"]
        # The lease ends when the message is as old as its time to live.
        assert await queen.pop("orders", wait=True, timeout=1500) == []

    async def test_it_holds_only_if_it_was_given(self, queen: Queen, sql: asyncpg.Connection) -> None:
        assert (await queen.configure("orders"))["options"]["ttl"] == 3600
        await queen.push("orders", "old")
        await age_messages(sql, "orders", 86_400)
        assert data(await queen.pop("orders")) == ["old"]

    async def test_zero_means_never(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", ttl=0)
        await queen.push("orders", "old")
        await age_messages(sql, "orders", 86_400)
        assert data(await queen.pop("orders")) == ["old"]

    async def test_a_delivered_message_may_be_finished_after_it(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", ttl=60)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        await age_messages(sql, "orders", 61)
        assert (await queen.ack(message))["success"]

    async def test_with_a_dead_letter_queue_they_go_there(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", ttl=60, deadLetterQueue=True)
        await queen.push("orders", "done", "expired")
        [message] = await queen.pop("orders")
        await queen.ack(message)
        await age_messages(sql, "orders", 61)
        assert await queen.pop("orders") == []
        [letter] = await queen.dead_letters("orders")
        assert (letter["data"], letter["consumerGroup"]) == ("expired", "__QUEUE_MODE__")
        assert "ttl" in letter["errorMessage"]

    async def test_a_sweep_deletes_them(self, queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", ttl=60, deadLetterQueue=True)
        await queen.pop("orders")
        await queen.push("orders", "expired")
        await age_messages(sql, "orders", 61)
        await Retention(server.broker.operation_runner, server.broker.settings.retention).work()
        assert await stored(sql, "orders") == 0
        assert data(await queen.dead_letters("orders")) == ["expired"]

    async def test_a_sweep_loses_nothing_that_a_consumer_holds(
        self, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        """The consumer dies after the sweep: the message has to be among the dead letters."""
        await queen.configure("orders", ttl=60, deadLetterQueue=True)
        await queen.push("orders", "held")
        await queen.pop("orders")
        await age_messages(sql, "orders", 61)
        await Retention(server.broker.operation_runner, server.broker.settings.retention).work()
        await expire_leases(sql)
        assert await queen.pop("orders") == []
        assert data(await queen.dead_letters("orders")) == ["held"]

    async def test_a_sweep_dead_letters_also_what_nobody_has_ever_popped(
        self, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        await queen.configure("orders", ttl=60, deadLetterQueue=True)
        await queen.push("orders", "expired")
        await age_messages(sql, "orders", 61)
        await Retention(server.broker.operation_runner, server.broker.settings.retention).work()
        assert data(await queen.dead_letters("orders")) == ["expired"]


class TestDlqAfterMaxRetries:
    async def test_an_expired_lease_is_a_failed_attempt(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", dlqAfterMaxRetries=True, retryLimit=2)
        await queen.push("orders", "poison", "next")
        for attempt in range(3):
            [message] = await queen.pop("orders")
            assert (message["data"], message["retryCount"]) == ("poison", attempt)
            await expire_leases(sql)
        [message] = await queen.pop("orders")
        assert (message["data"], message["retryCount"]) == ("next", 0)
        [letter] = await queen.dead_letters("orders")
        assert (letter["data"], letter["retryCount"]) == ("poison", 2)

    async def test_only_the_first_unfinished_message_is_blamed(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", dlqAfterMaxRetries=True, retryLimit=0)
        await queen.push("orders", *"abcd")
        batch = await queen.pop("orders", batch=3)
        await queen.ack(batch[0])
        await expire_leases(sql)
        assert data(await queen.pop("orders", batch=4)) == ["c", "d"]
        assert data(await queen.dead_letters("orders")) == ["b"]

    async def test_what_was_behind_it_has_not_failed(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", dlqAfterMaxRetries=True, retryLimit=1, retryDelay=0)
        await queen.push("orders", "poison", "next")
        for attempt in range(2):
            assert [m["retryCount"] for m in await queen.pop("orders", batch=2)] == [attempt, 0]
            await expire_leases(sql)
        [message] = await queen.pop("orders", batch=2)
        assert (message["data"], message["retryCount"]) == ("next", 0)
        assert not (await queen.ack(message, "failed"))["dlq"]

    async def test_expiries_and_failures_count_together(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", dlqAfterMaxRetries=True, retryLimit=1, retryDelay=0)
        await queen.push("orders", "m")
        await queen.pop("orders")
        await expire_leases(sql)
        [message] = await queen.pop("orders")
        assert message["retryCount"] == 1
        assert (await queen.ack(message, "failed"))["dlq"]

    async def test_a_client_that_went_away_does_not_count(self, queen: Queen, server: Server) -> None:
        await queen.configure("orders", dlqAfterMaxRetries=True, retryLimit=0)
        await queen.push("orders", "m")
        [message] = await queen.pop("orders")
        server.broker.give_back((message["leaseId"], "orders"))
        assert data(await queen.wait("orders")) == ["m"]

    async def test_the_last_message_leaves_an_empty_queue(self, queen: Queen, sql: asyncpg.Connection) -> None:
        await queen.configure("orders", dlqAfterMaxRetries=True, retryLimit=0)
        await queen.push("orders", "poison")
        await queen.pop("orders")
        await expire_leases(sql)
        assert await queen.pop("orders") == []
        await queen.push("orders", "next")
        assert data(await queen.pop("orders")) == ["next"]


@pytest.mark.parametrize("dead_letter_queue", [False, True])
async def test_exhausted_messages_always_become_dead_letters(queen: Queen, dead_letter_queue: bool) -> None:
    await queen.configure("orders", retryLimit=0, deadLetterQueue=dead_letter_queue)
    await queen.push("orders", "m")
    [message] = await queen.pop("orders")
    assert (await queen.ack(message, "failed"))["dlq"]
    assert data(await queen.dead_letters("orders")) == ["m"]
