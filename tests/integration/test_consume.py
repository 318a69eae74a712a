"""Consumer connections: batches come as they become readable, results go back, and leases do not outlive them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

import aiohttp
import asyncpg
import httpx
import jwt
import pytest
from server_settings import settings_with

from integration.consuming import Connection, Json, consuming, url_of
from integration.queen import Queen, another_server, data, expire_leases, leases, parked, until
from integration.wire import connect
from queenmq.config import Settings
from queenmq.errors import DatabaseUnavailable
from queenmq.server import Server

NO_LEASE = "Invalid or expired lease"
SECRET = "a secret of more than thirty-two bytes"


async def nothing_comes(connection: Connection, server: Server) -> None:
    """The connection has what it may have, and the server has nothing under way for it."""
    await until(lambda: not any(lane.outstanding for lane in server.broker.lanes.values()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await connection.read()
    assert not connection.batches


class TestDelivery:
    async def test_what_is_there_and_what_comes(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", "a", "b")
        async with consuming(server, batch=10) as connection:
            batch = await connection.next_batch()
            assert data(batch["messages"]) == ["a", "b"]
            popped = {"queue", "partition", "partitionId", "leaseId", "consumerGroup", "messages", "success"}
            assert batch.keys() == popped | {"partitionsClaimed"}
            assert (await connection.finish(batch)) == {
                "leaseId": batch["leaseId"],
                "success": True,
                "error": None,
                "messages": 2,
                "dlq": 0,
                "except": [],
            }
            await parked(server)
            await queen.push("orders", "c")
            assert await connection.next_data() == ["c"]

    async def test_no_more_than_may_be_in_flight(self, queen: Queen, server: Server) -> None:
        for number in range(5):
            await queen.push("orders", number, partition=str(number))
        async with consuming(server, inFlight=2) as connection:
            first, second = await connection.next_batch(), await connection.next_batch()
            await nothing_comes(connection, server)
            await connection.finish(second)
            third = await connection.next_batch()
            await nothing_comes(connection, server)
            assert data([batch["messages"][0] for batch in (first, second, third)]) == [0, 1, 2]

    async def test_nor_more_bytes(self, queen: Queen, database_url: str) -> None:
        settings = settings_with(consumers={"max_in_flight_bytes": 1000})
        running = Server(settings, database_url)
        await running.start()
        try:
            for number in range(3):
                await queen.push("orders", ["x" * 1000], partition=str(number))
            async with consuming(running, inFlight=4) as connection:
                for _ in range(3):
                    batch = await connection.next_batch()
                    await nothing_comes(connection, running)
                    await connection.finish(batch)
        finally:
            await running.stop()

    async def test_nor_more_claims_at_once(self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        """The size of a batch is known when it is there: a frame with many finishes starts only some claims."""
        monkeypatch.setattr("queenmq.broker.in_flight._MOST_AT_ONCE", 2)
        for number in range(6):
            await queen.push("orders", 1, 2, partition=str(number))
        under_way, most = 0, 0
        take_now = server.broker.take_now

        async def counted(*about: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await take_now(*about)
            finally:
                under_way -= 1

        async with consuming(server, inFlight=6) as connection:
            batches = [await connection.next_batch() for _ in range(6)]
            monkeypatch.setattr(type(server.broker), "take_now", lambda _, *about: counted(*about))
            await connection.send(finish=[{"leaseId": batch["leaseId"]} for batch in batches])
            assert sorted([await connection.next_data() for _ in range(6)]) == [[2]] * 6
        assert most == 2

    async def test_a_lease_that_ended_without_a_word_makes_room(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("queenmq.broker.in_flight._HELD_S", 0.1)
        await queen.push("orders", 1, partition="one")
        async with consuming(server) as connection:
            await connection.next_batch()
            await queen.push("orders", 2, partition="other")
            await nothing_comes(connection, server)
            await expire_leases(sql)
            assert len(await connection.next_data()) == 1

    async def test_a_partition_is_held_by_one(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", 1, 2)
        async with consuming(server, inFlight=4) as one:
            batch = await one.next_batch()
            async with consuming(server, inFlight=4) as other:
                await nothing_comes(one, server)
                await nothing_comes(other, server)
                await one.finish(batch)
                await one.send(stop=True)
                if not one.batches:
                    async with asyncio.timeout(10):
                        [done], _ = await asyncio.wait(
                            [asyncio.create_task(c.next_data()) for c in (one, other)],
                            return_when=asyncio.FIRST_COMPLETED,
                        )
                    assert done.result() == [2]

    async def test_nothing_more_for_a_client_that_does_not_read(self, queen: Queen, server: Server) -> None:
        """It is held back long before its credit is used up, and gets everything when it reads."""
        for number in range(100):
            await queen.push("orders", ["x" * 200_000], partition=str(number))
        head = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13")
        async with connect(server.address) as wire:
            target = "/api/v1/consume/queue/orders?inFlight=1000"
            await wire.send("GET", target, *head, b"Sec-WebSocket-Key: " + b"A" * 22 + b"==")
            await until(lambda: any(one.write_paused for one in server.front.connections))
            await until(lambda: not any(lane.outstanding for lane in server.broker.lanes.values()))
            [consumer] = server.broker.consumers
            assert 0 < consumer.leases < 100
            assert (await wire.answer()).status == 101
            received = 0
            while received < 100 * 200_000:
                received += len(await wire.read(1 << 20))
            assert consumer.leases == 100

    async def test_of_one_partition_as_a_new_group(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", 1, partition="eu")
        await queen.push("orders", 2, partition="us")
        about = {"partition": "us", "consumerGroup": "billing", "subscriptionMode": "all", "inFlight": 5}
        async with consuming(server, **about) as connection:
            batch = await connection.next_batch()
            assert (data(batch["messages"]), batch["consumerGroup"]) == ([2], "billing")
            await nothing_comes(connection, server)

    async def test_batches_of_another_size(self, queen: Queen, server: Server) -> None:
        for partition in ("a", "b", "c"):
            await queen.push("orders", *range(10), partition=partition)
        async with consuming(server, batch=1) as connection:
            sizes = []
            for size in ({"batch": 4}, {"batch": 12, "partitions": 2}, {"batch": 1}):
                batch = await connection.next_batch()
                sizes.append((len(batch["messages"]), len({one["partitionId"] for one in batch["messages"]})))
                await connection.send(finish=[{"leaseId": batch["leaseId"]}], **size)
            assert sizes == [(1, 1), (4, 1), (12, 2)]
            assert len((await connection.next_batch())["messages"]) == 1

    async def test_nothing_while_pops_are_paused(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", 1, 2)
        async with consuming(server) as connection:
            batch = await connection.next_batch()
            await queen.http.post("/api/v1/system/maintenance/pop", json={"enabled": True})
            assert (await connection.finish(batch))["success"]
            await nothing_comes(connection, server)
            await queen.http.post("/api/v1/system/maintenance/pop", json={"enabled": False})
            assert await connection.next_data() == [2]

    async def test_a_push_on_another_server(self, queen: Queen, server: Server, database_url: str) -> None:
        async with another_server(settings_with(), database_url) as other, consuming(server) as connection:
            await parked(server)
            await other.push("orders", 1)
            assert await connection.next_data() == [1]

    async def test_after_stop_nothing_more(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", 1, 2)
        async with consuming(server) as connection:
            batch = await connection.next_batch()
            await connection.send(stop=True)
            assert (await connection.finish(batch))["success"]
            await nothing_comes(connection, server)


class TestAcknowledgement:
    async def test_a_failure_comes_again(self, queen: Queen, server: Server) -> None:
        await queen.configure("orders", retryDelay=0)
        await queen.push("orders", 1)
        async with consuming(server) as connection:
            assert (await connection.finish(await connection.next_batch(), status="failed", error="bad"))["success"]
            batch = await connection.next_batch()
            assert batch["messages"][0]["retryCount"] == 1

    async def test_exceptions(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", "a", "b", "c")
        async with consuming(server, batch=3) as connection:
            batch = await connection.next_batch()
            unknown = await connection.finish(batch, **{"except": [{"transactionId": "z", "status": "dlq"}]})
            assert (unknown["success"], unknown["code"]) == (False, "message_not_found")
            result = await connection.finish(batch, **{"except": [{"transactionId": "b", "status": "dlq"}]})
            assert (result["success"], result["messages"], result["dlq"]) == (True, 3, 1)
        assert len(await queen.dead_letters("orders")) == 1

    async def test_is_refused_the_second_time(self, queen: Queen, server: Server) -> None:
        await queen.push("orders", 1)
        async with consuming(server) as connection:
            batch = await connection.next_batch()
            await connection.send(finish=[{"leaseId": batch["leaseId"]}] * 2)
            while len(connection.finished) < 2:
                await connection.read()
            assert sorted(result["success"] for result in connection.finished) == [False, True]

    async def test_of_a_lease_that_has_expired(self, queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1)
        async with consuming(server) as connection:
            batch = await connection.next_batch()
            await expire_leases(sql)
            [again] = await queen.pop("orders")
            result = await connection.finish(batch)
            assert (result["success"], result["error"], result["code"]) == (False, NO_LEASE, "lease_not_found")
            assert (await queen.finish(again["leaseId"]))["success"]

    async def test_that_is_said_again_and_again_brings_nothing_more(
        self, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        """What is not finished keeps its place among what may be in flight."""
        for number in range(6):
            await queen.push("orders", number, partition=str(number))
        wrong = {"except": [{"transactionId": "nobody", "status": "failed"}]}
        async with consuming(server, inFlight=1) as connection:
            batch = await connection.next_batch()
            for _ in range(4):
                assert (await connection.finish(batch, **wrong))["code"] == "message_not_found"
                await nothing_comes(connection, server)

            async def one_is_held() -> bool:
                return await leases(sql) == 1

            await until(one_is_held)
            await connection.finish(batch)
            await connection.next_batch()
            await nothing_comes(connection, server)

    async def test_of_a_lease_of_somebody_else(self, queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1)
        [popped] = await queen.pop("orders")
        async with consuming(server) as connection:
            for lease_id in (popped["leaseId"], str(uuid4()), "nonsense"):
                result = await connection.finish({"leaseId": lease_id})
                assert (result["success"], result["code"]) == (False, "lease_not_found")
            assert await leases(sql) == 1
            expiry = "SELECT lease_expires_at FROM queen.partition_consumers WHERE lease_id IS NOT NULL"
            before = await sql.fetchval(expiry)
            await connection.send(renew=[{"leaseId": popped["leaseId"], "seconds": 3600}])
            await connection.read()
            [renewed] = connection.renewed
            assert (renewed["renewed"], renewed["code"]) == (False, "lease_not_found")
            assert await sql.fetchval(expiry) == before

    async def test_a_lease_is_renewed(self, queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1)
        async with consuming(server) as connection:
            batch = await connection.next_batch()
            await connection.send(
                renew=[{"leaseId": batch["leaseId"], "seconds": 3000}, {"leaseId": str(uuid4())}, {"leaseId": "x"}]
            )
            while len(connection.renewed) < 3:
                await connection.read()
            assert [result["success"] for result in connection.renewed] == [True, False, False]
            left = "SELECT extract(epoch FROM lease_expires_at - now()) FROM queen.partition_consumers"
            assert await sql.fetchval(left) > 2000

    async def test_while_the_database_is_away_the_lease_stays(
        self, queen: Queen, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await queen.push("orders", 1, 2)

        async def away(*_: Any, **__: Any) -> Any:
            raise DatabaseUnavailable

        async with consuming(server) as connection:
            batch = await connection.next_batch()
            with monkeypatch.context() as patched:
                patched.setattr(server.database, "fetch", away)
                result = await connection.finish(batch)
                assert (result["success"], result["code"]) == (False, "database_unavailable")
            assert (await connection.finish(batch))["success"]
            assert await connection.next_data() == [2]


class TestALockedRow:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(database={"lock_timeout_ms": 300})

    async def test_brings_nothing_more(self, queen: Queen, server: Server, sql: asyncpg.Connection) -> None:
        await queen.push("orders", 1, partition="x")
        async with consuming(server, inFlight=1) as connection:
            batch = await connection.next_batch()
            await queen.push("orders", 2, partition="y")
            await sql.execute("BEGIN")
            await sql.execute(
                "SELECT 1 FROM queen.partition_consumers WHERE lease_id = $1 FOR UPDATE", batch["leaseId"]
            )
            for _ in range(2):
                assert (await connection.finish(batch))["code"] == "row_locked"
                await nothing_comes(connection, server)
            await sql.execute("ROLLBACK")
            assert (await connection.finish(batch))["success"]
            assert await connection.next_data() == [2]


class TestTheEnd:
    @pytest.mark.parametrize("way", ["cut", "close"])
    async def test_gives_the_leases_back_at_once(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, way: str
    ) -> None:
        for number in range(3):
            await queen.push("orders", number, partition=str(number))
        async with consuming(server, inFlight=3) as connection:
            for _ in range(3):
                await connection.next_batch()
            assert await leases(sql) == 3
            if way == "cut":
                connection.cut()
            else:
                await connection.socket.close()
            await until(lambda: not server.broker.consumers)

            async def all_free() -> bool:
                return await leases(sql) == 0

            await until(all_free)
            again = await queen.pop("orders", batch=3, partitions=3)
            assert [message["retryCount"] for message in again] == [0, 0, 0]

    async def test_at_any_moment_around_a_push_and_a_finish(
        self, queen: Queen, server: Server, sql: asyncpg.Connection
    ) -> None:
        for number in range(30):
            await queen.push("orders", number)
            async with consuming(server, inFlight=2) as connection:
                batch = await connection.next_batch()
                await connection.send(finish=[{"leaseId": batch["leaseId"]}])
                pushing = asyncio.create_task(queen.push("orders", -number - 1))
                await asyncio.sleep(random.random() / 100)
                connection.cut()
                await pushing
        await until(lambda: not server.broker.consumers)

        async def all_free() -> bool:
            return await leases(sql) == 0

        await until(all_free)
        await queen.drain("orders")
        assert await queen.pop("orders") == []

    async def test_of_the_server_lets_clients_finish(
        self, queen: Queen, database_url: str, sql: asyncpg.Connection
    ) -> None:
        running = Server(settings_with(), database_url)
        await running.start()
        await queen.push("orders", 1, 2)
        async with consuming(running) as connection:
            batch = await connection.next_batch()
            stopping = asyncio.create_task(running.stop())
            while not connection.is_stopping:
                await connection.read()
            assert (await connection.finish(batch))["success"]
            assert await connection.end() == (1001, "the server stops")
            await stopping
        assert await leases(sql) == 0
        assert data(await queen.pop("orders")) == [2]

    async def test_and_leaves_them_what_takes_longer(
        self, queen: Queen, database_url: str, sql: asyncpg.Connection
    ) -> None:
        running = Server(settings_with(http={"shutdown_grace_s": 0.1}), database_url)
        await running.start()
        await queen.push("orders", 1)
        async with consuming(running) as connection:
            batch = await connection.next_batch()
            stopping = asyncio.create_task(running.stop())
            assert await connection.end() == (1001, "the server stops")
            await stopping
        assert await leases(sql) == 1
        assert (await queen.finish(batch["leaseId"]))["success"]

    async def test_of_a_client_that_does_not_answer(
        self, queen: Queen, database_url: str, sql: asyncpg.Connection
    ) -> None:
        running = Server(settings_with(consumers={"ping_s": 0.1}), database_url)
        await running.start()
        try:
            await queen.push("orders", 1)
            async with aiohttp.ClientSession() as session:
                socket = await session.ws_connect(url_of(running), autoping=False)
                await socket.receive()
                assert await leases(sql) == 1
                await until(lambda: not running.broker.consumers)
                assert {(await socket.receive()).type for _ in range(2)} == {aiohttp.WSMsgType.PING}
        finally:
            await running.stop()
        assert await leases(sql) == 1, "it may be at work still"


FRAMES: list[tuple[Any, int]] = [
    ("", 1007),
    ("nonsense", 1007),
    ("[]", 1007),
    ("{", 1007),
    ('{"finish":[{}]}', 1007),
    ('{"finish":[{"leaseId":"x","status":"done"}]}', 1007),
    ('{"finish":{"leaseId":"x"}}', 1007),
    ('{"renew":[{"leaseId":"x","seconds":0}]}', 1007),
    ('{"batch":"auto"}', 1007),
    ('{"partitions":-1}', 1007),
    ('{"finish":[{"leaseId":"x","error":"\\u0000"}]}', 1007),
    ('{"finish":[' + ",".join(['{"leaseId":"x"}'] * 10_001) + "]}", 1007),
    ('{"renew":[' + ",".join(['{"leaseId":"x"}'] * 10_001) + "]}", 1007),
    ("x" * (1024 * 1024 + 1), 1009),
    (b"{}", 1003),
]


class TestBadInput:
    @pytest.mark.parametrize(("frame", "code"), FRAMES, ids=range(len(FRAMES)))
    async def test_ends_the_connection_and_says_why(
        self, queen: Queen, server: Server, sql: asyncpg.Connection, frame: Any, code: int
    ) -> None:
        await queen.push("orders", 1)
        async with consuming(server) as connection:
            await connection.next_batch()
            await (connection.socket.send_str if isinstance(frame, str) else connection.socket.send_bytes)(frame)
            ended, reason = await connection.end()
            assert (ended, bool(reason)) == (code, True)

        async def all_free() -> bool:
            return await leases(sql) == 0

        await until(all_free)

    async def test_any_bytes(self, queen: Queen, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        await queen.push("orders", 1)
        head = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13")
        key = b"Sec-WebSocket-Key: " + b"A" * 22 + b"=="
        beginnings = (b"\x81\xfe", b"\x81\x85", b"\x89\x80", b"\x88\x82", b"\x80\x85", b"\x01\x83")
        for _ in range(60):
            async with connect(server.address) as wire:
                await wire.send("GET", "/api/v1/consume/queue/orders", *head, key)
                assert (await wire.answer()).status == 101
                noise = bytearray(os.urandom(random.randrange(1, 300)))
                if random.random() < 0.7:
                    noise[:2] = random.choice(beginnings)
                wire.write(bytes(noise))
                await asyncio.sleep(0.002)
        await until(lambda: not server.broker.consumers)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        async with consuming(server) as connection:
            assert await connection.next_data() == [1]

    @pytest.mark.parametrize(
        ("frame", "code"),
        [(b"\x00\x80\0\0\0\0", 1009), (b"\x89\x80\0\0\0\0", 1008), (b"\x8a\x80\0\0\0\0", 1008)],
        ids=["fragments", "pings", "pongs"],
    )
    async def test_work_for_nothing(self, queen: Queen, server: Server, frame: bytes, code: int) -> None:
        head = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13")
        async with connect(server.address) as wire:
            await wire.send("GET", "/api/v1/consume/queue/orders", *head, b"Sec-WebSocket-Key: " + b"A" * 22 + b"==")
            assert (await wire.answer()).status == 101
            begun = b"\x01\x80\0\0\0\0" if code == 1009 else b""
            wire.write(begun + frame * 100_000)
            said = b""
            with suppress(ConnectionError):
                while part := await wire.read(65536):
                    said += part
        assert code.to_bytes(2, "big") in said[-130:]
        assert len(server.broker.consumers) == 0

    async def test_no_websocket(self, queen: Queen, server: Server) -> None:
        plain = await queen.http.get("/api/v1/consume/queue/orders")
        assert (plain.status_code, plain.json()["code"]) == (426, "upgrade_required")
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        for headers, status in (
            (upgrade, 400),
            (upgrade | {"Sec-WebSocket-Key": "short"}, 400),
            (upgrade | {"Sec-WebSocket-Key": "A" * 22 + "==", "Sec-WebSocket-Version": "8"}, 426),
            (upgrade | {"Sec-WebSocket-Key": "A" * 22 + "==", "Connection": "keep-alive"}, 426),
            (upgrade | {"Sec-WebSocket-Key": "A" * 22 + "==", "Connection": "close, Upgrade"}, 426),
        ):
            answer = await queen.http.get("/api/v1/consume/queue/orders", headers=headers)
            assert answer.status_code == status, headers
        # Where there is no WebSocket, the request is an ordinary one.
        answer = await queen.http.get("/health", headers=upgrade | {"Sec-WebSocket-Key": "A" * 22 + "=="})
        assert answer.status_code == 200

    @pytest.mark.parametrize("params", [{"inFlight": "x"}, {"autoAck": "true"}, {"batch": "x"}, {"partition": "\0"}])
    async def test_bad_parameters(self, queen: Queen, server: Server, params: Json) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            async with consuming(server, **params):
                pass
        assert refusal.value.status == 400


async def test_pages_of_others_get_no_connection(queen: Queen, server: Server, database_url: str) -> None:
    with_tokens = Server(settings_with(auth={"enabled": True, "secret": SECRET}), database_url)
    await with_tokens.start()
    try:
        for running in (server, with_tokens):
            headers = {"Authorization": f"Bearer {signed()}"}
            with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                async with consuming(running, headers=headers | {"Origin": "https://evil.example"}):
                    pass
            assert refusal.value.status == 403
            host, port = running.address
            async with consuming(running, headers=headers | {"Origin": f"http://{host}:{port}"}):
                pass
    finally:
        await with_tokens.stop()


def signed(**claims: Any) -> str:
    about = {"sub": "one", "role": "read-write", "exp": time.time() + 3600}
    return jwt.encode(about | claims, SECRET, "HS256")


class TestTokens:
    @pytest.fixture
    def settings(self) -> Settings:
        return settings_with(auth={"enabled": True, "secret": SECRET, "tokens_enabled": True, "clock_skew_s": 0})

    @staticmethod
    def bearing(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    async def test_without_one(self, server: Server) -> None:
        for headers, status in (({}, 401), (self.bearing(signed(role="read-only")), 403)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                async with consuming(server, headers=headers):
                    pass
            assert refusal.value.status == status

    async def test_one_that_expires(self, server: Server) -> None:
        token = signed(exp=time.time() + 1.5)
        async with consuming(server, headers=self.bearing(token)) as connection:
            assert await connection.end() == (1008, "Token expired")

    async def test_one_that_is_revoked(self, server: Server, http: httpx.AsyncClient) -> None:
        http.headers.update(self.bearing(signed(role="admin")))
        answer = await http.post(
            "/api/v1/tokens", json={"name": "worker", "role": "read-write", "expiresInSeconds": 600}
        )
        made = answer.json()
        queen = Queen(http)
        await queen.push("orders", 1, 2)
        async with consuming(server, headers=self.bearing(made["token"])) as connection:
            await connection.next_batch()
            assert (await http.delete(f"/api/v1/tokens/{made['id']}")).status_code == 200
            assert await connection.end() == (1008, "Token revoked")
        await until(lambda: not server.broker.consumers)
        assert data(await queen.wait("orders")) == [1]

    @pytest.mark.parametrize(
        ("grant", "status"),
        [
            ({"queues": ["orders"]}, 101),
            ({"queues": ["others"]}, 403),
            ({"queues": ["orders"], "groups": ["billing"]}, 101),
            ({"queues": ["orders"], "groups": ["shipping"]}, 403),
            ({"queues": ["orders"], "allow": ["pop"]}, 403),
            ({"queues": ["orders"], "allow": ["ack"]}, 403),
        ],
    )
    async def test_one_for_some_queues(self, server: Server, http: httpx.AsyncClient, grant: Json, status: int) -> None:
        http.headers.update(self.bearing(signed(role="admin")))
        about = {"name": "worker", "role": "read-write", "expiresInSeconds": 600, "grants": [grant]}
        made = (await http.post("/api/v1/tokens", json=about)).json()
        opening = consuming(server, headers=self.bearing(made["token"]), consumerGroup="billing")
        if status == 101:
            async with opening:
                return
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            async with opening:
                pass
        assert refusal.value.status == status

    async def test_one_with_limits(self, server: Server, http: httpx.AsyncClient) -> None:
        http.headers.update(self.bearing(signed(role="admin")))
        about = {"name": "worker", "role": "read-write", "expiresInSeconds": 600, "limits": {"longPolls": 1}}
        made = (await http.post("/api/v1/tokens", json=about)).json()
        headers = self.bearing(made["token"])
        async with consuming(server, headers=headers), consuming(server, headers=headers) as second:
            code, reason = await second.end()
            assert code == 1013
            assert "long polls" in reason

    async def test_one_that_may_send_few_requests_is_read_more_slowly(
        self, server: Server, http: httpx.AsyncClient
    ) -> None:
        http.headers.update(self.bearing(signed(role="admin")))
        about = {"name": "worker", "role": "read-write", "expiresInSeconds": 600, "limits": {"requestsPerSecond": 4}}
        made = (await http.post("/api/v1/tokens", json=about)).json()
        for number in range(8):
            await Queen(http).push("orders", number, partition=str(number))
        async with consuming(server, headers=self.bearing(made["token"]), inFlight=8) as connection:
            batches = [await connection.next_batch() for _ in range(8)]
            await connection.send(finish=[{"leaseId": batch["leaseId"]} for batch in batches])
            while len(connection.finished) < 8:
                await connection.read()
            assert all(result["success"] for result in connection.finished)
            assert server._app._context.rates.refused["requests"] > 0


async def test_too_many_connections_are_refused(queen: Queen, database_url: str) -> None:
    for most, status in ((1, 429), (0, 404)):
        running = Server(settings_with(consumers={"max_connections": most}), database_url)
        await running.start()
        try:
            first = [consuming(running)] * most
            for one in first:
                await one.__aenter__()
            with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
                async with consuming(running):
                    pass
            assert refusal.value.status == status
            for one in first:
                await one.__aexit__(None, None, None)
        finally:
            await running.stop()


async def test_many_connections_that_break_lose_and_double_nothing(
    queen: Queen, server: Server, sql: asyncpg.Connection
) -> None:
    """Every id is finished exactly once, in order within its partition, although connections are cut all the time."""
    partitions, each = 12, 25
    for partition in range(partitions):
        await queen.push("orders", *([partition, number] for number in range(each)), partition=str(partition))
    finished: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    total = partitions * each

    async def consume() -> None:
        while sum(map(len, finished.values())) < total:
            async with consuming(server, inFlight=3, batch=2) as connection:
                for _ in range(random.randrange(1, 12)):
                    try:
                        async with asyncio.timeout(1):
                            batch = await connection.next_batch()
                        result = await connection.finish(batch)
                    except TimeoutError:
                        break
                    assert result["success"]
                    for message in batch["messages"]:
                        finished[message["data"][0]].append(message["data"][1])
                if random.random() < 0.7:
                    connection.cut()

    async with asyncio.timeout(60):
        await asyncio.gather(*(consume() for _ in range(6)))
    assert finished == {partition: list(range(each)) for partition in range(partitions)}
    assert await sql.fetchval("SELECT sum(total_consumed) FROM queen.partition_consumers") == total
