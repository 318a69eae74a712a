"""The stream engine of the client: stateless steps, windows, gates, and what it remembers over a restart."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable

from queen import Queen
from queen.streams import Stream
from stage import check_since, drain, fill, play

URL = sys.argv[1]
QUICKLY = {"max_wait_millis": 200}


async def gathered(queen: Queen, queue: str, enough: Callable[[list[object]], bool]) -> list[object]:
    """What a sink gets until it is enough."""
    seen: list[object] = []
    while not enough(seen):
        seen += await drain(queen, queue)
        await asyncio.sleep(0.05)
    return seen


@check_since(0, 15)
async def stateless_steps_deliver_each_message_once(queen: Queen, name: str) -> None:
    await fill(queen, name, *({"n": n} for n in range(50)))
    stream = (
        Stream.from_(queen.queue(name))
        .filter(lambda message: message["data"]["n"] % 2 == 0)
        .flat_map(lambda message: [{"n": message["data"]["n"]}, {"n": -message["data"]["n"]}])
        .to(queen.queue(f"{name}.sink"))
    )
    runner = await stream.run(query_id=name, url=URL, **QUICKLY)
    seen = await gathered(queen, f"{name}.sink", lambda seen: len(seen) >= 50)
    await runner.stop()
    assert [value["n"] for value in seen] == [sign * n for n in range(0, 50, 2) for sign in (1, -1)]
    assert runner.metrics()["errorsTotal"] == 0, runner.metrics()


@check_since(0, 15)
async def tumbling_windows_sum_exactly(queen: Queen, name: str) -> None:
    for partition in ("a", "b"):
        await fill(queen, name, *({"v": n} for n in range(100)), partition=partition)
    stream = (
        Stream.from_(queen.queue(name))
        .window_tumbling(seconds=1, idle_flush_ms=200)
        .aggregate({"count": lambda _: 1, "sum": lambda value: value["v"]})
        .to(queen.queue(f"{name}.sink"))
    )
    runner = await stream.run(query_id=name, url=URL, **QUICKLY)
    seen = await gathered(queen, f"{name}.sink", lambda seen: sum(value["count"] for value in seen) >= 200)
    await runner.stop()
    assert sum(value["count"] for value in seen) == 200
    assert sum(value["sum"] for value in seen) == 2 * sum(range(100))
    assert runner.metrics()["errorsTotal"] == 0, runner.metrics()


@check_since(0, 15)
async def sliding_windows_have_every_event_once(queen: Queen, name: str) -> None:
    """While windows end in cycles and in the flushes beside them at the same time."""
    stream = (
        Stream.from_(queen.queue(name))
        .window_sliding(size=2, slide=1, idle_flush_ms=50)
        .reduce(lambda seen, value: [*seen, value["n"]], [])
        .to(queen.queue(f"{name}.sink"))
    )
    runner = await stream.run(query_id=name, url=URL, **QUICKLY)
    for n in range(60):
        await fill(queen, name, {"n": n})
        await asyncio.sleep(0.03)
    seen = await gathered(queen, f"{name}.sink", lambda seen: sum(len(value["value"]) for value in seen) >= 120)
    await runner.stop()
    seen += await drain(queen, f"{name}.sink")
    events = Counter(n for value in seen for n in value["value"])
    assert events == dict.fromkeys(range(60), 2), events
    assert runner.metrics()["errorsTotal"] == 0, runner.metrics()


@check_since(0, 15)
async def sessions_close_when_nothing_comes(queen: Queen, name: str) -> None:
    await fill(queen, name, *({"v": n} for n in range(10)))
    stream = (
        Stream.from_(queen.queue(name))
        .window_session(gap=1, idle_flush_ms=200)
        .reduce(lambda total, value: total + value["v"], 0)
        .to(queen.queue(f"{name}.sink"))
    )
    runner = await stream.run(query_id=name, url=URL, **QUICKLY)
    seen = await gathered(queen, f"{name}.sink", bool)
    await runner.stop()
    assert seen == [{"value": 45}], seen


@check_since(0, 15)
async def a_gate_lets_all_through_in_order(queen: Queen, name: str) -> None:
    await queen.queue(name).config({"leaseTime": 1}).create()
    await fill(queen, name, *({"n": n} for n in range(12)))
    allowed = {"left": 0}

    def gate(_value: object, context: object) -> bool:
        state = context.state
        state["seen"] = state.get("seen", 0) + 1
        if allowed["left"] == 0:
            allowed["left"] = 5  # five pass each time that the rest is delivered again
            return False
        allowed["left"] -= 1
        return True

    allowed["left"] = 5
    stream = Stream.from_(queen.queue(name)).gate(gate).to(queen.queue(f"{name}.sink"))
    runner = await stream.run(query_id=name, url=URL, **QUICKLY)
    seen = await gathered(queen, f"{name}.sink", lambda seen: len(seen) >= 12)
    await runner.stop()
    assert [value["n"] for value in seen] == list(range(12)), seen


@check_since(0, 15)
async def a_restarted_query_goes_on_where_it_was(queen: Queen, name: str) -> None:
    def stream(scale: int) -> Stream:
        source = Stream.from_(queen.queue(name))
        return source.map(lambda message: {"n": message["data"]["n"] * scale}).to(queen.queue(f"{name}.sink"))

    await fill(queen, name, {"n": 1}, {"n": 2})
    runner = await stream(1).run(query_id=name, url=URL, **QUICKLY)
    first = await gathered(queen, f"{name}.sink", lambda seen: len(seen) >= 2)
    await runner.stop()
    await fill(queen, name, {"n": 3})
    runner = await stream(1).run(query_id=name, url=URL, **QUICKLY)
    second = await gathered(queen, f"{name}.sink", bool)
    await runner.stop()
    assert (first, second) == ([{"n": 1}, {"n": 2}], [{"n": 3}])


@check_since(0, 15)
async def another_configuration_is_refused_without_a_reset(queen: Queen, name: str) -> None:
    plain = Stream.from_(queen.queue(name)).map(lambda message: message["data"]).to(queen.queue(f"{name}.sink"))
    runner = await plain.run(query_id=name, url=URL, **QUICKLY)
    await runner.stop()
    other = Stream.from_(queen.queue(name)).window_tumbling(seconds=5).aggregate({"count": lambda _: 1})
    other = other.to(queen.queue(f"{name}.other"))
    try:
        await other.run(query_id=name, url=URL, **QUICKLY)
    except Exception as error:
        assert "config_hash mismatch" in str(error), error
    else:
        raise AssertionError("the configuration was accepted")
    runner = await other.run(query_id=name, url=URL, reset=True, **QUICKLY)
    await runner.stop()


@check_since(0, 15)
async def two_queries_on_one_source_are_independent(queen: Queen, name: str) -> None:
    await fill(queen, name, *({"n": n} for n in range(20)))
    runners = [
        await Stream.from_(queen.queue(name)).to(queen.queue(f"{name}.{which}")).run(f"{name}.{which}", URL, **QUICKLY)
        for which in ("a", "b")
    ]
    for which in ("a", "b"):
        seen = await gathered(queen, f"{name}.{which}", lambda seen: len(seen) >= 20)
        assert [value["n"] for value in seen] == list(range(20))
    for runner in runners:
        await runner.stop()


if __name__ == "__main__":
    play()
