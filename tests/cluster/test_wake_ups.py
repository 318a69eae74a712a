"""Three processes: what happens on one is known on the others long before they would have looked for themselves."""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import time
from collections.abc import Awaitable
from typing import Any

import pytest
from integration.queen import LONG_ENOUGH_MS, Message, ack_op, data, push_op, until

from cluster.processes import Remote

log = logging.getLogger(__name__)

LONG = os.environ.get("QUEEN_LONG", "") not in ("", "0")
ROUNDS = 200 if LONG else 15
AT_ONCE_S = 2.0  # generous on a busy machine; by themselves the polls would look again after a minute
P50_S = 0.005 if LONG else 0.05


async def held(remote: Remote, poll: Awaitable[list[Message]], polls: int = 1) -> asyncio.Task[list[Message]]:
    """A long poll that has looked in vain and waits now."""
    task = asyncio.ensure_future(poll)
    await until(lambda: remote.idle(polls))
    assert not task.done()
    return task  # type: ignore[return-value]


async def at_once(poll: asyncio.Task[list[Message]]) -> list[Any]:
    async with asyncio.timeout(AT_ONCE_S):
        return data(await poll)


async def subscribed(remote: Remote, queue: str, partition: str | None = None) -> None:
    """The queue mode knows the queue, so that a poll looks only once before it waits."""
    await remote.queen.configure(queue)
    await remote.queen.pop(queue, partition)


async def knows_consumers(remote: Remote, queues: int) -> None:
    async def tracked() -> bool:
        return (await remote.figures())["consumer_presence"]["queues_tracked"] >= queues

    await until(tracked)


async def nobody_waits(remotes: list[Remote]) -> None:
    """The consumers of former tests are gone, and everybody has heard of it."""

    async def quiet() -> bool:
        figures = [await remote.figures() for remote in remotes]
        return not any(f["consumer_presence"]["own_queues"] or f["pop_wait"]["waiters"] for f in figures)

    await until(quiet)


class TestAPushWakesAPollOnAnotherServer:
    async def test_of_a_queue(self, remotes: list[Remote]) -> None:
        pusher, *pollers = remotes
        await subscribed(pusher, "plain")
        times = []
        for number in range(ROUNDS):
            poller = pollers[number % len(pollers)]
            poll = await held(poller, poller.queen.wait("plain", autoAck=True))
            await pusher.queen.push("plain", number)
            pushed_at = time.perf_counter()
            assert await at_once(poll) == [number]
            times.append(time.perf_counter() - pushed_at)
        log.info("p50 from the answer to the push to the answer of the poll: %.2f ms", 1000 * statistics.median(times))
        assert statistics.median(times) < P50_S, times

    async def test_of_one_partition(self, remotes: list[Remote]) -> None:
        pusher, poller, other = remotes
        await subscribed(pusher, "divided", "x")
        poll = await held(poller, poller.queen.wait("divided", "x", autoAck=True))
        waits = await held(other, other.queen.wait("divided", "y", autoAck=True, timeout=1500))
        await pusher.queen.push("divided", "for x", partition="x")
        assert await at_once(poll) == ["for x"]
        assert data(await waits) == []

    async def test_of_a_namespace(self, remotes: list[Remote]) -> None:
        pusher, poller, _ = remotes
        await pusher.queen.configure("spaced", namespace="space")
        await pusher.queen.pop_matching(namespace="space")
        params = {"namespace": "space", "wait": True, "timeout": LONG_ENOUGH_MS, "autoAck": True}
        poll = await held(poller, poller.queen.pop_matching(**params))
        await pusher.queen.push("spaced", "out there")
        assert await at_once(poll) == ["out there"]

    async def test_of_a_namespace_through_a_queue_that_is_new(self, remotes: list[Remote]) -> None:
        pusher, poller, _ = remotes
        params = {"namespace": "unheard", "wait": True, "timeout": LONG_ENOUGH_MS, "autoAck": True}
        poll = await held(poller, poller.queen.pop_matching(**params))
        await pusher.queen.configure("unheard.q", namespace="unheard")
        await pusher.queen.push("unheard.q", "first")
        assert await at_once(poll) == ["first"]

    async def test_as_part_of_a_transaction(self, remotes: list[Remote]) -> None:
        pusher, poller, _ = remotes
        await subscribed(pusher, "derived")
        poll = await held(poller, poller.queen.wait("derived", autoAck=True))
        await pusher.queen.transact(push_op("derived", "made"))
        assert await at_once(poll) == ["made"]

    async def test_many_of_them(self, remotes: list[Remote]) -> None:
        """One push with something for everybody wakes everybody, wherever they wait."""
        await subscribed(remotes[0], "shared")
        polls = [await held(r, r.queen.wait("shared", batch=1, autoAck=True)) for r in remotes]
        await remotes[0].queen.push_items(
            *({"queue": "shared", "partition": f"p{n}", "payload": n} for n in range(len(polls)))
        )
        assert sorted([value for poll in polls for value in await at_once(poll)]) == [0, 1, 2]


