"""For `queen pipeline bench`: how long a message takes from its push to the result of a window that is updated, one
message at a time. Over HTTP, as users do it (the result is popped with a long poll), or within the database.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode, urlsplit

from queenmq.pipeline.errors import PipelineError

PATIENCE_S: Final = 300
POLL_S: Final = 60
GROUP: Final = "bench"
ARRIVED: Final = (
    "SELECT coalesce(sum(l.last_offset), 0) FROM queen.partition_lookup l "
    "JOIN queen.queues q ON q.id = l.queue_id WHERE q.name = $1"
)


class Way(Protocol):
    def trip(self, partition: str) -> None:
        """Push a message and return when its result is there. Raises PipelineError if it does not come."""


class OverHttp:
    """A server, as a producer and a consumer see it."""

    def __init__(self, server: str, source: str, target: str) -> None:
        parts = urlsplit(server)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._opened = kind(parts.hostname or "127.0.0.1", parts.port, timeout=POLL_S + 10)
        self._source = source
        query = {"wait": "true", "timeout": POLL_S * 1000, "consumerGroup": GROUP, "autoAck": "true", "batch": 1000}
        path = f"/api/v1/pop/queue/{quote(target)}"
        self._wait = f"{path}?{urlencode(query)}"
        self._call("GET", f"{path}?{urlencode(query | {'wait': 'false'})}")

    def trip(self, partition: str) -> None:
        self._call("POST", "/api/v1/push", {"items": [{"queue": self._source, "partition": partition, "payload": 1}]})
        until = time.perf_counter() + PATIENCE_S
        while self._call("GET", self._wait) == http.HTTPStatus.NO_CONTENT:
            if time.perf_counter() > until:
                raise PipelineError("the window job gave no result")

    def _call(self, method: str, path: str, body: Any = None) -> int:
        try:
            self._opened.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
            answer = self._opened.getresponse()
            text = answer.read()
        except OSError as error:
            raise PipelineError(f"the server cannot be reached: {error}") from None
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise PipelineError(f"the server refused: {answer.status} {text[:200].decode('utf-8', 'replace')}")
        return answer.status


class WithinTheDatabase:
    """From the commit of a push to that of the result."""

    def __init__(self, opened: Any, source: str, target: str) -> None:
        self._opened = opened
        self._source = source
        self._target = target

    def trip(self, partition: str) -> None:
        before = self._arrived()
        self._opened.execute(
            "INSERT INTO queen.messages (partition_id, payload) SELECT p.id, '1' FROM queen.partitions p "
            "JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND p.name = $2",
            (self._source, partition),
        )
        until = time.perf_counter() + PATIENCE_S
        while self._arrived() == before:
            if time.perf_counter() > until:
                raise PipelineError("the window job gave no result")
            time.sleep(0.002)

    def _arrived(self) -> int:
        found: int = self._opened.execute(ARRIVED, (self._target,)).fetchone()[0]
        return found
