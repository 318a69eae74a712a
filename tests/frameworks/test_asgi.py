"""The lifespan of an ASGI application: the guide's example, in FastAPI."""

from __future__ import annotations

import asyncio
import runpy
from typing import Any

import httpx

from frameworks.conftest import PATIENCE_S, Example

GUIDE = "fastapi.md"


def test_a_client_and_a_consumer_live_as_long_as_the_application(example: Example) -> None:
    app = runpy.run_path(str(example.folder / "app.py"))["app"]

    async def scenario() -> Any:
        async with app.router.lifespan_context(app) as state:

            async def served(scope: Any, receive: Any, send: Any) -> None:
                scope["state"] = dict(state)  # as a server does
                await app(scope, receive, send)

            transport = httpx.ASGITransport(served)
            async with (
                asyncio.timeout(PATIENCE_S),
                httpx.AsyncClient(transport=transport, base_url="http://app") as web,
            ):
                for order in range(5):
                    assert (await web.post(f"/orders/{order}")).json() == {"order": order}
                while sorted((await web.get("/billed")).json()) != list(range(5)):
                    await asyncio.sleep(0.01)
        return state["queen"]

    assert asyncio.run(scenario())._session.closed
