"""The AsyncAPI document: every message that goes over a consumer connection is one that it describes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest

from integration.consuming import Connection, consuming
from integration.queen import Queen
from queenmq.http.requests import ConsumerFrame
from queenmq.http.schemas import ServerFrame
from queenmq.server import Server

Json = dict[str, Any]

KINDS = {"fromServer": ServerFrame, "fromClient": ConsumerFrame}
PAGE = Path(__file__).parents[2] / "docs" / "consumer-connection.md"


@pytest.fixture
async def document(http: httpx.AsyncClient) -> Json:
    answer = await http.get("/asyncapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    document: Json = answer.json()
    return document


def found(document: Json, reference: str) -> Any:
    assert reference.startswith("#/")
    part: Any = document
    for step in reference[2:].split("/"):
        part = part[step.replace("~1", "/")]
    return part


def references(part: Any) -> list[str]:
    if isinstance(part, list):
        return [one for element in part for one in references(element)]
    if not isinstance(part, dict):
        return []
    inner = [one for value in part.values() for one in references(value)]
    return [part["$ref"], *inner] if isinstance(part.get("$ref"), str) else inner


def schema_of(document: Json, message: str) -> Json:
    payload: Json = document["components"]["messages"][message]["payload"]
    return payload | {"components": document["components"]}


def fields(kind: Any) -> set[str]:
    return {one.encode_name for one in msgspec.structs.fields(kind)}


async def test_its_parts_are_there(document: Json) -> None:
    assert document["asyncapi"] == "3.0.0"
    for reference in references(document):
        assert found(document, reference)
    channel = document["channels"]["consume"]
    assert channel["address"] == "/api/v1/consume/queue/{queue}"
    assert {"batch", "inFlight", "consumerGroup"} <= channel["bindings"]["ws"]["query"]["properties"].keys()
    sent = {operation["action"]: operation["messages"] for operation in document["operations"].values()}
    assert sent == {
        "send": [{"$ref": "#/channels/consume/messages/fromServer"}],
        "receive": [{"$ref": "#/channels/consume/messages/fromClient"}],
    }


@pytest.mark.parametrize("message", KINDS)
async def test_it_has_every_field_of_the_messages(document: Json, message: str) -> None:
    """Those that the server decodes and encodes, and those that are written for people."""
    schema = found(document, document["components"]["messages"][message]["payload"]["$ref"])
    assert schema["properties"].keys() == fields(KINDS[message])
    title = {"fromServer": "From the server", "fromClient": "From the client"}[message]
    [table] = re.findall(rf"\*\*{title}:\*\*\n\n(.*?)\n\n", PAGE.read_text(), re.DOTALL)
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == fields(KINDS[message])


async def test_what_is_said_is_what_it_describes(
    queen: Queen, server: Server, document: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of message comes in this test, with results of both kinds, and each fits."""
    heard: list[Json] = []
    said: list[Json] = []
    send = Connection.send

    async def noted(self: Connection, **frame: Any) -> None:
        said.append(frame)
        await send(self, **frame)

    monkeypatch.setattr(Connection, "send", noted)
    await queen.push("orders", *range(4))
    async with consuming(server) as connection:
        receive = connection.socket.receive

        async def listen(*about: Any) -> Any:
            message = await receive(*about)
            if isinstance(message.data, str) and message.data.startswith("{"):
                heard.append(json.loads(message.data))
            return message

        monkeypatch.setattr(connection.socket, "receive", listen)
        batch = await connection.next_batch()
        await connection.send(renew=[{"leaseId": batch["leaseId"], "seconds": 60}, {"leaseId": "nobody's"}])
        while len(connection.renewed) < 2:
            await connection.read()
        wrong = {"except": [{"transactionId": "nobody's", "status": "failed", "error": "no"}]}
        assert not (await connection.finish(batch, **wrong))["success"]
        failed = [{"transactionId": batch["messages"][0]["transactionId"], "status": "dlq", "error": "bad"}]
        await connection.finish(batch, status="retry", error="later", **{"except": failed})
        assert not (await connection.finish(batch))["success"]
        await connection.send(batch=2, partitions=1)
        await connection.finish(await connection.next_batch())
        await connection.finish(await connection.next_batch())
        await connection.send(stop=True)
        await server.stop()
        while not connection.is_stopping:
            await connection.read()

    for message, frames in (("fromServer", heard), ("fromClient", said)):
        check = jsonschema_rs.validator_for(schema_of(document, message))
        for frame in frames:
            check.validate(frame)
        assert {name for frame in frames for name in frame} == fields(KINDS[message])
    assert {one["success"] for frame in heard for one in frame.get("finished", ())} == {True, False}
    assert {one["success"] for frame in heard for one in frame.get("renewed", ())} == {True, False}


async def test_what_it_forbids_is_refused(server: Server, document: Json) -> None:
    bad: list[Json] = [
        {"finish": [{}]},
        {"finish": [{"leaseId": "x", "except": [{"transactionId": "t"}]}]},
        {"renew": [{"leaseId": "x", "seconds": 0}]},
        {"batch": -1},
        {"stop": "yes"},
    ]
    check = jsonschema_rs.validator_for(schema_of(document, "fromClient"))
    for frame in bad:
        assert not check.is_valid(frame), frame
        async with consuming(server) as connection:
            await connection.send(**frame)
            assert (await connection.end())[0] == 1007, frame
