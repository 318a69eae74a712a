"""A client that lives as long as an ASGI application: `FastAPI(lifespan=lifespan(lambda: Queen(URL)))`.

It needs no extra: FastAPI, Starlette and all others with lifespan state take it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from queenmq.client import Consumer, Queen

Lifespan = Callable[[Any], AbstractAsyncContextManager[dict[str, Queen]]]


def lifespan(connect: Callable[[], Queen], *consumers: Callable[[Queen], Consumer]) -> Lifespan:
    """The application's lifespan: a handler finds the client as `request.state.queen`, and the consumers run meanwhile.

    `connect` makes the client, in the event loop of the application; a consumer is made of it (`queue(…).consume(…)`).
    At the end, consumers finish what they have in hand, and the client is closed.

    >>> app = FastAPI(lifespan=lifespan(lambda: Queen(URL), lambda queen: queen.queue("orders").consume(bill)))
    ... # doctest: +SKIP
    """

    @asynccontextmanager
    async def living(_app: Any) -> AsyncIterator[dict[str, Queen]]:
        async with AsyncExitStack() as stack:
            queen = await stack.enter_async_context(connect())
            for consumer in consumers:
                await stack.enter_async_context(consumer(queen))
            yield {"queen": queen}

    return living
