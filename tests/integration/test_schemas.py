"""Schemas of queues: versions, compatibility, and pushes that are checked."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_settings import settings_with

from integration.queen import Queen, until
from queenmq.core.json_schema import Validator, incompatibility
from queenmq.server import Server

Json = dict[str, Any]
ORDER: Json = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "customer": {"type": "string"}},
    "required": ["id"],
}
WITH_NOTE: Json = ORDER | {"properties": ORDER["properties"] | {"note": {"type": "string"}}}


async def give(http: httpx.AsyncClient, queue: str, schema: Json | None, **rules: object) -> httpx.Response:
    body = {**({} if schema is None else {"schema": schema}), **rules}
    return await http.post(f"/api/v1/schemas/{queue}", json=body)


async def pushed(http: httpx.AsyncClient, queue: str, *payloads: object, **more: object) -> httpx.Response:
    items = [{"queue": queue, "partition": "p", "payload": payload, **more} for payload in payloads]
    return await http.post("/api/v1/push", json={"items": items})


async def checked(http: httpx.AsyncClient, queue: str, schema: Json = ORDER) -> None:
    await http.post("/api/v1/configure", json={"queue": queue, "options": {}})
    answer = await give(http, queue, schema, check=True)
    assert answer.status_code == 200, answer.text


async def test_a_push_that_does_not_fit_is_refused_for_itself(queen: Queen, http: httpx.AsyncClient) -> None:
    await checked(http, "orders")
    answer = await pushed(http, "orders", {"id": 1}, {"id": "one"}, {"customer": "x"}, {"id": 2})
    assert answer.status_code == 201
    assert [one["status"] for one in answer.json()] == ["queued", "failed", "failed", "queued"]
    failed = answer.json()[1]
    assert failed["reason"] == "schema_mismatch"
    assert failed["error"] == (
        "the message does not fit schema 1 of 'orders': /id: the value is not of type \"integer\""
    )
    alone = await pushed(http, "orders", {"id": "one"})
    assert (alone.status_code, alone.json()["code"], alone.json()["field"]) == (422, "schema_mismatch", "items[0]")
    assert (await pushed(http, "others", {"id": "one"})).status_code == 201
    popped = await http.get("/api/v1/pop/queue/orders?batch=10")
    assert [message["data"] for message in popped.json()["messages"]] == [{"id": 1}, {"id": 2}]


async def test_every_way_to_push_is_checked(queen: Queen, http: httpx.AsyncClient) -> None:
    await checked(http, "orders")
    bad = {"queue": "orders", "partition": "p", "payload": {"id": None}}
    good = {"queue": "orders", "partition": "p", "payload": {"id": 1}}
    expected = [{"queue": "orders", "partition": "p", "lastOffset": 0}]
    answer = await http.post("/api/v1/push", json={"items": [good, bad], "expect": expected})
    assert (answer.status_code, answer.json()["field"]) == (422, "items[1]"), answer.text
    operations = [{"type": "push", "items": [good, bad]}]
    answer = await http.post("/api/v1/transaction", json={"operations": operations})
    assert (answer.status_code, answer.json()["success"]) == (200, False)
    assert "does not fit schema 1 of 'orders'" in answer.json()["error"]
    assert (await pushed(http, "orders", {"id": "x"}, delay=3600)).status_code == 422
    mixed = await http.post("/api/v1/push", json={"items": [bad, good | {"delay": 3600}]})
    assert [one["status"] for one in mixed.json()] == ["failed", "scheduled"]
    timer = {"op": "schedule", "queue": "orders", "timerKey": "k", "data": {"id": "x"}, "delayMs": 1000}
    answer = await http.post("/api/v1/timers", json={"operations": [timer]})
    assert (answer.status_code, answer.json()["field"]) == (422, "operations[0]")
    query = await http.post(
        "/streams/v1/queries", json={"name": "q", "source_queue": "orders", "sink_queue": "orders", "config_hash": "1"}
    )
    assert (await pushed(http, "orders", {"id": 5})).status_code == 201
    [message] = (await http.get("/api/v1/pop/queue/orders")).json()["messages"]
    cycle = {"query_id": query.json()["query_id"], "partition_id": message["partitionId"], "push_items": [bad]}
    answer = await http.post("/streams/v1/cycle", json=cycle)
    assert answer.json()["success"] is False
    assert "does not fit" in answer.json()["error"]


async def test_what_was_accepted_before_the_schema_stays(
    queen: Queen, http: httpx.AsyncClient, sql: asyncpg.Connection[asyncpg.Record]
) -> None:
    assert (await pushed(http, "orders", {"id": "old"})).status_code == 201
    assert (await pushed(http, "orders", {"id": "timed"}, delay=0.2)).status_code == 201
    await checked(http, "orders")
    await sql.execute("""SELECT queen.send('orders', 'p', '{"id": "sent"}')""")
    found: list[object] = []
    while len(found) < 3:
        popped = await http.get("/api/v1/pop/queue/orders?batch=10&wait=true&timeout=20000&autoAck=true")
        found += [message["data"]["id"] for message in popped.json()["messages"]]
    assert found[0] == "old"
    assert set(found) == {"old", "timed", "sent"}


def excluding(most: int, factor: int) -> Json:
    return {"not": {"allOf": [{"not": {"enum": [n, n + 1, n * factor]}} for n in range(most)]}}


async def test_a_comparison_of_schemas_holds_nobody_up(
    http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These take a processor for minutes, with 20 kB, and whoever may read the queue could ask for it."""
    monkeypatch.setattr("queenmq.broker.schema_proof.CPU_S", 1)
    monkeypatch.setattr("queenmq.broker.schemas._MOST_PROOFS", 2)
    await checked(http, "orders", excluding(600, 7))
    schemas, body = server.broker.schemas, {"schema": excluding(600, 3)}
    async with schemas._proving:
        asked = [asyncio.create_task(http.post("/api/v1/schemas/orders/check", json=body)) for _ in range(2)]
        await until(lambda: schemas._proofs == 2)
        assert (await http.post("/api/v1/schemas/orders/check", json=body)).status_code == 429
    async with asyncio.timeout(40):
        assert (await http.get("/api/v1/resources/queues")).status_code == 200
        for one in asked:
            assert (await one).json()[
                "incompatible"
            ] == "that they are compatible could not be proved within 1 s of processor time"
    refused = await give(http, "orders", excluding(600, 3))
    assert (refused.status_code, "could not be proved" in refused.text) == (409, True)
    assert schemas._proofs == 0


