"""Finding queues, groups, partitions and messages by what is remembered of them; and what that costs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import httpx
import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_settings import settings_with

from integration.queen import Json, Queen, until
from queenmq.config import Settings
from queenmq.reports.finding import words
from queenmq.server import Server
from queenmq.storage import finding_indexes
from queenmq.storage.statements import statement

SECRET = "a secret of more than thirty-two bytes"


def bearer(*queues: str) -> str:
    claims: Json = {"sub": "alice", "role": "admin"} | ({"queen": {"queues": queues}} if queues else {})
    return f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"


async def find(http: httpx.AsyncClient, q: str, **params: Any) -> Json:
    answer = await http.get("/api/v1/find", params={"q": q} | params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def names(rows: list[Json], key: str = "name") -> list[str]:
    return [row[key] for row in rows]


async def test_everything_by_part_of_its_name(http: httpx.AsyncClient, queen: Queen) -> None:
    await queen.push("Orders.eu", "order-312", "order-3129", "other", partition="customer-312")
    await queen.push("invoices", "x", partition="order/312")
    await queen.pop("Orders.eu", consumerGroup="order-mailer")
    found = await find(http, "order")
    assert names(found["queues"]) == ["Orders.eu"]
    assert [(one["name"], one["queue"]) for one in found["groups"]] == [("order-mailer", "Orders.eu")]
    assert names(found["partitions"]) == ["order/312"]
    assert names(found["messages"], "transactionId") == ["order-312", "order-3129"]
    assert found["complete"] is True
    exact = await find(http, "order-312")
    assert exact["messages"][0] | {"createdAt": "", "partitionId": ""} == {
        "queue": "Orders.eu",
        "partition": "customer-312",
        "partitionId": "",
        "transactionId": "order-312",
        "createdAt": "",
        "byHeader": False,
    }
    assert names((await find(http, "mer-31"))["partitions"]) == ["customer-312"]
    assert names((await find(http, "orders.eu/312"))["partitions"]) == ["customer-312"]
    assert names((await find(http, "ORDERS"))["queues"]) == ["Orders.eu"]
    assert len((await find(http, "order", limit=1))["messages"]) == 1
    assert (await find(http, "order", limit=1))["complete"] is False


@pytest.mark.parametrize("q", ["", "  ", "x" * 300])
async def test_what_is_no_question(http: httpx.AsyncClient, q: str) -> None:
    answer = await http.get("/api/v1/find", params={"q": q})
    assert (answer.status_code, answer.json()["field"]) == (400, "q")


@pytest.mark.parametrize("q", ["%", "_", "'", "\\", "a':*", "& | !", ":", "ä:ö", "Ä", "0" * 255, "/", "q/", "/p"])
async def test_nothing_in_a_question_is_special(http: httpx.AsyncClient, queen: Queen, q: str) -> None:
    await queen.push("plain", "t")
    await queen.push("odd", "t", partition=q)
    found = await find(http, q)
    assert q in names(found["partitions"])
    assert "plain" not in names(found["queues"])


@pytest.fixture
async def indexed(server: Server) -> AsyncIterator[None]:
    for kind in finding_indexes.INDEXES:
        await finding_indexes.make(server.database, kind, print)
    assert await finding_indexes.existing(server.database) == ["transactions", "headers"]
    yield
    for kind in finding_indexes.INDEXES:
        await finding_indexes.drop(server.database, kind, print)


async def _with_headers(queen: Queen) -> None:
    items = [
        {"queue": "q", "partition": f"p{n}", "payload": n, "transactionId": f"t{n}", "headers": {"country": country}}
        for n, country in enumerate(("IT", "DE", "IT"))
    ]
    await queen.push_items(*items)


async def test_messages_by_header(http: httpx.AsyncClient, queen: Queen) -> None:
    await _with_headers(queen)
    found = await find(http, "country:IT")
    assert sorted(names(found["messages"], "transactionId")) == ["t0", "t2"]
    assert {one["byHeader"] for one in found["messages"]} == {True}
    assert found["complete"] is True
    assert (await find(http, "country:FR"))["messages"] == []
    await queen.push("q", *[str(number) for number in range(100)], partition="p0")
    behind = await find(http, "country:IT")
    assert names(behind["messages"], "transactionId") == ["t2"]
    assert behind["complete"] is False  # the oldest of 101 was not looked at


async def test_partitions_that_were_written_last_are_examined_first(
    http: httpx.AsyncClient, queen: Queen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenmq.reports.finding.MOST_EXAMINED", 2)
    await _with_headers(queen)
    await http.post("/api/v1/stats/refresh")
    await queen.push("q", "x", partition="p0")
    await queen.push("q", "y", partition="p2")
    await http.post("/api/v1/stats/refresh")
    found = await find(http, "country:DE")
    assert (found["messages"], found["complete"]) == ([], False)
    assert len((await find(http, "country:IT"))["messages"]) == 2


async def test_with_indexes_every_message_is_examined(http: httpx.AsyncClient, queen: Queen, indexed: None) -> None:
    await _with_headers(queen)
    found = await find(http, "country:IT")
    assert (sorted(names(found["messages"], "transactionId")), found["complete"]) == (["t0", "t2"], True)
    assert names((await find(http, "t"))["messages"], "transactionId") == ["t0", "t1", "t2"]
    assert names((await find(http, "t1"))["messages"], "transactionId") == ["t1"]


async def test_of_a_header_that_many_messages_have_the_newest_are_found(
    http: httpx.AsyncClient, queen: Queen, indexed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has no order, and only so many of them are examined."""
    monkeypatch.setattr("queenmq.reports.finding.MOST_EXAMINED", 5)
    for number in range(12):
        item = {"partition": f"p{number % 3}", "transactionId": f"t{number}", "headers": {"country": "IT"}}
        await queen.push_items({"queue": "q", "payload": number} | item)
    await http.post("/api/v1/stats/refresh")
    found = await find(http, "country:IT", limit=3)
    assert (names(found["messages"], "transactionId"), found["complete"]) == (["t11", "t10", "t9"], False)


