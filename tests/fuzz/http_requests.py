"""Fuzzing of a server over HTTP, by changing requests that are in order:

    python tests/fuzz/http_requests.py http://127.0.0.1:6632 600        # seconds; prints its seed
    python tests/fuzz/http_requests.py http://127.0.0.1:6632 600 17     # the same requests again

Use it against a server whose data may be lost. No answer may be a 500, every connection is answered or closed, and the
server answers as usual afterwards. `tests/integration/test_fuzz_http.py` runs a short form, and with `QUEEN_LONG=1` one
of ten minutes that also watches the memory of the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import string
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from queenmq.config import Settings
from queenmq.http.app import ROUTES
from queenmq.http.openapi import document
from queenmq.http.route import Route


def query_parameters(routes: Iterable[Route]) -> set[str]:
    """The names of those that the OpenAPI document of the routes has."""
    return {
        parameter["name"]
        for operations in document(routes, Settings())["paths"].values()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    }


AT_ONCE = 8
ANSWER_S = 30.0
HEADLESS = {
    "/api/v1/live",
    "/api/v1/system/maintenance",
    "/api/v1/system/maintenance/pop",
}  # an endless one, and switches
UUID = "00000000-0000-4000-8000-000000000001"
NAMES = ("q", "q.a", "q.other", "Default", "g", "__QUEUE_MODE__", UUID)
STRANGE = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "é",
        "\ud800",
        "💥",
        "a" * 256,
        "a" * 5000,
        "..",
        "../..",
        "%00",
        "'",
        '"',
        "\\",
        "{}",
        "*",
        "%",
    ),
    *("0", "-1", "1e309", "NaN", "null", "true", str(2**63), str(2**64), "9" * 400, "0001-01-01T00:00:00Z"),
    *("9999-12-31T23:59:59Z", "2020-02-30", "-infinity", "1970-01-01T00:00:00+99:99"),
)
# Those of every route, and one that no route has.
PARAMETERS = (*sorted(query_parameters(ROUTES)), "x")
ITEM = {
    "queue": "q",
    "partition": "p",
    "payload": {"a": [1, 2.5, None, "x"]},
    "transactionId": "t",
    "headers": {"a": "b"},
}
ACK = {
    "transactionId": "t",
    "partitionId": UUID,
    "leaseId": UUID,
    "status": "completed",
    "consumerGroup": "g",
    "error": "e",
}
OPTIONS = {"leaseTime": 5, "retryLimit": 1, "maxSize": 10_000, "ttl": 60, "priority": 1, "encryptionEnabled": False}
# For each route a body that it accepts, apart from ids that nobody has.
BODIES: dict[str, Any] = {
    "/api/v1/push": {"items": [ITEM, ITEM | {"traceId": UUID}, {"queue": "q", "payload": 1, "delay": 1}]},
    "/api/v1/ack": ACK,
    "/api/v1/ack/batch": {"acknowledgments": [ACK, ACK], "consumerGroup": "g"},
    "/api/v1/transaction": {
        "operations": [{"type": "push", "items": [{"queue": "q", "payload": 1}]}, {"type": "ack", **ACK}],
        "requiredLeases": [UUID],
    },
    "/api/v1/configure": {"queue": "q", "namespace": "n", "task": "t", "options": OPTIONS},
    "/api/v1/lease/{leaseId}/extend": {"seconds": 60},
    "/api/v1/dlq/redrive": {"queue": "q", "consumerGroup": "g", "partition": "p"},
    "/api/v1/traces": {"transactionId": "t", "partitionId": UUID, "data": {"x": 1}, "traceNames": ["n"]},
    "/api/v1/consumer-groups/{group}/subscription": {"subscriptionTimestamp": "2020-01-01T00:00:00Z"},
    "/api/v1/consumer-groups/{group}/queues/{queue}/seek": {"timestamp": "2020-01-01T00:00:00Z"},
    "/streams/v1/queries": {"name": "s", "source_queue": "q", "sink_queue": "q2", "config_hash": "h", "reset": True},
    "/streams/v1/state/get": {"query_id": UUID, "partition_id": UUID, "keys": ["k"], "ripe_at_or_before": 1.5},
    "/streams/v1/cycle": {
        "query_id": UUID,
        "partition_id": UUID,
        "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
        "push_items": [ITEM],
    },
    "/api/v1/timers": {
        "operations": [
            {"op": "schedule", "queue": "q", "timerKey": "k", "data": 1, "schedule": "* * * * *", "timeZone": "UTC"},
            {"op": "cancel", "queue": "q", "timerKey": "k"},
        ]
    },
    "/api/v1/tokens": {"name": "t", "role": "read-only", "grants": [{"queues": ["a.*"]}], "expiresInSeconds": 5},
    "/api/v1/quotas": {
        "namespace": "n",
        "maxMessages": 10**9,
        "maxBytes": 10**15,
        "requestsPerSecond": 10**6,
        "messagesPerSecond": 10**6,
        "longPolls": 10**6,
    },
    "/api/v1/lease/{leaseId}/finish": {
        "status": "completed",
        "except": [{"transactionId": "t", "status": "failed", "error": "e"}],
        "take": {"queue": "q", "consumerGroup": "g", "batch": 2, "partitions": 2, "wait": True, "timeout": 50},
    },
    "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek": {"toEnd": True},
    "/api/v1/consumer-groups/{group}/queues/{queue}/conflation": {"enabled": True},
    "/api/v1/consumer-groups/{group}/queues/{queue}/filter": {"filter": "headers.a = 'b' AND payload.a.b > 3"},
    "/api/v1/pause": {"queue": "q.a", "consumerGroup": "g", "partition": "p", "reason": "r"},
    "/api/v1/resume": {"queue": "q.a", "consumerGroup": "g", "partition": "p"},
    "/api/v1/policies": {
        "queue": "q",
        "consumerGroup": "g",
        "retry": {
            "strategy": "exponential",
            "delayMs": 10,
            "factor": 2.5,
            "maxDelayMs": 1000,
            "jitter": 0.5,
            "limit": 3,
        },
        "breaker": {"failures": 3, "of": 5, "pauseSeconds": 1},
        "limits": {"leases": 10, "rate": 1000.5, "burst": 10},
        "fairness": None,
    },
    "/api/v1/fetch": {"entries": [{"queue": "q", "partition": "p", "offset": 1, "limit": 5}], "maxBytes": 1000},
    "/internal/api/notify": {"queue": "q", "partition": "p"},
    "/api/v1/schemas/{queue}": {
        "schema": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]},
        "compatibility": "backward",
        "check": False,
    },
    "/api/v1/schemas/{queue}/check": {"schema": {"type": ["string", "null"]}, "payloads": [{"a": 1}, "x", None]},
    "/api/v1/kv": {
        "operations": [
            {"op": "put", "ns": "n", "key": "k", "value": {"a": 1}, "ttlSeconds": 5, "expect": 0},
            {"op": "incr", "ns": "n", "key": "c", "delta": 2, "min": 0, "max": 10, "forever": True},
            {"op": "getPrefix", "ns": "n", "prefix": "k", "limit": 5},
        ]
    },
    "/api/v1/locks": {
        "operations": [
            {"op": "acquire", "name": "l", "owner": "o", "ttlSeconds": 5, "limit": 2},
            {"op": "release", "name": "l", "owner": "o", "slot": 0, "token": 1},
        ]
    },
}
HEADERS = (
    *(
        "Content-Length: 0",
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999",
        "Expect: 100-continue",
    ),
    *(
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding:  ChUnKeD",
        "Connection: close",
    ),
    *(
        "Connection: upgrade\r\nUpgrade: websocket",
        "Authorization: Bearer x",
        "Authorization: \xff",
        "X-Request-Id: \x01",
        "Host:",
    ),
    *(
        "Host: a\r\nHost: b",
        "traceparent: 00-0-0-00",
        "X-Forwarded-By: a",
        "Origin: http://evil.example",
        "Sec-Fetch-Site: cross-site",
    ),
    *(
        "Accept-Encoding: gzip",
        "Content-Encoding: gzip",
        "Content-Type: text/plain",
        " folded: x",
        "Name with blank: x",
        ": x",
        "X: " + "y" * 70_000,
    ),
)


class Failed(AssertionError):
    """The server has answered with 500, or not at all, or with what it must not tell."""


class Fuzzer:
    def __init__(self, url: str, seed: int, tokens: Sequence[str] = (), secrets: Sequence[bytes] = ()) -> None:
        """With `tokens`, each connection has one of them, or none; no answer may contain one of `secrets`."""
        parts = urlsplit(url)
        self._place = parts.hostname or "127.0.0.1", parts.port or 80
        self._random = random.Random(seed)
        self._tokens = tokens
        self._secrets = secrets
        self.statuses: Counter[int] = Counter()

    async def run(self, seconds: float) -> None:
        """Raises Failed at the first answer that must not be."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._many(end))
        assert await self._asked([b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"], whole=True) == [200]

    async def _many(self, end: float) -> None:
        while time.monotonic() < end:
            chance = self._random.random()
            count = 1 if chance < 0.8 else self._random.randint(2, 6)
            token = self._random.choice([*self._tokens, *self._tokens, *self._tokens, None]) if self._tokens else None
            requests = [self._request(token) for _ in range(count)]
            whole = chance > 0.1
            if not whole:
                requests = [self.damaged(b"".join(requests))]
            for status in await self._asked(requests, whole=whole):
                self.statuses[status] += 1
                if status == 500:
                    raise Failed(f"500 for {requests!r}")

    async def _asked(self, requests: list[bytes], *, whole: bool) -> list[int]:
        """The statuses of the answers. What is not whole HTTP may be answered or not."""
        reader, writer = await asyncio.open_connection(*self._place)
        try:
            data = b"".join(requests)
            async with asyncio.timeout(ANSWER_S):
                for part in self._parts(data):
                    writer.write(part)
                    await writer.drain()
                writer.write_eof()
                answered = await reader.read()
        except TimeoutError:
            raise Failed(f"no end of the answer to {requests!r}") from None
        except OSError:
            return []  # the server has closed it; what it has answered before may be lost then
        finally:
            writer.transport.abort()
        for secret in self._secrets:
            if secret in answered:
                raise Failed(f"{secret!r} in the answer to {requests!r}: {answered!r}")
        return [int(status) for status in re.findall(rb"^HTTP/1\.1 (\d{3}) ", answered, re.MULTILINE)]

    def _parts(self, data: bytes) -> list[bytes]:
        if self._random.random() < 0.7 or len(data) < 4:
            return [data]
        cuts = sorted(self._random.sample(range(1, len(data)), min(3, len(data) - 1)))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def damaged(self, data: bytes) -> bytes:
        """Bytes changed, taken out, repeated or cut off."""
        changed = bytearray(data)
        for _ in range(self._random.randint(1, 8)):
            at = self._random.randrange(len(changed) or 1)
            match self._random.randrange(4):
                case 0:
                    changed[at : at + 1] = self._random.randbytes(self._random.randint(1, 4))
                case 1:
                    del changed[at : at + self._random.randint(1, 20)]
                case 2:
                    changed[at:at] = changed[at : at + 50]
                case _:
                    if self._random.random() < 0.2:
                        del changed[at:]
        return bytes(changed)

    def _request(self, token: str | None = None) -> bytes:
        pick = self._random
        route: Route = pick.choice([one for one in ROUTES if one.path not in HEADLESS])
        method = (
            route.method
            if pick.random() < 0.95
            else pick.choice(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "X"])
        )
        path = re.sub(
            r"\{[^}]*\}", lambda _: quote(self._name(), safe=pick.choice(["", "/"]), errors="replace"), route.path
        )
        given = [(pick.choice(PARAMETERS), self._name()) for _ in range(pick.choice([0, 0, 1, 2, 4]))]
        # A long poll that nobody wakes ends soon.
        query = "".join(f"{key}={quote(value, errors='replace')}&" for key, value in given)
        target = f"{path}?{query}timeout=50"
        body = self._body(route.path) if route.method == "POST" or pick.random() < 0.05 else b""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        if pick.random() < 0.15:
            # What is compressed could not be searched for secrets.
            lines.append(pick.choice([one for one in HEADERS if not (self._secrets and "gzip" in one)]))
        if pick.random() < 0.05:
            lines.remove("Host: localhost")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body

    def _name(self) -> str:
        chance = self._random.random()
        if chance < 0.6:
            return self._random.choice(NAMES)
        if chance < 0.95:
            return self._random.choice(STRANGE)
        return "".join(self._random.choices(string.printable, k=self._random.randint(1, 40)))

    def _body(self, path: str) -> bytes:
        chance = self._random.random()
        if chance < 0.05:
            return self._random.randbytes(self._random.randint(0, 300))
        if chance < 0.1:
            return b"[" * self._random.choice([10, 5000]) + b"1"
        document = BODIES.get(path) if chance < 0.9 else None
        if document is None:
            document = self._random.choice(list(BODIES.values()))
        for _ in range(self._random.choice([0, 1, 1, 2, 4])):
            document = self.changed(document)
        text = json.dumps(document, ensure_ascii=self._random.random() < 0.5)
        data = text.encode(errors="surrogatepass")
        return self.damaged(data) if self._random.random() < 0.1 else data

    def changed(self, value: Any) -> Any:
        """With one part of it replaced, taken out or repeated."""
        pick = self._random
        if isinstance(value, dict) and value and pick.random() < 0.85:
            key = pick.choice(list(value))
            if pick.random() < 0.1:
                return {name: one for name, one in value.items() if name != key}
            return value | {key: self.changed(value[key])}
        if isinstance(value, list) and value and pick.random() < 0.85:
            at = pick.randrange(len(value))
            if pick.random() < 0.1:
                return value * pick.choice([0, 2, 50])
            return [*value[:at], self.changed(value[at]), *value[at + 1 :]]
        return pick.choice([None, True, 0, -1, 2**31, 2**63, 2**70, 1.5, 1e308, [], {}, [[]], {"a": None}, *STRANGE])


async def main(url: str, seconds: float, seed: int) -> None:
    sys.stdout.write(f"seed {seed}\n")
    fuzzer = Fuzzer(url, seed)
    await fuzzer.run(seconds)
    sys.stdout.write(f"{fuzzer.statuses.total()} answers: {dict(sorted(fuzzer.statuses.items()))}\n")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    asyncio.run(
        main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else random.getrandbits(31))
    )