async def test_what_a_request_may_compare_is_bounded(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenmq.broker.schemas.MOST_EVALUATIONS", 100)
    await checked(http, "orders")
    answer = await pushed(http, "orders", *({"id": number} for number in range(40)))
    states = [one["status"] for one in answer.json()]
    assert states[0] == "queued"
    assert states[-1] == "failed"
    assert "would take too long: send fewer at once" in answer.json()[-1]["error"]
    large = {"schema": {"enum": ["x" * 70_000]}}
    assert (await http.post("/api/v1/schemas/orders/check", json=large)).status_code == 400


async def test_versions_follow_each_other_by_the_rule(queen: Queen, http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/configure", json={"queue": "orders", "options": {}})
    assert (await give(http, "nobody", ORDER)).status_code == 404
    assert (await give(http, "orders", None, check=True)).status_code == 404
    assert (await give(http, "orders", {"type": "text"})).status_code == 400
    assert (await give(http, "orders", {"$ref": "http://127.0.0.1:1/x"})).status_code == 400, "nothing is fetched"
    assert (await give(http, "orders", ORDER)).json() == {
        "queue": "orders", "version": 1, "compatibility": "backward", "check": False, "changed": True,
    }  # fmt: skip
    assert (await give(http, "orders", ORDER)).json()["changed"] is False
    narrower = ORDER | {"required": ["id", "customer"]}
    refused = await give(http, "orders", narrower)
    assert refused.status_code == 409
    assert "not backward compatible with version 1" in refused.text
    assert "customer (required)" in refused.text
    assert (await give(http, "orders", WITH_NOTE)).json()["version"] == 2
    assert (await give(http, "orders", narrower, compatibility="none")).json()["version"] == 3
    found = (await http.get("/api/v1/schemas/orders?version=1")).json()
    assert (found["schema"], found["newest"], [one["version"] for one in found["versions"]]) == (ORDER, 3, [3, 2, 1])
    assert (await http.get("/api/v1/schemas/orders?version=9")).status_code == 404
    [listed] = (await http.get("/api/v1/schemas")).json()["schemas"]
    assert (listed["queue"], listed["version"], listed["check"]) == ("orders", 3, False)
    tried = await http.post("/api/v1/schemas/orders/check", json={"schema": ORDER, "payloads": [{"id": 1}, {}]})
    assert [one["fits"] for one in tried.json()["results"]] == [True, False]
    assert (await http.delete("/api/v1/schemas/orders")).json() == {"queue": "orders", "removed": True}
    assert (await http.delete("/api/v1/schemas/orders")).status_code == 404
    await give(http, "orders", ORDER)
    await http.delete("/api/v1/resources/queues/orders")
    assert (await http.get("/api/v1/schemas")).json()["schemas"] == []


async def test_other_servers_check_at_once_and_stop_at_once(
    queen: Queen, http: httpx.AsyncClient, database_url: str
) -> None:
    await http.post("/api/v1/configure", json={"queue": "orders", "options": {}})
    other = Server(settings_with(), database_url)
    await other.start()
    try:
        host, port = other.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as there:
            assert (await pushed(there, "orders", {"id": "x"})).status_code == 201
            await until(lambda: other.database.is_listening)
            await give(http, "orders", ORDER, check=True)
            await until(lambda: other.broker.schemas.any)
            assert (await pushed(there, "orders", {"id": "x"})).status_code == 422
            await give(http, "orders", ORDER | {"properties": {}}, compatibility="none")
            await until(lambda: other.broker.schemas._is_stale)
            assert (await pushed(there, "orders", {"id": "x"})).status_code == 201
    finally:
        await other.stop()


async def test_a_schema_that_is_removed_and_set_again_is_the_new_one_everywhere(
    queen: Queen, http: httpx.AsyncClient, database_url: str
) -> None:
    await checked(http, "orders")
    other = Server(settings_with(), database_url)
    await other.start()
    try:
        host, port = other.address
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as there:
            assert (await pushed(there, "orders", {"id": "x"})).status_code == 422
            await http.delete("/api/v1/schemas/orders")
            texts = ORDER | {"properties": {"id": {"type": "string"}}}
            assert (await give(http, "orders", texts, check=True)).json()["version"] == 1
            await other.broker.schemas.refresh()
            assert (await pushed(there, "orders", {"id": "x"})).status_code == 201
            assert (await pushed(there, "orders", {"id": 1})).status_code == 422
    finally:
        await other.stop()


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
leaves: st.SearchStrategy[Json] = st.sampled_from(
    [{"type": "integer"}, {"type": "number"}, {"type": "string"}, {"type": ["string", "null"]}, {"enum": ["a", 1]}, {}]
)
schemas: st.SearchStrategy[Json] = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda fields, required, closed: {
            "type": "object", "properties": fields, "required": [name for name in required if name in fields],
            **({"additionalProperties": False} if closed else {}),
        },
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.lists(st.sampled_from("abc"), unique=True),
        st.booleans(),
    ) | st.builds(lambda items: {"type": "array", "items": items}, inner)
    | st.builds(lambda *some: {"anyOf": [*some]}, inner, inner),
    max_leaves=5,
)  # fmt: skip


def named_only(schema: object, value: object) -> bool:
    """Whether the value has no field that the schema does not name."""
    if not isinstance(schema, dict) or "anyOf" in schema:
        return True
    if isinstance(value, dict) and "properties" in schema:
        fields = schema["properties"]
        return all(name in fields and named_only(fields[name], one) for name, one in value.items())
    return not isinstance(value, list) or all(named_only(schema.get("items"), one) for one in value)


@given(schemas, schemas, values)
def test_what_may_follow_takes_whatever_was_allowed(old: Json, new: Json, value: object) -> None:
    import msgspec

    payload = msgspec.json.encode(value)
    if incompatibility(old, new, "backward") is None and named_only(old, value):
        assert Validator(old).misfit(payload) is not None or Validator(new).misfit(payload) is None
    if incompatibility(old, new, "forward") is None and named_only(new, value):
        assert Validator(new).misfit(payload) is not None or Validator(old).misfit(payload) is None