class TestAFreedPartitionWakesAPollOnAnotherServer:
    @pytest.mark.parametrize("partition", [None, "p"])
    async def test_by_an_ack(self, remotes: list[Remote], partition: str | None) -> None:
        holder, poller, _ = remotes
        queue = f"acked-{partition}"
        await holder.queen.push(queue, "first", "second", partition="p")
        [first] = await holder.queen.pop(queue, "p")
        poll = await held(poller, poller.queen.wait(queue, partition))
        await holder.queen.ack(first)
        assert await at_once(poll) == ["second"]

    @pytest.mark.parametrize("partition", [None, "p"])
    async def test_by_a_transaction(self, remotes: list[Remote], partition: str | None) -> None:
        holder, poller, _ = remotes
        queue = f"transacted-{partition}"
        await holder.queen.push(queue, "first", "second", partition="p")
        [first] = await holder.queen.pop(queue, "p")
        poll = await held(poller, poller.queen.wait(queue, partition))
        await holder.queen.transact(ack_op(first), leases=[first["leaseId"]])
        assert await at_once(poll) == ["second"]

    @pytest.mark.parametrize("partition", [None, "p"])
    async def test_by_an_ack_through_a_third_server(self, remotes: list[Remote], partition: str | None) -> None:
        holder, poller, third = remotes
        queue = f"elsewhere-{partition}"
        await holder.queen.push(queue, "first", "second", partition="p")
        [first] = await holder.queen.pop(queue, "p")
        poll = await held(poller, poller.queen.wait(queue, partition))
        await third.queen.ack(first)
        assert await at_once(poll) == ["second"]

    @pytest.mark.parametrize("partition", [None, "p"])
    async def test_by_a_message_that_is_given_back(self, remotes: list[Remote], partition: str | None) -> None:
        holder, poller, _ = remotes
        queue = f"given-back-{partition}"
        await subscribed(holder, queue, "p")
        await holder.queen.push(queue, "first", partition="p")
        [first] = await holder.queen.pop(queue, "p")
        poll = await held(poller, poller.queen.wait(queue, partition))
        await holder.queen.ack(first, "retry")
        assert await at_once(poll) == ["first"]

    async def test_by_a_seek(self, remotes: list[Remote]) -> None:
        holder, poller, _ = remotes
        await holder.queen.push("sought", "again", partition="p")
        group = {"consumerGroup": "g"}
        [only] = await holder.queen.pop("sought", "p", **group)
        await holder.queen.ack(only)
        poll = await held(poller, poller.queen.wait("sought", "p", **group))
        await holder.queen.seek("g", "sought", timestamp="2020-01-01T00:00:00Z")
        assert await at_once(poll) == ["again"]


class TestWhoIsTold:
    async def test_only_a_server_with_consumers(self, remotes: list[Remote]) -> None:
        pusher, poller, _ = remotes
        await nobody_waits(remotes)
        await subscribed(pusher, "told")
        poll = await held(poller, poller.queen.wait("told", autoAck=True))
        await knows_consumers(pusher, 1)
        before = (await pusher.figures())["consumer_presence"]
        await pusher.queen.push("told", "news")
        assert await at_once(poll) == ["news"]
        after = (await pusher.figures())["consumer_presence"]
        counters = ("notifications_targeted", "notifications_saved", "notifications_broadcast")
        assert [after[name] - before[name] for name in counters] == [1, 1, 0]

    async def test_everybody_while_nothing_is_known(self, remotes: list[Remote]) -> None:
        pusher = remotes[0]
        await nobody_waits(remotes)
        before = (await pusher.figures())["consumer_presence"]
        await pusher.queen.push("untold", "news")
        after = (await pusher.figures())["consumer_presence"]
        assert after["notifications_broadcast"] - before["notifications_broadcast"] == 2

    async def test_nobody_when_the_last_consumer_has_gone(self, remotes: list[Remote]) -> None:
        pusher, poller, _ = remotes
        await nobody_waits(remotes)
        await subscribed(pusher, "left")
        assert await poller.queen.wait("left", timeout=50) == []
        await knows_consumers(pusher, 1)
        before = (await pusher.figures())["consumer_presence"]

        async def saved_both() -> bool:
            """Until its going is told, the poller still counts; each push is told to it or to nobody."""
            earlier = (await pusher.figures())["consumer_presence"]
            await pusher.queen.push("left", "news")
            later = (await pusher.figures())["consumer_presence"]
            return later["notifications_saved"] - earlier["notifications_saved"] == 2

        await until(saved_both)
        after = (await pusher.figures())["consumer_presence"]
        assert after["notifications_broadcast"] == before["notifications_broadcast"]

    async def test_every_path_of_the_contract_shows_the_same(self, remotes: list[Remote]) -> None:
        paths = (
            "/api/v1/system/shared-state",
            "/internal/api/shared-state/stats",
            "/internal/api/inter-instance/stats",
        )
        answers = [(await remotes[0].http.get(path)).json() for path in paths]
        assert {frozenset(answer) for answer in answers} == {frozenset(answers[0])}
        assert answers[0]["enabled"] and answers[0]["running"]
