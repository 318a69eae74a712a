"""A real server under requests that want its memory: how much it takes, and what becomes of everybody else's requests.
With QUEEN_LONG=1 in the size of the attacks that the bounds were made for; docs/design/security.md has the figures."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import jwt
import pytest
from cluster.processes import ServeProcess

from integration.queen import Queen

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks of memory are in /proc on Linux only"),
]

LONG = os.environ.get("QUEEN_LONG", "") not in ("", "0")
KEY = "a secret of more than thirty-two bytes"
MIB = 1 << 20
STRANGERS = 100 if LONG else 24
BODY = int(15.5 * MIB)
BACKLOG = 720 if LONG else 64  # messages of a MiB
READERS = 3
ANSWER_MIB = 16  # QUEEN_MAX_ANSWER_BYTES
PATIENCE_S = 120.0


class Attacked:
    """A server, and a client that goes on with small requests."""

    def __init__(self, process: ServeProcess, http: httpx.AsyncClient) -> None:
        self.process = process
        self.http = http
        self.grown_mb = 0.0
        self.longest_s = 0.0
        self.answered = 0

    def memory_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:")) / 1024

    def _begin_anew(self) -> float:
        """Have the peak measured from now on. Returns what is used now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.memory_mb("VmRSS")

    async def meanwhile(self, attack: Coroutine[Any, Any, None]) -> None:
        """Run it, and ask for small things until it ends: at least once."""
        before = self._begin_anew()
        async with asyncio.timeout(PATIENCE_S * 5):
            running = asyncio.create_task(attack)
            try:
                while not running.done() or not self.answered:
                    begun = time.monotonic()
                    pushed = await self.http.post("/api/v1/push", json={"items": [{"queue": "small"}]})
                    assert pushed.status_code in (201, 202), pushed.text  # 202: this machine is slow
                    self.longest_s = max(self.longest_s, time.monotonic() - begun)
                    self.answered += 1
                await running
            finally:
                running.cancel()
        self.grown_mb = self.memory_mb("VmHWM") - before
        logging.getLogger(__name__).info(
            "%.0f MB before, %+.0f MB at most; %d small pushes meanwhile, the longest took %.2f s",
            *(before, self.grown_mb, self.answered, self.longest_s),
        )


@asynccontextmanager
async def attacked(tmp_path: Path, database_url: str) -> AsyncIterator[Attacked]:
    process = ServeProcess(
        *(tmp_path, "attacked"),
        DATABASE_URL=database_url,
        FILE_BUFFER_DIR=str(tmp_path / "journal"),
        JWT_ENABLED="true",
        JWT_SECRET=KEY,
    )
    token = jwt.encode({"sub": "small", "role": "read-write", "exp": time.time() + 7200}, KEY, "HS256")
    try:
        await process.start()
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=process.url, timeout=PATIENCE_S, headers=headers) as http:
            await Queen(http).push("small", "the first one")
            yield Attacked(process, http)
        assert process.process.poll() is None
        assert "Traceback" not in process.log
    finally:
        await asyncio.to_thread(process.make_sure_it_is_gone)


async def send_large_body(url: str) -> bytes:
    """The beginning of the answer to a push without a token, whose body is sent as far as the server takes it."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY}\r\n\r\n"
    try:
        writer.write(head.encode())
        for _ in range(BODY // MIB):
            writer.write(bytes(MIB))
            await writer.drain()
    except ConnectionError:
        pass  # it was refused: the answer may be there
    try:
        return await reader.read(100)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def test_large_bodies_of_strangers(tmp_path: Path, database_url: str) -> None:
    async with attacked(tmp_path, database_url) as server:

        async def attack() -> None:
            answers = await asyncio.gather(*(send_large_body(server.process.url) for _ in range(STRANGERS)))
            assert {answer.split(b" ")[1] for answer in answers if answer} <= {b"401"}

        await server.meanwhile(attack())
        assert server.grown_mb < 64, f"{STRANGERS * BODY // MIB} MiB were sent"


async def test_large_pops_at_once(tmp_path: Path, database_url: str, sql: asyncpg.Connection) -> None:
    async with attacked(tmp_path, database_url) as server:
        await Queen(server.http).push("large", "the first one")
        await sql.execute(
            "INSERT INTO queen.messages (partition_id, payload) "
            "SELECT p.id, convert_to('\"' || repeat('x', $1::integer - 2) || '\"', 'UTF8') "
            "FROM queen.partitions p JOIN queen.queues q ON q.id = p.queue_id, generate_series(1, $2::integer) "
            "WHERE q.name = 'large'",
            MIB,
            BACKLOG,
        )

        async def read(group: str) -> None:
            left, is_known = BACKLOG + 1, True
            params = {"consumerGroup": group, "subscriptionMode": "all", "batch": "10000", "autoAck": "true"}
            while left > 0:
                answer = await server.http.get("/api/v1/pop/queue/large", params=params)
                if answer.status_code == 503:
                    is_known = False  # this machine is slow: an answer of the database may have been lost
                    continue
                if answer.status_code == 204 and not is_known:
                    return
                if answer.status_code == 204:
                    continue  # somebody has a row of the partition locked just now
                assert answer.status_code == 200, answer.text[:500]
                assert len(answer.content) < (ANSWER_MIB + 2) * MIB
                left -= len(json.loads(answer.content)["messages"])
            assert left == 0

        async def attack() -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in range(READERS):
                    tasks.create_task(read(f"g{number}"))

        await server.meanwhile(attack())
        assert server.grown_mb < 256, f"{READERS} readers, {BACKLOG} MiB each"
