"""Filters: a group gets what its filter lets through, in its order; the rest is passed over and counted."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from server_settings import settings_with

from integration.queen import Queen, data, expire_leases, stored
from queenmq.config import Settings
from queenmq.core.filters import parse_filter

_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9).map(
    lambda name: "'" + name.replace("'", "''") + "'"
)
EVEN = "headers.kind = 'even'"


@pytest.fixture
def settings() -> Settings:
    return settings_with(server={"encryption_key": bytes(32)})


async def set_filter(queen: Queen, text: str | None, group: str = "g", queue: str = "q", status: int = 200) -> Any:
    path = f"/api/v1/consumer-groups/{group}/queues/{queue}/filter"
    answer = await queen.http.post(path, json={"filter": text})
    assert answer.status_code == status, answer.text
    return answer.json()


async def passed_over(queen: Queen, group: str = "g", queue: str = "q") -> int:
    answer = await queen.http.get(f"/api/v1/consumer-groups/{group}/queues/{queue}/filter")
    return int(answer.json()["passedOver"])


async def push_numbers(queen: Queen, count: int, partition: str = "Default", first: int = 0) -> None:
    items = [
        {"queue": "q", "partition": partition, "payload": {"n": n}, "headers": {"kind": "odd" if n % 2 else "even"}}
        for n in range(first, first + count)
    ]
    await queen.push_items(*items)


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [message["data"]["n"] for message in messages]


@pytest.fixture
async def queue(queen: Queen) -> str:
    await queen.configure("q", retryLimit=1, retryDelay=0)
    return "q"


class TestDelivery:
    async def test_only_what_fits_comes_in_order_and_the_rest_is_counted(self, queen: Queen, queue: str) -> None:
        shown = await set_filter(queen, EVEN)
        assert (shown["filter"], shown["passedOver"]) == (EVEN, 0)
        await push_numbers(queen, 10)
        first = await queen.pop("q", consumerGroup="g", batch=2)
        assert numbers(first) == [0, 2]
        await queen.ack_batch(first)
        assert numbers(await queen.drain("q", consumerGroup="g")) == [4, 6, 8]
        assert await passed_over(queen) == 5
        assert numbers(await queen.drain("q", consumerGroup="other")) == list(range(10))

    async def test_a_group_that_has_passed_over_everything_sleeps(
        self, queen: Queen, queue: str, sql: asyncpg.Connection
    ) -> None:
        await set_filter(queen, "headers.kind = 'none'")
        await push_numbers(queen, 120)
        assert await queen.pop("q", consumerGroup="g") == []
        row = await sql.fetchrow("SELECT position, ready_at, passed_over FROM queen.partition_consumers")
        assert tuple(row) == (120, None, 120)
        await set_filter(queen, None)
        await push_numbers(queen, 1, first=120)
        assert numbers(await queen.pop("q", consumerGroup="g")) == [120]

    async def test_a_long_poll_goes_on_until_something_fits(self, queen: Queen, queue: str) -> None:
        await set_filter(queen, "payload.n >= 2000")
        for first in range(0, 2100, 300):
            await push_numbers(queen, 300, first=first)
        found = await queen.wait("q", consumerGroup="g")
        assert found[0]["data"] == {"n": 2000}
        assert found[0]["offset"] == 2001

    async def test_consumed_at_delivery(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        await set_filter(queen, EVEN)
        await push_numbers(queen, 9)
        found: list[int] = []
        while popped := await queen.pop("q", consumerGroup="g", autoAck=True, batch=2):
            found += numbers(popped)
        assert found == [0, 2, 4, 6, 8]
        row = await sql.fetchrow("SELECT position, done::text, ready_at, total_consumed FROM queen.partition_consumers")
        assert tuple(row) == (9, "{}", None, 5)

    async def test_several_partitions_and_the_partition_form(self, queen: Queen, queue: str) -> None:
        await set_filter(queen, EVEN)
        for partition in ("a", "b", "c"):
            await push_numbers(queen, 4, partition)
        await queen.push_items({"queue": "q", "partition": "d", "payload": {"n": 1}})
        assert numbers(await queen.pop("q", "a", consumerGroup="g", batch=10)) == [0, 2]
        assert await queen.pop("q", "d", consumerGroup="g") == []
        rest = await queen.pop("q", consumerGroup="g", batch=10, partitions=10)
        assert numbers(rest) == [0, 2, 0, 2]

    async def test_failing_expiring_and_seeking(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        await set_filter(queen, EVEN)
        await push_numbers(queen, 6)
        [message] = await queen.pop("q", consumerGroup="g")
        await queen.ack(message, "failed")
        [again] = await queen.pop("q", consumerGroup="g")
        assert (again["data"]["n"], again["retryCount"]) == (0, 1)
        await queen.ack(again, "failed")
        assert [letter["data"]["n"] for letter in await queen.dead_letters("q")] == [0]
        leased = await queen.pop("q", consumerGroup="g", batch=10)
        assert numbers(leased) == [2, 4]
        await expire_leases(sql)
        assert numbers(await queen.drain("q", consumerGroup="g")) == [2, 4]
        await queen.seek("g", "q", timestamp="2020-01-01T00:00:00Z")
        assert numbers(await queen.drain("q", consumerGroup="g")) == [0, 2, 4]

    async def test_another_filter_is_for_what_is_unread(self, queen: Queen, queue: str) -> None:
        await set_filter(queen, EVEN)
        await push_numbers(queen, 4)
        [first] = await queen.pop("q", consumerGroup="g")
        await queen.ack(first)
        await set_filter(queen, "headers.kind = 'odd'")
        await push_numbers(queen, 2, first=4)
        # The first pop had examined 1 and 3, too.
        assert numbers(await queen.drain("q", consumerGroup="g")) == [5]

    async def test_a_delay_holds_what_fits(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        await queen.configure("q", delayedProcessing=3600)
        await set_filter(queen, EVEN)
        await push_numbers(queen, 4)
        assert await queen.pop("q", consumerGroup="g", batch=10) == []
        await queen.configure("q", delayedProcessing=0)
        await queen.seek("g", "q", timestamp="2020-01-01T00:00:00Z")
        assert numbers(await queen.pop("q", consumerGroup="g", batch=10)) == [0, 2]

    async def test_a_take_follows_it(self, queen: Queen, queue: str) -> None:
        await set_filter(queen, EVEN)
        await push_numbers(queen, 6)
        answer = await queen.pop_answer("q", consumerGroup="g", batch=1)
        taken = await queen.take(answer["leaseId"], "q", consumerGroup="g", batch=1)
        assert numbers(taken["taken"]["messages"]) == [2]

    async def test_one_call_looks_at_a_bounded_number(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        """A pop that shares its call with others keeps them waiting for a moment only; the next one goes on."""
        await set_filter(queen, "payload.n = -1")
        payload = {"n": 1, "filling": [1] * 30_000}
        await queen.push_items(*({"queue": "q", "payload": payload} for _ in range(120)))
        asked = 0
        while await sql.fetchval("SELECT coalesce(min(position), 0) FROM queen.partition_consumers") < 120:
            assert await queen.pop("q", consumerGroup="g") == []
            asked += 1
        assert 1 < asked < 5
        assert await passed_over(queen) == 120


class TestWhatItReads:
    @pytest.mark.parametrize(
        ("text", "fits"),
        [
            ("payload.total > 10", ["large"]),
            ("payload.total > 10 OR NOT EXISTS payload.total", ["large", "text", "bare"]),
            ("payload.tags = 'b'", ["small"]),
            ("payload.address.city = 'Rome' AND headers.type != 'x'", ["large"]),
            ("headers.type STARTS WITH 'o'", ["large"]),
            ("payload.total = '12'", []),
            ("payload = 'bare'", ["bare"]),
            ("payload.flag = true OR payload.nothing = null", ["small", "large"]),
        ],
    )
    async def test_fields(self, queen: Queen, queue: str, text: str, fits: list[str]) -> None:
        await set_filter(queen, text)
        await queen.push_items(
            {"queue": "q", "payload": {"name": "small", "total": 10, "tags": ["a", "b"], "flag": True}},
            {
                "queue": "q",
                "payload": {"name": "large", "total": 12, "address": {"city": "Rome"}, "nothing": None},
                "headers": {"type": "order"},
            },
            {"queue": "q", "payload": {"name": "text"}},
            {"queue": "q", "payload": "bare"},
        )
        found = data(await queen.pop("q", consumerGroup="g", batch=10))
        assert [one["name"] if isinstance(one, dict) else one for one in found] == fits

    async def test_what_cannot_be_read_is_delivered(self, queen: Queen, queue: str) -> None:
        """An odd payload must neither stop the group nor get lost: NUL and huge numbers are JSON, but no jsonb."""
        await set_filter(queen, "payload.n = 1")
        body = b'{"items": [{"queue": "q", "payload": {"n": "\\u0000"}}, {"queue": "q", "payload": {"n": 1e999999}},'
        body += b'{"queue": "q", "payload": {"n": 2}}, {"queue": "q", "payload": {"n": 1}}]}'
        answer = await queen.http.post("/api/v1/push", content=body)
        assert answer.status_code == 201
        popped = await queen.http.get("/api/v1/pop/queue/q", params={"consumerGroup": "g", "batch": 10})
        assert popped.content.count(b'"transactionId"') == 3

    async def test_an_encrypted_queue(self, queen: Queen, queue: str) -> None:
        await queen.configure("q", encryptionEnabled=True)
        refusal = await set_filter(queen, "payload.n = 1", status=400)
        assert "only headers can be filtered" in refusal["error"]
        await set_filter(queen, EVEN)
        await push_numbers(queen, 4)
        assert numbers(await queen.drain("q", consumerGroup="g")) == [0, 2]

    async def test_a_queue_that_became_encrypted_delivers_what_it_cannot_read(self, queen: Queen, queue: str) -> None:
        await set_filter(queen, "payload.n = 1")
        await queen.configure("q", encryptionEnabled=True)
        await push_numbers(queen, 3)
        assert numbers(await queen.drain("q", consumerGroup="g")) == [0, 1, 2]

    @hypothesis_settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        field=st.sampled_from(["payload", "payload.a", "headers.type"]) | _NAMES.map("payload[{}]".format),
        sign=st.sampled_from(["=", "!=", "<", "STARTS WITH"]),
        value=_NAMES,
    )
    async def test_what_is_accepted_is_a_jsonpath(
        self, sql: asyncpg.Connection, field: str, sign: str, value: str
    ) -> None:
        text = f"{field} {sign} {value}"
        await sql.fetchval("SELECT jsonb_path_match('{}', $1::text::jsonpath, '{}', true)", parse_filter(text).path)


class TestAdministration:
    async def test_refusals(self, queen: Queen, queue: str) -> None:
        assert "expected a field" in (await set_filter(queen, "x", status=400))["error"]
        assert "name one" in (await set_filter(queen, EVEN, group="__QUEUE_MODE__", status=400))["error"]
        await set_filter(queen, EVEN, queue="unknown", status=404)
        body = {"filter": EVEN, "partition": "p"}  # it would be ignored
        refusal = await queen.refused("/api/v1/consumer-groups/g/queues/q/filter", body)
        assert "unknown field 'partition'" in refusal["error"]
        assert (await queen.http.get("/api/v1/consumer-groups/g/queues/unknown/filter")).status_code == 404

    async def test_it_goes_with_its_group_and_its_queue(
        self, queen: Queen, queue: str, sql: asyncpg.Connection
    ) -> None:
        await set_filter(queen, EVEN)
        await push_numbers(queen, 2)
        await queen.pop("q", consumerGroup="g", batch=2)
        await queen.delete_group("g", "q")
        assert await sql.fetchval("SELECT count(*) FROM queen.group_filters") == 0
        assert await sql.fetchval("SELECT count(*) FROM queen.filtered") == 0
        await set_filter(queen, EVEN)
        await queen.delete_queue("q")
        assert await sql.fetchval("SELECT count(*) FROM queen.group_filters") == 0
        await push_numbers(queen, 2)
        assert len(await queen.pop("q", consumerGroup="g", batch=2)) == 2

    async def test_without_a_filter_pops_do_not_ask_for_one(
        self, queen: Queen, queue: str, sql: asyncpg.Connection
    ) -> None:
        assert not await sql.fetchval("SELECT has_filters FROM queen.queues")
        await set_filter(queen, EVEN)
        assert await sql.fetchval("SELECT has_filters FROM queen.queues")
        await set_filter(queen, None)
        assert not await sql.fetchval("SELECT has_filters FROM queen.queues")

    async def test_the_audit_of_accounts_agrees(self, queen: Queen, queue: str, sql: asyncpg.Connection) -> None:
        await set_filter(queen, EVEN)
        await push_numbers(queen, 7)
        await queen.drain("q", consumerGroup="g")
        row = await sql.fetchrow("SELECT total_consumed, passed_over, position FROM queen.partition_consumers")
        assert tuple(row) == (4, 3, 7)
        assert await stored(sql, "q") == 7
