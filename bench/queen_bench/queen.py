"""Queen as a broker under load: push, pop and ack over HTTP, with requests as bytes and answers hardly decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from queen_bench.broker import Want
from queen_bench.connected import SHARED_BY, ConnectedConsumer, Link
from queen_bench.connection import NO_CONTENT, Connection, get_request
from queen_bench.errors import BenchError
from queen_bench.layout import Layout
from queen_bench.own_client import ClientConsumer, ClientProducer, Workers

PUSH: Final = b"/api/v1/push"
ACK: Final = b"/api/v1/ack/batch"
SHOWN_BYTES: Final = 300
DRAIN_BATCH: Final = 1000
DRAIN_PARTITIONS: Final = 100
DRAINERS: Final = 8


class _Message(msgspec.Struct, gc=False):
    transactionId: str


class _Popped(msgspec.Struct, gc=False):
    messages: list[_Message]
    partitionId: str | None = None
    leaseId: str | None = None


class _Taken(msgspec.Struct, gc=False):
    success: bool
    taken: _Popped | None = None


_decode_taken = msgspec.json.Decoder(_Taken).decode
_decode = msgspec.json.Decoder(_Popped).decode


class HttpProducer:
    def __init__(self, connection: Connection, layout: Layout) -> None:
        self._connection = connection
        self._layout = layout
        self._end = f'","payload":{layout.payload}}}'

    async def push(self, lane: int, first: int, count: int) -> None:
        start = self._start(lane)
        between = f"{self._end},{start}"
        numbers = between.join(map(str, range(first, first + count)))
        await self._push(f'{{"items":[{start}{numbers}{self._end}]}}', count)

    async def push_each(self, messages: Sequence[tuple[int, int]]) -> None:
        items = ",".join(f"{self._start(lane)}{sequence}{self._end}" for lane, sequence in messages)
        await self._push(f'{{"items":[{items}]}}', len(messages))

    def _start(self, lane: int) -> str:
        """An item of a lane up to its sequence."""
        layout = self._layout
        return f'{{"queue":"{layout.queue(lane)}","partition":"{layout.partition(lane)}","transactionId":"{lane}:'

    async def _push(self, body: str, count: int) -> None:
        status, answer = await self._connection.post(PUSH, body.encode())
        if status not in (200, 201) or answer.count(b'"queued"') != count:
            raise BenchError(f"a push of {count} was answered {status} {shown(answer)}")

    async def close(self) -> None:
        self._connection.close()


class HttpConsumer:
    def __init__(self, connection: Connection, layout: Layout, want: Want) -> None:
        self._connection = connection
        self._request = get_request(pop_target(layout.queue(), want))
        self._text = layout.text.encode()
        self._group = f'"consumerGroup":"{want.group}",' if want.group else ""
        self._take = take_body(layout.queue(), want).encode() if want.take else None
        self._last: _Popped | None = None

    async def pop(self) -> list[str]:
        if self._take is not None and self._last is not None:
            popped, answer = await self._finish(self._take)
            if popped is None:
                return []
        else:
            status, answer = await self._connection.send(self._request)
            if status == NO_CONTENT:
                return []
            popped = decode(status, answer)
        self._last = popped
        ids = [message.transactionId for message in popped.messages]
        if answer.count(self._text) != len(ids):
            raise BenchError(f"a payload did not arrive as it was pushed: {shown(answer)}")
        return ids

    async def ack(self) -> None:
        if self._last is None or self._take is not None:
            return
        popped, self._last = self._last, None
        body = ack_body(popped, self._group)
        status, answer = await self._connection.post(ACK, body.encode())
        done = answer.count(b'"success":true') + answer.count(b'"success": true')
        if status != 200 or done != len(popped.messages):
            raise BenchError(f"an ack of {len(popped.messages)} was answered {status} {shown(answer)}")

    async def _finish(self, body: bytes) -> tuple[_Popped | None, bytes]:
        if self._last is None:
            raise AssertionError("there is no lease")
        target = f"/api/v1/lease/{self._last.leaseId}/finish".encode()
        self._last = None
        status, answer = await self._connection.post(target, body)
        if status != 200 or not (finished := _decode_taken(answer)).success:
            raise BenchError(f"a finish was answered {status} {shown(answer)}")
        return finished.taken, answer

    async def close(self) -> None:
        if self._take is not None and self._last is not None:
            await self._finish(b"{}")
        self._connection.close()


def take_body(queue: str, want: Want) -> str:
    take: dict[str, object] = {"queue": want.queue or queue, "batch": want.batch}
    if want.wait_ms:
        take |= {"wait": True, "timeout": want.wait_ms}
    if want.group:
        take |= {"consumerGroup": want.group, "subscriptionMode": "all"}
    return msgspec.json.encode({"take": take}).decode()


def pop_target(queue: str, want: Want) -> str:
    query: dict[str, str | int] = {"batch": want.batch}
    if want.wait_ms:
        query |= {"wait": "true", "timeout": want.wait_ms}
    if want.group:
        query |= {"consumerGroup": want.group, "subscriptionMode": "all"}
    if want.auto_ack:
        query["autoAck"] = "true"
    if want.partitions > 1:
        query["partitions"] = want.partitions
    partition = f"/partition/{quote(want.partition)}" if want.partition else ""
    return f"/api/v1/pop/queue/{quote(want.queue or queue)}{partition}?{urlencode(query)}"


def decode(status: int, answer: bytes) -> _Popped:
    try:
        if status == 200:
            return _decode(answer)
    except msgspec.DecodeError as error:
        raise BenchError(f"a pop was answered with {shown(answer)}: {error}") from None
    raise BenchError(f"a pop was answered {status} {shown(answer)}")


def ack_body(popped: _Popped, group: str = "") -> str:
    """One partition and one lease, because a pop claims one partition unless it asks for more."""
    start = '{"transactionId":"'
    end = f'","partitionId":"{popped.partitionId}","leaseId":"{popped.leaseId}","status":"completed"}}'
    ids = f"{end},{start}".join([message.transactionId for message in popped.messages])
    return f'{{{group}"acknowledgments":[{start}{ids}{end}]}}'


def shown(answer: bytes) -> str:
    return answer[:SHOWN_BYTES].decode(errors="replace")


class QueenBroker:
    def __init__(self, host: str, port: int, layout: Layout) -> None:
        self._host = host
        self._port = port
        self._layout = layout
        self._url = f"http://{host}:{port}"
        self._links: dict[str, Link] = {}  # of each group the one that more consumers may share
        self._workers: dict[str, Workers] = {}  # the same

    async def producer(self, number: int, *, client: bool = False) -> HttpProducer | ClientProducer:
        if client:
            return ClientProducer(self._url, self._layout)
        return HttpProducer(await self._open(), self._layout)

    async def consumer(self, number: int, want: Want) -> HttpConsumer | ConnectedConsumer | ClientConsumer:
        if want.client:
            workers = self._workers.get(want.group)
            if workers is None or not 0 < workers.consumers < SHARED_BY:
                workers = self._workers[want.group] = Workers(self._url, self._layout, want)
                workers.open()
            return ClientConsumer(workers, want)
        if want.connected:
            link = self._links.get(want.group)
            if link is None or not 0 < link.consumers < SHARED_BY:
                text = self._layout.text.encode()
                link = await Link.open(self._host, self._port, self._layout.queue(), want, text)
                self._links[want.group] = link
            return ConnectedConsumer(link, want)
        return HttpConsumer(await self._open(), self._layout, want)

    async def drainers(
        self, group: str, lanes: int, wait_ms: int
    ) -> list[HttpConsumer | ConnectedConsumer | ClientConsumer]:
        queues = self._layout.queues(lanes)
        draining = Want(DRAIN_BATCH, group, auto_ack=True, partitions=DRAIN_PARTITIONS, wait_ms=wait_ms)
        wants = [replace(draining, queue=queue) for queue in queues] * max(1, DRAINERS // len(queues))
        return [HttpConsumer(await self._open(), self._layout, want) for want in wants]

    async def _open(self) -> Connection:
        return await Connection.open(self._host, self._port)
