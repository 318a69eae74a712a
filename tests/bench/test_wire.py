"""The bytes that the load generator sends and reads."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from queen_bench.audit import Audit
from queen_bench.broker import Want
from queen_bench.connection import Connection, get_request, post_request
from queen_bench.errors import BenchError
from queen_bench.layout import JSON, Layout
from queen_bench.load import Load, Pushing
from queen_bench.meter import Meter
from queen_bench.processes import Watch
from queen_bench.queen import ack_body, decode, pop_target


@pytest.mark.parametrize("size", [9, 230, 5000])
def test_a_payload_is_json_of_the_wanted_size(size: int) -> None:
    layout = Layout(10, size)
    assert len(layout.payload) == size
    assert json.loads(layout.payload) == {"x": layout.text}


@pytest.mark.parametrize("size", [20, 230, 5000])
def test_a_payload_that_looks_like_an_applications(size: int) -> None:
    layout = Layout(10, size, kind=JSON)
    assert len(layout.payload) == size
    assert layout.payload.count(layout.text) == 1
    assert "note" in json.loads(layout.payload)


async def test_a_hot_partition_gets_its_share_from_every_producer() -> None:
    pushed: list[list[tuple[int, int]]] = []

    class Counting:
        async def producer(self, number: int, *, client: bool) -> Counting:
            return self

        async def push_each(self, messages: list[tuple[int, int]]) -> None:
            pushed.append(messages)
            await asyncio.sleep(0)

        async def close(self) -> None:
            pass

    load = Load(cast(Any, Counting()), Audit(), producers=2, lanes=100)
    await load.push(Meter(Watch(None)), lambda: len(pushed) >= 20, Pushing(10, spread=True, hot=2))
    layout = Layout(100, 230)
    hot = [[lane for lane, _ in messages if layout.partition(lane) == "p0"] for messages in pushed]
    assert all(lanes[:2] in ([100, 100], [200, 200]) for lanes in hot)
    assert {len(messages) for messages in pushed} == {10}
    assert {lanes[0] for lanes in hot} == {100, 200}


def test_lanes_go_to_partitions_in_turn() -> None:
    layout = Layout(3, 230)
    assert [layout.partition(lane) for lane in range(4)] == ["p0", "p1", "p2", "p0"]
    assert layout.queues(100) == [layout.run]


def test_a_cold_layout_goes_on_to_new_queues() -> None:
    layout = Layout(3, 230, cold=True)
    assert [layout.queue(lane) for lane in (0, 2, 3, 8)] == [f"{layout.run}-{n}" for n in (0, 0, 1, 2)]
    assert layout.queues(7) == [f"{layout.run}-{n}" for n in (0, 1, 2)]


def test_pop_targets() -> None:
    assert pop_target("q", Want(10)) == "/api/v1/pop/queue/q?batch=10&wait=true&timeout=500"
    asked = pop_target("q", Want(1, "g", auto_ack=True, queue="r", partition="p 1", partitions=2, wait_ms=0))
    assert asked == (
        "/api/v1/pop/queue/r/partition/p%201?batch=1&consumerGroup=g&subscriptionMode=all&autoAck=true&partitions=2"
    )


def test_an_ack_names_every_message_with_its_lease() -> None:
    answer = {"partitionId": "P", "leaseId": "L", "messages": [{"transactionId": "0:1"}, {"transactionId": "0:2"}]}
    body = json.loads(ack_body(decode(200, json.dumps(answer).encode()), '"consumerGroup":"g",'))
    one = {"partitionId": "P", "leaseId": "L", "status": "completed"}
    assert body == {
        "consumerGroup": "g",
        "acknowledgments": [{"transactionId": "0:1"} | one, {"transactionId": "0:2"} | one],
    }


@pytest.mark.parametrize(("status", "answer"), [(500, b"{}"), (200, b"{}"), (200, b"no JSON")])
def test_an_unusable_pop_answer_is_an_error(status: int, answer: bytes) -> None:
    with pytest.raises(BenchError, match="a pop was answered"):
        decode(status, answer)


def test_requests() -> None:
    assert get_request("/x") == b"GET /x HTTP/1.1\r\nHost: queen\r\n\r\n"
    assert post_request(b"/x", b"{}").endswith(b"Content-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_answers_arrive_in_any_pieces(size: int) -> None:
    connection = Connection()
    connection.connection_made(_Transport())
    for raw, expected in [
        (b'HTTP/1.1 200 OK\r\ncontent-LENGTH: 4\r\n\r\n"ab"', (200, b'"ab"')),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
    ]:
        answer = connection.send(b"")
        for start in range(0, len(raw), size):
            connection.data_received(raw[start : start + size])
        assert await answer == expected


@pytest.mark.parametrize("raw", [b"HTTP/1.1 200 OK\r\n\r\n", b"nonsense and more\r\n\r\n"])
async def test_an_answer_that_cannot_be_read_is_an_error(raw: bytes) -> None:
    connection = Connection()
    connection.connection_made(_Transport())
    answer = connection.send(b"")
    connection.data_received(raw)
    with pytest.raises(BenchError):
        await answer


async def test_a_connection_that_breaks_fails_the_request() -> None:
    connection = Connection()
    connection.connection_made(_Transport())
    answer = connection.send(b"")
    connection.connection_lost(None)
    with pytest.raises(BenchError, match="closed"):
        await answer


class _Transport(asyncio.Transport):
    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass
