"""Fuzzing of consumer connections, by changing what a client sends on them:

    python tests/fuzz/consumer_frames.py http://127.0.0.1:6632 600      # seconds; prints its seed

Use it against a server whose data may be lost. Every connection must be answered or closed with a reason, never with an
internal error (1011), and the server answers as usual afterwards. `tests/integration/test_fuzz_http.py` runs a short
form, and with `QUEEN_LONG=1` one of ten minutes that also watches the memory of the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

from fuzz.http_requests import STRANGE, UUID, Failed, Fuzzer

AT_ONCE = 8
ANSWER_S = 30.0
INTERNAL_ERROR = 1011
# Sent to a server that has nothing to say it needs no answer, so a pause says that the frame was taken.
QUIET_S = 0.02
PARAMETERS = ("batch", "partitions", "inFlight", "consumerGroup", "partition", "subscriptionMode", "autoAck")


class ConsumerFuzzer:
    """`closed` counts how connections have ended, by close code; None for a connection that the fuzzer has cut."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._random = random.Random(seed)
        self._changes = Fuzzer(url, seed)
        self.closed: Counter[int | None] = Counter()
        self.frames = 0

    async def run(self, seconds: float) -> None:
        """Raises Failed at the first end that must not be."""
        end = time.monotonic() + seconds
        async with aiohttp.ClientSession(self._url) as http, asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._many(http, end))
        async with aiohttp.ClientSession(self._url) as http, http.get("/health") as answer:
            assert answer.status == 200

    async def _many(self, http: aiohttp.ClientSession, end: float) -> None:
        while time.monotonic() < end:
            items = [{"queue": "fuzzed", "partition": str(number), "payload": number} for number in range(3)]
            async with http.post("/api/v1/push", json={"items": items}) as pushed:
                assert pushed.status in (201, 202)
            try:
                await self._one(http)
            except TimeoutError:
                raise Failed("a connection neither answers nor ends") from None
            except aiohttp.WSServerHandshakeError as refused:
                self.closed[refused.status] += 1
                if refused.status >= 500 and refused.status != 503:
                    raise Failed(f"{refused.status} for a handshake") from refused
            except (aiohttp.ClientError, ConnectionError):
                self.closed[None] += 1

    async def _one(self, http: aiohttp.ClientSession) -> None:
        pick = self._random
        query = {"inFlight": "2"}
        if pick.random() < 0.2:
            query |= {pick.choice(PARAMETERS): pick.choice((*STRANGE, "3")) for _ in range(2)}
        query = {key: value.encode(errors="replace").decode() for key, value in query.items()}
        async with asyncio.timeout(ANSWER_S), http.ws_connect("/api/v1/consume/queue/fuzzed", params=query) as socket:
            leases = [UUID]
            for _ in range(pick.randint(1, 6)):
                await self._send(socket, leases)
                self.frames += 1
                if await self._read(socket, leases):
                    return
            if pick.random() < 0.3:
                transport = socket.get_extra_info("transport", None)
                if transport is not None:
                    transport.abort()
                self.closed[None] += 1
                return
            await socket.close()
            self.closed[socket.close_code] += 1

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, leases: list[str]) -> None:
        pick = self._random
        lease = pick.choice(leases)
        frame: Any = pick.choice(
            [
                {"finish": [{"leaseId": lease, "status": "completed"}]},
                {"finish": [{"leaseId": lease, "status": "failed", "error": "e", "except": [{"transactionId": "t"}]}]},
                {"finish": [{"leaseId": lease}, {"leaseId": lease}], "renew": [{"leaseId": lease, "seconds": 5}]},
                {"renew": [{"leaseId": lease, "seconds": 60}]},
                {"batch": pick.choice([1, 5, 10**30]), "partitions": pick.choice([1, 3])},
                {"stop": True},
            ]
        )
        for _ in range(pick.choice([0, 0, 1, 1, 2, 4])):
            frame = self._changes.changed(frame)
        data = json.dumps(frame).encode(errors="surrogatepass")
        chance = pick.random()
        if chance < 0.1:
            await socket.send_bytes(self._changes.damaged(data))
        elif chance < 0.2:
            await socket.send_str(self._changes.damaged(data).decode(errors="replace"))
        elif chance < 0.25:
            await socket.ping(pick.randbytes(pick.randint(0, 125)))
        elif chance < 0.27:
            await socket.send_str("[" * 5000)
        else:
            await socket.send_str(data.decode())

    async def _read(self, socket: aiohttp.ClientWebSocketResponse, leases: list[str]) -> bool:
        """What has come; whether the server has ended the connection."""
        while True:
            try:
                async with asyncio.timeout(QUIET_S):
                    message = await socket.receive()
            except TimeoutError:
                return False
            if message.type is not aiohttp.WSMsgType.TEXT:
                self.closed[socket.close_code] += 1
                if socket.close_code == INTERNAL_ERROR:
                    raise Failed(f"an internal error ended a connection: {message.extra!r}")
                return True
            leases += [batch["leaseId"] for batch in message.json().get("delivered", ())]


async def main(url: str, seconds: float, seed: int) -> None:
    sys.stdout.write(f"seed {seed}\n")
    fuzzer = ConsumerFuzzer(url, seed)
    await fuzzer.run(seconds)
    sys.stdout.write(f"{fuzzer.frames} messages; connections by their end: {dict(fuzzer.closed)}\n")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    asyncio.run(
        main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else random.getrandbits(31))
    )
