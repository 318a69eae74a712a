"""Steps of subscriptions that are shared, without a database."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from queenmq.broker.subscriptions import Subscriptions
from queenmq.core.names import BEGINNING
from queenmq.errors import DatabaseUnavailable


async def test_a_step_that_fails_when_all_have_gone_is_no_error_of_the_program() -> None:
    asked, away, said = asyncio.Event(), asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))

    class Locks:
        async def through(self, *_: object) -> bool:
            asked.set()
            await away.wait()
            raise DatabaseUnavailable

    class Few:
        async def fetchval(self, *_: object, **__: object) -> bool:
            return False

    subscriptions = Subscriptions(cast(Any, Few()), cast(Any, Locks()), lambda *_: None, 1)
    waiting = asyncio.create_task(subscriptions.step("q", None, "g", BEGINNING))
    await asked.wait()
    [step] = subscriptions._steps.values()
    waiting.cancel()
    away.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait((step,))
    await asyncio.sleep(0)
    del step, waiting
    gc.collect()
    assert said == []
    assert not subscriptions._steps
