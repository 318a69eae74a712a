"""Clients of a real server, and servers that misbehave on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from integration.conftest import database_url, swept  # noqa: F401 - fixtures

from client.faults import Proxy
from queenmq.client import Queen
from queenmq.server import Server


@pytest.fixture
def url(server: Server) -> str:
    host, port = server.address
    return f"http://{host}:{port}"


@pytest.fixture
async def queen(url: str) -> AsyncIterator[Queen]:
    """Our client of a real server; quick to try again."""
    async with Queen(url, retry_delay_millis=10) as client:
        yield client


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    """A proxy before the real server that does what it is told to with the next requests."""
    async with Proxy(url) as running:
        yield running
