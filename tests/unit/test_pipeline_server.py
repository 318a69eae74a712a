"""A server that data sources ask: which answers they wait for, and which end a job at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from queenmq.pipeline.errors import DatabaseAway
from queenmq.pipeline.server import Access, Server


@contextmanager
def answering(*statuses: int) -> Iterator[str]:
    """A server with these answers, one after the other."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = left.pop(0)
            content = b'{"error": "the database is away"}' if status >= 400 else b"{}"
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
    assert left == []


@pytest.mark.parametrize("reached", [False, True])
def test_a_server_that_says_that_it_cannot_now_is_waited_for(reached: bool) -> None:
    """Its answer shows that it is there, also if it is the first one."""
    with answering(503, 503, 429, 200) as url:
        assert Server(Access(url, None, None), reached=reached).get("status") == {}


def test_a_server_that_was_never_there_is_reported_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(DatabaseAway, match="does not answer"):
            Server(Access(url, None, None)).get("status")
