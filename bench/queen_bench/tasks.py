"""Coroutines that run side by side and fall together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all of them; the first failure ends the others and is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancelled(tasks)


async def cancelled(tasks: Iterable[asyncio.Future[None]]) -> None:
    """End what still runs. Failures beside the one that is raised are passed over."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
