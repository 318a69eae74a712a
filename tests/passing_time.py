"""Time that passes at once: timers of a manual clock fire at their moments, and tasks run in between."""

from __future__ import annotations

import asyncio

from queenmq.clock import ManualClock

# As many turns of the event loop as the longest chain of tasks that wake each other in these tests needs, and more.
TURNS = 50


async def settle() -> None:
    """Let everything go on that waits for no time."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def pass_time(clock: ManualClock, seconds: float) -> None:
    await settle()
    end = clock.monotonic() + seconds
    while (next_s := clock.next_s) is not None and clock.monotonic() + next_s <= end:
        clock.advance(next_s)
        await settle()
    clock.advance(end - clock.monotonic())
    await settle()