class TestWithTokens:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": SECRET})

    async def test_what_others_have_neither_hides_nor_shows(
        self, http: httpx.AsyncClient, indexed: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The index has the messages of all tenants, and so few of them are examined."""
        monkeypatch.setattr("queenmq.reports.finding.MOST_EXAMINED", 5)
        http.headers["Authorization"] = bearer()
        queen = Queen(http)
        headers = {"country": "IT"}
        for number in range(8):
            await queen.push_items({"queue": "theirs", "payload": 1, "transactionId": f"a{number}", "headers": headers})
        await queen.push_items({"queue": "mine", "payload": 1, "transactionId": "a9", "headers": headers})
        everything = await find(http, "a")
        assert (len(everything["messages"]), everything["complete"]) == (5, False)
        http.headers["Authorization"] = bearer("mine")
        assert [(one["queue"], one["transactionId"]) for one in (await find(http, "a"))["messages"]] == [("mine", "a9")]
        assert (await find(http, "a"))["complete"] is True
        assert names((await find(http, "country:IT"))["messages"], "transactionId") == ["a9"]
        http.headers["Authorization"] = bearer("nobodys")
        nothing: Json = {"queues": [], "groups": [], "partitions": [], "messages": []}
        assert await find(http, "a") == nothing | {"complete": True}


async def test_searches_leave_connections_to_others(http: httpx.AsyncClient, queen: Queen, server: Server) -> None:
    reports = server._app._context.reports
    await queen.push("q", "a")
    searches = ["/api/v1/find?q=a", "/api/v1/dlq?error=a", "/api/v1/dlq?from=2020-01-01T00:00:00Z"]
    searches.append("/api/v1/messages?header=a:b")
    async with AsyncExitStack() as others:
        for _ in range(server.broker.settings.limits.max_searches):
            await others.enter_async_context(reports._turns)
        waiting = [asyncio.create_task(http.get(path)) for path in searches]
        await until(lambda: reports.searches == len(searches))
        assert (await http.get("/api/v1/dlq?queue=q")).status_code == 200
        assert (await http.get("/api/v1/messages?queue=q")).status_code == 200
        await queen.push("q", "b")
        more = [asyncio.create_task(http.get(searches[0])) for _ in range(reports.most_searches - len(searches))]
        await until(lambda: reports.searches == reports.most_searches)
        refused = await http.get(searches[0])
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert not any(one.done() for one in waiting)
    assert {(await one).status_code for one in (*waiting, *more)} == {200}
    assert reports.searches == 0
    assert "queen_searches_refused_total 1" in (await http.get("/metrics/prometheus")).text


async def test_rare_names_are_found_among_very_many_partitions(
    http: httpx.AsyncClient, queen: Queen, sql: asyncpg.Connection
) -> None:
    """There are more than are read one by one: what is rare is found by its words, and few pages are touched."""
    await queen.push("large", "x")
    await sql.execute(
        "INSERT INTO queen.partitions (queue_id, name) SELECT q.id, 'customer-' || n || '/eu' "
        "FROM queen.queues q, generate_series(1, 11500) n WHERE q.name = 'large'"
    )
    await sql.execute("ANALYZE queen.partitions")

    async def pages(text: str) -> int:
        plan = await sql.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement('find_partitions')}",
            *(text, 20, None, None, words(text)),
        )
        return sum(int(found) for found in re.findall(r'"Shared (?:Hit|Read) Blocks": (\d+)', str(plan))[:2])

    assert await pages("customer-9999") < 12_000  # of which 10,000 names are read one by one
    assert await pages("customer") < 3_000
    for part, whole in (("customer-9999", 9999), ("mer-9999/e", 9999), ("large/9998", 9998)):
        assert names((await find(http, part))["partitions"]) == [f"customer-{whole}/eu"]
    assert len((await find(http, "customer"))["partitions"]) == 20


@given(st.text("ab1-/ ", max_size=12), st.text("ab1-/ ", max_size=4), st.text("ab1-/ ", max_size=4))
def test_the_words_of_a_part_are_in_the_whole_where_a_word_begins(part: str, before: str, after: str) -> None:
    """A part that begins where a word begins is found by its words."""
    asked = words(part)
    if asked is None or (before and re.match("[a-z]", before[-1]) and re.match("[a-z]", part)):
        return
    if before and re.match("[0-9]", before[-1]) and re.match("[0-9]", part):
        return
    there = re.findall("[a-z]+|[0-9]+", before + part + after)
    for term in asked.split(" & "):
        word = term.split("'")[1]
        if term.endswith(":*"):
            assert any(one.startswith(word) for one in there), (asked, there)
        else:
            assert word in there, (asked, there)
